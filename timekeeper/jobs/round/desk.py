"""What the steps of a round work with in one term of leadership."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import redis
import structlog

from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.memory.metered import Metered, MeterRules
from timekeeper.jobs.memory.observing import Clocks, namespace_uids
from timekeeper.metering.sessions import alive_until
from timekeeper.sources.source import Source
from timekeeper.store import keys
from timekeeper.store.calls import FencedError, StoreEmptyError, StoreError, StoreUnavailableError
from timekeeper.store.ledger import Revision
from timekeeper.store.replicas import replicated
from timekeeper.store.servers import identity
from timekeeper.store.standing import Standing

Step = Callable[[str], None]
"""Told of each step before it is taken; tests end the process there."""

_log = structlog.get_logger()


@dataclass(slots=True)
class Desk:
    """The books, and the world and the store on either side of them.

    Attributes:
        client: the store; its answers are bytes.
        source: the world.
        books: what is known.
        epoch: the term's; later ones shut this one out.
        step: told of each step before it is taken.
        clocks: whom to ask what time it is while the world is looked at.
        silent: nodes that are silent, and since when.
        servers: which runs of which servers hold the store, as this term last saw.
        capacity: what the nodes were last written down to have; None before the first time.
        full: whether the store has no room for new sessions: they are opened once it has.
        held_back: the uids of those.
    """

    client: redis.Redis
    source: Source
    books: Books
    epoch: int
    step: Step
    clocks: Clocks
    silent: dict[str, int] = field(default_factory=dict)
    servers: str = ""
    capacity: int | None = None
    full: bool = False
    held_back: set[str] = field(default_factory=set)
    _counter: int = 0

    def next_revision(self) -> Revision:
        """The revision of the next settlement, newer than all before."""
        self._counter += 1
        return Revision(self.epoch, self._counter)

    def meter_rules(self) -> MeterRules:
        """What a pod is metered by now."""
        rules = self.books.rules
        prices = self.books.prices or rules.prices
        return MeterRules(rules.charge, rules.meter_from, prices, namespace_uids(self.source.mirrors), rules.labels)

    def reported(self, uid: str) -> int | None:
        """When a pod last reported."""
        at = self.client.hget(keys.report(uid), "at")
        return int(at) if at is not None else None

    def until(self, metered: Metered, now: int) -> int:
        """Until when a session is charged: its end, or now, or its silent node's last sign of life."""
        session = metered.session
        if session.end is not None:
            return session.end
        silent = self.silent.get(session.node)
        return now if silent is None else max(session.start, alive_until(now, silent, self.reported(session.uid)))

    def replicated(self, what: str, accounts: Sequence[str]) -> bool:
        """Whether replicas hold what these accounts were just written, where there are any; else it is sent again.

        What a server took that is not the one any more was not waited for, and may be lost with it.
        """
        seconds = self.books.rules.replica_wait_seconds
        kept = replicated(self.client, self.epoch, seconds, accounts) and identity(self.client)[0] == self.servers
        if not kept:
            _log.warning("no replica of the store has it yet: it is sent again", what=what, count=len(accounts))
        return kept


def raise_if_general(error: StoreError) -> None:
    """Lets an error pass that is of one change alone; one that any change would meet ends the round."""
    if is_general(error):
        raise error


def is_general(error: StoreError) -> bool:
    """Whether any change would meet the error, and not this one alone."""
    return isinstance(error, StoreEmptyError | FencedError | StoreUnavailableError)


def checked(answer: Standing | StoreError) -> Standing:
    """The answer, unless it is an error."""
    if isinstance(answer, StoreError):
        raise answer
    return answer
