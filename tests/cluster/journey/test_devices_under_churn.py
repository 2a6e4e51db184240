"""No device is given beyond what it has, and none is lost, while pods come and go and a replica is killed."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, create_node
from tests.cluster.journey.manifests import pod
from tests.cluster.services.everything import Services
from tests.cluster.services.scheduler import Scheduler, scheduler_pods, scheduler_replica
from tests.support.randomness import chance
from tests.support.waiting import wait_until

NODES, GPUS, STEPS = 3, 2, 60


@pytest.fixture
def leader(control_plane: ControlPlane, services: Services) -> Iterator[Scheduler]:
    """The replica that leads, with another one that waits for its end."""
    first, second = scheduler_pods(control_plane)
    with (
        scheduler_replica(control_plane, first, services.timekeeper) as replica,
        scheduler_replica(control_plane, second, services.timekeeper),
    ):
        wait_until(lambda: replica.leads(control_plane), "the first replica leads")
        yield replica


def test_no_device_is_given_twice_and_none_is_lost(
    control_plane: ControlPlane, user: Identity, namespace: str, leader: Scheduler
) -> None:
    random = chance(1313)
    nodes = {f"n{at}-{namespace}" for at in range(NODES)}
    stand_ins = {name: create_node(control_plane, name, gpus=GPUS) for name in sorted(nodes)}
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for step in range(STEPS):
        if step == STEPS // 2:
            leader.signal(signal.SIGKILL)
        if random.random() < 0.7:
            user.api.create(pods, manifest(random, f"p{step}", sorted(nodes)))
        else:
            take_one(random, user, namespace, stand_ins)
        assert over_capacity(user, pods) == {}

    take_all(user, namespace, stand_ins)
    for number in range(NODES * GPUS):
        user.api.create(pods, manifest(random, f"whole-{number}", sorted(nodes), core=100))
    wait_until(lambda: len(held(user, pods)) == NODES * GPUS, "every device is given again, once")
    assert over_capacity(user, pods) == {}


def manifest(random: Random, name: str, nodes: list[str], core: int = 0) -> dict[str, Any]:
    """A pod for the test's nodes; of any share where none is given, and perhaps of a gang of two."""
    chosen = core or random.choice([20, 50, 60, 100])
    annotations = {} if core or random.random() < 0.7 else {"fairgpu.io/gang": "pair/2"}
    made = pod(name, {"fairgpu.io/gpu-core": chosen}, annotations)
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    made["spec"]["affinity"] = {"nodeAffinity": required}
    return made


def take_one(random: Random, user: Identity, namespace: str, nodes: dict[str, StandInNode]) -> None:
    """Deletes one pod, wherever it is on its way."""
    items = user.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    there = [item for item in items if "deletionTimestamp" not in item["metadata"]]
    if there:
        take(user, random.choice(there), nodes)


def take_all(user: Identity, namespace: str, nodes: dict[str, StandInNode]) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"

    def none_left() -> bool:
        items = user.api.get(pods)["items"]
        for item in items:
            take(user, item, nodes)
        return not items

    wait_until(none_left, "all pods are gone")


def take(user: Identity, item: dict[str, Any], nodes: dict[str, StandInNode]) -> None:
    metadata = item["metadata"]
    if "deletionTimestamp" not in metadata:
        user.api.delete(f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}")
    found = user.api.get(f"/api/v1/namespaces/{metadata['namespace']}/pods")["items"]
    for now in (one for one in found if one["metadata"]["uid"] == metadata["uid"]):
        if now["spec"].get("nodeName") and now["metadata"].get("deletionGracePeriodSeconds"):
            nodes[now["spec"]["nodeName"]].remove_pod(metadata["namespace"], metadata["name"])


def held(user: Identity, pods: str) -> Counter[str]:
    """The percent of GPU time that pods hold of each device."""
    found: Counter[str] = Counter()
    for item in user.api.get(pods)["items"]:
        if item["spec"].get("nodeName"):
            allocation = json.loads(item["metadata"]["annotations"]["fairgpu.io/allocation"])
            for container in allocation["containers"]:
                for device in container["devices"]:
                    found[device["uuid"]] += device["core"]
    return found


def over_capacity(user: Identity, pods: str) -> dict[str, int]:
    return {uuid: core for uuid, core in held(user, pods).items() if core > 100}
