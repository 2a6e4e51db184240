"""The cost of pods where usage is billed, or the larger of usage and reservation."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from fairgpu.charging import ChargeRules
from tests.support.ledger.harness import NOON, LedgerHarness, report
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.pricing import Bill
from timekeeper.domain.reports import Counter
from timekeeper.domain.timestamps import HOUR, MINUTE
from timekeeper.ledger import keys, reading
from timekeeper.ledger.reports import IntakeOutcome, ReportIntake, Submission
from timekeeper.ledger.usage import accounts_usage


def pod_of_two_gpus(harness: LedgerHarness, core: int = 100) -> None:
    """The pod p1 of team-a holds GPU-p1 and GPU-other, each to so many percent."""
    item = harness.pod("p1", "team-a", core=core)
    device = {"model": "A100", "totalMiB": 81920, "core": core, "memoryMiB": 1}
    held = [{"uuid": uuid, **device} for uuid in ("GPU-p1", "GPU-other")]
    allocation = {"v": 1, "node": "n1", "containers": [{"name": "main", "devices": held}]}
    item["metadata"]["annotations"]["fairgpu.io/allocation"] = json.dumps(allocation)
    limits = {"fairgpu.io/gpu": "2", "fairgpu.io/gpu-core": str(2 * core), "fairgpu.io/gpu-memory": "2"}
    item["spec"]["containers"][0]["resources"]["limits"] = limits
    harness.write_pod(item)


def test_where_use_is_billed_a_pod_pays_what_it_reports_and_never_more_than_it_reserves(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a", core=50)
    harness.pod("silent", "team-a", core=10)
    harness.reconcile()
    harness.pass_time(10)
    report(harness, "p1", 1, 2)
    harness.reconcile()
    assert harness.spent("a") == 2 * GPU_SECOND + 1 * GPU_SECOND
    harness.pass_time(10)
    report(harness, "p1", 2, 1000)
    harness.reconcile()
    assert harness.spent("a") == 10 * GPU_SECOND + 2 * GPU_SECOND


def test_use_after_a_period_began_is_paid_in_that_period_also_under_the_next_leader(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(3599)
    report(harness, "p1", 1, 600)
    harness.reconcile(1)
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pass_time(1800)
    report(harness, "p1", 2, 700)
    harness.reconcile()
    assert (harness.spent("a", NOON), harness.spent("a", NOON + HOUR)) == (600 * GPU_SECOND, 100 * GPU_SECOND)


@pytest.mark.parametrize(("bill", "amounts"), [(Bill.USED, (600, 100)), (Bill.MAX, (3600, 180))])
def test_a_leader_that_takes_over_late_in_a_period_leaves_the_one_before_as_it_was_billed(
    harness: LedgerHarness, bill: Bill, amounts: tuple[int, int]
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(ControllerRules(bill=bill))
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(3599)
    report(harness, "p1", 1, 600)
    harness.pass_time(1)
    for _ in range(3):
        harness.reconcile(60)
    harness.lead(ControllerRules(bill=bill))
    report(harness, "p1", 2, 700)
    harness.reconcile()
    first, second = (amount * GPU_SECOND for amount in amounts)
    assert (harness.spent("a", NOON), harness.spent("a", NOON + HOUR)) == (first, second)


@pytest.mark.parametrize("seconds_after", [0, 1])
def test_a_report_belongs_to_the_period_in_which_it_was_received_whenever_the_leader_looks(
    harness: LedgerHarness, seconds_after: int
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    for seq, (seconds, busy) in enumerate([(3599, 600), (1, 650), (3599, 900), (1 + seconds_after, 1000)]):
        harness.pass_time(seconds)
        report(harness, "p1", seq, busy)
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.reconcile()
    harness.reconcile(60)
    assert [harness.spent("a", NOON + hour * HOUR) for hour in range(3)] == [
        600 * GPU_SECOND,
        300 * GPU_SECOND,
        (60 + seconds_after) * GPU_SECOND,
    ]


def test_a_report_that_comes_after_the_leader_has_closed_its_period_counts_for_the_next(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(3590)
    report(harness, "p1", 1, 600)
    harness.reconcile(10)
    stamped = Submission("p1", "b", 2, harness.now - 1, (Counter("GPU-p1", 610 * SECOND, 0, 0),))
    assert ReportIntake(harness.client).take([stamped]) == [IntakeOutcome.TAKEN]
    harness.reconcile(60)
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.reconcile()
    assert (harness.spent("a", NOON), harness.spent("a", NOON + HOUR)) == (600 * GPU_SECOND, 10 * GPU_SECOND)


@pytest.mark.parametrize(("bill", "amount"), [(Bill.USED, 100 + 20), (Bill.MAX, 200)])
def test_a_device_that_no_report_names_is_billed_as_reserved(harness: LedgerHarness, bill: Bill, amount: int) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(bill=bill))
    pod_of_two_gpus(harness)
    harness.reconcile()
    harness.pass_time(100)
    report(harness, "p1", 1, 20)
    harness.reconcile()
    assert harness.spent("a") == amount * GPU_SECOND
    harness.finish(harness.source_pod("p1"))
    harness.reconcile()
    harness.lead(ControllerRules(bill=bill))
    harness.remove("p1")
    harness.reconcile(10)
    assert harness.spent("a") == amount * GPU_SECOND


def test_a_pod_whose_reports_name_no_device_is_billed_as_reserved_and_shown_as_not_measured(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(100)
    for counters in ((), (Counter("GPU-of-another", 5 * SECOND, 5 * SECOND, 1),)):
        assert ReportIntake(harness.client).take([Submission("p1", "b", len(counters), harness.now, counters)])
    harness.reconcile(3600)
    assert harness.spent("a") == 3700 * GPU_SECOND
    assert harness.client.hget(keys.report("p1"), "used") is None
    (usage,) = accounts_usage(harness.client, ["a"], reading.assignments(harness.client))
    assert {row.figures.used for row in usage.rows()} == {None}


def test_a_report_counts_for_no_more_than_the_age_of_the_session_and_the_devices_that_it_holds(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(100)
    most = 2**63 - 1
    for number in range(300):
        counters = tuple(Counter(uuid, most, most, most) for uuid in ("GPU-p1", "GPU-p1", "GPU-2"))
        ReportIntake(harness.client).take([Submission("p1", f"b{number}", 1, harness.now, counters)])
    assert harness.client.hget(keys.report("p1"), "used") == b"%d" % (100 * GPU_SECOND)
    harness.reconcile(3600)
    assert harness.spent("a") == 100 * GPU_SECOND


def test_no_counters_are_kept_where_reservations_are_billed(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.lead()
    harness.pod("p1", "team-a")
    harness.reconcile()
    for minute in range(24 * 60):
        harness.pass_time(60)
        report(harness, "p1", minute, minute)
    stored: Any = harness.client.hkeys(keys.report("p1"))
    assert set(stored) <= {b"terms", b"state", b"closed", b"settled", b"phase", b"epoch", b"at", b"used", b"a"}
    assert int(harness.client.memory_usage(keys.report("p1")) or 0) < 8192
    harness.reconcile()
    assert harness.client.hget(keys.report("p1"), "used") == b"%d" % (1439 * GPU_SECOND)


def test_where_the_larger_is_billed_a_pod_that_borrows_pays_for_what_it_borrowed(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(bill=Bill.MAX))
    item = harness.pod("p1", "team-a", core=50)
    item["metadata"]["annotations"]["fairgpu.io/core-policy"] = "elastic"
    harness.write_pod(item)
    harness.reconcile()
    harness.pass_time(10)
    report(harness, "p1", 1, 8)
    harness.reconcile()
    assert harness.spent("a") == 8 * GPU_SECOND


def test_counters_that_begin_anew_lose_nothing_also_under_the_next_leader(harness: LedgerHarness) -> None:
    rules = ControllerRules(bill=Bill.USED)
    harness.budget("a", ["team-a"])
    harness.lead(rules)
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(100)
    report(harness, "p1", 1, 60)
    harness.reconcile()
    harness.pass_time(100)
    report(harness, "p1", 2, 10, boot="c")
    harness.reconcile()
    assert harness.spent("a") == 70 * GPU_SECOND
    harness.lead(rules)
    harness.reconcile(10)
    assert harness.spent("a") == 70 * GPU_SECOND
    harness.pass_time(100)
    report(harness, "p1", 3, 15, boot="c")
    harness.lead(rules)
    harness.reconcile()
    assert harness.spent("a") == 75 * GPU_SECOND
    harness.client.delete(keys.report("p1"))
    harness.lead(rules)
    harness.reconcile(10)
    assert harness.spent("a") == 75 * GPU_SECOND


def test_no_part_of_an_ended_pods_report_stays_that_is_as_long_as_it_liked(harness: LedgerHarness) -> None:
    """Pods come and go by the thousand, each with a report of 128 KiB, and the store is in memory."""
    rules = ControllerRules(bill=Bill.USED)
    harness.budget("a", ["team-a"])
    harness.lead(rules)
    for uid in ("stays", "leaves"):
        harness.pod(uid, "team-a")
    harness.reconcile()
    harness.pass_time(100)
    for boot in range(40):
        for uid in ("stays", "leaves"):
            report(harness, uid, 1, 1, boot=f"{boot}" + "b" * 60)
    harness.finish(harness.source_pod("stays"))
    harness.remove("leaves")
    harness.reconcile()
    for uid in ("stays", "leaves"):
        assert set(harness.client.hgetall(keys.report(uid))) == {b"at", b"used"}
        assert harness.client.hget(keys.report(uid), "used") == b"40000000"
        assert 0 < harness.client.ttl(keys.report(uid)) <= 35 * 86400
    spent = harness.spent("a")
    harness.lead(rules)
    harness.reconcile(10)
    assert harness.spent("a") == spent


@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
def test_a_report_that_comes_as_the_namespace_moves_is_the_next_payers_and_leaves_the_time_before_unmeasured(
    harness: LedgerHarness, bill: Bill
) -> None:
    harness.budget("a", ["team-a"])
    harness.budget("b", ["team-b"])
    harness.lead(ControllerRules(bill=bill))
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(100)
    report(harness, "p1", 1, 40)
    harness.budget("a", ["team-c"])
    harness.budget("b", ["team-b", "team-a"])
    harness.reconcile()
    assert (harness.spent("a"), harness.spent("b")) == (100 * GPU_SECOND, 0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"cron": "7 * * * *"}, {"cron": "7 * * * *"}),
        ({"every": "hour"}, {"cron": "7 * * * *"}),
        ({"cron": "7 * * * *"}, {"every": "hour"}),
        ({"cron": "7 * * * *"}, {"every": "hour", "timeZone": "Asia/Kathmandu"}),
    ],
)
def test_reports_that_came_without_a_leader_belong_to_the_periods_in_which_they_were_received(
    harness: LedgerHarness, before: dict[str, str], after: dict[str, str]
) -> None:
    harness.budget("a", ["team-a"], period=before)
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.budget("a", ["team-a"], period=after)
    harness.reconcile(1)
    received, busy = [], 0
    for minute in range(4 * 60):
        harness.pass_time(60)
        busy += 10 + minute % 20
        report(harness, "p1", minute, busy)
        received.append((harness.now, busy * GPU_SECOND))
    harness.pass_time(300)
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.reconcile()
    periods = {int(start): int(end) for start, end in harness.client.hgetall("fairgpu:{a}:periods").items()}
    assert len(periods) > 3

    def used_before(instant: int) -> int:
        return max((total for at, total in received if at < instant), default=0)

    assert {start: harness.spent("a", start) for start in periods} == {
        start: used_before(min(end, harness.now + 1)) - used_before(start) for start, end in periods.items()
    }


def test_a_figure_of_use_that_an_earlier_version_believed_counts_for_no_more_than_the_session_can_have_used(
    harness: LedgerHarness,
) -> None:
    rules = ControllerRules(bill=Bill.USED)
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(rules)
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(600)
    report(harness, "p1", 1, 60)
    harness.reconcile(3000)
    record = json.loads(harness.client.hget("fairgpu:{a}:sessions", "p1") or "{}")
    believed = {"use": [["a", NOON, 0]], "tally": [10**23, [["main", "GPU-p1", 10**23, 0, 0]]]}
    harness.client.hset("fairgpu:{a}:sessions", "p1", json.dumps(record | believed))
    harness.client.delete(keys.report("p1"))
    harness.lead(rules)
    harness.reconcile()
    harness.pass_time(1800)
    report(harness, "p1", 2, 3600 + 900)
    harness.reconcile()
    assert harness.spent("a", NOON + HOUR) == 900 * GPU_SECOND


def test_a_billed_amount_stays_where_the_record_reports_less_and_the_reports_are_lost(harness: LedgerHarness) -> None:
    rules = ControllerRules(bill=Bill.USED)
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(rules)
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(600)
    report(harness, "p1", 1, 60)
    harness.reconcile()
    record = json.loads(harness.client.hget("fairgpu:{a}:sessions", "p1") or "{}")
    of_format_1 = {"use": [["a", NOON, 0]], "tally": [0, [["main", "GPU-p1", 60 * SECOND, 0, 0]]]}
    harness.client.hset("fairgpu:{a}:sessions", "p1", json.dumps(record | of_format_1))
    harness.client.delete(keys.report("p1"))
    harness.lead(rules)
    harness.reconcile(10)
    assert harness.spent("a", NOON) == 60 * GPU_SECOND
    harness.pass_time(10)
    report(harness, "p1", 2, 75)
    harness.reconcile()
    assert harness.spent("a", NOON) == 75 * GPU_SECOND


def test_a_report_that_is_stamped_by_a_clock_ahead_leaves_the_time_before_it_unmeasured(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(3599)
    ahead = Submission("p1", "b", 1, harness.now + 2 * SECOND, (Counter("GPU-p1", SECOND, 0, 0),))
    assert ReportIntake(harness.client).take([ahead]) == [IntakeOutcome.TAKEN]
    harness.reconcile()
    assert harness.spent("a", NOON) == 3599 * GPU_SECOND


@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("seconds_ago", [5, 6])
@pytest.mark.parametrize("first", [600, None])
@pytest.mark.parametrize("seen", [False, True])
def test_a_report_after_an_end_counts_in_the_period_of_the_end_whatever_rounds_ran_before_that_was_seen(
    harness: LedgerHarness, seconds_ago: int, rounds: int, first: int | None, *, seen: bool
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(ControllerRules(bill=Bill.USED))
    pod = harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(3590)
    if first is not None:
        report(harness, "p1", 1, first)
    harness.pass_time(10)
    for _ in range(rounds):
        harness.reconcile()
        harness.pass_time(2)
    harness.pass_time(5 - 2 * rounds)
    report(harness, "p1", 2, 700)
    if seen:
        harness.reconcile()
    harness.finish(pod, seconds_ago)
    harness.reconcile()
    assert (harness.spent("a", NOON), harness.spent("a", NOON + HOUR)) == (700 * GPU_SECOND, 0)


@pytest.mark.parametrize("seconds_ago", [5, 6, 30])
def test_a_report_after_an_end_is_the_payers_who_paid_at_the_end_though_the_namespace_has_moved_since(
    harness: LedgerHarness, seconds_ago: int
) -> None:
    harness.budget("a", ["team-a"])
    harness.budget("b", ["team-b"])
    harness.lead(ControllerRules(bill=Bill.USED))
    pod = harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(1000)
    report(harness, "p1", 1, 600)
    harness.pass_time(10)
    harness.budget("a", ["team-c"])
    harness.budget("b", ["team-b", "team-a"])
    harness.reconcile()
    harness.pass_time(5)
    report(harness, "p1", 2, 700)
    harness.finish(pod, seconds_ago)
    harness.reconcile()
    assert (harness.spent("a"), harness.spent("b")) == (700 * GPU_SECOND, 0)


@pytest.mark.parametrize(("bill", "amount"), [(Bill.RESERVED, 3599), (Bill.USED, 600), (Bill.MAX, 3600)])
def test_an_end_that_is_seen_two_periods_later_leaves_the_amount_in_its_own_period_and_takes_back_the_later_ones(
    harness: LedgerHarness, bill: Bill, amount: int
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(ControllerRules(bill=bill))
    pod = harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(3590)
    report(harness, "p1", 1, 600)
    harness.pass_time(10)
    harness.reconcile()
    harness.reconcile(1800)
    harness.reconcile(1800)
    harness.reconcile(10)
    report(harness, "p1", 2, 700)
    harness.finish(pod, 3611)
    harness.reconcile()
    assert [harness.spent("a", NOON + hour * HOUR) for hour in range(3)] == [amount * GPU_SECOND, 0, 0]
    harness.lead(ControllerRules(bill=bill))
    harness.remove("p1")
    harness.reconcile(10)
    assert [harness.spent("a", NOON + hour * HOUR) for hour in range(3)] == [amount * GPU_SECOND, 0, 0]
    assert reading.load_accounts(harness.client, ["a"])[0].closed == ()


@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
def test_a_leader_with_another_floor_for_best_effort_leaves_the_share_of_what_is_not_measured(
    harness: LedgerHarness, bill: Bill
) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(bill=bill))
    pod_of_two_gpus(harness, core=0)
    harness.reconcile()
    harness.pass_time(100)
    report(harness, "p1", 1, 5)
    harness.reconcile()
    before = harness.spent("a")
    assert before == {Bill.USED: 5 + 10, Bill.MAX: 20}[bill] * GPU_SECOND
    harness.lead(ControllerRules(bill=bill, charge=ChargeRules(best_effort_floor_percent=50)))
    harness.reconcile()
    assert harness.spent("a") == before


def test_terms_that_cannot_be_read_are_written_anew_by_the_leader_that_finds_them(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    terms = harness.client.hget(keys.report("p1"), "terms")
    for broken in (b"[1,[[]],1,1,1]", b"[]", b"x" * 100):
        harness.client.hset(keys.report("p1"), "terms", broken)
        harness.lead(ControllerRules(bill=Bill.USED))
        harness.reconcile(1)
        assert harness.client.hget(keys.report("p1"), "terms") == terms


@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
def test_an_end_that_is_seen_after_its_period_leaves_the_periods_before_as_they_were_billed(
    harness: LedgerHarness, bill: Bill
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(ControllerRules(bill=bill))
    pod_of_two_gpus(harness)
    harness.reconcile()
    for number in range(24):
        harness.pass_time(300)
        report(harness, "p1", number, 30 * number)
        harness.reconcile()
    before = harness.spent("a", NOON)
    report(harness, "p1", 99, 1000)
    harness.pass_time(10)
    harness.finish(harness.source_pod("p1"), 10)
    harness.reconcile()
    assert harness.spent("a", NOON) == before
    assert harness.spent("a", NOON + 2 * HOUR) == 0


def test_the_reports_that_a_refused_amount_needs_are_kept_until_it_is_mended(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    amounts = keys.AccountKeys("a").amounts(NOON)
    whole = harness.client.hget(amounts, "p1")
    assert isinstance(whole, bytes)
    harness.client.hset(amounts, "p1", "broken")
    report_for(harness, 80, 0)
    harness.reconcile()
    harness.reconcile(1)
    harness.lead(ControllerRules(bill=Bill.USED))
    report_for(harness, 40, 80)
    harness.client.hset(amounts, "p1", whole)
    harness.reconcile()
    assert [harness.spent("a", NOON + hour * HOUR) for hour in (0, 1)] == [59 * GPU_SECOND, 60 * GPU_SECOND]


def test_the_reports_before_a_move_are_kept_while_the_period_that_was_left_goes_on(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.budget("b", ["team-b"])
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    report_for(harness, 20, 0)
    harness.reconcile()
    harness.budget("a", ["team-c"])
    harness.budget("b", ["team-b", "team-a"])
    harness.reconcile(1)
    for hour in range(3):
        report_for(harness, 60, 20 + 60 * hour)
        harness.reconcile()
    assert (harness.spent("a"), harness.spent("b")) == (20 * GPU_SECOND, 180 * GPU_SECOND)


def report_for(harness: LedgerHarness, minutes: int, before: int) -> None:
    """Lets minutes pass, with a report of one busy second at the end of each; there were as many minutes before."""
    for minute in range(1, minutes + 1):
        harness.pass_time(60)
        report(harness, "p1", before + minute, before + minute)


def test_a_session_that_moves_twice_within_a_period_keeps_what_was_measured_before_the_first_move(
    harness: LedgerHarness,
) -> None:
    for name in "abc":
        harness.budget(name, [f"team-{name}"])
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    report_for(harness, 2, 0)
    for number, (before, after) in enumerate(pairwise("abc")):
        harness.budget(before, [f"{before}-none"])
        harness.budget(after, [f"team-{after}", "team-a"])
        harness.reconcile(1)
        report_for(harness, 5, 2 + 5 * number)
    harness.reconcile()
    assert [harness.spent(name) for name in "abc"] == [2 * GPU_SECOND, 5 * GPU_SECOND, 5 * GPU_SECOND]


def test_use_measured_before_a_move_counts_also_five_days_later(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.budget("b", ["team-b"])
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    report_for(harness, 2, 0)
    harness.budget("a", ["team-c"])
    harness.budget("b", ["team-a"])
    harness.reconcile(1)
    for number in range(5 * 24 * 4):
        harness.pass_time(900)
        report(harness, "p1", 3 + number, 3 + number)
        if number % 4 == 0:
            harness.reconcile()
    harness.reconcile()
    assert (harness.spent("a"), harness.spent("b")) == (2 * GPU_SECOND, 480 * GPU_SECOND)
    assert (harness.client.memory_usage(keys.report("p1")) or 0) < 4096


def test_a_report_before_a_move_is_the_first_payers_also_where_the_leader_ended_as_it_wrote_the_move(
    harness: LedgerHarness,
) -> None:
    def step(name: str) -> None:
        if name == "open":
            raise KeyboardInterrupt

    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    report_for(harness, 2, 0)
    harness.budget("a", ["team-c"])
    harness.lead(ControllerRules(bill=Bill.USED), step=step)
    with pytest.raises(KeyboardInterrupt):
        harness.reconcile(1)
    report_for(harness, 9, 2)
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.reconcile()
    assert (harness.spent("a"), harness.spent("namespace:team-a")) == (2 * GPU_SECOND, 9 * GPU_SECOND)


def test_a_report_that_is_read_after_a_move_changes_the_hours_of_the_period_that_was_left_with_its_amount(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    harness.budget("b", ["team-b"])
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.reconcile()
    harness.pass_time(0.5)
    harness.budget("a", ["team-c"])
    harness.budget("b", ["team-b", "team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile()
    assert harness.spent("a") == GPU_SECOND // 2
    submission = Submission("p1", "b", 1, harness.now - SECOND, (Counter("GPU-p1", 0, SECOND, 0),))
    ReportIntake(harness.client).take([submission])
    harness.reconcile(1)
    assert harness.spent("a") == 0


@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
def test_a_payer_that_paid_for_no_time_leaves_what_was_used_to_those_before_and_after_it(
    harness: LedgerHarness, bill: Bill
) -> None:
    harness.budget("a", ["team-a"])
    harness.budget("b", ["team-b"])
    harness.lead(ControllerRules(bill=bill))
    item = harness.pod("p1", "team-a", core=1)
    item["metadata"]["annotations"]["fairgpu.io/core-policy"] = "elastic"
    harness.write_pod(item)
    harness.reconcile()

    def move(payer: str, seconds: float) -> None:
        for name in "ab":
            harness.budget(name, [f"team-{name}-none", *(["team-a"] if name == payer else [])])
        harness.reconcile(seconds)

    move("b", 1)
    report_for(harness, 10, 0)
    move("a", 1)
    move("none", 0)
    report_for(harness, 10, 10)
    harness.reconcile()
    spent = [harness.spent(name) for name in ("a", "b", "namespace:team-a")]
    assert spent == [GPU_SECOND // 100, 10 * GPU_SECOND, 10 * GPU_SECOND]


def test_a_payer_that_left_as_a_session_began_is_billed_what_is_used_once_it_pays_again(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.budget("a", ["team-c"])
    harness.reconcile()
    report_for(harness, 2, 0)
    harness.budget("a", ["team-a"])
    harness.reconcile(1)
    report_for(harness, 5, 2)
    harness.reconcile()
    assert (harness.spent("a"), harness.spent("namespace:team-a")) == (5 * GPU_SECOND, 2 * GPU_SECOND)


@pytest.mark.parametrize("ending", ["", "settle"])
def test_a_rule_that_changes_without_a_leader_holds_for_periods_that_begin_after_a_leader_has_read_it(
    harness: LedgerHarness, ending: str
) -> None:
    def step(name: str) -> None:
        if name == ending:
            raise KeyboardInterrupt

    harness.budget("a", ["team-a"], period={"cron": "7 * * * *"})
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.budget("a", ["team-a"], period={"every": "hour"})
    if ending:
        harness.lead(ControllerRules(bill=Bill.USED), step=step)
        with pytest.raises(KeyboardInterrupt):
            harness.reconcile(1)
    report_for(harness, 90, 0)
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.reconcile()
    report_for(harness, 60, 90)
    harness.reconcile()
    begins = [7, 67, 127, 180] if not ending else [7, 60, 120]
    found = sorted(int(start) for start in harness.client.hkeys("fairgpu:{a}:periods"))
    assert [(start - NOON) // MINUTE for start in found[1:]] == [each for each in begins if each < 150]
    ends = [start - NOON for start in found[1:]] + [harness.now - NOON]
    received = [max((end - 1) // MINUTE, 0) for end in ends[:-1]] + [150]
    spent = [after - before for before, after in pairwise([0, *received])]
    assert [harness.spent("a", start) for start in found] == [each * GPU_SECOND for each in spent]


def test_use_before_a_period_ended_stays_in_it_where_the_node_fell_silent_and_no_leader_follows_for_minutes(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], period={"cron": "7 * * * *"})
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("p1", "team-a")
    harness.pod("running", "team-a", core=10, node="n2")
    harness.reconcile()
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.reconcile(60)
    report(harness, "p1", 1, 50)
    harness.pass_time(300)
    report(harness, "p1", 2, 300)
    harness.silence("n1", harness.now)
    harness.reconcile(90)
    for seq, seconds, busy in [(3, 60, 310), (4, 180, 320)]:
        harness.pass_time(seconds)
        report(harness, "p1", seq, busy)
    harness.silence("n1", None)
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.reconcile(60)
    assert harness.spent("a", NOON - 53 * MINUTE) == (300 + 7 * 6) * GPU_SECOND


def report_a_tenth(harness: LedgerHarness, first: int, last: int) -> None:
    """The pod p1 reports every five minutes that it used its device for a tenth of the time since its start."""
    for number in range(first, last):
        harness.pass_time(300)
        report(harness, "p1", number, 30 * number)
        harness.reconcile()


@pytest.mark.parametrize(
    ("before", "then", "spent"),
    [
        (Bill.RESERVED, Bill.USED, [3600, 360, 360]),
        (Bill.RESERVED, Bill.MAX, [3600, 3600, 3600]),
        (Bill.USED, Bill.RESERVED, [330, 3600, 3600]),
    ],
)
def test_another_bill_holds_for_the_present_period_as_a_whole_and_for_none_before_it(
    harness: LedgerHarness, before: Bill, then: Bill, spent: list[int]
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(ControllerRules(bill=before))
    harness.pod("p1", "team-a")
    harness.reconcile()
    report_a_tenth(harness, 1, 17)
    harness.lead(ControllerRules(bill=then))
    harness.reconcile(1)
    report_a_tenth(harness, 17, 41)
    assert [harness.spent("a", NOON + hour * HOUR) for hour in range(3)] == [each * GPU_SECOND for each in spent]
    around = AuditEnvironment(harness.client, lambda: None, lambda: harness.now, lambda _: False)
    assert audit(around, AuditRequest(patience_seconds=0)).differences == ()


def test_a_pod_that_has_reported_nothing_since_use_is_billed_is_billed_as_reserved(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile()
    report_a_tenth(harness, 1, 3)
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.reconcile(60)
    assert harness.spent("a") == 660 * GPU_SECOND
    report_a_tenth(harness, 3, 4)
    assert harness.spent("a") == 90 * GPU_SECOND
