from __future__ import annotations

from typing import Any

import pytest

from tests.support.ledger.harness import NOON, LedgerHarness, published
from timekeeper.api.budget_answers import budget_answer
from timekeeper.controller.reconcile import apply_orders
from timekeeper.controller.reconcile.reconciler import Reconciler
from timekeeper.controller.report.order_answers import OrderAnswers
from timekeeper.controller.report.status_writer import StatusWriter
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND
from timekeeper.domain.timestamps import HOUR, format_instant
from timekeeper.ledger import reading
from timekeeper.ledger.adjustments import apply_grants
from timekeeper.ledger.client import StoreUnavailableError
from timekeeper.ledger.totals import PeriodTotals

HOURLY: dict[str, Any] = {"every": "hour"}
ALLOWANCE = 100 * GPU_SECOND
HUNDRED = "0.027778"
"""GPU-hours of a hundred GPU-seconds, and 800 microGPU-seconds more."""


def money(stage: LedgerHarness, account: str) -> list[tuple[str, str, int]]:
    page = reading.ledger_page(stage.client, account, "", 1000)
    return [(entry.kind, entry.pod, entry.amount) for entry in page if entry.kind in {"grant", "carry", "lapse"}]


def standing(stage: LedgerHarness, period: int) -> PeriodTotals:
    found = reading.period_totals(stage.client, "a", period)
    assert found is not None
    return found


def keeper_of(stage: LedgerHarness) -> Reconciler:
    assert stage.keeper is not None
    return stage.keeper


def expiring(stage: LedgerHarness, name: str, gpu_hours: Any, seconds: int) -> None:
    stage.grant(name, "a", gpu_hours, expires=format_instant(stage.now + seconds * SECOND))


def test_a_negative_grant_takes_money_away_and_says_so(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], 10)
    stage.round()
    stage.grant("less", "a", -4)
    stage.round(1)
    assert (published(stage, "a").available, published(stage, "a").granted) == (6 * GPU_HOUR, -4 * GPU_HOUR)
    assert money(stage, "a") == [("grant", "less", -4 * GPU_HOUR)]
    stage.grant("all", "a", "-7.5")
    stage.round(1)
    assert published(stage, "a").available == -3 * GPU_HOUR // 2
    assert published(stage, "a").state == "over"
    stage.lead()
    stage.round(1)
    assert published(stage, "a").granted == -23 * GPU_HOUR // 2


def test_a_grant_that_expires_lapses_with_what_is_left_of_it_then(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], HUNDRED, period={"every": "day"})
    stage.pod("p1", "team-a")
    stage.round()
    stage.round(10)
    expiring(stage, "tonight", 1, 60)
    stage.round(1)
    assert published(stage, "a").granted == GPU_HOUR
    stage.round(100)
    assert money(stage, "a") == [("grant", "tonight", GPU_HOUR), ("lapse", "tonight", 60 * GPU_SECOND - GPU_HOUR)]
    assert published(stage, "a").granted == 60 * GPU_SECOND


def test_what_lapses_is_the_same_whoever_watched_then(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], HUNDRED, period={"every": "day"})
    ends = stage.pod("p1", "team-a")
    stage.pod("p2", "team-a", core=50)
    stage.round()
    stage.round(10)
    expiring(stage, "tonight", 1, 60)
    stage.round(1)
    stage.pass_time(30)
    stage.finish(ends)
    stage.pass_time(5000)
    stage.lead()
    stage.round()
    spent_meanwhile = 31 * GPU_SECOND + 30 * GPU_SECOND
    assert money(stage, "a")[1:] == [("lapse", "tonight", spent_meanwhile - GPU_HOUR)]


