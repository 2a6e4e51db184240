"""The events that people read beside a budget and a pod: one for each change, with figures."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from fairgpu.leadership import Term
from tests.support.ledger.fake_cluster import LedCluster, budget_object
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


class Cluster(LedCluster):
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
        self.recorder = EventRecorder(self, self.reconciler.books, clock=lambda: self.elapsed)
        self.jobs = PodJobs(self, self.reconciler.books, lambda: self.now / SECOND)
        self.writer = StatusWriter(self, self.reconciler.books)

    def spend(self, **spec: Any) -> None:
        """The budget, and its pod since now."""
        self.replace("budgets", [budget_object("a", ["team-a"], **{"allowance": {"gpuHours": 2}, **spec})])
        self.replace("pods", [self.harness.pod("p1", "team-a")])
        self.after(0)

    def after(self, seconds: float) -> list[str]:
        """Lets time pass; returns the events that are written."""
        self.reconcile(seconds)
        return self.notices_during(self.recorder.record_changes)


@pytest.fixture
def cluster(redis_server: RedisServer, tmp_path: Path) -> Iterator[Cluster]:
    with redis_server.client() as client:
        yield Cluster(client, tmp_path)


def test_each_change_of_a_budgets_state_is_shown_once_as_it_happens(cluster: Cluster) -> None:
    cluster.spend(**GRACE)
    assert cluster.after(HOUR) == []
    assert cluster.after(HOUR) == ["BudgetInGrace"]
    assert cluster.after(HOUR) == []
    assert cluster.after(HOUR) == ["BudgetExhausted"]
    assert cluster.after(HOUR) == []
    cluster.grant(10)
    assert cluster.after(0) == ["BudgetReopened"]
    assert cluster.after(HOUR) == []
    assert [notice.warning for notice in cluster.notices] == [True, True, False]
    assert {notice.regarding["metadata"]["name"] for notice in cluster.notices} == {"a"}


def test_the_words_say_what_is_spent_what_follows_and_what_to_do(cluster: Cluster) -> None:
    cluster.spend(**GRACE)
    for _ in range(4):
        cluster.after(HOUR)
    cluster.grant(10)
    cluster.after(0)
    assert [notice.message for notice in cluster.notices] == [
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


def test_a_budget_that_holds_says_so_and_the_pod_is_shown_why_it_is_released(cluster: Cluster) -> None:
    cluster.spend(onExhausted="hold")
    assert cluster.after(2 * HOUR) == ["BudgetHeld"]
    assert "New pods wait; running ones go on." in cluster.notices[-1].message
    cluster.harness.gated("waits", "team-a", core=50)
    cluster.harness.source.refresh()
    cluster.mirrors.pods.changed(
        "ADDED", next(p for p in cluster.harness.source.mirrors.pods.items() if "waits" in str(p))
    )
    cluster.after(0)
    for _ in range(2):
        assert cluster.jobs.release(cluster.now) == 0
    assert [notice.message for notice in cluster.notices if notice.reason == "BudgetHoldsPod"] == [
        (
            "Waits for money: 0.00 of 2.00 GPU-hours are left in a; this pod needs up to 0.083333 to start and costs "
            "up to 0.5 an hour. An admin of GPU budgets can give more: `fairgpu grant a HOURS --reason WHY`; the "
            "next period begins at 2026-02-01T00:00:00Z."
        )
    ]
    cluster.after(HOUR)
    cluster.jobs.release(cluster.now)
    assert [notice.reason for notice in cluster.notices].count("BudgetHoldsPod") == 2
    cluster.grant(2)
    cluster.after(0)
    assert cluster.jobs.release(cluster.now) == 1
    shown = cluster.notices[-1]
    assert (shown.regarding["metadata"]["name"], shown.reason, shown.warning) == ("waits", "BudgetGateLifted", False)
    assert shown.message == (
        "There is money for this pod again: 1.00 GPU-hours are left in a. It costs 0.5 GPU-hours an hour, "
        "0.083333 for its first 10 minutes."
    )


def test_many_waiting_pods_of_one_budget_keep_no_other_budgets_pod_from_its_event(cluster: Cluster) -> None:
    spent = {"allowance": {"gpuHours": 0}, "onExhausted": "hold"}
    cluster.replace("budgets", [budget_object(name, [f"team-{name}"], **spent) for name in "ab"])
    for number in range(2 * MAX_EVENTS_PER_RUN):
        cluster.harness.gated(f"a{number}", "team-a")
    cluster.harness.gated("b0", "team-b")
    cluster.harness.source.refresh()
    cluster.replace("pods", list(cluster.harness.source.mirrors.pods.items()))
    cluster.after(0)
    assert cluster.jobs.release(cluster.now) == 0
    shown = [notice.regarding["metadata"]["name"] for notice in cluster.notices if notice.reason == "BudgetHoldsPod"]
    assert len(shown) == MAX_EVENTS_PER_RUN
    assert "b0" in shown


def test_a_held_pod_is_shown_anew_of_money_that_does_not_reach_it(cluster: Cluster) -> None:
    cluster.spend(onExhausted="hold")
    cluster.after(3 * HOUR)
    cluster.harness.gated("waits", "team-a", core=100)
    cluster.harness.source.refresh()
    cluster.mirrors.pods.changed(
        "ADDED", next(p for p in cluster.harness.source.mirrors.pods.items() if "waits" in str(p))
    )
    for gpu_hours in (0, 1, 0):
        if gpu_hours:
            cluster.grant(gpu_hours)
        cluster.after(0)
        cluster.jobs.release(cluster.now)
    shown = [notice.message for notice in cluster.notices if notice.reason == "BudgetHoldsPod"]
    assert [message.partition(" GPU-hours are left")[0] for message in shown] == [
        "Waits for money: -1.00 of 2.00",
        "Waits for money: 0.00 of 3.00",
    ]


def test_a_budget_that_is_only_observed_says_that_nothing_follows(cluster: Cluster) -> None:
    cluster.spend(enforcement="observe")
    assert cluster.after(2 * HOUR) == ["BudgetExhausted"]
    assert "Nothing follows from it" in cluster.notices[-1].message


def test_a_new_leader_repeats_nothing_that_the_status_shows_and_shows_what_it_does_not(cluster: Cluster) -> None:
    cluster.spend(onExhausted="hold")
    assert cluster.after(2 * HOUR) == ["BudgetHeld"]
    cluster.writer.write(cluster.now)
    cluster.lead()
    assert cluster.after(10) == []
    cluster.lead()
    cluster.grant(5)
    assert cluster.after(10) == ["BudgetReopened"]


def test_an_event_that_a_new_leader_shows_again_is_the_same_in_other_words_and_another_exhaustion_is_another(
    cluster: Cluster,
) -> None:
    cluster.spend(onExhausted="hold")
    assert cluster.after(2 * HOUR) == ["BudgetHeld"]
    cluster.lead()
    assert cluster.after(HOUR) == ["BudgetHeld"]
    first, again = cluster.notices
    assert first.message != again.message
    assert first.id == again.id
    cluster.grant(5)
    assert cluster.after(10) == ["BudgetReopened"]
    assert cluster.after(9 * HOUR) == ["BudgetHeld"]
    assert len({notice.id for notice in cluster.notices}) == 3


def test_the_next_period_is_shown_as_reopened(cluster: Cluster) -> None:
    cluster.spend(onExhausted="hold", period={"every": "day"})
    assert cluster.after(3 * HOUR) == ["BudgetHeld"]
    cluster.mirrors.pods.changed("DELETED", cluster.mirrors.pods.items()[0])
    assert cluster.after(24 * HOUR) == ["BudgetReopened"]


@pytest.mark.parametrize("seconds", [0.2, 5.0])
def test_a_budget_that_one_turn_does_not_come_to_is_shown_in_the_next_however_slow_the_machine_is(
    cluster: Cluster, seconds: float
) -> None:
    names = [f"b{number}" for number in range(3)]
    cluster.replace("budgets", [budget_object(name, [name], allowance={"gpuHours": 0}) for name in names])
    cluster.reconciler.reconcile(cluster.now)
    shown = cluster.notices

    def slowly() -> float:
        cluster.elapsed += seconds
        return cluster.elapsed

    cluster.recorder.clock = slowly
    counts = [cluster.recorder.record_changes() for _ in range(4)]
    assert counts == [1, 1, 1, 0]
    assert sorted(notice.regarding["metadata"]["name"] for notice in shown) == names


def test_a_state_is_shown_before_the_status_shows_it(cluster: Cluster) -> None:
    term = Term(lambda: 0.0)
    term.hold(1, 1.0)
    work = LeaderTasks(
        TaskEnvironment(cluster.client, cluster, term, lambda: cluster.now), ControllerRules(), JobMeasures()
    )
    cluster.replace("budgets", [budget_object("a", ["team-a"], allowance={"gpuHours": 0})])
    work.settle()
    work.write()
    assert cluster.budget_statuses["a"]["state"] == "over"
    cluster.lead()
    cluster.reconciler.reconcile(cluster.now)
    cluster.recorder.record_changes()
    assert [notice.reason for notice in cluster.notices] == ["BudgetExhausted"]


def test_the_log_names_the_kind_of_a_failure_as_the_metric_does(cluster: Cluster) -> None:
    term = Term(lambda: 0.0)
    term.hold(1, 1.0)
    work = LeaderTasks(
        TaskEnvironment(cluster.client, cluster, term, lambda: cluster.now), ControllerRules(), JobMeasures()
    )
    cluster.spend()
    work.settle()
    cluster.lead()
    cluster.reconcile(HOUR)
    cluster.now += int(HOUR * SECOND)
    with capture_logs() as logs:
        work.settle()
    failed = [line for line in logs if line["event"] == "job failed and is tried again"]
    assert [(line["job"], line["kind"]) for line in failed] == [("settle", "FencedError")]
