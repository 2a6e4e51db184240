"""Gangs on a real kube-scheduler: all of their pods are bound, or none is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, create_node
from tests.cluster.journey.manifests import pod
from tests.cluster.services.everything import Services
from tests.cluster.services.scheduler import running_scheduler
from tests.support.waiting import wait_until


@pytest.fixture(scope="module", autouse=True)
def scheduler(control_plane: ControlPlane, services: Services) -> Iterator[None]:
    with running_scheduler(control_plane, services.timekeeper):
        yield


def member(node: StandInNode, name: str, gang: str, core: int = 100) -> dict[str, Any]:
    """A pod of a gang for one node."""
    manifest = pod(name, {"fairgpu.io/gpu-core": core}, {"fairgpu.io/gang": gang})
    manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node.name}
    return manifest


def test_no_pod_of_a_gang_is_bound_before_all_of_them_can_be(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    node = create_node(control_plane, f"gang-{namespace}", gpus=4)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    user.api.create(pods, member(node, "alone", "other/1"))
    wait_until(lambda: _bound(user, pods) == ["alone"], "the GPU is taken")
    for number in range(3):
        user.api.create(pods, member(node, f"train-{number}", "train/4"))
    # The answer about each said how many there were then.
    refused = [f"{pods}/train-{number}" for number in range(3)]
    wait_until(
        lambda: all("of 4 pods are there" in waiting_message(user, path) for path in refused), "they wait for one more"
    )
    user.api.create(pods, member(node, "train-3", "train/4"))
    wait_until(
        lambda: "gang: 3 of 4 fit" in waiting_message(user, f"{pods}/train-3"), "all are there, and one fits nowhere"
    )
    assert _bound(user, pods) == ["alone"]

    user.api.delete(f"{pods}/alone")
    node.remove_pod(namespace, "alone")

    wait_until(lambda: _bound(user, pods) == [f"train-{number}" for number in range(4)], "the whole gang is bound")


def test_two_gangs_that_come_at_once_are_each_bound_as_a_whole(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    node = create_node(control_plane, f"gang-{namespace}", gpus=6)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for number in range(4):
        for gang in ("first", "second"):
            user.api.create(pods, member(node, f"{gang}-{number}", f"{gang}/4"))

    wait_until(lambda: len(_bound(user, pods)) == 4, "one gang is bound")
    [winner] = {name.partition("-")[0] for name in _bound(user, pods)}
    loser = "second" if winner == "first" else "first"
    refused = [f"{pods}/{loser}-{number}" for number in range(4)]
    wait_until(lambda: all("gang: " in waiting_message(user, path) for path in refused), "the other waits as a whole")
    for number in range(4):
        user.api.delete(f"{pods}/{winner}-{number}")
        node.remove_pod(namespace, f"{winner}-{number}")

    wait_until(lambda: _bound(user, pods) == [f"{loser}-{number}" for number in range(4)], "the other is bound")


def _bound(user: Identity, pods: str) -> list[str]:
    return sorted(item["metadata"]["name"] for item in user.api.get(pods)["items"] if item["spec"].get("nodeName"))


def waiting_message(user: Identity, path: str) -> str:
    """Why kube-scheduler says that a pod waits."""
    conditions = user.api.get(path).get("status", {}).get("conditions", [])
    return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")