def test_a_grant_that_outlives_its_period_begins_the_next_one_with_what_was_left_of_it(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], HUNDRED, period=HOURLY)
    stage.round()
    expiring(stage, "spring", 1, 3 * 3600)
    stage.pod("p1", "team-a")
    stage.round(1800)
    stage.round(1800)
    allowance = ALLOWANCE + 800
    left = GPU_HOUR - (3600 * GPU_SECOND - allowance)
    assert standing(stage, NOON + HOUR).granted == left
    assert standing(stage, NOON).granted == GPU_HOUR
    stage.round(50)
    assert published(stage, "a").available == allowance + left
    stage.remove("p1")
    stage.round(5)
    stage.round(3600)
    assert standing(stage, NOON + 2 * HOUR).granted == left
    stage.round(3600)
    assert standing(stage, NOON + 3 * HOUR).granted == 0
    assert [entry[:2] for entry in money(stage, "a")] == [("grant", "spring"), ("carry", "spring"), ("carry", "spring")]


def test_hours_without_a_timekeeper_carry_the_same_from_period_to_period(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], HUNDRED, period=HOURLY)
    stage.round()
    expiring(stage, "spring", 10, 5 * 3600 + 1800)
    stage.pod("p1", "team-a")
    stage.round(60)
    stage.pass_time(6 * 3600)
    stage.lead()
    stage.round()
    burned = 3600 * GPU_SECOND - ALLOWANCE - 800
    granted = [standing(stage, NOON + hour * HOUR).granted for hour in range(5)]
    assert granted == [10 * GPU_HOUR - hour * burned for hour in range(5)]
    # In the hour in which it expires it burns before the allowance.
    assert standing(stage, NOON + 5 * HOUR).granted == 1800 * GPU_SECOND
    assert standing(stage, NOON + 6 * HOUR).granted == 0


def test_unspent_allowance_rolls_over_up_to_its_cap_and_not_what_was_granted(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], 10, period=HOURLY, rollover={"gpuHours": 12})
    stage.round()
    stage.grant("gift", "a", 5)
    stage.pod("p1", "team-a")
    stage.round(1800)
    stage.remove("p1")
    stage.round(0)
    stage.round(3600)
    assert published(stage, "a").available == 20 * GPU_HOUR
    stage.round(3600)
    assert published(stage, "a").available == 22 * GPU_HOUR
    assert money(stage, "a")[1:] == [("carry", "", 10 * GPU_HOUR), ("carry", "", 12 * GPU_HOUR)]


def test_what_the_overspent_leave_is_nothing(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], HUNDRED, period=HOURLY, rollover={"gpuHours": 12})
    stage.pod("p1", "team-a")
    stage.round()
    stage.round(3600)
    assert published(stage, "a").granted == 0
    assert money(stage, "a") == []


def test_a_rollover_that_is_written_later_reaches_no_earlier_period(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], 10, period=HOURLY)
    stage.round()
    stage.round(3600)
    stage.budget("a", ["team-a"], 10, period=HOURLY, rollover={"gpuHours": 3})
    stage.lead()
    stage.round(60)
    assert published(stage, "a").granted == 0
    stage.round(3600)
    assert published(stage, "a").granted == 3 * GPU_HOUR


def test_what_is_carried_follows_when_the_spend_of_the_period_before_is_set_right(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], 1, period=HOURLY, rollover={"gpuHours": 1})
    pod = stage.pod("p1", "team-a")
    stage.round()
    stage.round(3605)
    assert published(stage, "a").granted == 0
    stage.finish(pod, seconds_ago=605)
    stage.round(1)
    stage.round(10)
    assert published(stage, "a").granted == 600 * GPU_SECOND
    assert stage.spent("a", NOON) == GPU_HOUR - published(stage, "a").granted


