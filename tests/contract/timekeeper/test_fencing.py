"""A leader whom another has followed never writes again under a newer epoch: it cannot shut its successor out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.keeper_stage import Stage
from timekeeper.jobs.measures import JobMeasures
from timekeeper.jobs.memory.books import KeeperRules
from timekeeper.jobs.work import Work, World
from timekeeper.leadership.term import Term
from timekeeper.rules.money import GPU_SECOND
from timekeeper.store.book import highest_epoch
from timekeeper.store.calls import FencedError
from timekeeper.store.ledger import take_epoch

if TYPE_CHECKING:
    import redis


class Leader:
    """The jobs of one process, whose Lease says what the test says, on a monotonic clock of the test's own."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.clock = 0.0
        self.term = Term(lambda: self.clock)
        world = World(stage.client, stage.source, self.term, lambda: stage.now, holder=name)
        self.work = Work(world, KeeperRules(), JobMeasures())

    def look(self, term: int) -> None:
        """The Lease is seen to be its own, in this term."""
        self.clock += 1
        self.term.hold(term, self.clock + 1000, self.clock)


@pytest.fixture
def stage(stage: Stage) -> Stage:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.source.refresh()
    return stage


def test_a_fenced_leader_that_asks_again_is_refused_and_its_successor_goes_on(stage: Stage) -> None:
    first, second = Leader(stage, "first"), Leader(stage, "second")
    first.look(1)
    first.work.settle()
    second.look(2)
    second.work.settle()
    epoch = highest_epoch(stage.client)
    for _ in range(3):
        stage.pass_time(10)
        first.work.settle()
        assert first.term.number() is None
        first.look(1)  # its view of the Lease is old
        first.work.react()
        second.work.settle()
        assert second.term.number() == 2
    assert highest_epoch(stage.client) == epoch
    assert stage.spent("a") == 30 * GPU_SECOND


def test_a_look_at_the_lease_from_before_a_term_was_lost_does_not_bring_it_back() -> None:
    clock = [10.0]
    term = Term(lambda: clock[0])
    term.hold(1, 100.0, looked_at=9.0)
    term.lose()
    term.hold(1, 100.0, looked_at=9.5)
    assert term.number() is None
    term.hold(1, 100.0, looked_at=10.5)
    assert term.number() == 1


def test_an_epoch_is_given_again_to_the_holder_of_the_latest_term_alone(client: redis.Redis) -> None:
    first = take_epoch(client, 5, "a")
    assert take_epoch(client, 5, "a") > first
    latest = take_epoch(client, 7, "b")
    for term, holder in ((5, "a"), (6, "a"), (7, "a"), (7, "c")):
        with pytest.raises(FencedError):
            take_epoch(client, term, holder)
    assert highest_epoch(client) == latest
    assert take_epoch(client, 8, "a") > latest


@pytest.fixture
def client(stage: Stage) -> redis.Redis:
    return stage.client
