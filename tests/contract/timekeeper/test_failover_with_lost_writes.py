"""A replica is promoted that lacks the last writes, among them a leader's fencing token, while two processes lead."""

from __future__ import annotations

import pytest

from tests.contract.timekeeper.test_fencing import Leader
from tests.contract.timekeeper.test_wrong_clocks_and_silent_nodes import differences
from tests.support.ledger.harness import LedgerHarness, published
from tests.support.ledger.replica import Replica
from timekeeper.audit.difference import Figure
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.ledger import keys


@pytest.mark.parametrize("after", range(5))
def test_what_a_paused_leader_writes_without_its_successors_fence_is_named_and_then_written_again(
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
