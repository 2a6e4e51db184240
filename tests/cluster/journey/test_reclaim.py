"""A pod of a spent budget makes room for one within its budget: notice, end, and its own place later."""

from __future__ import annotations

import json
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

RECLAIM_AT, EARMARK = "fairgpu.io/reclaim-at", "fairgpu.io/earmark"


@pytest.fixture(scope="module", autouse=True)
def scheduler(control_plane: ControlPlane, services: Services) -> Iterator[None]:
    with running_scheduler(control_plane, services.timekeeper, {"FAIRGPU_SCHEDULER_RECLAIM_NOTICE_SECONDS": "3"}):
        yield


def on(node: StandInNode, name: str) -> dict[str, Any]:
    manifest = pod(name, {"fairgpu.io/gpu-core": 100})
    manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node.name}
    return manifest


def test_a_pod_of_a_spent_budget_goes_with_notice_and_is_placed_again_when_there_is_room(
    control_plane: ControlPlane, user: Identity, spent: Identity, spent_namespace: str, namespace: str
) -> None:
    node = create_node(control_plane, f"one-{namespace}", gpus=1)
    theirs, ours = f"/api/v1/namespaces/{spent_namespace}/pods", f"/api/v1/namespaces/{namespace}/pods"
    over = spent.api.create(theirs, on(node, "over"))
    wait_until(lambda: _node(spent, f"{theirs}/over"), "it is placed as long as no other pod waits")

    user.api.create(ours, on(node, "within"))
    notice = wait_until(lambda: _annotation(spent, f"{theirs}/over", RECLAIM_AT), "it gets notice")
    earmark = json.loads(user.api.get(f"{ours}/within")["metadata"]["annotations"][EARMARK])
    assert earmark["node"] == node.name
    assert earmark["victims"] == [over["metadata"]["uid"]]
    assert [device["uuid"] for device in earmark["devices"]] == [f"GPU-{node.name}-0"]
    wait_until(lambda: _notice_is_shown(control_plane, spent_namespace, notice), "an event says so")
    wait_until(lambda: "deletionTimestamp" in spent.api.get(f"{theirs}/over")["metadata"], "it is evicted")
    node.remove_pod(spent_namespace, "over")
    wait_until(lambda: _node(user, f"{ours}/within") == node.name, "the other is placed on what it held")

    wait_until(lambda: not control_plane.exists(f"{theirs}/over"), "its session is settled, and it is gone")
    spent.api.create(theirs, on(node, "over"))
    user.api.delete(f"{ours}/within")
    node.remove_pod(namespace, "within")
    wait_until(lambda: _node(spent, f"{theirs}/over") == node.name, "it is placed again")


def test_a_pod_disruption_budget_keeps_a_pod_and_the_notice_goes_when_the_need_does(
    control_plane: ControlPlane, user: Identity, spent: Identity, spent_namespace: str, namespace: str
) -> None:
    node = create_node(control_plane, f"one-{namespace}", gpus=1)
    theirs, ours = f"/api/v1/namespaces/{spent_namespace}/pods", f"/api/v1/namespaces/{namespace}/pods"
    keeps = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keeps"}}
    selects = {"minAvailable": 1, "selector": {"matchLabels": {"fairgpu.io/pod": "gpu"}}}
    path = f"/apis/policy/v1/namespaces/{spent_namespace}/poddisruptionbudgets"
    control_plane.admin.api.create(path, keeps | {"spec": selects})
    spent.api.create(theirs, on(node, "over"))
    wait_until(lambda: _node(spent, f"{theirs}/over"), "it is placed")
    node.set_pod_phase(spent_namespace, "over", "Running")

    user.api.create(ours, on(node, "within"))
    wait_until(lambda: _annotation(spent, f"{theirs}/over", RECLAIM_AT), "it gets notice")
    extender = control_plane.folder.glob("extender-*.log")
    logs = list(extender)
    wait_until(lambda: any("victim not evicted" in log.read_text() for log in logs), "its eviction is refused")
    assert "deletionTimestamp" not in spent.api.get(f"{theirs}/over")["metadata"]

    user.api.delete(f"{ours}/within")
    wait_until(lambda: not _annotation(spent, f"{theirs}/over", RECLAIM_AT), "the notice is called off")


def _node(user: Identity, path: str) -> str:
    return str(user.api.get(path)["spec"].get("nodeName") or "")


def _annotation(user: Identity, path: str, key: str) -> str:
    return str(user.api.get(path)["metadata"].get("annotations", {}).get(key) or "")


def _notice_is_shown(plane: ControlPlane, namespace: str, at: str) -> bool:
    events = plane.admin.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    return any(one["reason"] == "PodReclaimNotice" and at in one["message"] for one in events)
