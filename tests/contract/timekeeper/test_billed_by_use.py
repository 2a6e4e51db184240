"""What pods pay where what they use is billed, or the larger of that and what they reserve."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from fairgpu.charging import ChargeRules
from tests.support.ledger.harness import NOON, LedgerHarness, report
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.pricing import Bill
from timekeeper.domain.reports import Counter
from timekeeper.domain.timestamps import HOUR, MINUTE
from timekeeper.ledger import keys, reading
from timekeeper.ledger.reports import IntakeOutcome, ReportIntake, Submission
from timekeeper.ledger.usage import accounts_usage


def test_where_use_is_billed_a_pod_pays_what_it_reports_and_never_more_than_it_reserves(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(ControllerRules(bill=Bill.USED))
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


def test_what_is_used_after_a_period_began_is_paid_in_that_period_also_under_the_next_leader(
    stage: LedgerHarness,
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(3599)
    report(stage, "p1", 1, 600)
    stage.round(1)
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.pass_time(1800)
    report(stage, "p1", 2, 700)
    stage.round()
    assert (stage.spent("a", NOON), stage.spent("a", NOON + HOUR)) == (600 * GPU_SECOND, 100 * GPU_SECOND)


@pytest.mark.parametrize(("bill", "amounts"), [(Bill.USED, (600, 100)), (Bill.MAX, (3600, 180))])
def test_a_leader_that_takes_over_late_in_a_period_leaves_the_one_before_as_it_was_billed(
    stage: LedgerHarness, bill: Bill, amounts: tuple[int, int]
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(ControllerRules(bill=bill))
    stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(3599)
    report(stage, "p1", 1, 600)
    stage.pass_time(1)
    for _ in range(3):
        stage.round(60)
    stage.lead(ControllerRules(bill=bill))
    report(stage, "p1", 2, 700)
    stage.round()
    first, second = (amount * GPU_SECOND for amount in amounts)
    assert (stage.spent("a", NOON), stage.spent("a", NOON + HOUR)) == (first, second)


@pytest.mark.parametrize("seconds_after", [0, 1])
def test_what_is_reported_belongs_to_the_period_in_which_it_was_received_whenever_the_leader_looks(
    stage: LedgerHarness, seconds_after: int
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    for seq, (seconds, busy) in enumerate([(3599, 600), (1, 650), (3599, 900), (1 + seconds_after, 1000)]):
        stage.pass_time(seconds)
        report(stage, "p1", seq, busy)
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.round()
    stage.round(60)
    assert [stage.spent("a", NOON + hour * HOUR) for hour in range(3)] == [
        600 * GPU_SECOND,
        300 * GPU_SECOND,
        (60 + seconds_after) * GPU_SECOND,
    ]


def test_a_report_that_comes_after_the_leader_has_closed_its_period_counts_for_the_next(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(3590)
    report(stage, "p1", 1, 600)
    stage.round(10)
    stamped = Submission("p1", "b", 2, stage.now - 1, (Counter("GPU-p1", 610 * SECOND, 0, 0),))
    assert ReportIntake(stage.client).take([stamped]) == [IntakeOutcome.TAKEN]
    stage.round(60)
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.round()
    assert (stage.spent("a", NOON), stage.spent("a", NOON + HOUR)) == (600 * GPU_SECOND, 10 * GPU_SECOND)


@pytest.mark.parametrize(("bill", "amount"), [(Bill.USED, 100 + 20), (Bill.MAX, 200)])
def test_a_device_that_no_report_names_is_billed_as_reserved(stage: LedgerHarness, bill: Bill, amount: int) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(ControllerRules(bill=bill))
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
    stage.lead(ControllerRules(bill=bill))
    stage.remove("p1")
    stage.round(10)
    assert stage.spent("a") == amount * GPU_SECOND


def test_a_pod_whose_reports_name_no_device_is_billed_as_reserved_and_shown_as_not_measured(
    stage: LedgerHarness,
) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(ControllerRules(bill=Bill.USED))
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


def test_a_report_counts_for_no_more_than_the_age_of_the_session_and_the_devices_that_it_holds(
    stage: LedgerHarness,
) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(ControllerRules(bill=Bill.USED))
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


def test_no_counters_are_kept_where_reservations_are_billed(stage: LedgerHarness) -> None:
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


def test_where_the_larger_is_billed_a_pod_that_borrows_pays_for_what_it_borrowed(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(ControllerRules(bill=Bill.MAX))
    item = stage.pod("p1", "team-a", core=50)
    item["metadata"]["annotations"]["fairgpu.io/core-policy"] = "elastic"
    stage.write_pod(item)
    stage.round()
    stage.pass_time(10)
    report(stage, "p1", 1, 8)
    stage.round()
    assert stage.spent("a") == 8 * GPU_SECOND


def test_counters_that_begin_anew_lose_nothing_also_under_the_next_leader(stage: LedgerHarness) -> None:
    rules = ControllerRules(bill=Bill.USED)
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


def test_of_what_an_ended_pod_reported_nothing_stays_that_is_as_long_as_it_liked(stage: LedgerHarness) -> None:
    """Pods come and go by the thousand, each with a report of 128 KiB, and the store is in memory."""
    rules = ControllerRules(bill=Bill.USED)
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


@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
def test_a_report_that_comes_as_the_namespace_moves_is_the_next_payers_and_leaves_the_time_before_unmeasured(
    stage: LedgerHarness, bill: Bill
) -> None:
    stage.budget("a", ["team-a"])
    stage.budget("b", ["team-b"])
    stage.lead(ControllerRules(bill=bill))
    stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(100)
    report(stage, "p1", 1, 40)
    stage.budget("a", ["team-c"])
    stage.budget("b", ["team-b", "team-a"])
    stage.round()
    assert (stage.spent("a"), stage.spent("b")) == (100 * GPU_SECOND, 0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"cron": "7 * * * *"}, {"cron": "7 * * * *"}),
        ({"every": "hour"}, {"cron": "7 * * * *"}),
        ({"cron": "7 * * * *"}, {"every": "hour"}),
        ({"cron": "7 * * * *"}, {"every": "hour", "timeZone": "Asia/Kathmandu"}),
    ],
)
def test_reports_that_came_while_nobody_led_belong_to_the_periods_in_which_they_were_received(
    stage: LedgerHarness, before: dict[str, str], after: dict[str, str]
) -> None:
    stage.budget("a", ["team-a"], period=before)
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    stage.budget("a", ["team-a"], period=after)
    stage.round(1)
    received, busy = [], 0
    for minute in range(4 * 60):
        stage.pass_time(60)
        busy += 10 + minute % 20
        report(stage, "p1", minute, busy)
        received.append((stage.now, busy * GPU_SECOND))
    stage.pass_time(300)
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.round()
    periods = {int(start): int(end) for start, end in stage.client.hgetall("fairgpu:{a}:periods").items()}
    assert len(periods) > 3

    def used_before(instant: int) -> int:
        return max((total for at, total in received if at < instant), default=0)

    assert {start: stage.spent("a", start) for start in periods} == {
        start: used_before(min(end, stage.now + 1)) - used_before(start) for start, end in periods.items()
    }


def test_a_figure_of_use_that_an_earlier_version_believed_counts_for_no_more_than_the_session_can_have_used(
    stage: LedgerHarness,
) -> None:
    rules = ControllerRules(bill=Bill.USED)
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(rules)
    stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(600)
    report(stage, "p1", 1, 60)
    stage.round(3000)
    record = json.loads(stage.client.hget("fairgpu:{a}:sessions", "p1") or "{}")
    believed = {"use": [["a", NOON, 0]], "tally": [10**23, [["main", "GPU-p1", 10**23, 0, 0]]]}
    stage.client.hset("fairgpu:{a}:sessions", "p1", json.dumps(record | believed))
    stage.client.delete(keys.report("p1"))
    stage.lead(rules)
    stage.round()
    stage.pass_time(1800)
    report(stage, "p1", 2, 3600 + 900)
    stage.round()
    assert stage.spent("a", NOON + HOUR) == 900 * GPU_SECOND


def test_what_was_billed_stands_where_the_record_reports_less_and_the_reports_are_lost(stage: LedgerHarness) -> None:
    rules = ControllerRules(bill=Bill.USED)
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(rules)
    stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(600)
    report(stage, "p1", 1, 60)
    stage.round()
    record = json.loads(stage.client.hget("fairgpu:{a}:sessions", "p1") or "{}")
    of_format_1 = {"use": [["a", NOON, 0]], "tally": [0, [["main", "GPU-p1", 60 * SECOND, 0, 0]]]}
    stage.client.hset("fairgpu:{a}:sessions", "p1", json.dumps(record | of_format_1))
    stage.client.delete(keys.report("p1"))
    stage.lead(rules)
    stage.round(10)
    assert stage.spent("a", NOON) == 60 * GPU_SECOND
    stage.pass_time(10)
    report(stage, "p1", 2, 75)
    stage.round()
    assert stage.spent("a", NOON) == 75 * GPU_SECOND


def test_a_report_that_is_stamped_by_a_clock_ahead_leaves_the_time_before_it_unmeasured(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(3599)
    ahead = Submission("p1", "b", 1, stage.now + 2 * SECOND, (Counter("GPU-p1", SECOND, 0, 0),))
    assert ReportIntake(stage.client).take([ahead]) == [IntakeOutcome.TAKEN]
    stage.round()
    assert stage.spent("a", NOON) == 3599 * GPU_SECOND


@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("seconds_ago", [5, 6])
@pytest.mark.parametrize("first", [600, None])
@pytest.mark.parametrize("seen", [False, True])
def test_what_is_received_after_an_end_counts_in_the_period_of_the_end_whatever_rounds_ran_before_that_was_seen(
    stage: LedgerHarness, seconds_ago: int, rounds: int, first: int | None, *, seen: bool
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(ControllerRules(bill=Bill.USED))
    pod = stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(3590)
    if first is not None:
        report(stage, "p1", 1, first)
    stage.pass_time(10)
    for _ in range(rounds):
        stage.round()
        stage.pass_time(2)
    stage.pass_time(5 - 2 * rounds)
    report(stage, "p1", 2, 700)
    if seen:
        stage.round()
    stage.finish(pod, seconds_ago)
    stage.round()
    assert (stage.spent("a", NOON), stage.spent("a", NOON + HOUR)) == (700 * GPU_SECOND, 0)


@pytest.mark.parametrize("seconds_ago", [5, 6, 30])
def test_what_is_received_after_an_end_is_the_payers_who_paid_at_the_end_though_the_namespace_has_moved_since(
    stage: LedgerHarness, seconds_ago: int
) -> None:
    stage.budget("a", ["team-a"])
    stage.budget("b", ["team-b"])
    stage.lead(ControllerRules(bill=Bill.USED))
    pod = stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(1000)
    report(stage, "p1", 1, 600)
    stage.pass_time(10)
    stage.budget("a", ["team-c"])
    stage.budget("b", ["team-b", "team-a"])
    stage.round()
    stage.pass_time(5)
    report(stage, "p1", 2, 700)
    stage.finish(pod, seconds_ago)
    stage.round()
    assert (stage.spent("a"), stage.spent("b")) == (700 * GPU_SECOND, 0)


@pytest.mark.parametrize(("bill", "amount"), [(Bill.RESERVED, 3599), (Bill.USED, 600), (Bill.MAX, 3600)])
def test_an_end_that_is_seen_two_periods_later_leaves_the_amount_in_its_own_period_and_takes_back_the_later_ones(
    stage: LedgerHarness, bill: Bill, amount: int
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(ControllerRules(bill=bill))
    pod = stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(3590)
    report(stage, "p1", 1, 600)
    stage.pass_time(10)
    stage.round()
    stage.round(1800)
    stage.round(1800)
    stage.round(10)
    report(stage, "p1", 2, 700)
    stage.finish(pod, 3611)
    stage.round()
    assert [stage.spent("a", NOON + hour * HOUR) for hour in range(3)] == [amount * GPU_SECOND, 0, 0]
    stage.lead(ControllerRules(bill=bill))
    stage.remove("p1")
    stage.round(10)
    assert [stage.spent("a", NOON + hour * HOUR) for hour in range(3)] == [amount * GPU_SECOND, 0, 0]
    assert reading.load_accounts(stage.client, ["a"])[0].ended == ()


@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
def test_a_leader_with_another_floor_for_best_effort_leaves_the_share_of_what_is_not_measured(
    stage: LedgerHarness, bill: Bill
) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(ControllerRules(bill=bill))
    item = stage.pod("p1", "team-a", core=0)
    device = {"model": "A100", "totalMiB": 81920, "core": 0, "memoryMiB": 1}
    held = [{"uuid": uuid, **device} for uuid in ("GPU-p1", "GPU-other")]
    allocation = {"v": 1, "node": "n1", "containers": [{"name": "main", "devices": held}]}
    item["metadata"]["annotations"]["fairgpu.io/allocation"] = json.dumps(allocation)
    limits = {"fairgpu.io/gpu": "2", "fairgpu.io/gpu-core": "0", "fairgpu.io/gpu-memory": "2"}
    item["spec"]["containers"][0]["resources"]["limits"] = limits
    stage.write_pod(item)
    stage.round()
    stage.pass_time(100)
    report(stage, "p1", 1, 5)
    stage.round()
    before = stage.spent("a")
    assert before == {Bill.USED: 5 + 10, Bill.MAX: 20}[bill] * GPU_SECOND
    stage.lead(ControllerRules(bill=bill, charge=ChargeRules(best_effort_floor_percent=50)))
    stage.round()
    assert stage.spent("a") == before


def test_terms_that_cannot_be_read_are_written_anew_by_the_leader_that_finds_them(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    terms = stage.client.hget(keys.report("p1"), "terms")
    for broken in (b"[1,[[]],1,1,1]", b"[]", b"x" * 100):
        stage.client.hset(keys.report("p1"), "terms", broken)
        stage.lead(ControllerRules(bill=Bill.USED))
        stage.round(1)
        assert stage.client.hget(keys.report("p1"), "terms") == terms


@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
def test_an_end_that_is_seen_after_its_period_leaves_the_periods_before_as_they_were_billed(
    stage: LedgerHarness, bill: Bill
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(ControllerRules(bill=bill))
    item = stage.pod("p1", "team-a")
    device = {"model": "A100", "totalMiB": 81920, "core": 100, "memoryMiB": 1}
    held = [{"uuid": uuid, **device} for uuid in ("GPU-p1", "GPU-other")]
    allocation = {"v": 1, "node": "n1", "containers": [{"name": "main", "devices": held}]}
    item["metadata"]["annotations"]["fairgpu.io/allocation"] = json.dumps(allocation)
    limits = {"fairgpu.io/gpu": "2", "fairgpu.io/gpu-core": "200", "fairgpu.io/gpu-memory": "2"}
    item["spec"]["containers"][0]["resources"]["limits"] = limits
    stage.write_pod(item)
    stage.round()
    for number in range(24):
        stage.pass_time(300)
        report(stage, "p1", number, 30 * number)
        stage.round()
    before = stage.spent("a", NOON)
    report(stage, "p1", 99, 1000)
    stage.pass_time(10)
    stage.finish(stage.source_pod("p1"), 10)
    stage.round()
    assert stage.spent("a", NOON) == before
    assert stage.spent("a", NOON + 2 * HOUR) == 0


def test_the_reports_that_a_refused_amount_needs_are_kept_until_it_is_mended(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    amounts = keys.AccountKeys("a").amounts(NOON)
    whole = stage.client.hget(amounts, "p1")
    assert isinstance(whole, bytes)
    stage.client.hset(amounts, "p1", "broken")
    report_for(stage, 80, 0)
    stage.round()
    stage.round(1)
    stage.lead(ControllerRules(bill=Bill.USED))
    report_for(stage, 40, 80)
    stage.client.hset(amounts, "p1", whole)
    stage.round()
    assert [stage.spent("a", NOON + hour * HOUR) for hour in (0, 1)] == [59 * GPU_SECOND, 60 * GPU_SECOND]


def test_the_reports_before_a_move_are_kept_while_the_period_that_was_left_goes_on(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.budget("b", ["team-b"])
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    report_for(stage, 20, 0)
    stage.round()
    stage.budget("a", ["team-c"])
    stage.budget("b", ["team-b", "team-a"])
    stage.round(1)
    for hour in range(3):
        report_for(stage, 60, 20 + 60 * hour)
        stage.round()
    assert (stage.spent("a"), stage.spent("b")) == (20 * GPU_SECOND, 180 * GPU_SECOND)


def report_for(stage: LedgerHarness, minutes: int, before: int) -> None:
    """Lets minutes pass, with a report of one busy second at the end of each; there were as many minutes before."""
    for minute in range(1, minutes + 1):
        stage.pass_time(60)
        report(stage, "p1", before + minute, before + minute)


def test_a_session_that_moves_twice_within_a_period_keeps_what_was_measured_before_the_first_move(
    stage: LedgerHarness,
) -> None:
    for name in "abc":
        stage.budget(name, [f"team-{name}"])
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    report_for(stage, 2, 0)
    for number, (before, after) in enumerate(pairwise("abc")):
        stage.budget(before, [f"{before}-none"])
        stage.budget(after, [f"team-{after}", "team-a"])
        stage.round(1)
        report_for(stage, 5, 2 + 5 * number)
    stage.round()
    assert [stage.spent(name) for name in "abc"] == [2 * GPU_SECOND, 5 * GPU_SECOND, 5 * GPU_SECOND]


def test_what_was_measured_before_a_move_counts_also_five_days_later(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.budget("b", ["team-b"])
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    report_for(stage, 2, 0)
    stage.budget("a", ["team-c"])
    stage.budget("b", ["team-a"])
    stage.round(1)
    for number in range(5 * 24 * 4):
        stage.pass_time(900)
        report(stage, "p1", 3 + number, 3 + number)
        if number % 4 == 0:
            stage.round()
    stage.round()
    assert (stage.spent("a"), stage.spent("b")) == (2 * GPU_SECOND, 480 * GPU_SECOND)
    assert (stage.client.memory_usage(keys.report("p1")) or 0) < 4096


def test_what_is_reported_before_a_move_is_the_first_payers_also_where_the_leader_ended_as_it_wrote_the_move(
    stage: LedgerHarness,
) -> None:
    def step(name: str) -> None:
        if name == "open":
            raise KeyboardInterrupt

    stage.budget("a", ["team-a"])
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    report_for(stage, 2, 0)
    stage.budget("a", ["team-c"])
    stage.lead(ControllerRules(bill=Bill.USED), step=step)
    with pytest.raises(KeyboardInterrupt):
        stage.round(1)
    report_for(stage, 9, 2)
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.round()
    assert (stage.spent("a"), stage.spent("namespace:team-a")) == (2 * GPU_SECOND, 9 * GPU_SECOND)


@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
def test_a_payer_that_paid_for_no_time_leaves_what_was_used_to_those_before_and_after_it(
    stage: LedgerHarness, bill: Bill
) -> None:
    stage.budget("a", ["team-a"])
    stage.budget("b", ["team-b"])
    stage.lead(ControllerRules(bill=bill))
    item = stage.pod("p1", "team-a", core=1)
    item["metadata"]["annotations"]["fairgpu.io/core-policy"] = "elastic"
    stage.write_pod(item)
    stage.round()

    def move(payer: str, seconds: float) -> None:
        for name in "ab":
            stage.budget(name, [f"team-{name}-none", *(["team-a"] if name == payer else [])])
        stage.round(seconds)

    move("b", 1)
    report_for(stage, 10, 0)
    move("a", 1)
    move("none", 0)
    report_for(stage, 10, 10)
    stage.round()
    spent = [stage.spent(name) for name in ("a", "b", "namespace:team-a")]
    assert spent == [GPU_SECOND // 100, 10 * GPU_SECOND, 10 * GPU_SECOND]


def test_a_payer_that_left_as_a_session_began_is_billed_what_is_used_once_it_pays_again(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    stage.budget("a", ["team-c"])
    stage.round()
    report_for(stage, 2, 0)
    stage.budget("a", ["team-a"])
    stage.round(1)
    report_for(stage, 5, 2)
    stage.round()
    assert (stage.spent("a"), stage.spent("namespace:team-a")) == (5 * GPU_SECOND, 2 * GPU_SECOND)


@pytest.mark.parametrize("ending", ["", "settle"])
def test_a_rule_that_changes_while_nobody_leads_holds_for_periods_that_begin_after_a_leader_has_read_it(
    stage: LedgerHarness, ending: str
) -> None:
    def step(name: str) -> None:
        if name == ending:
            raise KeyboardInterrupt

    stage.budget("a", ["team-a"], period={"cron": "7 * * * *"})
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.pod("p1", "team-a")
    stage.round()
    stage.budget("a", ["team-a"], period={"every": "hour"})
    if ending:
        stage.lead(ControllerRules(bill=Bill.USED), step=step)
        with pytest.raises(KeyboardInterrupt):
            stage.round(1)
    report_for(stage, 90, 0)
    stage.lead(ControllerRules(bill=Bill.USED))
    stage.round()
    report_for(stage, 60, 90)
    stage.round()
    begins = [7, 67, 127, 180] if not ending else [7, 60, 120]
    found = sorted(int(start) for start in stage.client.hkeys("fairgpu:{a}:periods"))
    assert [(start - NOON) // MINUTE for start in found[1:]] == [each for each in begins if each < 150]
    ends = [start - NOON for start in found[1:]] + [stage.now - NOON]
    received = [max((end - 1) // MINUTE, 0) for end in ends[:-1]] + [150]
    spent = [after - before for before, after in pairwise([0, *received])]
    assert [stage.spent("a", start) for start in found] == [each * GPU_SECOND for each in spent]
