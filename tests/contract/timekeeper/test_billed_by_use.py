"""What pods pay where what they use is billed, or the larger of that and what they reserve."""

from __future__ import annotations

import pytest

from tests.keeper_stage import NOON, Stage, report
from timekeeper.jobs.memory.books import KeeperRules
from timekeeper.metering.bill import Bill
from timekeeper.rules.money import GPU_SECOND
from timekeeper.rules.timestamps import HOUR
from timekeeper.store import keys


def test_where_use_is_billed_a_pod_pays_what_it_reports_and_never_more_than_it_reserves(stage: Stage) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(KeeperRules(bill=Bill.USED))
    stage.pod("p1", "team-a", core=50)
    stage.pod("silent", "team-a", core=10)
    stage.round()
    stage.pass_time(10)
    report(stage, "p1", 1, 2)
    stage.round()
    assert stage.spent("a") == 2 * GPU_SECOND + 1 * GPU_SECOND
    stage.pass_time(10)
    report(stage, "p1", 2, 1000)
    stage.round()
    assert stage.spent("a") == 10 * GPU_SECOND + 2 * GPU_SECOND


def test_what_is_used_after_a_period_began_is_paid_in_that_period_also_under_the_next_leader(stage: Stage) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(KeeperRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(3600)
    report(stage, "p1", 1, 600)
    stage.round()
    stage.lead(KeeperRules(bill=Bill.USED))
    stage.pass_time(1800)
    report(stage, "p1", 2, 700)
    stage.round()
    assert (stage.spent("a", NOON), stage.spent("a", NOON + HOUR)) == (600 * GPU_SECOND, 100 * GPU_SECOND)


@pytest.mark.parametrize(("bill", "amounts"), [(Bill.USED, (600, 100)), (Bill.MAX, (3600, 180))])
def test_a_leader_that_takes_over_late_in_a_period_leaves_the_one_before_as_it_was_billed(
    stage: Stage, bill: Bill, amounts: tuple[int, int]
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(KeeperRules(bill=bill))
    stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(3599)
    report(stage, "p1", 1, 600)
    stage.pass_time(1)
    for _ in range(3):
        stage.round(60)
    stage.lead(KeeperRules(bill=bill))
    report(stage, "p1", 2, 700)
    stage.round()
    first, second = (amount * GPU_SECOND for amount in amounts)
    assert (stage.spent("a", NOON), stage.spent("a", NOON + HOUR)) == (first, second)


def test_where_the_larger_is_billed_a_pod_that_borrows_pays_for_what_it_borrowed(stage: Stage) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(KeeperRules(bill=Bill.MAX))
    item = stage.pod("p1", "team-a", core=50)
    item["metadata"]["annotations"]["fairgpu.io/core-policy"] = "elastic"
    stage.write_pod(item)
    stage.round()
    stage.pass_time(10)
    report(stage, "p1", 1, 8)
    stage.round()
    assert stage.spent("a") == 8 * GPU_SECOND


def test_counters_that_begin_anew_lose_nothing_also_under_the_next_leader(stage: Stage) -> None:
    rules = KeeperRules(bill=Bill.USED)
    stage.budget("a", ["team-a"])
    stage.lead(rules)
    stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(100)
    report(stage, "p1", 1, 60)
    stage.round()
    stage.pass_time(100)
    report(stage, "p1", 2, 10)
    stage.round()
    assert stage.spent("a") == 70 * GPU_SECOND
    stage.lead(rules)
    stage.round(10)
    assert stage.spent("a") == 70 * GPU_SECOND
    stage.pass_time(100)
    report(stage, "p1", 3, 5)
    stage.lead(rules)
    stage.round()
    assert stage.spent("a") == 75 * GPU_SECOND
    stage.client.delete(keys.report("p1"))
    stage.lead(rules)
    stage.round(10)
    assert stage.spent("a") == 75 * GPU_SECOND


def test_of_what_an_ended_pod_reported_nothing_stays_that_is_as_long_as_it_liked(stage: Stage) -> None:
    """Pods come and go by the thousand, each with a report of 128 KiB, and the store is in memory."""
    rules = KeeperRules(bill=Bill.USED)
    stage.budget("a", ["team-a"])
    stage.lead(rules)
    for uid in ("stays", "leaves"):
        stage.pod(uid, "team-a")
    stage.round()
    stage.pass_time(100)
    for boot in range(40):
        for uid in ("stays", "leaves"):
            report(stage, uid, 1, 1, boot=f"{boot}" + "b" * 60)
    stage.finish(stage.source_pod("stays"))
    stage.remove("leaves")
    stage.round()
    for uid in ("stays", "leaves"):
        assert set(stage.client.hgetall(keys.report(uid))) == {b"at", b"used"}
        assert stage.client.hget(keys.report(uid), "used") == b"40000000"
        assert 0 < stage.client.ttl(keys.report(uid)) <= 35 * 86400
    spent = stage.spent("a")
    stage.lead(rules)
    stage.round(10)
    assert stage.spent("a") == spent
