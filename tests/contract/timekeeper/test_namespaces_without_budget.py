"""The spending of namespaces that no GPUBudget pays for, once the store was emptied."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from tests.support.ledger.harness import MONTH, NOON, LedgerHarness
from timekeeper.controller.report.status_writer import CONFIRM, CheckpointKeeper, fitting, shards_of
from timekeeper.controller.state.books import ControllerRules
from timekeeper.controller.state.loading import PRICES, kept_prices, read_prices
from timekeeper.domain.budgets import Budget
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND
from timekeeper.domain.pricing import PricePoint, amended
from timekeeper.ledger import reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers.redis_server import RedisServer

RULES = ControllerRules(template=Budget("default", allowance=10 * GPU_HOUR))
ACCOUNT = "namespace:team-x"


@pytest.fixture
def harness(redis_server: RedisServer, tmp_path: Path) -> Iterator[LedgerHarness]:
    with redis_server.client() as client:
        harness = LedgerHarness(tmp_path, client)
        harness.lead(RULES)
        yield harness


def reconciler_of(harness: LedgerHarness) -> CheckpointKeeper:
    assert harness.reconciler is not None
    return CheckpointKeeper(harness.source, harness.reconciler.books)


def spend(harness: LedgerHarness) -> None:
    """A pod of 30 seconds that is gone, and one that runs."""
    harness.pod("gone", "team-x")
    harness.pod("runs", "team-x")
    harness.reconcile()
    harness.reconcile(30)
    harness.remove("gone")
    harness.reconcile()


def test_an_emptied_store_starts_again_from_what_pods_that_are_gone_had_spent_under_a_new_leader(
    harness: LedgerHarness,
) -> None:
    spend(harness)
    assert reconciler_of(harness).write(harness.now) == 1
    harness.client.flushall()
    harness.lead(RULES)
    harness.reconcile(10)
    assert harness.spent(ACCOUNT) == (30 + 40) * GPU_SECOND
    standing = reading.period_totals(harness.client, ACCOUNT, MONTH)
    assert standing is not None
    assert standing.finalized == 30 * GPU_SECOND


@pytest.mark.parametrize("document", ["x", 5, [1], {"checkpoint": 5}, {"checkpoint": {"period": 5, "pots": "x"}}])
def test_a_checkpoint_of_an_unexpected_form_keeps_no_leader_from_leading(
    harness: LedgerHarness, document: object
) -> None:
    spend(harness)
    harness.source.write_checkpoints(0, {ACCOUNT: document})
    harness.lead(RULES)
    harness.reconcile(10)
    assert harness.spent(ACCOUNT) == 70 * GPU_SECOND
    assert reconciler_of(harness).write(harness.now) == 1
    assert "checkpoint" in harness.source.read_checkpoints()[ACCOUNT]


def test_so_does_one_in_which_no_pod_runs_any_more(harness: LedgerHarness) -> None:
    spend(harness)
    harness.remove("runs")
    harness.reconcile(5)
    reconciler_of(harness).write(harness.now)
    harness.client.flushall()
    harness.lead(RULES)
    harness.reconcile(10)
    assert harness.spent(ACCOUNT) == 65 * GPU_SECOND
    harness.pod("next", "team-x")
    harness.reconcile(1)
    assert harness.spent(ACCOUNT) == 66 * GPU_SECOND


def test_a_store_that_went_back_is_brought_up_to_it(harness: LedgerHarness) -> None:
    harness.pod("first", "team-x")
    harness.reconcile()
    harness.reconcile(10)
    before = {key: harness.client.dump(key) for key in harness.client.scan_iter()}
    spend(harness)
    harness.remove("first")
    harness.reconcile()
    reconciler_of(harness).write(harness.now)
    harness.client.flushall()
    for key, content in before.items():
        harness.client.restore(key, 0, content)
    harness.lead(RULES)
    harness.reconcile(10)
    assert harness.spent(ACCOUNT) == (40 + 30 + 40) * GPU_SECOND


def test_a_budget_that_pays_by_now_is_not_charged_what_the_namespace_had_spent_before(harness: LedgerHarness) -> None:
    spend(harness)
    reconciler_of(harness).write(harness.now)
    harness.client.flushall()
    harness.budget("x", ["team-x"])
    harness.lead(RULES)
    harness.reconcile(10)
    assert harness.spent("x") == 40 * GPU_SECOND


@pytest.mark.parametrize("loss", ["emptied", "went back"])
def test_metered_time_is_not_priced_again_by_a_new_leader_of_a_store_that_lost_the_prices(
    harness: LedgerHarness, loss: str
) -> None:
    rules = [replace(RULES, prices={"A100": (PricePoint(0, Fraction(price)),)}) for price in (1, 2)]
    harness.lead(rules[0])
    harness.pod("runs", "team-x")
    harness.reconcile()
    harness.reconcile(30)
    before = {key: harness.client.dump(key) for key in harness.client.scan_iter()} if loss == "went back" else {}
    harness.lead(rules[1])
    harness.reconcile(0)
    harness.reconcile(20)
    assert reconciler_of(harness).write(harness.now) == 1
    harness.client.flushall()
    for key, content in before.items():
        harness.client.restore(key, 0, content)
    harness.lead(rules[1])
    harness.reconcile(10)
    assert harness.spent(ACCOUNT) == (30 + 2 * 30) * GPU_SECOND
    harness.lead(rules[1])
    harness.reconcile(10)
    assert harness.spent(ACCOUNT) == (30 + 2 * 40) * GPU_SECOND


def test_prices_that_the_settings_tell_are_not_kept_and_what_is_none_is_passed_over() -> None:
    points = (PricePoint(0, Fraction(1)), PricePoint(NOON, Fraction(3, 2)))
    configured = {"A100": points}
    charged = amended(configured, configured, NOON - 1)
    assert kept_prices(charged, configured) == {}
    assert kept_prices(amended({}, {}, NOON), {}) == {}
    changed = amended(charged, {"A100": (PricePoint(0, Fraction(7)),)}, NOON + 5)
    assert read_prices(kept_prices(changed, configured)) == changed
    assert [read_prices(found) for found in ({}, {PRICES: None}, {PRICES: {"prices": "x"}}, {PRICES: 5})] == [{}] * 4


def test_an_unchanged_checkpoint_is_not_written_again_and_one_of_a_finished_account_leaves(
    harness: LedgerHarness,
) -> None:
    spend(harness)
    reconciler = reconciler_of(harness)
    assert reconciler.write(harness.now) == 1
    harness.reconcile(10)
    assert reconciler.write(harness.now) == 0
    harness.reconcile(CONFIRM // SECOND)
    assert reconciler.write(harness.now) == 1
    harness.remove("runs")
    harness.reconcile(1)
    assert reconciler.write(harness.now) == 1
    harness.reconcile(40 * 24 * 3600)
    assert reconciler_of(harness).write(harness.now) == 1
    assert harness.source.read_checkpoints() == {}


def test_one_who_does_not_lead_any_more_writes_nothing(harness: LedgerHarness) -> None:
    spend(harness)
    assert harness.reconciler is not None
    assert CheckpointKeeper(harness.source, harness.reconciler.books, leading=lambda: False).write(harness.now) == 0
    assert harness.source.read_checkpoints() == {}


def test_no_shard_becomes_larger_than_an_object_may_be_and_the_largest_sums_are_kept() -> None:
    documents = {f"namespace:n{n}": {"checkpoint": {"closedMicroGPUSeconds": str(n)}} for n in range(1000)}
    shards = shards_of(documents)
    assert sum(len(shard) for shard in shards.values()) == 1000
    assert max(len(shard) for shard in shards.values()) < 120
    kept = fitting(shards[0], 1000)
    dropped = shards[0].keys() - kept.keys()
    assert sum(len(str(found)) for found in kept.values()) < 1000
    sums = [{int(name.removeprefix("namespace:n")) for name in names} for names in (kept, dropped)]
    assert min(sums[0]) > max(sums[1])


@pytest.mark.parametrize("number", ["²", "٣", "1" * 5000, "-1", ""])
def test_a_document_whose_name_has_no_number_of_an_object_keeps_no_other_from_its_object(number: str) -> None:
    shards = shards_of({f":held:{number}": {}, ":held:2": {}})
    assert ":held:2" in shards[2]
    assert sum(len(shard) for shard in shards.values()) == 2
