"""The policy fairgpu-eviction: the timekeeper evicts GPU pods that were given notice, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.pods import Pod, canonical_pod, plain_pod
from tests.waiting import wait_until

NOTICE = {"metadata": {"annotations": {"fairgpu.io/eviction-at": "2026-01-01T00:00:00Z"}}}

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture
def timekeeper(control_plane: ControlPlane) -> Identity:
    return control_plane.service_account("fairgpu-system", "fairgpu-timekeeper")


@pytest.fixture
def create(control_plane: ControlPlane) -> Callable[[str, Pod], str]:
    """Creates a pod in a namespace; its path."""

    def made(namespace: str, pod: Pod) -> str:
        path = f"/api/v1/namespaces/{namespace}/pods"
        control_plane.admin.api.create(path, pod)
        return f"{path}/{pod['metadata']['name']}"

    return made


def evict(caller: Identity, pod: str, *, tried: bool = True) -> None:
    """Evicts, or only tries to."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod.rpartition("/")[2]}}
    caller.api.create(f"{pod}/eviction", eviction, query={"dryRun": "All"} if tried else {})


def refusal(caller: Identity, pod: str) -> str:
    """What the policy says once it has seen the pod: pods reach it by a watch, a moment after they are stored."""

    def said() -> str:
        try:
            evict(caller, pod)
        except ApiError as error:
            return error.message if error.status == 403 and "to evict: " in error.message else ""
        return ""

    return wait_until(said, f"the eviction of {pod} is refused")


def accepted(caller: Identity, pod: str) -> bool:
    try:
        evict(caller, pod)
    except ApiError as error:
        if "fairgpu-eviction" not in error.message:
            raise
        return False
    return True


def test_a_gpu_pod_is_evicted_once_it_has_notice(
    control_plane: ControlPlane, timekeeper: Identity, namespace: str, create: Callable[[str, Pod], str]
) -> None:
    pod = create(namespace, canonical_pod())
    create(namespace, plain_pod())
    message = refusal(timekeeper, pod)
    assert (
        f"pod {namespace}/gpu is not the timekeeper's to evict: it has no notice in fairgpu.io/eviction-at" in message
    )
    timekeeper.api.patch(pod, NOTICE)
    wait_until(lambda: accepted(timekeeper, pod), "the notice is seen")
    evict(timekeeper, pod, tried=False)
    wait_until(lambda: not control_plane.exists(pod), "it is gone")


def without_sidecar() -> Pod:
    """As somebody could make it where the other guards are not bound."""
    pod = plain_pod("gpu")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"fairgpu.io/gpu": "1"}}
    return pod


def named_like_a_sidecar() -> Pod:
    pod = plain_pod("gpu")
    pod["spec"]["initContainers"] = [
        {"name": "fairgpu-sidecar", "image": "example.org/app:1", "restartPolicy": "Always"}
    ]
    pod["spec"]["schedulerName"] = "fairgpu-scheduler"
    return pod


@pytest.mark.parametrize("pod", [plain_pod("gpu"), named_like_a_sidecar()], ids=["plain", "named like a sidecar"])
def test_a_pod_without_a_gpu_is_not_evicted_whatever_it_is_told(
    timekeeper: Identity, namespace: str, create: Callable[[str, Pod], str], pod: Pod
) -> None:
    path = create(namespace, pod)
    timekeeper.api.patch(path, NOTICE)
    assert "it is no GPU pod that FairGPU admitted" in refusal(timekeeper, path)


@pytest.mark.parametrize("pod", [plain_pod("system"), {**without_sidecar(), "metadata": {"name": "system"}}])
def test_pods_of_the_system_are_not_evicted(
    control_plane: ControlPlane, timekeeper: Identity, create: Callable[[str, Pod], str], pod: dict[str, Any]
) -> None:
    path = create("kube-system", pod)
    try:
        timekeeper.api.patch(path, NOTICE)
        assert "it is no GPU pod that FairGPU admitted" in refusal(timekeeper, path)
    finally:
        control_plane.admin.api.delete(path, {"gracePeriodSeconds": 0})


def test_others_evict_as_their_roles_let_them(
    control_plane: ControlPlane, timekeeper: Identity, namespace: str, create: Callable[[str, Pod], str]
) -> None:
    pod = create(namespace, plain_pod())
    refusal(timekeeper, pod)
    evict(control_plane.namespace_admin(namespace), pod)
