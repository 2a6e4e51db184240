"""end_proof: finalizer on the real API server: pods end while no timekeeper watches; none is held a moment too long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from fairgpu.cluster.api import JSON_PATCH, ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.processes import Process, Restartable
from tests.cluster.control_plane.stand_ins import StandInNode, create_node, place
from tests.cluster.pods import canonical_pod, cost
from tests.cluster.services.replicas import timekeeper_jobs
from tests.support.ledger.periods import month_midway
from tests.support.ledger.stored_accounts import open_sessions, spent
from tests.support.ports import free_port
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import wait_until
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import format_instant

pytestmark = pytest.mark.usefixtures("installation")

METER = "fairgpu.io/meter"
RATE = 300_000
LEASE_SECONDS = 5
"""Long enough for a leader on a busy machine, and short enough to wait for once one was killed."""
HOLDING = {"FAIRGPU_TIMEKEEPER_METERING_END_PROOF": "finalizer"}
BY_FORCE = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}

Json = dict[str, Any]


class Team:
    """A namespace with a budget and a node, and its pods, which the webhook would have given the finalizer."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.node: StandInNode = create_node(plane, f"node-{namespace}")
        item = {
            "apiVersion": "fairgpu.io/v1alpha1",
            "kind": "GPUBudget",
            "metadata": {"name": namespace},
            "spec": {"namespaces": [namespace], "allowance": {"gpuHours": 10}, "period": month_midway()},
        }
        plane.admin.api.create("/apis/fairgpu.io/v1alpha1/gpubudgets", item)

    def create(self, name: str, **metadata: Any) -> Json:
        pod = canonical_pod(name)
        pod["metadata"] |= {"finalizers": [METER], **metadata}
        return self.plane.admin.api.create(self.pods, pod)

    def run(self, name: str, **metadata: Any) -> None:
        created = self.create(name, **metadata)
        scheduler = self.plane.service_account("fairgpu-system", "fairgpu-scheduler")
        place(scheduler, created, self.node.name)
        self.node.set_pod_phase(self.namespace, name, "Running")

    def finish(self, name: str, seconds_later: int = 0) -> None:
        at = format_instant(time.time_ns() + seconds_later * SECOND)
        self.node.set_pod_phase(self.namespace, name, "Succeeded", at)

    def delete(self, name: str, options: Json | None = None) -> None:
        self.plane.admin.api.delete(f"{self.pods}/{name}", options)

    def read(self, name: str) -> Json:
        return self.plane.admin.api.get(f"{self.pods}/{name}")

    def gone(self, *names: str) -> Callable[[], bool]:
        return lambda: not any(self.plane.exists(f"{self.pods}/{name}") for name in names)


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def holding(control_plane: ControlPlane, redis_server: RedisServer) -> Iterator[Restartable]:
    """The process that does the jobs, which holds pods until they are settled."""

    def start() -> AbstractContextManager[Process]:
        return timekeeper_jobs(control_plane, "held", free_port(), redis_server.url, LEASE_SECONDS, **HOLDING)

    with Restartable(start) as jobs:
        yield jobs


@pytest.fixture
def team(control_plane: ControlPlane, namespace: str) -> Team:
    return Team(control_plane, namespace)


def test_pods_that_end_while_nobody_watches_are_charged_to_the_last_unit_and_released(
    team: Team, redis_server: RedisServer, holding: Restartable
) -> None:
    for name in ("finished", "deleted", "forced"):
        team.run(name)
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 3, "all are on the meter")
    holding.process.popen.kill()
    with holding.away():
        team.run("never-seen")
        second = time.time_ns() // SECOND
        wait_until(lambda: time.time_ns() // SECOND >= second + 2, "some time is charged")
        for name in ("finished", "never-seen"):
            team.finish(name)
            team.delete(name)
        team.delete("deleted")
        team.finish("deleted")
        team.node.remove_pod(team.namespace, "deleted")
        team.delete("forced", BY_FORCE)
        expected = sum(cost(team.read(name), RATE) for name in ("finished", "never-seen", "deleted", "forced"))
        assert all(METER in team.read(name)["metadata"]["finalizers"] for name in ("finished", "deleted", "forced"))
    wait_until(team.gone("finished", "never-seen", "deleted", "forced"), "all are let go")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 0, "all are closed")
    assert spent(redis_server, team.namespace) == expected > 0


