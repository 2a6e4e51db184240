"""Eviction from running out to the last pod: notice, eviction, and what stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.ledger.fake_cluster import Json, LedCluster, budget_object
from tests.support.ledger.pod_jobs import PodJobs
from timekeeper.domain.money import SECOND
from timekeeper.sources.base import BlockedError, NotWrittenError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from tests.support.servers.redis_server import RedisServer

HOUR = 3600.0
EVICT = {"enforcement": "evict", "onExhausted": "hold", "evictionNotice": "30m", "allowance": {"gpuHours": 2}}


class Cluster(LedCluster):
    """A budget of two GPU-hours that evicts, and its leader."""

    def __init__(self, client: redis.Redis, folder: Path) -> None:
        self.kept: set[str] = set()
        self.unwritable: set[str] = set()
        self.monotonic = self.busy = 0.0
        super().__init__(client, folder)

    def lead(self) -> None:
        super().lead()
        self.jobs = PodJobs(self, self.reconciler.books, lambda: self.now / SECOND + self.monotonic)

    def announce_eviction(self, pod: Json, at: str | None) -> None:
        self.monotonic += self.busy
        if pod["metadata"]["name"] in self.unwritable:
            raise NotWrittenError("500 InternalError: etcdserver: request is too large")
        super().announce_eviction(pod, at)

    def evict(self, pod: Json) -> None:
        self.monotonic += self.busy
        if pod["metadata"]["name"] in self.kept:
            raise BlockedError("the disruption budget pdb needs 1 healthy pods and has 1")
        super().evict(pod)

    def begin(self, *names: str, **spec: Any) -> None:
        """The budget, and pods that run since now."""
        self.replace("budgets", [budget_object("a", ["team-a"], **{**EVICT, **spec})])
        self.replace("pods", [self.harness.pod(name, "team-a") for name in names])
        self.after(0)

    def after(self, seconds: float) -> list[str]:
        """Lets time pass; returns the events that are written."""
        self.reconcile(seconds)
        return self.notices_during(lambda: self.jobs.evict(self.now, self.now))

    def announced(self, name: str) -> str | None:
        (pod,) = [item for item in self.mirrors.pods.items() if item["metadata"]["name"] == name]
        found: str | None = pod["metadata"]["annotations"].get("fairgpu.io/eviction-at")
        return found


@pytest.fixture
def cluster(redis_server: RedisServer, tmp_path: Path) -> Iterator[Cluster]:
    with redis_server.client() as client:
        yield Cluster(client, tmp_path)


def test_running_pods_are_shown_when_the_money_is_gone_and_evicted_when_the_notice_is_over(cluster: Cluster) -> None:
    cluster.begin("p1")
    assert cluster.after(HOUR) == []
    assert cluster.after(HOUR) == ["BudgetEvictionNotice"]
    assert cluster.announced("p1") == "2026-01-15T14:30:00Z"
    assert cluster.notices[-1].message.startswith(
        "2.00 of 2.00 GPU-hours of a are spent: this pod is evicted at 2026-01"
    )
    assert cluster.after(0.4 * HOUR) == []
    assert cluster.evicted == []
    assert cluster.after(0.1 * HOUR) == ["BudgetEviction"]
    assert cluster.evicted == ["p1"]
    assert cluster.after(10) == []


def test_grace_comes_first(cluster: Cluster) -> None:
    cluster.begin("p1", grace={"duration": "2h"})
    assert cluster.after(3 * HOUR) == []
    assert cluster.after(HOUR) == []
    assert cluster.after(HOUR) == ["BudgetEvictionNotice"]


def test_nothing_is_evicted_when_the_money_came_back_in_between_and_it_is_shown(cluster: Cluster) -> None:
    cluster.begin("p1")
    assert cluster.after(2 * HOUR) == ["BudgetEvictionNotice"]
    cluster.grant(10)
    assert cluster.after(0.6 * HOUR) == ["BudgetEvictionCalledOff"]
    assert cluster.announced("p1") is None
    assert cluster.after(HOUR) == []
    assert cluster.evicted == []


def test_running_out_again_begins_a_new_notice(cluster: Cluster) -> None:
    cluster.begin("p1")
    cluster.after(2 * HOUR)
    cluster.grant(1)
    assert cluster.after(0.2 * HOUR) == ["BudgetEvictionCalledOff"]
    assert cluster.after(0.8 * HOUR) == ["BudgetEvictionNotice"]
    assert cluster.announced("p1") == "2026-01-15T15:30:00Z"


def test_a_pod_that_a_disruption_budget_keeps_is_shown_once_and_tried_again(cluster: Cluster) -> None:
    cluster.begin("p1", "p2")
    cluster.after(2 * HOUR)
    cluster.kept = {"p1"}
    assert sorted(cluster.after(0.5 * HOUR)) == ["BudgetEviction", "BudgetEvictionBlocked"]
    assert cluster.after(15) == []
    cluster.kept = set()
    assert cluster.after(15) == ["BudgetEviction"]
    assert sorted(cluster.evicted) == ["p1", "p2"]


def test_a_later_leader_goes_on_from_the_notices(cluster: Cluster) -> None:
    cluster.begin("p1")
    cluster.after(2 * HOUR)
    cluster.lead()
    assert cluster.after(0.2 * HOUR) == []
    assert cluster.after(0.3 * HOUR) == ["BudgetEviction"]


@pytest.mark.parametrize("enforcement", ["observe", "enforce"])
def test_other_enforcements_evict_no_pod(cluster: Cluster, enforcement: str) -> None:
    cluster.begin("p1", enforcement=enforcement)
    assert cluster.after(3 * HOUR) == []
    assert cluster.after(HOUR) == []
    assert cluster.evicted == []


@pytest.mark.parametrize(
    ("notice", "patience", "after"),
    [
        pytest.param("10m", 600, 600, id="ten minutes"),
        pytest.param("30m", 600, 1800, id="no sooner than its notice would have let it"),
        pytest.param("1m", 900, 900, id="as long as the setting says"),
    ],
)
def test_a_pod_on_which_no_notice_can_be_written_is_evicted_without(
    cluster: Cluster, notice: str, patience: float, after: int
) -> None:
    cluster.unwritable = {"p1"}
    cluster.jobs.without_notice_seconds = patience
    cluster.begin("p1", "p2", evictionNotice=notice)
    assert cluster.after(2 * HOUR) == ["BudgetEvictionNotice"]
    reasons = [reason for _ in range(after // 20 - 1) for reason in cluster.after(20)]
    assert "p1" not in cluster.evicted
    assert reasons[0] == "PodNotWritten"
    assert f"without a notice {after // 60} minutes" in next(
        shown.message for shown in cluster.notices if shown.reason == "PodNotWritten"
    )
    for _ in range(7):  # the next try may be two minutes away
        reasons = cluster.after(20)
        if "p1" in cluster.evicted:
            break
    assert reasons[:2] == ["BudgetEviction", "BudgetEvictionWithoutNotice"]
    shown = next(shown for shown in cluster.notices if shown.reason == "BudgetEvictionWithoutNotice")
    assert shown.regarding["metadata"]["uid"] == "budget-a"
    assert "team-a/p1" in shown.message
    assert cluster.jobs.counted("evictions_total", outcome="without-notice") == 1
    assert cluster.jobs.counted("pods_not_written", step="notice") == 0


def test_a_pod_without_a_notice_goes_on_where_the_money_comes_back_in_time(cluster: Cluster) -> None:
    cluster.unwritable = {"p1"}
    cluster.begin("p1")
    cluster.after(2 * HOUR)
    for _ in range(20):
        cluster.after(60)
    cluster.grant(1)
    for _ in range(20):
        cluster.after(60)
    assert cluster.evicted == []
    cluster.after(0.5 * HOUR)
    assert cluster.evicted == [], "the failures of the last exhaustion do not count in this one"


def test_a_pod_without_a_notice_that_a_disruption_budget_keeps_is_asked_for_again(cluster: Cluster) -> None:
    cluster.unwritable = cluster.kept = {"p1"}
    cluster.begin("p1", evictionNotice="10m")
    cluster.after(2 * HOUR)
    shown = [reason for _ in range(60) for reason in cluster.after(20)]
    assert shown == ["PodNotWritten", "BudgetEvictionBlocked"]
    cluster.kept = set()
    assert cluster.after(20) == ["BudgetEviction", "BudgetEvictionWithoutNotice"]


def test_figures_that_could_not_be_renewed_are_no_ground_to_evict(cluster: Cluster) -> None:
    cluster.begin("p1")
    cluster.after(2 * HOUR)
    late = cluster.now + int(HOUR * SECOND)
    assert cluster.jobs.evict(cluster.now, late) == 0
    assert cluster.evicted == []


def test_the_pods_that_one_teams_disruption_budgets_keep_save_those_of_no_other_team(cluster: Cluster) -> None:
    """Each is asked for again every ten seconds, and there are more than a turn has room for."""
    kept = [f"kept-{number}" for number in range(40)]
    cluster.replace("budgets", [budget_object(name, [f"team-{name}"], **EVICT) for name in "ab"])
    pods = [*(cluster.harness.pod(name, "team-a") for name in kept), cluster.harness.pod("goes", "team-b")]
    cluster.replace("pods", pods)
    cluster.after(0)
    cluster.kept.update(kept)
    cluster.busy = 0.1
    for _ in range(30):
        cluster.after(HOUR)
    assert cluster.evicted == ["goes"]
