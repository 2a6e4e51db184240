"""What pods pay where what they use is billed, or the larger of that and what they reserve."""

from __future__ import annotations

import json

import pytest

from tests.keeper_stage import NOON, Stage, report
from timekeeper.jobs.memory.books import KeeperRules
from timekeeper.metering.bill import Bill
from timekeeper.metering.reports import Counter
from timekeeper.rules.money import GPU_SECOND, SECOND
from timekeeper.rules.timestamps import HOUR
from timekeeper.store import keys, reading
from timekeeper.store.report_intake import Outcome, ReportIntake, Submission
from timekeeper.store.usage_reading import accounts_usage


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
    stage.pass_time(3599)
    report(stage, "p1", 1, 600)
    stage.round(1)
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


@pytest.mark.parametrize("seconds_after", [0, 1])
def test_what_is_reported_belongs_to_the_period_in_which_it_was_received_whenever_the_leader_looks(
    stage: Stage, seconds_after: int
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(KeeperRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    for seq, (seconds, busy) in enumerate([(3599, 600), (1, 650), (3599, 900), (1 + seconds_after, 1000)]):
        stage.pass_time(seconds)
        report(stage, "p1", seq, busy)
    stage.lead(KeeperRules(bill=Bill.USED))
    stage.round()
    stage.round(60)
    assert [stage.spent("a", NOON + hour * HOUR) for hour in range(3)] == [
        600 * GPU_SECOND,
        300 * GPU_SECOND,
        (60 + seconds_after) * GPU_SECOND,
    ]


def test_a_report_that_comes_after_the_leader_has_closed_its_period_counts_for_the_next(stage: Stage) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(KeeperRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(3590)
    report(stage, "p1", 1, 600)
    stage.round(10)
    stamped = Submission("p1", "b", 2, stage.now - 1, (Counter("GPU-p1", 610 * SECOND, 0, 0),))
    assert ReportIntake(stage.client).take([stamped]) == [Outcome.TAKEN]
    stage.round(60)
    stage.lead(KeeperRules(bill=Bill.USED))
    stage.round()
    assert (stage.spent("a", NOON), stage.spent("a", NOON + HOUR)) == (600 * GPU_SECOND, 10 * GPU_SECOND)


@pytest.mark.parametrize(("bill", "amount"), [(Bill.USED, 100 + 20), (Bill.MAX, 200)])
def test_a_device_that_no_report_names_is_billed_as_reserved(stage: Stage, bill: Bill, amount: int) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(KeeperRules(bill=bill))
    item = stage.pod("p1", "team-a")
    device = {"model": "A100", "totalMiB": 81920, "core": 100, "memoryMiB": 1}
    held = [{"uuid": uuid, **device} for uuid in ("GPU-p1", "GPU-other")]
    allocation = {"v": 1, "node": "n1", "containers": [{"name": "main", "devices": held}]}
    item["metadata"]["annotations"]["fairgpu.io/allocation"] = json.dumps(allocation)
    limits = {"fairgpu.io/gpu": "2", "fairgpu.io/gpu-core": "200", "fairgpu.io/gpu-memory": "2"}
    item["spec"]["containers"][0]["resources"]["limits"] = limits
    stage.write_pod(item)
    stage.round()
    stage.pass_time(100)
    report(stage, "p1", 1, 20)
    stage.round()
    assert stage.spent("a") == amount * GPU_SECOND
    stage.finish(stage.source_pod("p1"))
    stage.round()
    stage.lead(KeeperRules(bill=bill))
    stage.remove("p1")
    stage.round(10)
    assert stage.spent("a") == amount * GPU_SECOND


def test_a_pod_whose_reports_name_no_device_is_billed_as_reserved_and_shown_as_not_measured(stage: Stage) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(KeeperRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(100)
    for counters in ((), (Counter("GPU-of-another", 5 * SECOND, 5 * SECOND, 1),)):
        assert ReportIntake(stage.client).take([Submission("p1", "b", len(counters), stage.now, counters)])
    stage.round(3600)
    assert stage.spent("a") == 3700 * GPU_SECOND
    assert stage.client.hget(keys.report("p1"), "used") is None
    (usage,) = accounts_usage(stage.client, ["a"], reading.assignments(stage.client))
    assert {row.figures.used for row in usage.rows()} == {None}


def test_a_report_counts_for_no_more_than_the_age_of_the_session_and_the_devices_that_it_holds(stage: Stage) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(KeeperRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(100)
    most = 2**63 - 1
    for number in range(300):
        counters = tuple(Counter(uuid, most, most, most) for uuid in ("GPU-p1", "GPU-p1", "GPU-2"))
        ReportIntake(stage.client).take([Submission("p1", f"b{number}", 1, stage.now, counters)])
    assert stage.client.hget(keys.report("p1"), "used") == b"%d" % (100 * GPU_SECOND)
    stage.round(3600)
    assert stage.spent("a") == 100 * GPU_SECOND


def test_no_counters_are_kept_where_reservations_are_billed(stage: Stage) -> None:
    stage.budget("a", ["team-a"])
    stage.lead()
    stage.pod("p1", "team-a")
    stage.round()
    for minute in range(24 * 60):
        stage.pass_time(60)
        report(stage, "p1", minute, minute)
    assert "body" not in stage.client.hgetall(keys.report("p1"))
    assert int(stage.client.memory_usage(keys.report("p1")) or 0) < 8192
    stage.round()
    assert stage.client.hget(keys.report("p1"), "used") == b"%d" % (1439 * GPU_SECOND)


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
    report(stage, "p1", 2, 10, boot="c")
    stage.round()
    assert stage.spent("a") == 70 * GPU_SECOND
    stage.lead(rules)
    stage.round(10)
    assert stage.spent("a") == 70 * GPU_SECOND
    stage.pass_time(100)
    report(stage, "p1", 3, 15, boot="c")
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