def test_an_emptied_store_gets_back_what_was_carried_and_burned(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], 10, period=HOURLY, rollover={"gpuHours": 4})
    stage.round()
    expiring(stage, "spring", 7, 7200)
    expiring(stage, "soon", 2, 3700)
    stage.round(3600)
    stage.round(200)
    keeper = keeper_of(stage)
    StatusWriter(stage.source, keeper.books).write(stage.now)
    before = standing(stage, NOON + HOUR)
    assert before.granted == 11 * GPU_HOUR
    stage.client.flushall()
    stage.lead()
    stage.round(1)
    after = standing(stage, NOON + HOUR)
    assert (after.granted, after.previous_spent) == (before.granted, before.previous_spent)
    assert reading.credits_of(stage.client, "a", NOON + HOUR)["soon"].expired
    stage.round(3600)
    assert standing(stage, NOON + 2 * HOUR).granted == 4 * GPU_HOUR


def test_a_grant_that_was_spent_does_not_come_back_with_an_emptied_store(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], HUNDRED, period=HOURLY)
    stage.round()
    expiring(stage, "spring", "0.1", 3 * 3600)
    stage.pod("p1", "team-a")
    stage.round(1800)
    stage.round(1800)
    assert standing(stage, NOON + HOUR).granted == 0
    books = keeper_of(stage).books
    OrderAnswers(stage.source, books).write(stage.now)
    StatusWriter(stage.source, books).write(stage.now)
    stage.client.flushall()
    stage.lead()
    stage.round(1)
    assert standing(stage, NOON + HOUR).granted == 0


def test_a_grant_whose_answer_was_lost_expires_as_any_other(
    stage: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply_unheard(*arguments: Any) -> Any:
        apply_grants(*arguments)
        raise StoreUnavailableError("the answer was lost")

    stage.budget("a", ["team-a"], 10, period=HOURLY)
    stage.round()
    expiring(stage, "spring", 1, 7200)
    expiring(stage, "soon", 2, 60)
    monkeypatch.setattr(apply_orders, "apply_grants", apply_unheard)
    with pytest.raises(StoreUnavailableError):
        stage.round(1)
    monkeypatch.undo()
    stage.round(1)
    assert standing(stage, NOON).granted == 3 * GPU_HOUR
    stage.round(60)
    assert standing(stage, NOON).granted == GPU_HOUR
    stage.round(3600)
    assert standing(stage, NOON + HOUR).granted == GPU_HOUR


def test_a_status_shows_what_is_left_of_each_grant(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], 1, period={"every": "day"})
    stage.round()
    expiring(stage, "later", 2, 3 * 86400)
    expiring(stage, "sooner", 1, 3600)
    stage.pod("p1", "team-a")
    stage.round(0)
    stage.round(1800)
    StatusWriter(stage.source, keeper_of(stage).books).write(stage.now)
    stage.source.refresh()
    (item,) = stage.source.mirrors.budgets.items()
    shown = [(entry["grant"], entry["gpuHours"], entry["expires"]) for entry in item["status"]["expiring"]]
    expected = [("sooner", "0.5", "2026-01-15T13:00:00Z"), ("later", "2.00", "2026-01-18T12:00:00Z")]
    assert shown == expected


def test_readers_are_shown_what_is_left_of_each_grant_that_expires_at_the_moment_and_as_the_status_says(
    stage: LedgerHarness,
) -> None:
    stage.budget("a", ["team-a"], 1)
    stage.pod("p1", "team-a")
    stage.round()
    expiring(stage, "spring", 5, 40 * 24 * 3600)
    expiring(stage, "soon", 2, 7200)
    expiring(stage, "tonight", "0.5", 1000)
    stage.round(1)
    stage.round(3600)
    StatusWriter(stage.source, keeper_of(stage).books).write(stage.now)
    stage.source.refresh()
    (item,) = stage.source.mirrors.budgets.items()
    shown = item["status"]["expiring"]
    answered = budget_answer(published(stage, "a"), stage.now).model_dump(mode="json")["expiring"]
    assert [(one["grant"], one["expires"]) for one in answered] == [(one["grant"], one["expires"]) for one in shown]
    assert [one["remaining"]["microGPUSeconds"] for one in answered] == [one["microGPUSeconds"] for one in shown]
    assert [one["grant"] for one in answered] == ["soon", "spring"]
