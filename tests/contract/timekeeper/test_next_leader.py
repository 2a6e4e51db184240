"""What the leader after the leader makes of what it finds: nothing may hang on what only one of them knew."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.keeper_stage import NOON, Stage, report
from timekeeper.jobs.memory.books import KeeperRules
from timekeeper.metering.bill import Bill
from timekeeper.rules.money import GPU_SECOND
from timekeeper.rules.pricing import PricePoint
from timekeeper.rules.timestamps import HOUR
from timekeeper.store import book, reading


def priced(price: int) -> KeeperRules:
    return KeeperRules(prices={"A100": (PricePoint(0, Fraction(price)),)})


def test_a_changed_price_holds_under_every_later_leader(stage: Stage) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.lead(priced(1))
    stage.round()
    stage.pass_time(10)
    stage.lead(priced(3))
    stage.round()
    stage.round(10)
    assert stage.spent("a") == 40 * GPU_SECOND
    stage.lead(priced(3))
    stage.round()
    assert stage.spent("a") == 40 * GPU_SECOND
    stage.round(10)
    assert stage.spent("a") == 70 * GPU_SECOND


def test_a_changed_price_holds_where_the_leader_that_brought_it_ended_at_any_step(stage: Stage) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.lead(priced(1))
    stage.round()
    stage.pass_time(10)
    for ending in ("assign", "settle", "index", "prices", "publish"):

        def step(name: str, ending: str = ending) -> None:
            if name == ending:
                raise KeyboardInterrupt

        stage.lead(priced(3), step=step)
        with pytest.raises(KeyboardInterrupt):
            stage.round()
    stage.lead(priced(3))
    stage.round()
    stage.round(10)
    assert stage.spent("a") == 40 * GPU_SECOND


def test_a_pod_that_is_there_after_all_goes_on_being_charged_with_the_gap(stage: Stage) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    pod = stage.pod("p1", "team-a")
    stage.round(10)
    stage.remove("p1")
    stage.pass_time(10)
    stage.lead()
    stage.round()
    assert stage.spent("a", NOON) == 10 * GPU_SECOND
    stage.pass_time(3600)
    stage.write_pod(pod)
    stage.round(10)
    stage.round(10)
    assert stage.spent("a", NOON) == 3600 * GPU_SECOND
    assert stage.spent("a", NOON + HOUR) == 40 * GPU_SECOND
    assert reading.open_sessions(stage.client, "", 1) == [("p1", "a")]
    stage.remove("p1")
    stage.round(10)
    stage.round(10)
    assert stage.spent("a", NOON + HOUR) == 50 * GPU_SECOND
    standing = reading.standing(stage.client, "a", NOON + HOUR)
    assert standing is not None
    assert standing.gone == standing.total


@pytest.mark.parametrize("finished", [False, True])
def test_a_pod_that_left_between_two_leaders_is_still_billed_what_it_used(stage: Stage, *, finished: bool) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(KeeperRules(bill=Bill.USED))
    pod = stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(100)
    report(stage, "p1", 1, 7)
    if finished:
        stage.finish(pod)
    stage.round()
    assert stage.spent("a") == 7 * GPU_SECOND
    stage.remove("p1")
    stage.pass_time(10)
    stage.lead(KeeperRules(bill=Bill.USED))
    stage.round()
    assert stage.spent("a") == 7 * GPU_SECOND


def test_reports_are_taken_of_a_pod_whose_opening_was_the_last_thing_that_a_leader_did(stage: Stage) -> None:
    def step(name: str) -> None:
        if name == "index":
            raise KeyboardInterrupt

    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.lead(step=step)
    book.index_sessions(stage.client, [("left", "a")], [])
    with pytest.raises(KeyboardInterrupt):
        stage.round()
    stage.lead()
    stage.round(10)
    assert reading.open_sessions(stage.client, "", 10) == [("p1", "a")]


def test_a_budget_that_is_made_again_under_its_name_has_the_periods_that_it_says(stage: Stage) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.pod("p1", "team-a")
    stage.round(10)
    stage.budgets = []
    stage.write_budgets()
    stage.round(7200)
    assert stage.spent("a", NOON) == 3600 * GPU_SECOND
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.round(10)
    stage.round(10)
    assert stage.keeper is not None
    account = stage.keeper.books.accounts["a"]
    assert [period.end - period.start for period in account.periods] == [HOUR] * 3
    assert stage.spent("a", NOON + 2 * HOUR) == 20 * GPU_SECOND
    assert stage.spent("a", NOON + HOUR) == 3600 * GPU_SECOND
