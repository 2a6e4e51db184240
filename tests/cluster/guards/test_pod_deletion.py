"""The policy fairgpu-deletion, tried by somebody who may do everything inside one namespace."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, bind, place
from tests.cluster.pods import canonical_pod, plain_pod

FORCE = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
AT_ONCE = {**FORCE, "gracePeriodSeconds": 1}

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture
def running(control_plane: ControlPlane, editor: Identity, namespace: str, pods: str, node: StandInNode) -> str:
    """The path of a GPU pod that runs on a node."""
    pod = editor.api.create(pods, canonical_pod())
    scheduler = control_plane.service_account("fairgpu-system", "fairgpu-scheduler")
    place(scheduler, pod, node.name)
    node.set_pod_phase(namespace, "gpu", "Running")
    return f"{pods}/gpu"


def eviction(pod: str, options: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}, "deleteOptions": options}


def test_a_running_gpu_pod_is_not_deleted_by_force(editor: Identity, control_plane: ControlPlane, running: str) -> None:
    with pytest.raises(ApiError, match="fairgpu-deletion") as refusal:
        editor.api.delete(running, FORCE)
    assert refusal.value.status == 403
    assert f"gracePeriodSeconds: 0 given by {editor.name}" in refusal.value.message
    assert "give 1 or more" in refusal.value.message
    assert control_plane.exists(running)


def test_nor_all_pods_of_the_namespace_together(editor: Identity, control_plane: ControlPlane, running: str) -> None:
    with pytest.raises(ApiError, match="fairgpu-deletion"):
        editor.api.delete(running.removesuffix("/gpu"), FORCE)
    assert control_plane.exists(running)


def test_nor_by_an_eviction_that_brings_its_own_options(
    editor: Identity, control_plane: ControlPlane, running: str
) -> None:
    with pytest.raises(ApiError, match="fairgpu-forced-eviction"):
        editor.api.create(f"{running}/eviction", eviction("gpu", FORCE))
    assert control_plane.exists(running)


def test_nor_once_it_is_being_deleted(editor: Identity, control_plane: ControlPlane, running: str) -> None:
    editor.api.delete(running)
    with pytest.raises(ApiError, match="fairgpu-deletion"):
        editor.api.delete(running, FORCE)
    assert control_plane.exists(running)


def test_it_is_deleted_within_a_second_and_evicted_as_ever(
    editor: Identity, control_plane: ControlPlane, running: str, namespace: str, node: StandInNode
) -> None:
    editor.api.create(f"{running}/eviction", eviction("gpu", {}))
    editor.api.delete(running, AT_ONCE)
    assert editor.api.get(running)["metadata"]["deletionGracePeriodSeconds"] == 1
    node.remove_pod(namespace, "gpu")
    assert not control_plane.exists(running)


def test_one_that_has_ended_is_the_users_to_remove_by_force(
    editor: Identity, control_plane: ControlPlane, running: str, namespace: str, node: StandInNode
) -> None:
    node.set_pod_phase(namespace, "gpu", "Succeeded")
    editor.api.delete(running, FORCE)
    assert not control_plane.exists(running)


def test_so_is_one_that_waits_for_a_node(editor: Identity, control_plane: ControlPlane, pods: str) -> None:
    editor.api.create(pods, canonical_pod(gated=True))
    editor.api.delete(f"{pods}/gpu", FORCE)
    assert not control_plane.exists(f"{pods}/gpu")


def test_a_pod_without_a_gpu_is_deleted_by_force_as_ever(
    editor: Identity, control_plane: ControlPlane, pods: str, node: StandInNode
) -> None:
    scheduler = control_plane.service_account("fairgpu-system", "fairgpu-scheduler")
    bind(scheduler, editor.api.create(pods, plain_pod()), node.name, None)
    editor.api.delete(f"{pods}/plain", FORCE)
    assert not control_plane.exists(f"{pods}/plain")


@pytest.mark.parametrize("account", ["pod-garbage-collector", "node-controller"])
def test_the_controllers_that_clear_lost_nodes_still_delete_by_force(
    control_plane: ControlPlane, running: str, account: str
) -> None:
    control_plane.service_account("kube-system", account).api.delete(running, FORCE)
    assert not control_plane.exists(running)
