from __future__ import annotations

from typing import Any

import pytest

from tests.support.ledger.harness import NOON, LedgerHarness, published, report
from tests.support.ledger.steps import KilledError
from timekeeper.api.models import budget_answer
from timekeeper.controller.reconcile import apply_orders
from timekeeper.controller.reconcile.reconciler import Reconciler
from timekeeper.controller.report.status_writer import OrderAnswers, StatusWriter
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND
from timekeeper.domain.pricing import Bill
from timekeeper.domain.timestamps import HOUR, format_instant
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import StoreUnavailableError
from timekeeper.ledger.totals import PeriodTotals
from timekeeper.ledger.writing import apply_grants

HOURLY: dict[str, Any] = {"every": "hour"}
ALLOWANCE = 100 * GPU_SECOND
HUNDRED = "0.027778"
"""GPU-hours of a hundred GPU-seconds, and 800 microGPU-seconds more."""


def money(harness: LedgerHarness, account: str) -> list[tuple[str, str, int]]:
    page = reading.ledger_page(harness.client, account, "", 1000)
    return [(entry.kind, entry.pod, entry.amount) for entry in page if entry.kind in {"grant", "carry", "lapse"}]


def standing(harness: LedgerHarness, period: int) -> PeriodTotals:
    found = reading.period_totals(harness.client, "a", period)
    assert found is not None
    return found


def reconciler_of(harness: LedgerHarness) -> Reconciler:
    assert harness.reconciler is not None
    return harness.reconciler


def expiring(harness: LedgerHarness, name: str, gpu_hours: Any, seconds: int) -> None:
    harness.grant(name, "a", gpu_hours, expires=format_instant(harness.now + seconds * SECOND))


def test_a_negative_grant_takes_money_away_and_says_so(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 10)
    harness.reconcile()
    harness.grant("less", "a", -4)
    harness.reconcile(1)
    assert (published(harness, "a").available, published(harness, "a").granted) == (6 * GPU_HOUR, -4 * GPU_HOUR)
    assert money(harness, "a") == [("grant", "less", -4 * GPU_HOUR)]
    harness.grant("all", "a", "-7.5")
    harness.reconcile(1)
    assert published(harness, "a").available == -3 * GPU_HOUR // 2
    assert published(harness, "a").state == "over"
    harness.lead()
    harness.reconcile(1)
    assert published(harness, "a").granted == -23 * GPU_HOUR // 2


def test_a_grant_that_expires_takes_what_is_left_of_it_then(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], HUNDRED, period={"every": "day"})
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(10)
    expiring(harness, "tonight", 1, 60)
    harness.reconcile(1)
    assert published(harness, "a").granted == GPU_HOUR
    harness.reconcile(100)
    assert money(harness, "a") == [("grant", "tonight", GPU_HOUR), ("lapse", "tonight", 60 * GPU_SECOND - GPU_HOUR)]
    assert published(harness, "a").granted == 60 * GPU_SECOND


def test_the_amount_that_expires_is_the_same_under_every_leader(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], HUNDRED, period={"every": "day"})
    ends = harness.pod("p1", "team-a")
    harness.pod("p2", "team-a", core=50)
    harness.reconcile()
    harness.reconcile(10)
    expiring(harness, "tonight", 1, 60)
    harness.reconcile(1)
    harness.pass_time(30)
    harness.finish(ends)
    harness.pass_time(5000)
    harness.lead()
    harness.reconcile()
    spent_meanwhile = 31 * GPU_SECOND + 30 * GPU_SECOND
    assert money(harness, "a")[1:] == [("lapse", "tonight", spent_meanwhile - GPU_HOUR)]


def let_it_expire(harness: LedgerHarness, *, led: bool) -> None:
    """Passes the ten minutes of a grant and a minute more, in which a leader reconciles if `led`."""
    for seconds in (0, 300, 300, 1):
        harness.pass_time(seconds)
        if led:
            harness.reconcile()
    harness.pass_time(60)


