"""The pod writer on a cluster in memory: whose write is next, and what becomes of those that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tests.support.ledger.fake_cluster import Json, MirroredCluster
from tests.support.ledger.pod_jobs import work_off
from tests.support.waiting import wait_until
from timekeeper.controller.metrics import PodMeasures
from timekeeper.controller.pod_writer import AWAY_SECONDS, DONE_SECONDS, PLAN_SECONDS, SUSPECTS, THREADS, PodWriter
from timekeeper.controller.pod_writes import Plan, PodWrite, Step
from timekeeper.sources.base import BlockedError, NotWrittenError, ObjectEvent, RefusedError, SourceError


class Cluster(MirroredCluster):
    """Pods called NAMESPACE/NAME, of which a write may fail, take its time, or wait for the test."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.elapsed = 0.0
        self.leads = True
        self.asked: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.seconds: dict[str, float] = {}
        self.stuck: dict[str, threading.Event] = {}
        self.under_way: set[str] = set()
        self.registry = CollectorRegistry()
        self.writer = PodWriter(self, PodMeasures(self.registry), lambda: self.elapsed)

    def plan(self, *names: str, plan: Plan = Plan.RELEASES, step: Step = Step.RELEASE, **more: Any) -> None:
        self.replace("pods", [pod(name) for name in names])
        named = [(name, *name.partition("/")[::2]) for name in names]
        writes = [PodWrite(uid, namespace, pod, "a", step, **more) for uid, namespace, pod in named]
        self.writer.hand_over(plan, writes, lambda: self.leads)

    def done_by(self, act: Callable[[], object]) -> list[str]:
        before = len(self.asked)
        act()
        return self.asked[before:]

    def turn(self) -> list[str]:
        """The pods that are asked for in what can be done now."""
        return self.done_by(lambda: work_off(self.writer))

    def lift_gate(self, pod: Json) -> None:
        self._ask(pod)

    def evict(self, pod: Json) -> None:
        self._ask(pod)

    def announce_eviction(self, pod: Json, at: str | None) -> None:
        assert at is not None
        self._ask(pod)

    def _ask(self, pod: Json) -> None:
        name = pod["metadata"]["uid"]
        self.asked.append(name)
        self.elapsed += self.seconds.get(name, 0)
        if name in self.stuck:
            self.under_way.add(name)
            self.stuck[name].wait()
            self.under_way.discard(name)
        if name in self.errors:
            raise self.errors[name]

    def counted(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"fairgpu_timekeeper_{name}", labels)


def pod(name: str) -> Json:
    namespace, _, short = name.partition("/")
    return {"metadata": {"uid": name, "name": short, "namespace": namespace}}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize("error", [NotWrittenError("500"), NotWrittenError("504"), RefusedError("403"), KeyError("x")])
def test_a_pod_that_cannot_be_written_keeps_none_behind_it_from_that_turn(cluster: Cluster, error: Exception) -> None:
    cluster.errors["a/1"] = error
    cluster.plan("a/1", "a/2", "b/1")
    assert cluster.turn() == ["a/1", "b/1", "a/2"]
    assert cluster.counted("pod_writes_total", step="release", outcome="written") == 2


def test_a_pod_that_cannot_be_written_is_tried_again_after_a_while_and_behind_the_others(cluster: Cluster) -> None:
    cluster.errors["a/1"] = NotWrittenError("500")
    cluster.plan("a/1")
    assert cluster.turn() == ["a/1"]
    cluster.elapsed = 4.9
    cluster.plan("a/1")
    assert cluster.turn() == []
    cluster.elapsed = 5
    cluster.plan("a/1", "a/2")
    assert cluster.turn() == ["a/2", "a/1"]


def test_a_pod_whose_write_failed_three_times_is_counted_and_reported_once_until_it_is_written(
    cluster: Cluster,
) -> None:
    cluster.errors["a/1"] = NotWrittenError("500 etcdserver: request is too large")
    for _ in range(6):
        cluster.plan("a/1")
        cluster.turn()
        cluster.elapsed += 120
    assert [notice.reason for notice in cluster.notices] == ["PodNotWritten"]
    assert cluster.notices[0].message.endswith("The error is: 500 etcdserver: request is too large")
    assert cluster.counted("pods_not_written", step="release") == 1
    assert cluster.writer.progress(Plan.RELEASES).failing == {"a/1"}
    cluster.errors.clear()
    cluster.plan("a/1")
    cluster.turn()
    assert cluster.counted("pods_not_written", step="release") == 0


