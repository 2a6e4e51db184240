"""Prices that change, and amounts beyond what a double holds."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.support.ledger.harness import MONTH, NOON, LedgerHarness, published
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.pricing import BY_WORDS, PricePoint
from timekeeper.ledger import keys


def test_a_price_from_an_instant_on_changes_the_rate_from_there(harness: LedgerHarness) -> None:
    rules = ControllerRules(prices={"A100": (PricePoint(NOON + 10 * SECOND, Fraction(5, 2)),)})
    harness.budget("a", ["team-a"])
    harness.lead(rules)
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(20)
    assert harness.spent("a") == 35 * GPU_SECOND
    assert published(harness, "a").rate == 2_500_000


def test_a_price_that_is_changed_for_the_past_counts_from_the_restart_on(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(10)
    harness.lead(ControllerRules(prices={"A100": (PricePoint(0, Fraction(2)),)}))
    harness.reconcile(0)
    harness.reconcile(10)
    assert harness.spent("a") == 30 * GPU_SECOND


def test_a_leader_that_reads_keys_as_words_charges_a_running_pod_so_from_its_start_on(harness: LedgerHarness) -> None:
    prices = {"SXM4": (PricePoint(0, Fraction(3)),)}
    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(prices=prices))
    harness.pod("p1", "team-a", model="NVIDIA A100-SXM4-80GB")
    harness.reconcile()
    harness.reconcile(10)
    harness.lead(ControllerRules(prices=prices | {BY_WORDS: (PricePoint(0, Fraction(1)),)}))
    harness.reconcile(0)
    harness.reconcile(10)
    assert harness.spent("a") == 40 * GPU_SECOND


def test_money_beyond_two_to_the_53_is_exact_through_all_of_it(harness: LedgerHarness) -> None:
    price = Fraction(900_000_000)
    harness.budget("a", ["team-a"], 999_999_999)
    harness.lead(ControllerRules(prices={"*": (PricePoint(0, price),)}))
    harness.pod("p1", "team-a", core=33)
    harness.reconcile()
    harness.reconcile(33.333333333)
    expected = 297_000_000_000_000 * (harness.now - NOON) // SECOND
    assert expected > 2**53
    assert harness.spent("a") == expected
    assert published(harness, "a").spent == expected


@pytest.mark.parametrize("broken", ["its records cannot be read", "the store refuses its amounts"])
@pytest.mark.parametrize("leader", ["the leader goes on", "another leader follows"])
def test_an_account_that_fails_while_prices_change_is_charged_the_new_ones_from_the_change_on(
    harness: LedgerHarness, broken: str, leader: str
) -> None:
    doubled = ControllerRules(prices={"*": (PricePoint(0, Fraction(2)),)})
    for team in ("a", "b"):
        harness.budget(team, [f"team-{team}"])
        for pod in ("runs", "ends"):
            harness.pod(f"{pod}-{team}", f"team-{team}")
    harness.reconcile()
    harness.reconcile(60)
    account = keys.AccountKeys("a")
    key = account.sessions if broken == "its records cannot be read" else account.amounts(MONTH)
    before = harness.client.dump(key)
    harness.client.delete(key)
    harness.client.set(key, "text")
    harness.lead(doubled)
    harness.reconcile()
    harness.reconcile(10)
    harness.finish(harness.source_pod("ends-a"))
    harness.finish(harness.source_pod("ends-b"))
    harness.reconcile(20)
    harness.client.delete(key)
    harness.client.restore(key, 0, before)
    if leader == "another leader follows":
        harness.lead(doubled)
    harness.reconcile(600)
    harness.reconcile(5)
    running, ended = 60 + 2 * (10 + 20 + 605), 60 + 2 * 10
    assert harness.spent("b") == (running + ended) * GPU_SECOND
    assert harness.spent("a") == harness.spent("b")


@pytest.mark.parametrize("percent", [100, 37])
def test_a_pod_that_leaves_while_its_accounts_writes_fail_is_charged_prices_that_changed_meanwhile(
    harness: LedgerHarness, percent: int
) -> None:
    changed = ControllerRules(prices={"*": (PricePoint(0, Fraction(5, 2)),)})
    for team in ("a", "b"):
        harness.budget(team, [f"team-{team}"])
        harness.pod(f"p-{team}", f"team-{team}", core=percent)
    harness.reconcile()
    harness.reconcile(60)
    key = keys.AccountKeys("a").amounts(MONTH)
    before = harness.client.dump(key)
    harness.client.delete(key)
    harness.client.set(key, "text")
    harness.lead(changed)
    harness.reconcile()
    harness.reconcile(10)
    harness.remove("p-a")
    harness.remove("p-b")
    harness.reconcile()
    harness.client.delete(key)
    harness.client.restore(key, 0, before)
    harness.lead(changed)
    harness.reconcile()
    assert harness.spent("b") == (60 * 100 + 10 * 250) * percent * GPU_SECOND // 10_000
    assert harness.spent("a") == harness.spent("b")
