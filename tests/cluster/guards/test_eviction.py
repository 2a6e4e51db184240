"""The policy fairgpu-eviction: timekeeper and scheduler evict what they have read as GPU pods, none of the system's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.pods import Pod, canonical_pod, plain_pod
from tests.support.waiting import wait_until

GPU = {"fairgpu.io/pod": "gpu"}

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


def evict(
    caller: Identity,
    pod: str,
    labels: dict[str, str] | None = None,
    *,
    tried: bool = False,
    notice: dict[str, str] | None = None,
) -> None:
    """Evicts, or only tries to."""
    metadata = {"name": pod.rpartition("/")[2], "labels": labels or {}, "annotations": notice or {}}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    caller.api.create(f"{pod}/eviction", eviction, query={"dryRun": "All"} if tried else {})


def refusal(caller: Identity, pod: str, labels: dict[str, str] | None = None) -> str:
    with pytest.raises(ApiError, match="fairgpu-eviction") as refused:
        evict(caller, pod, labels)
    assert refused.value.status == 403
    return refused.value.message


def test_a_gpu_pod_is_evicted_with_its_label(
    control_plane: ControlPlane, timekeeper: Identity, namespace: str, create: Callable[[str, Pod], str]
) -> None:
    """As soon as it is there: no policy waits for a watch."""
    pod = create(namespace, canonical_pod())
    evict(timekeeper, pod, GPU)
    wait_until(lambda: not control_plane.exists(pod), "it is gone")


@pytest.mark.parametrize("labels", [{}, {"fairgpu.io/pod": "cpu"}], ids=["none", "another"])
def test_without_the_label_nothing_is_evicted(
    control_plane: ControlPlane,
    timekeeper: Identity,
    namespace: str,
    create: Callable[[str, Pod], str],
    labels: dict[str, str],
) -> None:
    pod = create(namespace, plain_pod("gpu"))
    message = refusal(timekeeper, pod, labels)
    account = "system:serviceaccount:fairgpu-system:fairgpu-timekeeper"
    assert f"pod {namespace}/gpu is not for {account} to evict: the eviction does not bear its label" in message
    assert control_plane.exists(pod)


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "kube-node-lease"])
def test_pods_of_the_system_are_not_evicted(
    control_plane: ControlPlane, timekeeper: Identity, create: Callable[[str, Pod], str], namespace: str
) -> None:
    path = create(namespace, plain_pod("system"))
    try:
        assert "no pod of the system is" in refusal(timekeeper, path, GPU)
    finally:
        control_plane.admin.api.delete(path, {"gracePeriodSeconds": 0})


def test_the_scheduler_evicts_gpu_pods_with_its_notice_alone(
    control_plane: ControlPlane, namespace: str, create: Callable[[str, Pod], str]
) -> None:
    scheduler = control_plane.service_account("fairgpu-system", "fairgpu-scheduler")
    pod = create(namespace, canonical_pod())
    assert "the eviction does not bear its notice fairgpu.io/reclaim-at" in refusal(scheduler, pod, GPU)
    evict(scheduler, pod, GPU, notice={"fairgpu.io/reclaim-at": "2026-01-01T00:00:00Z"})
    wait_until(lambda: not control_plane.exists(pod), "it is gone")


def test_others_evict_as_their_roles_let_them(
    control_plane: ControlPlane, namespace: str, create: Callable[[str, Pod], str]
) -> None:
    evict(control_plane.namespace_admin(namespace), create(namespace, plain_pod()), tried=True)