def test_a_container_that_a_new_plan_does_not_name_is_forgotten_and_begins_anew(cluster: Cluster) -> None:
    cluster.errors["a/1"] = NotWrittenError("500")
    eviction = PodWrite("a/1", "a", "1", "a", Step.EVICT)
    notice: dict[str, Any] = {"plan": Plan.EVICTIONS, "step": Step.NOTICE, "instead": eviction, "instead_seconds": 600}
    cluster.plan("a/1", **notice)
    cluster.turn()
    cluster.plan(**notice)
    cluster.elapsed = 10_000
    cluster.plan("a/1", **notice)
    cluster.turn()
    assert cluster.counted("pod_writes_total", step="evict", outcome="failed") == 0
    assert cluster.counted("pod_writes_total", step="notice", outcome="failed") == 2


def test_an_api_server_that_is_away_ends_the_turn_and_the_next_begins_where_it_was_left(cluster: Cluster) -> None:
    names = ["a/1", "b/1", "c/1"]
    cluster.errors["b/1"] = SourceError("connection refused")
    cluster.plan(*names)
    assert cluster.turn() == ["a/1", "b/1"]
    assert cluster.turn() == []
    cluster.elapsed = AWAY_SECONDS
    cluster.errors.clear()
    cluster.plan(*names)
    assert cluster.turn() == ["c/1", "b/1"]
    assert cluster.counted("pod_writes_total", step="release", outcome="away") == 1
    assert cluster.counted("pods_not_written", step="release") == 0


def test_an_earmark_is_not_written_again_before_the_watch_had_time_to_show_it(cluster: Cluster) -> None:
    cluster.plan("a/1")
    assert cluster.turn() == ["a/1"]
    assert cluster.writer.progress(Plan.RELEASES).released == {"a/1"}
    cluster.plan("a/1")
    assert cluster.turn() == []
    cluster.elapsed = DONE_SECONDS
    cluster.plan("a/1")
    assert cluster.turn() == ["a/1"]


def test_nothing_is_begun_for_a_leader_that_leads_no_more_nor_by_a_plan_that_was_not_renewed(cluster: Cluster) -> None:
    cluster.plan("a/1", "a/2")
    cluster.leads = False
    assert cluster.turn() == []
    cluster.leads = True
    cluster.plan("a/1", "a/2")
    cluster.seconds["a/1"] = PLAN_SECONDS
    assert cluster.turn() == ["a/1"]
    cluster.plan("a/3")
    cluster.writer.pause(Plan.RELEASES)
    assert cluster.turn() == []


def test_a_pod_that_a_disruption_budget_keeps_is_reported_once_and_is_not_failing(cluster: Cluster) -> None:
    cluster.errors["a/1"] = BlockedError("the disruption budget pdb needs 1 healthy pod")
    for _ in range(5):
        cluster.plan("a/1", plan=Plan.EVICTIONS, step=Step.EVICT)
        assert cluster.turn() == ["a/1"]
        cluster.elapsed += 10
    assert [notice.reason for notice in cluster.notices] == ["BudgetEvictionBlocked"]
    assert cluster.counted("pods_not_written", step="evict") == 0
    assert cluster.counted("evictions_total", outcome="blocked") == 5


def test_evictions_of_a_namespace_come_before_its_finalizers_and_these_before_its_releases(cluster: Cluster) -> None:
    cluster.plan("a/released")
    cluster.writer.hand_over(Plan.FINALIZERS, [PodWrite("a/ended", "a", "ended", "a", Step.FINALIZER)], lambda: True)
    cluster.writer.hand_over(Plan.EVICTIONS, [PodWrite("a/gone", "a", "gone", "a", Step.EVICT)], lambda: True)
    cluster.replace("pods", [pod(name) for name in ("a/released", "a/ended", "a/gone")])
    steps = []
    cluster.remove_finalizer = lambda item: steps.append(item["metadata"]["uid"])  # type: ignore[method-assign]
    cluster._ask = lambda item: steps.append(item["metadata"]["uid"])  # type: ignore[method-assign]
    work_off(cluster.writer)
    assert steps == ["a/gone", "a/ended", "a/released"]


