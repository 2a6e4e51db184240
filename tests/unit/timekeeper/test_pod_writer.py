"""The pod writer on a world in memory: whose write is next, and what becomes of those that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tests.support.ledger.fake_cluster import Json, MirroredWorld
from tests.support.ledger.pod_jobs import work_off
from tests.support.waiting import wait_until
from timekeeper.controller.metrics import PodMeasures
from timekeeper.controller.pod_writer import AWAY_SECONDS, DONE_SECONDS, PLAN_SECONDS, SUSPECTS, THREADS, PodWriter
from timekeeper.controller.pod_writes import Plan, PodWrite, Step
from timekeeper.sources.base import BlockedError, NotWrittenError, ObjectEvent, RefusedError, SourceError


class World(MirroredWorld):
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
        writes = [PodWrite(name, *name.split("/"), "a", step, **more) for name in names]
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
def world() -> World:
    return World()


@pytest.mark.parametrize("error", [NotWrittenError("500"), NotWrittenError("504"), RefusedError("403"), KeyError("x")])
def test_a_pod_that_cannot_be_written_keeps_none_behind_it_from_that_turn(world: World, error: Exception) -> None:
    world.errors["a/1"] = error
    world.plan("a/1", "a/2", "b/1")
    assert world.turn() == ["a/1", "b/1", "a/2"]
    assert world.counted("pod_writes_total", step="release", outcome="written") == 2


def test_a_pod_that_cannot_be_written_is_tried_again_after_a_while_and_behind_the_others(world: World) -> None:
    world.errors["a/1"] = NotWrittenError("500")
    world.plan("a/1")
    assert world.turn() == ["a/1"]
    world.elapsed = 4.9
    world.plan("a/1")
    assert world.turn() == []
    world.elapsed = 5
    world.plan("a/1", "a/2")
    assert world.turn() == ["a/2", "a/1"]


def test_who_failed_three_times_is_counted_and_reported_once_until_it_is_written(world: World) -> None:
    world.errors["a/1"] = NotWrittenError("500 etcdserver: request is too large")
    for _ in range(6):
        world.plan("a/1")
        world.turn()
        world.elapsed += 120
    assert [notice.reason for notice in world.notices] == ["PodNotWritten"]
    assert "request is too large" in world.notices[0].message
    assert world.counted("pods_not_written", step="release") == 1
    assert world.writer.progress(Plan.RELEASES).failing == {"a/1"}
    world.errors.clear()
    world.plan("a/1")
    world.turn()
    assert world.counted("pods_not_written", step="release") == 0


def test_what_a_new_plan_does_not_name_is_forgotten_and_begins_anew(world: World) -> None:
    world.errors["a/1"] = NotWrittenError("500")
    eviction = PodWrite("a/1", "a", "1", "a", Step.EVICT)
    notice: dict[str, Any] = {"plan": Plan.EVICTIONS, "step": Step.NOTICE, "instead": eviction, "instead_seconds": 600}
    world.plan("a/1", **notice)
    world.turn()
    world.plan(**notice)
    world.elapsed = 10_000
    world.plan("a/1", **notice)
    world.turn()
    assert world.counted("pod_writes_total", step="evict", outcome="failed") == 0
    assert world.counted("pod_writes_total", step="notice", outcome="failed") == 2


def test_an_api_server_that_is_away_ends_the_turn_and_the_next_begins_where_it_was_left(world: World) -> None:
    names = ["a/1", "b/1", "c/1"]
    world.errors["b/1"] = SourceError("connection refused")
    world.plan(*names)
    assert world.turn() == ["a/1", "b/1"]
    assert world.turn() == []
    world.elapsed = AWAY_SECONDS
    world.errors.clear()
    world.plan(*names)
    assert world.turn() == ["c/1", "b/1"]
    assert world.counted("pod_writes_total", step="release", outcome="away") == 1
    assert world.counted("pods_not_written", step="release") == 0


def test_what_was_written_is_not_written_again_before_the_watch_had_time_to_show_it(world: World) -> None:
    world.plan("a/1")
    assert world.turn() == ["a/1"]
    assert world.writer.progress(Plan.RELEASES).released == {"a/1"}
    world.plan("a/1")
    assert world.turn() == []
    world.elapsed = DONE_SECONDS
    world.plan("a/1")
    assert world.turn() == ["a/1"]


def test_nothing_is_begun_for_a_leader_that_leads_no_more_nor_by_a_plan_that_was_not_renewed(world: World) -> None:
    world.plan("a/1", "a/2")
    world.leads = False
    assert world.turn() == []
    world.leads = True
    world.plan("a/1", "a/2")
    world.seconds["a/1"] = PLAN_SECONDS
    assert world.turn() == ["a/1"]
    world.plan("a/3")
    world.writer.pause(Plan.RELEASES)
    assert world.turn() == []


def test_a_pod_that_a_disruption_budget_keeps_is_reported_once_and_is_not_failing(world: World) -> None:
    world.errors["a/1"] = BlockedError("the disruption budget pdb needs 1 healthy pod")
    for _ in range(5):
        world.plan("a/1", plan=Plan.EVICTIONS, step=Step.EVICT)
        assert world.turn() == ["a/1"]
        world.elapsed += 10
    assert [notice.reason for notice in world.notices] == ["BudgetEvictionBlocked"]
    assert world.counted("pods_not_written", step="evict") == 0
    assert world.counted("evictions_total", outcome="blocked") == 5


def test_evictions_of_a_namespace_come_before_its_finalizers_and_these_before_its_releases(world: World) -> None:
    world.plan("a/released")
    world.writer.hand_over(Plan.FINALIZERS, [PodWrite("a/ended", "a", "ended", "a", Step.FINALIZER)], lambda: True)
    world.writer.hand_over(Plan.EVICTIONS, [PodWrite("a/gone", "a", "gone", "a", Step.EVICT)], lambda: True)
    world.replace("pods", [pod(name) for name in ("a/released", "a/ended", "a/gone")])
    steps = []
    world.remove_finalizer = lambda item: steps.append(item["metadata"]["uid"])  # type: ignore[method-assign]
    world._ask = lambda item: steps.append(item["metadata"]["uid"])  # type: ignore[method-assign]
    work_off(world.writer)
    assert steps == ["a/gone", "a/ended", "a/released"]


def test_events_are_shown_beside_the_writes_and_the_oldest_are_dropped_of_too_many(world: World) -> None:
    world.writer.record(ObjectEvent(pod("a/1"), f"n{number}", "") for number in range(1200))
    work_off(world.writer)
    assert [notice.reason for notice in world.notices] == [f"n{number}" for number in range(200, 1200)]


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
    world = World()
    notice_at: list[float] = []
    refused_since: list[float] = []
    failures: list[Exception | None] = []
    kept: list[bool] = []

    def announce(_pod: Json, at: str | None) -> None:
        error = failures[-1]
        if error is not None and not isinstance(error, BlockedError):
            refused_since.append(world.elapsed)
            raise error
        notice_at.append(float(at or ""))

    def evict(_pod: Json) -> None:
        given = bool(notice_at) and notice_at[-1] <= world.elapsed
        kept.append(given or (not notice_at and world.elapsed - refused_since[0] >= patience))
        if failures[-1] is not None:
            raise failures[-1]

    world.announce_eviction, world.evict = announce, evict  # type: ignore[method-assign]
    for seconds, failure in steps:
        failures.append(failure)
        world.elapsed += seconds
        if notice_at:
            if notice_at[-1] <= world.elapsed:
                world.plan("a/1", plan=Plan.EVICTIONS, step=Step.EVICT)
        else:
            instead = PodWrite("a/1", "a", "1", "a", Step.EVICT)
            more: dict[str, Any] = {"eviction_at": str(world.elapsed + 600), "instead_seconds": patience}
            world.plan("a/1", plan=Plan.EVICTIONS, step=Step.NOTICE, instead=instead, **more)
        work_off(world.writer)
    assert all(kept)


@pytest.fixture
def threads(world: World) -> Any:
    ending = threading.Event()
    world.writer.start(ending)
    yield
    ending.set()
    for event in world.stuck.values():
        event.set()


@pytest.mark.usefixtures("threads")
def test_pods_that_take_forever_hold_one_thread_of_each_namespace_and_others_are_written(world: World) -> None:
    bad = [f"bad/{number}" for number in range(20)]
    world.stuck = {name: threading.Event() for name in bad}
    good = [f"good/{number}" for number in range(20)]
    world.plan(*bad, *good)
    wait_until(lambda: set(good) <= set(world.asked) and world.under_way, "the others are written, and one is not")
    assert len(world.under_way) == 1


@pytest.mark.usefixtures("threads")
def test_namespaces_whose_pods_failed_have_half_of_the_threads_at_most(world: World) -> None:
    bad = [f"bad{number}/1" for number in range(3 * THREADS)]
    world.errors = dict.fromkeys(bad, NotWrittenError("504"))
    world.plan(*bad)
    wait_until(lambda: set(world.asked) == set(bad), "each has failed once")
    wait_until(lambda: len(world.writer._busy) == 0, "all have answered")
    world.elapsed = 5
    world.stuck = {name: threading.Event() for name in bad}
    good = [f"good{number}/1" for number in range(3 * THREADS)]
    world.plan(*bad, *good)
    wait_until(lambda: set(good) <= set(world.asked), "each of the others is written, and had its turn after them")
    wait_until(lambda: len(world.under_way) >= SUSPECTS, "half of the threads try them again")
    assert len(world.under_way) == SUSPECTS


@pytest.mark.usefixtures("threads")
def test_events_are_written_after_as_many_failed_unexpectedly_as_there_are_threads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[ObjectEvent] = []

    def record_event(event: ObjectEvent) -> None:
        recorded.append(event)
        if len(recorded) <= THREADS:
            raise KeyError("metadata")

    monkeypatch.setattr(world, "record_event", record_event)
    events = [ObjectEvent(pod(f"a/{number}"), "PodNotWritten", "") for number in range(THREADS + 1)]
    with capture_logs():
        world.writer.record(events)
        wait_until(lambda: recorded == events, "the last event is written")
