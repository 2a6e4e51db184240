"""A replica is promoted that lacks the last writes, among them a leader's fencing token, while two processes lead."""

from __future__ import annotations

import pytest

from tests.contract.timekeeper.test_fencing import Leader
from tests.contract.timekeeper.test_wrong_clocks_and_silent_nodes import differences
from tests.support.ledger.harness import NOON, LedgerHarness, published, report
from tests.support.ledger.replica import Replica
from timekeeper.audit.difference import Figure
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.domain.pricing import Bill
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger import keys, reading


@pytest.mark.parametrize("after", range(5))
def test_a_write_of_a_paused_leader_without_its_successors_fence_is_named_and_then_written_again(
    harness: LedgerHarness, after: int
) -> None:
    """The first leader is paused in a round after so many steps; it goes on in the store of the promoted replica."""
    harness.budget("a", ["team-a"])
    harness.pod("runs", "team-a")
    ends = harness.pod("ends", "team-a")
    harness.source.refresh()
    first, second = Leader(harness, "first"), Leader(harness, "second")
    first.look(1)
    first.work.settle()
    harness.pass_time(100)
    replica = Replica(harness.client)

    def lose_the_second_leaders_writes() -> None:
        harness.finish(ends)
        harness.grant("g", "a", 5)
        harness.pod("new", "team-a", core=50)
        harness.source.refresh()
        second.look(2)
        second.work.settle()
        harness.pass_time(100)
        second.work.settle()
        assert harness.spent("a") == (200 + 100 + 50) * GPU_SECOND
        replica.promote()

    first.settle(after, lose_the_second_leaders_writes)
    assert harness.client.get(keys.BOOK_TERM) == b"1 first"
    assert Figure.SESSION in {each.figure for each in differences(harness)}
    harness.pass_time(100)
    second.work.settle()
    first.look(1)
    first.work.settle()
    second.work.settle()
    assert (first.term.number(), second.term.number()) == (None, 2)
    assert harness.client.get(keys.BOOK_TERM) == b"2 second"
    assert harness.spent("a") == (300 + 100 + 100) * GPU_SECOND
    assert published(harness, "a").available == 105 * GPU_HOUR
    assert differences(harness) == []


@pytest.mark.parametrize("bill", list(Bill))
def test_a_pod_that_was_deleted_before_the_last_writes_were_lost_costs_what_it_did(
    harness: LedgerHarness, bill: Bill
) -> None:
    """The leader stays, and remembers the pod, whose reports are not kept; the replica holds all of its amounts."""
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(ControllerRules(bill=bill))
    harness.pod("runs", "team-a")
    ends = harness.pod("ends", "team-a")
    harness.reconcile(1800)
    report(harness, "ends", 1, 600)
    harness.reconcile(3600)
    report(harness, "ends", 2, 1000)
    harness.finish(ends)
    harness.reconcile(10)
    harness.remove("ends")
    harness.reconcile(10)
    known = {start: reading.stored_amounts(harness.client, "a", start)["ends"] for start in (NOON, NOON + HOUR)}
    replica = Replica(harness.client)
    harness.reconcile(100)
    replica.promote()
    harness.reconcile(10)
    harness.reconcile(10)
    for start, each in known.items():
        assert reading.stored_amounts(harness.client, "a", start)["ends"].amount == each.amount
        harness.spent("a", start)
    assert differences(harness, bill) == []
