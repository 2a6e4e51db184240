"""Pods that would reach around the node agent, tried by the admin of a namespace under Pod Security `baseline`."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.pods import Pod, canonical_pod, plain_pod

DRY_RUN = {"dryRun": "All"}
BASELINE = {"pod-security.kubernetes.io/enforce": "baseline"}
FOLDERS = (
    "/run/fairgpu-nodeagent",
    "/var/lib/fairgpu-nodeagent",
    "/var/run/cdi",
    "/etc/cdi",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet/pod-resources",
    "/var/lib/kubelet/pods",
    "/run/containerd/containerd.sock",
    "/proc",
    "/",
    "/dev",
    "/dev/null",
)

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture(scope="module")
def namespace(control_plane: ControlPlane) -> str:
    return control_plane.create_namespace(labels=BASELINE)


@pytest.fixture(scope="module")
def editor(control_plane: ControlPlane, namespace: str) -> Identity:
    return control_plane.namespace_admin(namespace)


def mounting(pod: Pod, path: str) -> Pod:
    pod["spec"].setdefault("volumes", []).append({"name": "host", "hostPath": {"path": path}})
    return pod


def secured(pod: Pod, **security: Any) -> Pod:
    pod["spec"]["containers"][0]["securityContext"] = security
    return pod


def seeing_processes(pod: Pod) -> Pod:
    pod["spec"]["hostPID"] = True
    return pod


def said(who: Identity, pods: str, pod: Pod) -> str:
    with pytest.raises(ApiError) as refusal:
        who.api.create(pods, pod, DRY_RUN)
    assert refusal.value.status == 403
    return refusal.value.message


@pytest.mark.parametrize("make", [canonical_pod, plain_pod])
@pytest.mark.parametrize("path", FOLDERS)
def test_no_folder_of_the_node_is_mounted_with_a_gpu_or_without(
    editor: Identity, pods: str, make: Any, path: str
) -> None:
    assert 'violates PodSecurity "baseline' in said(editor, pods, mounting(make(), path))


@pytest.mark.parametrize("make", [canonical_pod, plain_pod])
def test_no_container_gets_the_rights_of_the_node(editor: Identity, pods: str, make: Any) -> None:
    for pod, word in (
        (secured(make(), privileged=True), "privileged"),
        (secured(make(), capabilities={"add": ["SYS_ADMIN"]}), "SYS_ADMIN"),
        (seeing_processes(make()), "hostPID=true"),
    ):
        message = said(editor, pods, pod)
        assert 'violates PodSecurity "baseline' in message
        assert word in message


def test_a_gpu_pod_as_the_webhook_makes_it_is_created_there(editor: Identity, pods: str) -> None:
    editor.api.create(pods, canonical_pod(), DRY_RUN)
