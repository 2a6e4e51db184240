"""One pod that cannot be written, against an HTTP server, with the leader's work on a real store."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from fairgpu.cluster.api import PATCH_FAILED
from fairgpu.leadership import Term
from tests.support.ledger.fake_cluster import budget_object
from tests.support.ledger.harness import NOON, LedgerHarness
from tests.support.servers.pod_server import PodServer
from tests.support.waiting import wait_until
from timekeeper.controller.leader_tasks import LeaderTasks, TaskEnvironment
from timekeeper.controller.metrics import JobMeasures
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import SECOND
from timekeeper.sources import kubernetes
from timekeeper.sources.base import (
    BlockedError,
    ChangedMeanwhileError,
    Mirrors,
    NotWrittenError,
    RefusedError,
    SourceError,
)
from timekeeper.sources.kubernetes import KubernetesSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from tests.support.servers.redis_server import RedisServer

HOUR = 3600
TOO_LARGE = {"reason": "InternalError", "message": "etcdserver: request is too large"}
GATE = [{"name": "fairgpu.io/budget"}]


class Leader:
    """A leader whose API server is the pod server; what it sees of the cluster, the test says."""

    def __init__(self, server: PodServer, client: redis.Redis, folder: Path) -> None:
        self.now = NOON
        self.harness = LedgerHarness(folder, client)
        self.source = KubernetesSource(server.api(), lambda: self.now, random.random)
        term, self.ending = Term(lambda: 0.0), threading.Event()
        term.hold(1, 1.0)
        self.measures = JobMeasures()
        self.work = LeaderTasks(
            TaskEnvironment(client, self.source, term, lambda: self.now),
            ControllerRules(holds_pods=True),
            self.measures,
        )
        self.work.pod_writer.start(self.ending)
        for name in Mirrors.__slots__:
            self.show(name, [])

    def show(self, collection: str, items: list[dict[str, Any]]) -> None:
        mirror = getattr(self.source.mirrors, collection)
        mirror.replaced(items)
        mirror.confirmed()

    def pass_time(self, seconds: int) -> None:
        self.now += seconds * SECOND
        for name in Mirrors.__slots__:
            getattr(self.source.mirrors, name).confirmed()


@pytest.fixture
def server() -> Iterator[PodServer]:
    with PodServer() as running:
        yield running


@pytest.fixture
def leader(server: PodServer, redis_server: RedisServer, tmp_path: Path) -> Iterator[Leader]:
    with redis_server.client() as client:
        found = Leader(server, client, tmp_path)
        yield found
        found.ending.set()


def running(leader: Leader, *names: str, **metadata: Any) -> list[dict[str, Any]]:
    pods = [leader.harness.pod(name, f"team-{name[0]}") for name in names]
    for pod in pods:
        pod["metadata"] |= metadata
    return pods


def held(leader: Leader, *names: str) -> list[dict[str, Any]]:
    pods = running(leader, *names)
    for pod in pods:
        pod["spec"] = {"containers": pod["spec"]["containers"], "schedulingGates": GATE}
        pod["status"] = {"phase": "Pending"}
    return pods


def spend_all(leader: Leader, *names: str) -> None:
    """Budgets a and b are spent by these running pods, and evict them."""
    spec = {"enforcement": "evict", "onExhausted": "hold", "allowance": {"gpuHours": 1}}
    leader.show("budgets", [budget_object(name, [f"team-{name}"], **spec) for name in "ab"])
    leader.show("pods", running(leader, *names))
    leader.work.settle()
    leader.pass_time(2 * HOUR)
    leader.work.settle()


@pytest.mark.parametrize("status", [403, 422, 500, 504])
def test_behind_a_pod_that_cannot_be_written_all_others_get_their_notice_in_that_turn(
    leader: Leader, server: PodServer, status: int
) -> None:
    server.answers["a-bad"] = status, TOO_LARGE
    spend_all(leader, "a-bad", "a1", "a2", "b1")
    leader.work.evict()
    wait_until(lambda: server.asked_for() >= {"a-bad", "a1", "a2", "b1"}, "the notices")


@pytest.mark.parametrize("status", [403, 422, 500, 504])
def test_behind_a_pod_that_cannot_be_evicted_all_others_are_in_that_turn(
    leader: Leader, server: PodServer, status: int
) -> None:
    server.answers["a-bad"] = status, TOO_LARGE
    spend_all(leader, "a-bad", "a1", "a2", "b1")
    due = {"fairgpu.io/eviction-at": "2026-01-15T14:05:00Z"}
    pods = leader.source.mirrors.pods.items()
    for pod in pods:
        pod["metadata"]["annotations"] |= due
    leader.pass_time(600)
    leader.show("pods", [{**pod} for pod in pods])
    leader.work.settle()
    leader.work.evict()
    wait_until(lambda: server.asked_for("eviction") >= {"a-bad", "a1", "a2", "b1"}, "the evictions")


@pytest.mark.parametrize("status", [403, 422, 500, 504])
def test_behind_a_pod_that_cannot_be_released_all_others_are_in_that_turn(
    leader: Leader, server: PodServer, status: int
) -> None:
    server.answers["a-bad"] = status, TOO_LARGE
    leader.show("budgets", [budget_object(name, [f"team-{name}"], onExhausted="hold") for name in "ab"])
    leader.show("pods", held(leader, "a-bad", "a1", "a2", "b1"))
    leader.work.settle()
    leader.work.release()
    wait_until(lambda: server.asked_for() >= {"a-bad", "a1", "a2", "b1"}, "the releases")


@pytest.mark.parametrize("status", [403, 422, 500, 504])
def test_behind_a_pod_whose_finalizer_stays_those_of_all_others_are_removed_in_that_turn(
    leader: Leader, server: PodServer, status: int
) -> None:
    server.answers["a-bad"] = status, TOO_LARGE
    pods = running(leader, "a-bad", "a1", "a2", "b1", finalizers=["fairgpu.io/meter"])
    for pod in pods:
        pod["status"] |= {"phase": "Succeeded"}
    leader.show("pods", pods)
    leader.work.settle()
    leader.work.remove_finalizers()
    wait_until(lambda: server.asked_for() >= {"a-bad", "a1", "a2", "b1"}, "the removals")


def test_while_the_api_server_does_not_answer_for_a_pod_rounds_go_on_and_all_others_are_written(
    leader: Leader, server: PodServer
) -> None:
    server.silent["a-bad"] = threading.Event()
    spend_all(leader, "a-bad", "a1", "b1")
    leader.work.evict()
    wait_until(lambda: "a-bad" in server.waiting, "the notice that is not answered")
    leader.pass_time(10)
    leader.work.settle()
    settled = leader.measures.registry.get_sample_value("fairgpu_timekeeper_settled_timestamp_seconds")
    assert "a-bad" in server.waiting, "the round is over before that write is"
    assert settled == leader.now / SECOND
    wait_until(lambda: "b1" in server.asked_for(), "another team's notice")
    assert "a-bad" in server.waiting


def test_a_write_to_a_pod_is_given_up_after_its_time_and_is_the_pods_failure(
    server: PodServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "POD_WRITE_SECONDS", 0.05)
    source = KubernetesSource(server.api(), time.time_ns, random.random)
    server.silent["p"] = threading.Event()
    with pytest.raises(NotWrittenError):
        source.announce_eviction(POD, "2026-01-15T14:05:00Z")


POD = {
    "metadata": {"name": "p", "namespace": "team-a", "uid": "p", "finalizers": ["fairgpu.io/meter"]},
    "spec": {"schedulingGates": GATE},
}
TWO_BUDGETS = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, RefusedError),
        (403, RefusedError),
        (413, RefusedError),
        (404, ChangedMeanwhileError),
        (409, ChangedMeanwhileError),
        (422, RefusedError),
        (500, NotWrittenError),
        (502, NotWrittenError),
        (504, NotWrittenError),
        (401, SourceError),
        (429, SourceError),
        (503, SourceError),
    ],
)
@pytest.mark.parametrize("write", ["lift_gate", "remove_finalizer", "announce_eviction", "evict"])
def test_an_answer_shows_whether_one_pod_or_everybody_is_meant(
    server: PodServer, write: str, status: int, error: type[SourceError]
) -> None:
    server.answers["p"] = status, {"message": "no"}
    source = KubernetesSource(server.api(), time.time_ns, random.random)
    arguments: list[Any] = [POD] + ([None] if write == "announce_eviction" else [])
    with pytest.raises(SourceError) as raised:
        getattr(source, write)(*arguments)
    assert type(raised.value) is (BlockedError if write == "evict" and status == 429 else error)


@pytest.mark.parametrize(
    "message", [PATCH_FAILED, 'Pod "p" is invalid: metadata.uid: Invalid value: "u": field is immutable']
)
def test_an_answer_to_a_write_of_an_earlier_pod_is_no_refusal(server: PodServer, message: str) -> None:
    server.answers["p"] = 422, {"message": message}
    source = KubernetesSource(server.api(), time.time_ns, random.random)
    with pytest.raises(ChangedMeanwhileError):
        source.label_gpu_pod(POD)


def test_an_eviction_that_two_disruption_budgets_forbid_is_blocked(server: PodServer) -> None:
    server.answers["p"] = 500, {"reason": "InternalError", "message": TWO_BUDGETS}
    with pytest.raises(BlockedError, match="more than one PodDisruptionBudget"):
        KubernetesSource(server.api(), time.time_ns, random.random).evict(POD)


def test_no_connection_means_that_the_api_server_is_away_for_everybody() -> None:
    with PodServer() as server:
        api = server.api()
    with pytest.raises(SourceError) as raised:
        KubernetesSource(api, time.time_ns, random.random).lift_gate(POD)
    assert type(raised.value) is SourceError