@pytest.mark.parametrize("later", [HUNDRED, "-0.01"])
@pytest.mark.parametrize("away", [False, True])
def test_a_grant_that_is_made_after_an_expiry_changes_nothing_of_what_expired_while_no_leader_ran(
    harness: LedgerHarness, later: str, *, away: bool
) -> None:
    harness.budget("a", ["team-a"], HUNDRED, period=HOURLY)
    harness.pod("p", "team-a", core=10)
    harness.reconcile()
    harness.reconcile(1200)
    expiring(harness, "soon", HUNDRED, 600)  # pays the 20 GPU-seconds that are owed, and then the pod
    let_it_expire(harness, led=not away)
    harness.grant("later", "a", later)
    if away:
        harness.lead()
    harness.reconcile()
    harness.reconcile(1)
    (lapsed,) = [amount for kind, _, amount in money(harness, "a") if kind == "lapse"]
    left = 2 * (ALLOWANCE + 800) - 120 * GPU_SECOND - 60 * GPU_SECOND
    assert lapsed == -left


@pytest.mark.parametrize("gpu_hours", ["-0.01", "0.01"])
@pytest.mark.parametrize("away", [False, True])
def test_a_correction_that_is_made_after_an_expiry_changes_nothing_of_what_expired_while_no_leader_ran(
    harness: LedgerHarness, gpu_hours: str, *, away: bool
) -> None:
    harness.budget("a", ["team-a"], HUNDRED, period=HOURLY)
    harness.pod("p", "team-a", core=10)
    harness.reconcile()
    expiring(harness, "soon", HUNDRED, 600)
    let_it_expire(harness, led=not away)
    harness.correct("later", "a", gpu_hours, harness.now)
    if away:
        harness.lead()
    harness.reconcile()
    harness.reconcile(1)
    (lapsed,) = [amount for kind, _, amount in money(harness, "a") if kind == "lapse"]
    assert lapsed == 60 * GPU_SECOND - (ALLOWANCE + 800)


def test_a_grant_that_outlives_its_period_begins_the_next_one_with_what_was_left_of_it(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], HUNDRED, period=HOURLY)
    harness.reconcile()
    expiring(harness, "spring", 1, 3 * 3600)
    harness.pod("p1", "team-a")
    harness.reconcile(1800)
    harness.reconcile(1800)
    allowance = ALLOWANCE + 800
    left = GPU_HOUR - (3600 * GPU_SECOND - allowance)
    assert standing(harness, NOON + HOUR).granted == left
    assert standing(harness, NOON).granted == GPU_HOUR
    harness.reconcile(50)
    assert published(harness, "a").available == allowance + left
    harness.remove("p1")
    harness.reconcile(5)
    harness.reconcile(3600)
    assert standing(harness, NOON + 2 * HOUR).granted == left
    harness.reconcile(3600)
    assert standing(harness, NOON + 3 * HOUR).granted == 0
    assert [entry[:2] for entry in money(harness, "a")] == [
        ("grant", "spring"),
        ("carry", "spring"),
        ("carry", "spring"),
    ]


def test_hours_without_a_timekeeper_carry_the_same_from_period_to_period(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], HUNDRED, period=HOURLY)
    harness.reconcile()
    expiring(harness, "spring", 10, 5 * 3600 + 1800)
    harness.pod("p1", "team-a")
    harness.reconcile(60)
    harness.pass_time(6 * 3600)
    harness.lead()
    harness.reconcile()
    burned = 3600 * GPU_SECOND - ALLOWANCE - 800
    granted = [standing(harness, NOON + hour * HOUR).granted for hour in range(5)]
    assert granted == [10 * GPU_HOUR - hour * burned for hour in range(5)]
    # In the hour in which it expires it burns before the allowance.
    assert standing(harness, NOON + 5 * HOUR).granted == 1800 * GPU_SECOND
    assert standing(harness, NOON + 6 * HOUR).granted == 0


def test_unspent_allowance_rolls_over_up_to_its_cap_and_not_what_was_granted(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 10, period=HOURLY, rollover={"gpuHours": 12})
    harness.reconcile()
    harness.grant("gift", "a", 5)
    harness.pod("p1", "team-a")
    harness.reconcile(1800)
    harness.remove("p1")
    harness.reconcile(0)
    harness.reconcile(3600)
    assert published(harness, "a").available == 20 * GPU_HOUR
    harness.reconcile(3600)
    assert published(harness, "a").available == 22 * GPU_HOUR
    assert money(harness, "a")[1:] == [("carry", "", 10 * GPU_HOUR), ("carry", "", 12 * GPU_HOUR)]


def test_an_overspent_period_leaves_no_money(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], HUNDRED, period=HOURLY, rollover={"gpuHours": 12})
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(3600)
    assert published(harness, "a").granted == 0
    assert money(harness, "a") == []


