"""The events that people read beside a budget and a pod: one for each change, with figures."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from fairgpu.leadership import Term
from tests.support.ledger.fake_cluster import KeptWorld, budget_object
from tests.support.ledger.pod_jobs import PodJobs
from timekeeper.controller.leader_tasks import LeaderTasks, TaskEnvironment
from timekeeper.controller.metrics import JobMeasures
from timekeeper.controller.releases import MAX_EVENTS_PER_RUN
from timekeeper.controller.report.announcements import EventRecorder
from timekeeper.controller.report.status_writer import StatusWriter
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from tests.support.servers.redis_server import RedisServer

HOUR = 3600.0
GRACE = {"grace": {"gpuHours": 2, "duration": "24h"}}


class World(KeptWorld):
    """A budget of two GPU-hours, a pod that spends one an hour, and their leader."""

    def __init__(self, client: redis.Redis, folder: Path) -> None:
        self.elapsed = 0.0
        super().__init__(client, folder)

    def lead(self) -> None:
        """A new leader, who sees the statuses that were written."""
        objects = [copy.deepcopy(item) for item in self.mirrors.budgets.items()]
        for item in objects:
            item["status"] = self.budget_statuses.get(item["metadata"]["name"], {})
        self.replace("budgets", objects)
        super().lead()
        self.recorder = EventRecorder(self, self.keeper.books, clock=lambda: self.elapsed)
        self.jobs = PodJobs(self, self.keeper.books, lambda: self.now / SECOND)
        self.writer = StatusWriter(self, self.keeper.books)

    def spend(self, **spec: Any) -> None:
        """The budget, and its pod since now."""
        self.replace("budgets", [budget_object("a", ["team-a"], **{"allowance": {"gpuHours": 2}, **spec})])
        self.replace("pods", [self.harness.pod("p1", "team-a")])
        self.after(0)

    def after(self, seconds: float) -> list[str]:
        """Lets time pass; returns the events that are written."""
        self.round(seconds)
        return self.notices_during(self.recorder.record_changes)


@pytest.fixture
def world(redis_server: RedisServer, tmp_path: Path) -> Iterator[World]:
    with redis_server.client() as client:
        yield World(client, tmp_path)


def test_each_change_of_a_budgets_state_is_shown_once_as_it_happens(world: World) -> None:
    world.spend(**GRACE)
    assert world.after(HOUR) == []
    assert world.after(HOUR) == ["BudgetInGrace"]
    assert world.after(HOUR) == []
    assert world.after(HOUR) == ["BudgetExhausted"]
    assert world.after(HOUR) == []
    world.grant(10)
    assert world.after(0) == ["BudgetReopened"]
    assert world.after(HOUR) == []
    assert [notice.warning for notice in world.notices] == [True, True, False]
    assert {notice.regarding["metadata"]["name"] for notice in world.notices} == {"a"}


def test_the_words_say_what_is_spent_what_follows_and_what_to_do(world: World) -> None:
    world.spend(**GRACE)
    for _ in range(4):
        world.after(HOUR)
    world.grant(10)
    world.after(0)
    assert [notice.message for notice in world.notices] == [
        (
            "2.00 of 2.00 GPU-hours are spent. In grace all goes on until another 2.00 GPU-hours are spent or "
            "2026-01-16T14:00:00Z; then new pods yield to those of teams within their budgets. An admin of GPU "
            "budgets can give more: `fairgpu grant a HOURS --reason WHY`; the next period begins at "
            "2026-02-01T00:00:00Z."
        ),
        (
            "4.00 of 2.00 GPU-hours are spent. New pods run in what others leave, and yield first; running ones go on. "
            "An admin of GPU budgets can give more: `fairgpu grant a HOURS --reason WHY`; the next period begins "
            "at 2026-02-01T00:00:00Z."
        ),
        (
            "8.00 of 12.00 GPU-hours are left until 2026-02-01T00:00:00Z: new pods run as usual, and held ones are "
            "released as far as it pays."
        ),
    ]


def test_a_budget_that_holds_says_so_and_the_pod_is_shown_why_it_is_released(world: World) -> None:
    world.spend(onExhausted="hold")
    assert world.after(2 * HOUR) == ["BudgetHeld"]
    assert "New pods wait; running ones go on." in world.notices[-1].message
    world.harness.gated("waits", "team-a", core=50)
    world.harness.source.refresh()
    world.mirrors.pods.changed("ADDED", next(p for p in world.harness.source.mirrors.pods.items() if "waits" in str(p)))
    world.after(0)
    for _ in range(2):
        assert world.jobs.release(world.now) == 0
    assert [notice.message for notice in world.notices if notice.reason == "BudgetHoldsPod"] == [
        (
            "Waits for money: 0.00 of 2.00 GPU-hours are left in a; this pod needs up to 0.083333 to start and costs "
            "up to 0.5 an hour. An admin of GPU budgets can give more: `fairgpu grant a HOURS --reason WHY`; the "
            "next period begins at 2026-02-01T00:00:00Z."
        )
    ]
    world.after(HOUR)
    world.jobs.release(world.now)
    assert [notice.reason for notice in world.notices].count("BudgetHoldsPod") == 2
    world.grant(2)
    world.after(0)
    assert world.jobs.release(world.now) == 1
    shown = world.notices[-1]
    assert (shown.regarding["metadata"]["name"], shown.reason, shown.warning) == ("waits", "BudgetGateLifted", False)
    assert shown.message == (
        "There is money for this pod again: 1.00 GPU-hours are left in a. It costs 0.5 GPU-hours an hour, "
        "0.083333 for its first 10 minutes."
    )


def test_many_waiting_pods_of_one_budget_keep_no_other_budgets_pod_from_its_event(world: World) -> None:
    spent = {"allowance": {"gpuHours": 0}, "onExhausted": "hold"}
    world.replace("budgets", [budget_object(name, [f"team-{name}"], **spent) for name in "ab"])
    for number in range(2 * MAX_EVENTS_PER_RUN):
        world.harness.gated(f"a{number}", "team-a")
    world.harness.gated("b0", "team-b")
    world.harness.source.refresh()
    world.replace("pods", list(world.harness.source.mirrors.pods.items()))
    world.after(0)
    assert world.jobs.release(world.now) == 0
    shown = [notice.regarding["metadata"]["name"] for notice in world.notices if notice.reason == "BudgetHoldsPod"]
    assert len(shown) == MAX_EVENTS_PER_RUN
    assert "b0" in shown


def test_a_held_pod_is_shown_anew_of_money_that_does_not_reach_it(world: World) -> None:
    world.spend(onExhausted="hold")
    world.after(3 * HOUR)
    world.harness.gated("waits", "team-a", core=100)
    world.harness.source.refresh()
    world.mirrors.pods.changed("ADDED", next(p for p in world.harness.source.mirrors.pods.items() if "waits" in str(p)))
    for gpu_hours in (0, 1, 0):
        if gpu_hours:
            world.grant(gpu_hours)
        world.after(0)
        world.jobs.release(world.now)
    shown = [notice.message for notice in world.notices if notice.reason == "BudgetHoldsPod"]
    assert [message.partition(" GPU-hours are left")[0] for message in shown] == [
        "Waits for money: -1.00 of 2.00",
        "Waits for money: 0.00 of 3.00",
    ]


def test_a_budget_that_is_only_observed_says_that_nothing_follows(world: World) -> None:
    world.spend(enforcement="observe")
    assert world.after(2 * HOUR) == ["BudgetExhausted"]
    assert "Nothing follows from it" in world.notices[-1].message


def test_a_new_leader_repeats_nothing_that_the_status_shows_and_shows_what_it_does_not(world: World) -> None:
    world.spend(onExhausted="hold")
    assert world.after(2 * HOUR) == ["BudgetHeld"]
    world.writer.write(world.now)
    world.lead()
    assert world.after(10) == []
    world.lead()
    world.grant(5)
    assert world.after(10) == ["BudgetReopened"]


def test_what_a_new_leader_shows_again_is_the_same_event_in_other_words_and_another_exhaustion_is_another(
    world: World,
) -> None:
    world.spend(onExhausted="hold")
    assert world.after(2 * HOUR) == ["BudgetHeld"]
    world.lead()
    assert world.after(HOUR) == ["BudgetHeld"]
    first, again = world.notices
    assert first.message != again.message
    assert first.id == again.id
    world.grant(5)
    assert world.after(10) == ["BudgetReopened"]
    assert world.after(9 * HOUR) == ["BudgetHeld"]
    assert len({notice.id for notice in world.notices}) == 3


def test_the_next_period_is_shown_as_reopened(world: World) -> None:
    world.spend(onExhausted="hold", period={"every": "day"})
    assert world.after(3 * HOUR) == ["BudgetHeld"]
    world.mirrors.pods.changed("DELETED", world.mirrors.pods.items()[0])
    assert world.after(24 * HOUR) == ["BudgetReopened"]


@pytest.mark.parametrize("seconds", [0.2, 5.0])
def test_what_a_turn_does_not_come_to_is_shown_in_the_next_however_slow_the_machine_is(
    world: World, seconds: float
) -> None:
    names = [f"b{number}" for number in range(3)]
    world.replace("budgets", [budget_object(name, [name], allowance={"gpuHours": 0}) for name in names])
    world.keeper.reconcile(world.now)
    shown = world.notices

    def slowly() -> float:
        world.elapsed += seconds
        return world.elapsed

    world.recorder.clock = slowly
    counts = [world.recorder.record_changes() for _ in range(4)]
    assert counts == [1, 1, 1, 0]
    assert sorted(notice.regarding["metadata"]["name"] for notice in shown) == names


def test_a_state_is_shown_before_the_status_shows_it(world: World) -> None:
    term = Term(lambda: 0.0)
    term.hold(1, 1.0)
    work = LeaderTasks(TaskEnvironment(world.client, world, term, lambda: world.now), ControllerRules(), JobMeasures())
    world.replace("budgets", [budget_object("a", ["team-a"], allowance={"gpuHours": 0})])
    work.settle()
    work.write()
    assert world.budget_statuses["a"]["state"] == "over"
    world.lead()
    world.keeper.reconcile(world.now)
    world.recorder.record_changes()
    assert [notice.reason for notice in world.notices] == ["BudgetExhausted"]


def test_the_log_names_the_kind_of_a_failure_as_the_metric_does(world: World) -> None:
    term = Term(lambda: 0.0)
    term.hold(1, 1.0)
    work = LeaderTasks(TaskEnvironment(world.client, world, term, lambda: world.now), ControllerRules(), JobMeasures())
    world.spend()
    work.settle()
    world.lead()
    world.round(HOUR)
    world.now += int(HOUR * SECOND)
    with capture_logs() as logs:
        work.settle()
    failed = [line for line in logs if line["event"] == "job failed and is tried again"]
    assert [(line["job"], line["kind"]) for line in failed] == [("settle", "FencedError")]
