"""No device is given beyond what it has, and none is lost.

Pods come and go, answers of the API server are lost on their way to the extenders, and leaders are killed and begin
anew, each at random.
"""

from __future__ import annotations

import json
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, create_node
from tests.cluster.journey.manifests import pod
from tests.cluster.services.everything import Services
from tests.cluster.services.relay import Relay, through
from tests.cluster.services.replicas import environment
from tests.cluster.services.scheduler import Scheduler, scheduler_pods, scheduler_replica
from tests.support.randomness import chance
from tests.support.waiting import wait_until

NODES, GPUS, MEMORY_MIB, STEPS, KILLS = 3, 2, 81920, 60, 2


class Replicas:
    """Both replicas of the scheduler; their extenders reach the API server through a relay that loses answers."""

    def __init__(self, plane: ControlPlane, timekeeper: int, relay: Relay) -> None:
        self._plane, self._timekeeper = plane, timekeeper
        self._relayed = {"KUBECONFIG": str(through(relay, Path(environment(plane, "fairgpu-scheduler")["KUBECONFIG"])))}
        self._running: dict[str, tuple[Scheduler, ExitStack]] = {}

    def start(self, pod: str) -> None:
        """Starts the replica of a pod."""
        with ExitStack() as stack:
            replica = scheduler_replica(self._plane, pod, self._timekeeper, self._relayed)
            self._running[pod] = stack.enter_context(replica), stack.pop_all()

    def kill_leader(self) -> None:
        """Ends the replica that leads with SIGKILL, and starts it again."""
        leader = wait_until(self.leader, "a replica leads")
        leader.signal(signal.SIGKILL)
        self._running.pop(leader.pod)[1].close()
        self.start(leader.pod)

    def leader(self) -> Scheduler | None:
        """The replica that leads."""
        return next((replica for replica, _ in self._running.values() if replica.leads(self._plane)), None)

    def close(self) -> None:
        """Ends what runs."""
        for _, stack in self._running.values():
            stack.close()


@pytest.fixture
def relay(control_plane: ControlPlane) -> Iterator[Relay]:
    with closing(Relay(control_plane, chance(1314))) as running:
        yield running


@pytest.fixture
def replicas(control_plane: ControlPlane, services: Services, relay: Relay) -> Iterator[Replicas]:
    with closing(Replicas(control_plane, services.timekeeper, relay)) as both:
        for name in scheduler_pods(control_plane):
            both.start(name)
        wait_until(both.leader, "a replica leads")
        yield both


def test_no_device_is_given_twice_and_none_is_lost(
    control_plane: ControlPlane, user: Identity, namespace: str, replicas: Replicas, relay: Relay
) -> None:
    random = chance(1313)
    nodes = {f"n{at}-{namespace}" for at in range(NODES)}
    stand_ins = {name: create_node(control_plane, name, GPUS, MEMORY_MIB) for name in sorted(nodes)}
    pods = f"/api/v1/namespaces/{namespace}/pods"
    kills = set(random.sample(range(STEPS), KILLS))
    with relay.losing(0.2):
        for step in range(STEPS):
            if step in kills:
                # The longer the list of all pods, which a new replica needs, the less likely it arrives whole.
                with relay.losing(0.0):
                    replicas.kill_leader()
            if random.random() < 0.7:
                user.api.create(pods, manifest(random, f"p{step}", sorted(nodes)))
            else:
                take_one(random, user, namespace, stand_ins)
            assert over_capacity(user, pods) == {}
    assert relay.lost > 0, "no answer was lost"

    take_all(user, namespace, stand_ins)
    for number in range(NODES * GPUS):
        user.api.create(pods, manifest(random, f"whole-{number}", sorted(nodes), core=100))
    wait_until(lambda: len(held(user, pods)) == NODES * GPUS, "every device is given again, once")
    assert over_capacity(user, pods) == {}


def manifest(random: Random, name: str, nodes: list[str], core: int = 0) -> dict[str, Any]:
    """A pod for the test's nodes; of any share where none is given, and perhaps of a gang of two."""
    chosen = core or random.choice([20, 50, 60, 100])
    annotations = {} if core or random.random() < 0.7 else {"fairgpu.io/gang": "pair/2"}
    memory = core or random.choice([10, 50, 70])
    made = pod(name, {"fairgpu.io/gpu-core": chosen, "fairgpu.io/gpu-memory-percentage": memory}, annotations)
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    made["spec"]["affinity"] = {"nodeAffinity": required}
    return made


def take_one(random: Random, user: Identity, namespace: str, nodes: dict[str, StandInNode]) -> None:
    """Deletes one pod, wherever it is on its way.

    A pod that is bound at the same moment stays: the API server has decided by then that an unbound pod ends at once,
    and a policy refuses that for a pod on a node.
    """
    items = user.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    there = [item for item in items if "deletionTimestamp" not in item["metadata"]]
    if there:
        with suppress_if_just_bound():
            take(user, random.choice(there), nodes)


def take_all(user: Identity, namespace: str, nodes: dict[str, StandInNode]) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"

    def none_left() -> bool:
        items = user.api.get(pods)["items"]
        for item in items:
            with suppress_if_just_bound():
                take(user, item, nodes)
        return not items

    wait_until(none_left, "all pods are gone")


@contextmanager
def suppress_if_just_bound() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.status != 403 or "fairgpu-deletion" not in error.message:
            raise


def take(user: Identity, item: dict[str, Any], nodes: dict[str, StandInNode]) -> None:
    metadata = item["metadata"]
    if "deletionTimestamp" not in metadata:
        user.api.delete(f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}")
    found = user.api.get(f"/api/v1/namespaces/{metadata['namespace']}/pods")["items"]
    for now in (one for one in found if one["metadata"]["uid"] == metadata["uid"]):
        if now["spec"].get("nodeName") and now["metadata"].get("deletionGracePeriodSeconds"):
            nodes[now["spec"]["nodeName"]].remove_pod(metadata["namespace"], metadata["name"])


def held(user: Identity, pods: str) -> dict[str, Counter[str]]:
    """The percent of GPU time and the MiB of memory that pods hold of each device."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for item in user.api.get(pods)["items"]:
        if item["spec"].get("nodeName"):
            allocation = json.loads(item["metadata"]["annotations"]["fairgpu.io/allocation"])
            for container in allocation["containers"]:
                for device in container["devices"]:
                    found[device["uuid"]].update(core=device["core"], memory=device["memoryMiB"])
    return found


def over_capacity(user: Identity, pods: str) -> dict[str, Counter[str]]:
    """Returns the held part of each device of which more is held than it has."""
    most = Counter(core=100, memory=MEMORY_MIB)
    return {uuid: counted for uuid, counted in held(user, pods).items() if not counted <= most}