def test_a_rollover_that_is_written_later_reaches_no_earlier_period(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 10, period=HOURLY)
    harness.reconcile()
    harness.reconcile(3600)
    harness.budget("a", ["team-a"], 10, period=HOURLY, rollover={"gpuHours": 3})
    harness.lead()
    harness.reconcile(60)
    assert published(harness, "a").granted == 0
    harness.reconcile(3600)
    assert published(harness, "a").granted == 3 * GPU_HOUR


def test_carried_money_follows_when_the_spend_of_the_period_before_is_set_right(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 1, period=HOURLY, rollover={"gpuHours": 1})
    pod = harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(3605)
    assert published(harness, "a").granted == 0
    harness.finish(pod, seconds_ago=605)
    harness.reconcile(1)
    harness.reconcile(10)
    assert published(harness, "a").granted == 600 * GPU_SECOND
    assert harness.spent("a", NOON) == GPU_HOUR - published(harness, "a").granted


def end_before_closing(step: str) -> None:
    if step == "close":
        raise KilledError


@pytest.mark.parametrize("dies", [False, True])
def test_a_grant_that_is_read_only_in_the_next_period_is_carried_over_into_it(
    harness: LedgerHarness, *, dies: bool
) -> None:
    harness.budget("a", ["team-a"], 10, period=HOURLY)
    harness.reconcile()
    harness.reconcile(3600.5)
    made = NOON + HOUR - SECOND
    harness.grant("spring", "a", 5, created=made, expires=format_instant(NOON + 5 * HOUR))
    if dies:
        harness.lead(step=end_before_closing)
        with pytest.raises(KilledError):
            harness.reconcile(0.5)
        harness.lead()
    harness.reconcile(0.5)
    assert standing(harness, NOON).granted == 5 * GPU_HOUR
    assert published(harness, "a").available == 15 * GPU_HOUR


def test_a_leader_that_ends_while_it_catches_up_with_several_periods_leaves_all_their_money_to_the_next(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], 10, period=HOURLY, rollover={"gpuHours": 12})
    harness.reconcile()
    expiring(harness, "spring", 5, 9 * 3600)
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(3 * 3600 + 60)
    for _ in range(2):
        harness.lead(step=end_before_closing)
        with pytest.raises(KilledError):
            harness.reconcile()
    harness.lead()
    harness.reconcile()
    assert [standing(harness, NOON + hour * HOUR).granted for hour in range(4)] == [
        5 * GPU_HOUR,
        (5 + 9) * GPU_HOUR,
        (5 + 12) * GPU_HOUR,
        (5 + 12) * GPU_HOUR,
    ]


def test_a_leader_that_cannot_close_balances_for_days_leaves_all_their_money_to_the_next(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], 10, period={"every": "day"})
    harness.reconcile()
    expiring(harness, "spring", 5, 9 * 86_400)
    harness.reconcile(1)
    day = 24 * HOUR
    today = published(harness, "a").period_start
    credits_of_tomorrow = keys.AccountKeys("a").credits(today + day)
    harness.client.set(credits_of_tomorrow, "another program's")
    for _ in range(4):
        harness.reconcile(86_400)
    harness.client.delete(credits_of_tomorrow)
    harness.reconcile(1)
    assert published(harness, "a").available == 15 * GPU_HOUR


def test_money_that_is_taken_away_from_the_period_before_is_not_carried_over(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 10, period=HOURLY, rollover={"gpuHours": 12})
    harness.reconcile()
    harness.reconcile(3600.5)
    harness.grant("less", "a", -4, created=NOON + HOUR - SECOND)
    harness.reconcile(0.5)
    assert published(harness, "a").available == 16 * GPU_HOUR


def test_an_emptied_store_gets_back_what_was_carried_and_burned(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 10, period=HOURLY, rollover={"gpuHours": 4})
    harness.reconcile()
    expiring(harness, "spring", 7, 7200)
    expiring(harness, "soon", 2, 3700)
    harness.reconcile(3600)
    harness.reconcile(200)
    reconciler = reconciler_of(harness)
    StatusWriter(harness.source, reconciler.books).write(harness.now)
    before = standing(harness, NOON + HOUR)
    assert before.granted == 11 * GPU_HOUR
    harness.client.flushall()
    harness.lead()
    harness.reconcile(1)
    after = standing(harness, NOON + HOUR)
    assert (after.granted, after.previous_spent) == (before.granted, before.previous_spent)
    assert reading.credits_of(harness.client, "a", NOON + HOUR)["soon"].expired
    harness.reconcile(3600)
    assert standing(harness, NOON + 2 * HOUR).granted == 4 * GPU_HOUR


