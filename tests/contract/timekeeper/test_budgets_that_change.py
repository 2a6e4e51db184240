from __future__ import annotations

import pytest

from tests.support.ledger.harness import NOON, LedgerHarness, published
from timekeeper.controller.report.status_writer import StatusWriter
from timekeeper.controller.state.accounts import moves_by_account, read_moves, recorded_moves
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger import reading
from timekeeper.ledger.client import StoreEmptyError
from timekeeper.ledger.reading import load_accounts


def test_a_budget_edited_into_nonsense_goes_on_as_it_last_was_under_every_later_leader(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 7, period={"every": "hour"})
    harness.pod("p1", "team-a")
    harness.reconcile(10)
    harness.budget("a", ["team-a"], "a lot", period={"every": "hour"})
    harness.reconcile(10)
    for _ in range(2):
        harness.lead()
        harness.reconcile(3600)
    assert published(harness, "a").available == 7 * GPU_HOUR
    assert harness.spent("a", NOON + HOUR) == 3600 * GPU_SECOND
    assert harness.reconciler is not None
    assert "a" in harness.reconciler.books.budgets.budget_faults
    harness.budget("a", ["team-a"], 8, period={"every": "hour"})
    harness.reconcile(1)
    assert published(harness, "a").available == 8 * GPU_HOUR


def test_a_budget_that_is_made_again_under_its_name_takes_nothing_from_the_earlier_one(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 7)
    harness.reconcile(10)
    harness.budget("a", ["team-a"], "a lot")
    harness.budgets[-1]["metadata"]["uid"] = "another"
    harness.write_budgets()
    harness.lead()
    harness.reconcile(10)
    assert harness.reconciler is not None
    assert "a" not in harness.reconciler.books.budgets.budgets


def test_a_budget_that_is_deleted_across_a_periods_end_without_a_leader_pays_until_that_is_seen(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], 7, period={"every": "hour"})
    harness.pod("p1", "team-a")
    harness.reconcile(60)
    harness.budgets = []
    harness.write_budgets()
    harness.pass_time(3 * 3600)
    harness.lead()
    harness.reconcile()
    assert [harness.spent("a", NOON + hour * HOUR) for hour in range(4)] == [3600 * GPU_SECOND] * 3 + [60 * GPU_SECOND]
    harness.reconcile(10)
    harness.reconcile(2 * 3600)
    month = published(harness, "namespace:team-a").period_start
    assert harness.spent("namespace:team-a", month) == 7210 * GPU_SECOND
    assert harness.spent("a", NOON + 3 * HOUR) == 60 * GPU_SECOND
    (account,) = load_accounts(harness.client, ["a"])
    assert account.periods[-1].start == NOON + 3 * HOUR


def test_a_budget_that_is_deleted_across_a_periods_end_under_a_leader_pays_until_that_is_seen(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], 7, period={"every": "hour"})
    harness.pod("p1", "team-a")
    harness.reconcile(3590)
    harness.budgets = []
    harness.write_budgets()
    harness.reconcile(30)
    assert [harness.spent("a", NOON + hour * HOUR) for hour in range(2)] == [3600 * GPU_SECOND, 20 * GPU_SECOND]


def test_a_leader_whose_store_was_emptied_writes_down_again_what_budgets_last_were(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 7)
    harness.reconcile(10)
    harness.client.flushall()
    with pytest.raises(StoreEmptyError):
        harness.reconcile(10)
    harness.reconcile(1)
    assert reading.budgets_and_faults(harness.client)[0].keys() == {"a"}


def test_the_payer_before_a_namespace_moved_is_known_though_store_and_process_are_lost_at_once(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    harness.budget("b", ["team-b"])
    harness.pod("p1", "team-a")
    harness.reconcile(100)
    harness.budget("a", ["other"])
    harness.budget("b", ["team-b", "team-a"])
    harness.reconcile(0)
    harness.reconcile(50)
    assert harness.reconciler is not None
    StatusWriter(harness.source, harness.reconciler.books).write(harness.now)
    harness.client.flushall()
    harness.lead()
    harness.reconcile(10)
    assert (harness.spent("a"), harness.spent("b")) == (100 * GPU_SECOND, 60 * GPU_SECOND)
    assert reading.assignments(harness.client)["team-a"][-1][1] == "b"


def test_a_move_before_this_period_is_shown_no_more() -> None:
    assignments = {"team-a": ((0, "a"), (NOON, "b")), "team-b": ((0, "b"),)}
    moves = moves_by_account(assignments)
    assert moves.keys() == {"a", "b"}
    assert read_moves([{"status": {"checkpoint": {"moves": recorded_moves(moves["a"], NOON - 1)}}}]) == {
        "team-a": assignments["team-a"]
    }
    assert recorded_moves(moves["a"], NOON) == []
    assert read_moves([{}, {"status": {"checkpoint": {"moves": [{"namespace": "x"}, {"payers": 5}]}}}]) == {}
