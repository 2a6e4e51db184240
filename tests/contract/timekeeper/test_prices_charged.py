"""Prices that change, and amounts beyond what a double holds."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.support.ledger.harness import MONTH, NOON, LedgerHarness, published
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.pricing import BY_WORDS, PricePoint
from timekeeper.ledger import keys


def test_a_price_from_an_instant_on_changes_the_rate_from_there(stage: LedgerHarness) -> None:
    rules = ControllerRules(prices={"A100": (PricePoint(NOON + 10 * SECOND, Fraction(5, 2)),)})
    stage.budget("a", ["team-a"])
    stage.lead(rules)
    stage.pod("p1", "team-a")
    stage.round()
    stage.round(20)
    assert stage.spent("a") == 35 * GPU_SECOND
    assert published(stage, "a").rate == 2_500_000


def test_a_price_that_is_changed_for_the_past_counts_from_the_restart_on(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.round()
    stage.round(10)
    stage.lead(ControllerRules(prices={"A100": (PricePoint(0, Fraction(2)),)}))
    stage.round(0)
    stage.round(10)
    assert stage.spent("a") == 30 * GPU_SECOND


def test_a_leader_that_reads_keys_as_words_charges_a_running_pod_so_from_its_start_on(stage: LedgerHarness) -> None:
    prices = {"SXM4": (PricePoint(0, Fraction(3)),)}
    stage.budget("a", ["team-a"])
    stage.lead(ControllerRules(prices=prices))
    stage.pod("p1", "team-a", model="NVIDIA A100-SXM4-80GB")
    stage.round()
    stage.round(10)
    stage.lead(ControllerRules(prices=prices | {BY_WORDS: (PricePoint(0, Fraction(1)),)}))
    stage.round(0)
    stage.round(10)
    assert stage.spent("a") == 40 * GPU_SECOND


def test_money_beyond_two_to_the_53_is_exact_through_all_of_it(stage: LedgerHarness) -> None:
    price = Fraction(900_000_000)
    stage.budget("a", ["team-a"], 999_999_999)
    stage.lead(ControllerRules(prices={"*": (PricePoint(0, price),)}))
    stage.pod("p1", "team-a", core=33)
    stage.round()
    stage.round(33.333333333)
    expected = 297_000_000_000_000 * (stage.now - NOON) // SECOND
    assert expected > 2**53
    assert stage.spent("a") == expected
    assert published(stage, "a").spent == expected


@pytest.mark.parametrize("broken", ["its records cannot be read", "the store refuses its amounts"])
@pytest.mark.parametrize("leader", ["the leader goes on", "another leader follows"])
def test_an_account_that_fails_while_prices_change_is_charged_the_new_ones_from_the_change_on(
    stage: LedgerHarness, broken: str, leader: str
) -> None:
    doubled = ControllerRules(prices={"*": (PricePoint(0, Fraction(2)),)})
    for team in ("a", "b"):
        stage.budget(team, [f"team-{team}"])
        for pod in ("runs", "ends"):
            stage.pod(f"{pod}-{team}", f"team-{team}")
    stage.round()
    stage.round(60)
    account = keys.AccountKeys("a")
    key = account.sessions if broken == "its records cannot be read" else account.amounts(MONTH)
    before = stage.client.dump(key)
    stage.client.delete(key)
    stage.client.set(key, "text")
    stage.lead(doubled)
    stage.round()
    stage.round(10)
    stage.finish(stage.source_pod("ends-a"))
    stage.finish(stage.source_pod("ends-b"))
    stage.round(20)
    stage.client.delete(key)
    stage.client.restore(key, 0, before)
    if leader == "another leader follows":
        stage.lead(doubled)
    stage.round(600)
    stage.round(5)
    running, ended = 60 + 2 * (10 + 20 + 605), 60 + 2 * 10
    assert stage.spent("b") == (running + ended) * GPU_SECOND
    assert stage.spent("a") == stage.spent("b")


@pytest.mark.parametrize("percent", [100, 37])
def test_a_pod_that_leaves_while_its_accounts_writes_fail_is_charged_prices_that_changed_meanwhile(
    stage: LedgerHarness, percent: int
) -> None:
    changed = ControllerRules(prices={"*": (PricePoint(0, Fraction(5, 2)),)})
    for team in ("a", "b"):
        stage.budget(team, [f"team-{team}"])
        stage.pod(f"p-{team}", f"team-{team}", core=percent)
    stage.round()
    stage.round(60)
    key = keys.AccountKeys("a").amounts(MONTH)
    before = stage.client.dump(key)
    stage.client.delete(key)
    stage.client.set(key, "text")
    stage.lead(changed)
    stage.round()
    stage.round(10)
    stage.remove("p-a")
    stage.remove("p-b")
    stage.round()
    stage.client.delete(key)
    stage.client.restore(key, 0, before)
    stage.lead(changed)
    stage.round()
    assert stage.spent("b") == (60 * 100 + 10 * 250) * percent * GPU_SECOND // 10_000
    assert stage.spent("a") == stage.spent("b")
