"""Prices that change, and amounts beyond what a double holds."""

from __future__ import annotations

from fractions import Fraction

from tests.keeper_stage import NOON, Stage, published
from timekeeper.jobs.memory.books import KeeperRules
from timekeeper.rules.money import GPU_SECOND, SECOND
from timekeeper.rules.pricing import PricePoint


def test_a_price_from_an_instant_on_changes_the_rate_from_there(stage: Stage) -> None:
    rules = KeeperRules(prices={"A100": (PricePoint(NOON + 10 * SECOND, Fraction(5, 2)),)})
    stage.budget("a", ["team-a"])
    stage.lead(rules)
    stage.pod("p1", "team-a")
    stage.round()
    stage.round(20)
    assert stage.spent("a") == 35 * GPU_SECOND
    assert published(stage, "a").rate == 2_500_000


def test_a_price_that_is_changed_for_the_past_counts_from_the_restart_on(stage: Stage) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.round()
    stage.round(10)
    stage.lead(KeeperRules(prices={"A100": (PricePoint(0, Fraction(2)),)}))
    stage.round(0)
    stage.round(10)
    assert stage.spent("a") == 30 * GPU_SECOND


def test_money_beyond_two_to_the_53_is_exact_through_all_of_it(stage: Stage) -> None:
    price = Fraction(900_000_000)
    stage.budget("a", ["team-a"], 999_999_999)
    stage.lead(KeeperRules(prices={"*": (PricePoint(0, price),)}))
    stage.pod("p1", "team-a", core=33)
    stage.round()
    stage.round(33.333333333)
    expected = 297_000_000_000_000 * (stage.now - NOON) // SECOND
    assert expected > 2**53
    assert stage.spent("a") == expected
    assert published(stage, "a").spent == expected
