"""The speed at which budgets were spent, as leaders keep and publish it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.ledger.harness import LedgerHarness
from timekeeper.controller.report.status_documents import budget_status, conditions_of
from timekeeper.domain.forecast import FINE, Burn
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.domain.timestamps import HOUR, MINUTE
from timekeeper.ledger import reading
from timekeeper.ledger.totals import decode_summary

if TYPE_CHECKING:
    from timekeeper.controller.state.figures import Figures


def pass_hours(harness: LedgerHarness, hours: float) -> None:
    for _ in range(int(hours * 20)):
        harness.reconcile(180)


def figures(harness: LedgerHarness) -> Figures:
    assert harness.reconciler is not None
    return harness.reconciler.books.figures["a"]


def test_the_hour_and_the_day_are_distinguished(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 1000)
    harness.pod("p1", "team-a")
    pass_hours(harness, 25)
    harness.remove("p1")
    pass_hours(harness, 2)
    hour, day = figures(harness).burns.hour, figures(harness).burns.day
    assert hour is not None
    assert day is not None
    assert hour.rate == 0
    assert 0.9 * GPU_SECOND < day.rate < 0.95 * GPU_SECOND


def test_a_later_leader_knows_what_was_spent_under_the_earlier_one(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 1000)
    harness.pod("p1", "team-a")
    pass_hours(harness, 3)
    before = figures(harness).burns
    harness.lead()
    harness.reconcile()
    assert figures(harness).burns == before
    assert before.day == Burn(harness.now - 3 * HOUR + 3 * MINUTE, harness.now, 3 * GPU_HOUR - 180 * GPU_SECOND)


def test_a_store_that_was_emptied_begins_a_new_record(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 1000)
    harness.pod("p1", "team-a")
    pass_hours(harness, 1)
    harness.client.flushall()
    harness.lead()
    harness.reconcile()
    assert figures(harness).burns.hour is None
    pass_hours(harness, 1)
    hour = figures(harness).burns.hour
    assert hour is not None
    assert hour.rate == GPU_SECOND


def test_readers_are_shown_the_same_up_to_the_last_sample(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 1000)
    harness.pod("p1", "team-a")
    pass_hours(harness, 30)
    shown = decode_summary(reading.summaries(harness.client, ["a"])["a"])
    for burn in (shown.burns.hour, shown.burns.day):
        assert burn is not None
        assert burn.rate == GPU_SECOND
        assert harness.now - burn.until < FINE


def test_the_status_shows_both_and_whether_the_money_outlasts_the_period(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 100)
    harness.pod("p1", "team-a")
    pass_hours(harness, 30)
    assert harness.reconciler is not None
    found, account = figures(harness), harness.reconciler.books.accounts["a"]
    status = budget_status(account, found, harness.now)
    assert status["forecast"]["lastHour"]["burnRate"] == "1.00"
    assert status["forecast"]["lastDay"]["projectedExhaustion"] == "2026-01-19T16:00:00Z"
    early = {c["type"]: c for c in conditions_of(found, {}, None, harness.now)}["RunsOutEarly"]
    assert (early["status"], early["reason"]) == ("True", "AtTheRateOfHourAndDay")
    harness.remove("p1")
    pass_hours(harness, 1.2)
    early = {c["type"]: c for c in conditions_of(figures(harness), {}, None, harness.now)}["RunsOutEarly"]
    assert (early["status"], early["reason"]) == ("False", "OutlastsThePeriod")