def test_a_grant_that_was_spent_does_not_come_back_with_an_emptied_store(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], HUNDRED, period=HOURLY)
    harness.reconcile()
    expiring(harness, "spring", "0.1", 3 * 3600)
    harness.pod("p1", "team-a")
    harness.reconcile(1800)
    harness.reconcile(1800)
    assert standing(harness, NOON + HOUR).granted == 0
    books = reconciler_of(harness).books
    OrderAnswers(harness.source, books).write(harness.now)
    StatusWriter(harness.source, books).write(harness.now)
    harness.client.flushall()
    harness.lead()
    harness.reconcile(1)
    assert standing(harness, NOON + HOUR).granted == 0


def test_a_grant_whose_answer_was_lost_expires_as_any_other(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply_unheard(*arguments: Any) -> Any:
        apply_grants(*arguments)
        raise StoreUnavailableError("the answer was lost")

    harness.budget("a", ["team-a"], 10, period=HOURLY)
    harness.reconcile()
    expiring(harness, "spring", 1, 7200)
    expiring(harness, "soon", 2, 60)
    monkeypatch.setattr(apply_orders, "apply_grants", apply_unheard)
    with pytest.raises(StoreUnavailableError):
        harness.reconcile(1)
    monkeypatch.undo()
    harness.reconcile(1)
    assert standing(harness, NOON).granted == 3 * GPU_HOUR
    harness.reconcile(60)
    assert standing(harness, NOON).granted == GPU_HOUR
    harness.reconcile(3600)
    assert standing(harness, NOON + HOUR).granted == GPU_HOUR


def test_a_status_shows_what_is_left_of_each_grant(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 1, period={"every": "day"})
    harness.reconcile()
    expiring(harness, "later", 2, 3 * 86400)
    expiring(harness, "sooner", 1, 3600)
    harness.pod("p1", "team-a")
    harness.reconcile(0)
    harness.reconcile(1800)
    StatusWriter(harness.source, reconciler_of(harness).books).write(harness.now)
    harness.source.refresh()
    (item,) = harness.source.mirrors.budgets.items()
    shown = [(entry["grant"], entry["gpuHours"], entry["expires"]) for entry in item["status"]["expiring"]]
    expected = [("sooner", "0.5", "2026-01-15T13:00:00Z"), ("later", "2.00", "2026-01-18T12:00:00Z")]
    assert shown == expected


def test_readers_are_shown_what_is_left_of_each_grant_that_expires_at_the_moment_and_as_the_status_says(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], 1)
    harness.pod("p1", "team-a")
    harness.reconcile()
    expiring(harness, "spring", 5, 40 * 24 * 3600)
    expiring(harness, "soon", 2, 7200)
    expiring(harness, "tonight", "0.5", 1000)
    harness.reconcile(1)
    harness.reconcile(3600)
    StatusWriter(harness.source, reconciler_of(harness).books).write(harness.now)
    harness.source.refresh()
    (item,) = harness.source.mirrors.budgets.items()
    shown = item["status"]["expiring"]
    answered = budget_answer(published(harness, "a"), harness.now).model_dump(mode="json")["expiring"]
    assert [(one["grant"], one["expires"]) for one in answered] == [(one["grant"], one["expires"]) for one in shown]
    assert [one["remaining"]["microGPUSeconds"] for one in answered] == [one["microGPUSeconds"] for one in shown]
    assert [one["grant"] for one in answered] == ["soon", "spring"]


def test_a_credit_that_has_expired_stays_as_stored_where_a_later_report_changes_what_was_carried_over(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], HUNDRED, period=HOURLY)
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.grant("soon", "a", "0.5", expires=format_instant(NOON + 3700 * SECOND))
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(3500)
    report(harness, "p1", 1, 500)
    harness.reconcile()
    harness.pass_time(90)
    report(harness, "p1", 2, 590)
    for seconds in (200, 10, 10):
        harness.reconcile(seconds)

    later = NOON + HOUR
    assert reading.credits_of(harness.client, "a", later)["soon"].expired
    assert reconciler_of(harness).books.accounts["a"].credits[later] == reading.credits_of(harness.client, "a", later)
    assert published(harness, "a").credits == tuple(reading.credits_of(harness.client, "a", later).values())
