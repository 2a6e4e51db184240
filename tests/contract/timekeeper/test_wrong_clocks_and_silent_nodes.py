"""Clocks of the leader that are wrong for a while, and nodes that nothing is heard of."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from tests.support.ledger.harness import NOON, LedgerHarness, published, report, state_answer
from tests.support.ledger.steps import KilledError
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.audit.cluster import read_cluster
from timekeeper.audit.difference import Figure
from timekeeper.controller.archive import Archivist
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND
from timekeeper.domain.pricing import Bill
from timekeeper.domain.reports import Counter
from timekeeper.domain.timestamps import DAY, HOUR, MINUTE, format_instant
from timekeeper.domain.windows import Retention
from timekeeper.ledger import keys, reading
from timekeeper.ledger.reports import IntakeOutcome, ReportIntake, Submission

HOURLY: dict[str, Any] = {"every": "hour"}


def differences(harness: LedgerHarness, bill: Bill = Bill.RESERVED) -> list[Any]:
    around = AuditEnvironment(
        harness.client, lambda: read_cluster(harness.source.mirrors, None), lambda: harness.now, bool
    )
    found = audit(around, AuditRequest(patience_seconds=0, bill=bill.value)).differences
    return [each for each in found if each.figure is not Figure.STATUS]  # no statuses are written here


def begin(harness: LedgerHarness, rules: ControllerRules) -> None:
    """Gives team-a a budget by the hour, a leader by these rules, and the pod p1."""
    harness.budget("a", ["team-a"], period=HOURLY)
    harness.lead(rules)
    harness.pod("p1", "team-a")


def received(harness: LedgerHarness, sequence: int, busy_seconds: int, seconds_ago: int = 0) -> None:
    """A replica whose clock may be behind takes a report of p1."""
    counters = (Counter("GPU-p1", busy_seconds * SECOND, 100 * SECOND, 0),)
    submission = Submission("p1", "b", sequence, harness.now - seconds_ago * SECOND, counters)
    assert ReportIntake(harness.client).take([submission]) == [IntakeOutcome.TAKEN]


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_behind_a_silent_node_use_counts_up_to_the_last_sign_of_life_whatever_rounds_have_run(
    harness: LedgerHarness, rounds: int
) -> None:
    begin(harness, ControllerRules(bill=Bill.USED))
    harness.reconcile()
    harness.silence("n1", harness.now)
    for sequence, busy in ((1, 10), (2, 40)):
        harness.pass_time(50)
        received(harness, sequence, busy)
        if rounds >= sequence:
            harness.reconcile()
    received(harness, 3, 40, seconds_ago=40)
    harness.reconcile(10)
    assert harness.spent("a", NOON) == 10 * GPU_SECOND
    harness.silence("n1", None)
    harness.reconcile(10)
    assert harness.spent("a", NOON) == 40 * GPU_SECOND


@pytest.mark.parametrize(
    ("reported", "rule", "seconds"),
    [
        pytest.param(
            ((), (5200, 7400, 7880, 8300)), {"every": "day"}, [3600, 74, 83 - 74], id="the leader settles"
        ),  # without any report by its end the first period is billed as reserved
        pytest.param(
            ((3000, 3500, 3700, 7500, 7700), (8200, 9000)),
            {"cron": "7 */4 * * *"},
            [35, 75 - 35, 90 - 75],
            id="it ends before it settles",
        ),
    ],
)
def test_behind_a_silent_node_use_belongs_to_the_period_in_which_it_was_reported_whatever_rule_follows(
    harness: LedgerHarness, reported: tuple[tuple[int, ...], tuple[int, ...]], rule: dict[str, Any], seconds: list[int]
) -> None:
    before, after = reported
    ruled_at = NOON + (8000 if before else 5000) * SECOND

    def end_at(name: str) -> None:
        if name == "settle" and before and harness.now == ruled_at:
            raise KilledError

    def report_at(*instants: int) -> None:
        for at in instants:
            harness.pass_time((NOON - harness.now) / SECOND + at)
            received(harness, at, at // 100)

    rules = ControllerRules(bill=Bill.USED)
    begin(harness, rules)
    harness.lead(rules, step=end_at)
    harness.reconcile()
    harness.silence("n1", harness.now)
    harness.budget("a", ["team-a"], period={"cron": "7 */2 * * *"})
    harness.reconcile(10)
    report_at(*before)
    harness.pass_time((ruled_at - harness.now) / SECOND)
    harness.budget("a", ["team-a"], period=rule)
    with pytest.raises(KilledError) if before else nullcontext():
        harness.reconcile()
    report_at(*after)
    harness.lead(rules)
    harness.silence("n1", None)
    for _ in range(2):
        harness.reconcile(10)
    periods = NOON, NOON + HOUR, NOON + 7620 * SECOND
    assert [harness.spent("a", start) for start in periods] == [each * GPU_SECOND for each in seconds]
    assert differences(harness) == []


@pytest.mark.parametrize(
    ("instants", "moves", "seconds"),
    [
        pytest.param((60, 300, 500, 1200, 2500), {1000: "b"}, {"a": [20, 10], "b": [20]}, id="once"),
        pytest.param(
            (60, 300, 500, 1190, 1210, 2500, 2600),
            {1200: "b", 2400: "c"},
            {"a": [20, 20], "b": [10], "c": [20]},
            id="twice",
        ),
    ],
)
def test_use_belongs_to_the_payer_and_the_period_in_which_it_was_reported_though_the_store_refused_it_then(
    harness: LedgerHarness, instants: tuple[int, ...], moves: dict[int, str], seconds: dict[str, list[int]]
) -> None:
    rules = ControllerRules(bill=Bill.USED)
    pay(harness, "a")
    harness.lead(rules)
    harness.pod("p1", "team-a")
    harness.reconcile(1)
    (key,) = harness.client.scan_iter("fairgpu:{a}:*amounts*")
    kept = harness.client.hget(key, "p1")
    harness.client.hset(key, "p1", "broken")
    for at in sorted({*instants, *moves}):
        harness.pass_time((NOON - harness.now) / SECOND + at)
        if at in moves:
            pay(harness, moves[at])
            for _ in range(2):
                harness.reconcile()
        else:
            received(harness, at, 10 * (1 + instants.index(at)))
    harness.client.hset(key, "p1", kept)
    for _ in range(2):
        harness.reconcile(10)
    starts = {"a": [NOON - 53 * MINUTE, NOON + 7 * MINUTE], "b": [NOON], "c": [NOON]}
    found = {account: [harness.spent(account, start) for start in starts[account]] for account in seconds}
    assert found == {account: [each * GPU_SECOND for each in parts] for account, parts in seconds.items()}
    assert differences(harness) == []


def pay(harness: LedgerHarness, payer: str) -> None:
    """Makes one of the budgets a, b and c the payer of team-a. Periods of a begin seven minutes past the hour."""
    for name in "abc":
        period = {"cron": "7 * * * *"} if name == "a" else HOURLY
        harness.budget(name, ["team-a"] if name == payer else [f"{name}-none"], period=period)


def open_sessions(harness: LedgerHarness, account: str) -> set[str]:
    (found,) = reading.load_accounts(harness.client, [account])
    return {session.uid for session in found.sessions}


@pytest.mark.parametrize("another", [False, True])
def test_after_a_clock_that_was_days_ahead_readers_get_the_present_period(
    harness: LedgerHarness,
    another: bool,  # noqa: FBT001
) -> None:
    harness.budget("a", ["team-a"], gpu_hours="0.005", period=HOURLY)
    harness.pod("p1", "team-a")
    harness.reconcile(20)
    harness.remove("p1")
    harness.reconcile(10)
    harness.ahead = 3 * DAY
    harness.reconcile()
    harness.ahead = 0
    if another:
        harness.lead()
    harness.reconcile(10)
    assert published(harness, "a").period_start == NOON
    assert published(harness, "a").spent == 30 * GPU_SECOND
    assert state_answer(harness, "team-a")["state"] == "over"
    assert differences(harness) == []
    harness.reconcile(HOUR // SECOND)
    assert published(harness, "a").period_start == NOON + HOUR


@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("ahead", [2 * HOUR, 3 * DAY])
def test_a_clock_that_was_ahead_leaves_no_trace_in_what_was_used(
    harness: LedgerHarness,
    bill: Bill,
    another: bool,  # noqa: FBT001
    ahead: int,
) -> None:
    rules = ControllerRules(bill=bill)
    begin(harness, rules)
    harness.reconcile()
    harness.pass_time(100)
    report(harness, "p1", 1, 40)
    harness.reconcile()
    harness.ahead = ahead
    for number in range(3):
        harness.pass_time(100)
        report(harness, "p1", 2 + number, 60 + 20 * number)
        harness.reconcile()
    harness.ahead = 0
    if another:
        harness.lead(rules)
    harness.pass_time(100)
    report(harness, "p1", 9, 150)
    harness.reconcile()
    assert open_sessions(harness, "a") == {"p1"}
    assert harness.spent("a", NOON) == (150 if bill is Bill.USED else 500) * GPU_SECOND
    harness.reconcile(HOUR // SECOND)
    report(harness, "p1", 10, 250)
    harness.reconcile(1)
    assert harness.spent("a", NOON) == (150 if bill is Bill.USED else 3600) * GPU_SECOND
    assert harness.spent("a", NOON + HOUR) == (100 if bill is Bill.USED else 501) * GPU_SECOND
    harness.pass_time(2 * ahead / SECOND)
    harness.reconcile()
    assert harness.spent("a", NOON) == (150 if bill is Bill.USED else 3600) * GPU_SECOND


@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("ahead", [600 * SECOND, 3 * HOUR, 3 * DAY])
def test_use_counts_in_the_period_in_which_it_was_reported_though_a_clock_was_ahead_when_that_ended(
    harness: LedgerHarness,
    bill: Bill,
    another: bool,  # noqa: FBT001
    ahead: int,
) -> None:
    rules = ControllerRules(bill=bill)
    begin(harness, rules)
    harness.reconcile()
    harness.ahead = ahead
    for number in range(8):
        harness.reconcile(500)
        report(harness, "p1", number, 100 * (number + 1))
    harness.ahead = 0
    if another:
        harness.lead(rules)
    harness.reconcile(100)
    report(harness, "p1", 8, 900)
    harness.reconcile(1)
    harness.reconcile()
    assert harness.spent("a", NOON) == (700 if bill is Bill.USED else 3600) * GPU_SECOND
    assert harness.spent("a", NOON + HOUR) == (200 if bill is Bill.USED else 501) * GPU_SECOND
    assert differences(harness, bill) == []


def test_a_clock_that_was_ahead_expires_no_grant(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], gpu_hours=1)
    harness.grant("g", "a", 3, expires=format_instant(NOON + DAY))
    harness.reconcile()
    harness.ahead = 2 * DAY
    harness.reconcile()
    harness.ahead = 0
    harness.reconcile(10)
    assert published(harness, "a").available == 4 * GPU_HOUR
    harness.reconcile(DAY // SECOND)
    assert published(harness, "a").available == GPU_HOUR


def test_a_clock_that_is_years_ahead_forgets_no_usage(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile(100)
    harness.remove("p1")
    harness.reconcile()
    harness.ahead = 3 * 365 * DAY
    harness.reconcile()
    reconciler = harness.reconciler
    assert reconciler is not None
    reconciler.books.finalized = []  # checkpoints are written
    instant = reconciler.surely_past(harness.leaders_time())
    Archivist(harness.client, harness.source, reconciler.books, reconciler.fencing_token, Retention()).archive(instant)
    harness.ahead = 0
    harness.reconcile(10)
    assert harness.spent("a") == 100 * GPU_SECOND
    assert harness.entered("a") == 100 * GPU_SECOND


@pytest.mark.parametrize("bill", list(Bill))
@pytest.mark.parametrize("another", [False, True])
def test_while_a_clock_is_behind_time_stands_still(
    harness: LedgerHarness,
    bill: Bill,
    another: bool,  # noqa: FBT001
) -> None:
    rules = ControllerRules(bill=bill)
    begin(harness, rules)
    harness.reconcile()
    for _ in range(4):
        harness.reconcile(HOUR // SECOND)
    report(harness, "p1", 1, 100)
    harness.ahead = -3 * HOUR
    if another:
        harness.lead(rules)
    harness.reconcile()
    assert [harness.spent("a", NOON + hour * HOUR) for hour in range(4)] == [GPU_HOUR] * 4
    assert open_sessions(harness, "a") == {"p1"}
    harness.ahead = 0
    harness.reconcile(100)
    assert [harness.spent("a", NOON + hour * HOUR) for hour in range(4)] == [GPU_HOUR] * 4
    assert harness.spent("a", NOON + 4 * HOUR) == 100 * GPU_SECOND


@pytest.mark.parametrize("bill", list(Bill))
def test_a_node_that_was_silent_since_before_a_period_began_costs_no_session_its_record(
    harness: LedgerHarness, bill: Bill
) -> None:
    begin(harness, ControllerRules(bill=bill))
    harness.reconcile()
    harness.reconcile(HOUR // SECOND + 30)
    harness.silence("n1", harness.now - 60 * SECOND)
    harness.reconcile()
    assert harness.spent("a", NOON) == (3600 - 30) * GPU_SECOND
    assert harness.spent("a", NOON + HOUR) == 0
    assert open_sessions(harness, "a") == {"p1"}
    harness.silence("n1", None)
    harness.reconcile(10)
    assert harness.spent("a", NOON) == GPU_HOUR
    assert harness.spent("a", NOON + HOUR) == 40 * GPU_SECOND
    assert open_sessions(harness, "a") == {"p1"}


@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
def test_a_node_that_is_found_silent_hours_late_costs_no_session_its_record(harness: LedgerHarness, bill: Bill) -> None:
    begin(harness, ControllerRules(bill=bill))
    harness.reconcile()
    since = harness.now
    for number in range(5):
        harness.pass_time(HOUR / SECOND)
        report(harness, "p1", number + 1, 100)
        harness.reconcile(1)
    assert harness.client.delete(keys.report("p1")) == 1
    found, harness.now = harness.now, since + 600 * SECOND
    harness.silence("n1", since)
    harness.now = found
    harness.reconcile(1)
    assert open_sessions(harness, "a") == {"p1"}
    harness.silence("n1", None)
    for _ in range(2):  # a closing balance follows an amount one reconciliation later
        harness.reconcile(10)
    assert open_sessions(harness, "a") == {"p1"}
    assert differences(harness) == []


@pytest.mark.parametrize("reports", [1, 2, 3])
@pytest.mark.parametrize("bill", list(Bill))
def test_a_node_that_is_found_silent_hours_late_and_heard_again_costs_what_one_does_that_never_was(
    harness: LedgerHarness, bill: Bill, reports: int
) -> None:
    begin(harness, ControllerRules(bill=bill))
    harness.reconcile(60)
    since = harness.now
    for number in range(5):
        harness.pass_time(HOUR / SECOND)
        if number < reports:
            report(harness, "p1", number + 1, 100)
        harness.reconcile(1)
    hours = [NOON + number * HOUR for number in range(6)]
    before = [harness.spent("a", hour) for hour in hours]
    found, harness.now = harness.now, since + 600 * SECOND
    harness.silence("n1", since)
    harness.now = found
    harness.reconcile(1)
    harness.silence("n1", None)
    for _ in range(3):
        harness.reconcile(10)
    assert [harness.spent("a", hour) for hour in hours[:5]] == before[:5]
    assert differences(harness) == []


@pytest.mark.parametrize("bill", list(Bill))
def test_the_cost_of_a_pod_on_a_node_that_stays_silent_is_in_the_ledger_hours_later(
    harness: LedgerHarness, bill: Bill
) -> None:
    begin(harness, ControllerRules(bill=bill))
    harness.reconcile(600)
    harness.silence("n1", harness.now)
    for _ in range(4):
        harness.reconcile(HOUR // SECOND)
    assert harness.spent("a", NOON) == 600 * GPU_SECOND
    assert harness.entered("a") == 600 * GPU_SECOND
    (found,) = reading.load_accounts(harness.client, ["a"])
    harness.reconcile(60)
    (after,) = reading.load_accounts(harness.client, ["a"])
    assert found.totals == after.totals


def test_the_rate_of_a_payer_includes_pods_on_silent_nodes_whose_namespace_came_to_it_since(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    harness.budget("b", ["team-b"])
    harness.pod("p1", "team-a")
    harness.reconcile(100)
    harness.silence("n1", harness.now - 10 * SECOND)
    harness.budget("a", ["a-none"])
    harness.budget("b", ["team-a", "team-b"])
    harness.reconcile(10)
    assert published(harness, "b").rate == GPU_SECOND
    assert published(harness, "a").rate == 0
    assert differences(harness) == []