def test_a_pod_that_waits_or_runs_is_held_and_neither_a_namespace_nor_an_owner_waits_longer_than_its_pods(
    control_plane: ControlPlane, redis_server: RedisServer, holding: Restartable
) -> None:
    assert holding
    namespace = control_plane.create_namespace()
    team = Team(control_plane, namespace)
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    owner = control_plane.admin.api.create(
        path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
    )
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": True,
    }
    team.run("owned", ownerReferences=[reference])
    team.run("runs")
    team.create("waits")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 2, "both are on the meter")
    control_plane.admin.api.delete(f"{path}/owner", {"propagationPolicy": "Foreground"})
    wait_until(lambda: "deletionTimestamp" in team.read("owned")["metadata"], "the garbage collector deletes it")
    assert METER in team.read("owned")["metadata"]["finalizers"]
    team.finish("owned")
    team.node.remove_pod(namespace, "owned")
    wait_until(lambda: not control_plane.exists(f"{path}/owner"), "the owner is gone")
    control_plane.admin.api.delete(f"/api/v1/namespaces/{namespace}")
    wait_until(team.gone("waits"), "the pod that held nothing is let go")
    wait_until(lambda: "deletionTimestamp" in team.read("runs")["metadata"], "the other is being deleted")
    assert METER in team.read("runs")["metadata"]["finalizers"]
    team.finish("runs")
    team.node.remove_pod(namespace, "runs")
    wait_until(lambda: not control_plane.exists(f"/api/v1/namespaces/{namespace}"), "the namespace is gone")


def test_a_pod_on_a_dead_node_goes_once_it_is_deleted_by_force(
    control_plane: ControlPlane, team: Team, redis_server: RedisServer, holding: Restartable
) -> None:
    assert holding
    team.run("stranded")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 1, "it is on the meter")
    collector = control_plane.service_account("kube-system", "pod-garbage-collector")
    team.delete("stranded")
    assert METER in team.read("stranded")["metadata"]["finalizers"]
    collector.api.delete(f"{team.pods}/stranded", BY_FORCE)
    wait_until(team.gone("stranded"), "it is let go")
    wait_until(lambda: open_sessions(redis_server, team.namespace) == 0, "it is closed")


def test_switching_it_off_lets_running_pods_go(
    control_plane: ControlPlane, team: Team, redis_server: RedisServer, holding: Restartable
) -> None:
    team.run("runs")
    with holding.away(), timekeeper_jobs(control_plane, "not-held", free_port(), redis_server.url, LEASE_SECONDS):
        wait_until(lambda: METER not in team.read("runs")["metadata"].get("finalizers", []), "its finalizer is off")
        assert team.read("runs")["status"]["phase"] == "Running"


@pytest.mark.parametrize("who", ["namespace admin", "cluster admin", "kubelet", "garbage collector", "job controller"])
@pytest.mark.parametrize("subresource", ["", "/status"])
def test_no_account_but_the_timekeeper_takes_a_pod_from_the_meter(
    control_plane: ControlPlane, team: Team, who: str, subresource: str
) -> None:
    callers = {
        "namespace admin": lambda: control_plane.namespace_admin(team.namespace),
        "cluster admin": lambda: control_plane.admin,
        "kubelet": lambda: team.node.kubelet,
        "garbage collector": lambda: control_plane.service_account("kube-system", "generic-garbage-collector"),
        "job controller": lambda: control_plane.service_account("kube-system", "job-controller"),
    }
    team.run("runs")
    timekeeper = control_plane.service_account("fairgpu-system", "fairgpu-timekeeper")
    removal = [{"op": "remove", "path": "/metadata/finalizers"}]
    try:
        with pytest.raises(ApiError) as refusal:
            callers[who]().api.patch(f"{team.pods}/runs{subresource}", removal, JSON_PATCH)
        assert refusal.value.status == 403
        assert METER in team.read("runs")["metadata"]["finalizers"]
    finally:
        timekeeper.api.patch(f"{team.pods}/runs", removal, JSON_PATCH)