def test_events_are_shown_beside_the_writes_and_the_oldest_are_dropped_of_too_many(cluster: Cluster) -> None:
    cluster.writer.record(ObjectEvent(pod("a/1"), f"n{number}", "") for number in range(1200))
    work_off(cluster.writer)
    assert [notice.reason for notice in cluster.notices] == [f"n{number}" for number in range(200, 1200)]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 900),
            st.sampled_from([None, NotWrittenError("500"), RefusedError("403"), BlockedError("429")]),
        ),
        max_size=60,
    ),
    st.sampled_from([60.0, 600.0, 1800.0]),
)
def test_no_pod_is_evicted_that_was_neither_given_its_notice_nor_failed_to_take_one_for_as_long(
    steps: list[tuple[int, Exception | None]], patience: float
) -> None:
    """The policy in the API server does not ask for a notice: this is where that promise is kept."""
    cluster = Cluster()
    notice_at: list[float] = []
    refused_since: list[float] = []
    failures: list[Exception | None] = []
    kept: list[bool] = []

    def announce(_pod: Json, at: str | None) -> None:
        error = failures[-1]
        if error is not None and not isinstance(error, BlockedError):
            refused_since.append(cluster.elapsed)
            raise error
        notice_at.append(float(at or ""))

    def evict(_pod: Json) -> None:
        given = bool(notice_at) and notice_at[-1] <= cluster.elapsed
        kept.append(given or (not notice_at and cluster.elapsed - refused_since[0] >= patience))
        if failures[-1] is not None:
            raise failures[-1]

    cluster.announce_eviction, cluster.evict = announce, evict  # type: ignore[method-assign]
    for seconds, failure in steps:
        failures.append(failure)
        cluster.elapsed += seconds
        if notice_at:
            if notice_at[-1] <= cluster.elapsed:
                cluster.plan("a/1", plan=Plan.EVICTIONS, step=Step.EVICT)
        else:
            instead = PodWrite("a/1", "a", "1", "a", Step.EVICT)
            more: dict[str, Any] = {"eviction_at": str(cluster.elapsed + 600), "instead_seconds": patience}
            cluster.plan("a/1", plan=Plan.EVICTIONS, step=Step.NOTICE, instead=instead, **more)
        work_off(cluster.writer)
    assert all(kept)


@pytest.fixture
def threads(cluster: Cluster) -> Any:
    ending = threading.Event()
    cluster.writer.start(ending)
    yield
    ending.set()
    for event in cluster.stuck.values():
        event.set()


@pytest.mark.usefixtures("threads")
def test_pods_that_take_forever_hold_one_thread_of_each_namespace_and_others_are_written(cluster: Cluster) -> None:
    bad = [f"bad/{number}" for number in range(20)]
    cluster.stuck = {name: threading.Event() for name in bad}
    good = [f"good/{number}" for number in range(20)]
    cluster.plan(*bad, *good)
    wait_until(lambda: set(good) <= set(cluster.asked) and cluster.under_way, "the others are written, and one is not")
    assert len(cluster.under_way) == 1


@pytest.mark.usefixtures("threads")
def test_namespaces_whose_pods_failed_have_half_of_the_threads_at_most(cluster: Cluster) -> None:
    bad = [f"bad{number}/1" for number in range(3 * THREADS)]
    cluster.errors = dict.fromkeys(bad, NotWrittenError("504"))
    cluster.plan(*bad)
    wait_until(lambda: set(cluster.asked) == set(bad), "each has failed once")
    wait_until(lambda: len(cluster.writer._busy) == 0, "all have answered")
    cluster.elapsed = 5
    cluster.stuck = {name: threading.Event() for name in bad}
    good = [f"good{number}/1" for number in range(3 * THREADS)]
    cluster.plan(*bad, *good)
    wait_until(lambda: set(good) <= set(cluster.asked), "each of the others is written, and had its turn after them")
    wait_until(lambda: len(cluster.under_way) >= SUSPECTS, "half of the threads try them again")
    assert len(cluster.under_way) == SUSPECTS


@pytest.mark.usefixtures("threads")
def test_events_are_written_after_as_many_failed_unexpectedly_as_there_are_threads(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[ObjectEvent] = []

    def record_event(event: ObjectEvent) -> None:
        recorded.append(event)
        if len(recorded) <= THREADS:
            raise KeyError("metadata")

    monkeypatch.setattr(cluster, "record_event", record_event)
    events = [ObjectEvent(pod(f"a/{number}"), "PodNotWritten", "") for number in range(THREADS + 1)]
    with capture_logs():
        cluster.writer.record(events)
        wait_until(lambda: recorded == events, "the last event is written")
