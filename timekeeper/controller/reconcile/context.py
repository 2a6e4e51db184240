"""The context that each step of a reconciliation gets: the leader's state, store, cluster, term and clocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import redis
import structlog

from timekeeper.controller.state.books import Books
from timekeeper.controller.state.observing import Clocks, namespace_uids, nodes_that_are_silent
from timekeeper.controller.state.other_stacks import HeldOf, NodeCapacity, holdings_of
from timekeeper.controller.state.sessions import MeteredSession, MeterRules
from timekeeper.domain.pods import holds_nothing_else
from timekeeper.domain.pricing import FOREVER
from timekeeper.domain.sessions import alive_until
from timekeeper.domain.timestamps import Instant
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import (
    FencedError,
    Store,
    StoreEmptyError,
    StoreError,
    StoreUnavailableError,
    concerns_all,
)
from timekeeper.ledger.codec import RecordError
from timekeeper.ledger.connection import identity, replicated
from timekeeper.ledger.reading import whole
from timekeeper.ledger.totals import PeriodTotals
from timekeeper.ledger.writing import HeldTerm, Revision
from timekeeper.sources.base import Source, name_of

_log = structlog.get_logger()


@dataclass(slots=True)
class ReconcileContext:
    """The leader's state in memory, with the cluster that it observes and the store that it writes.

    Attributes:
        client: the store.
        source: the cluster as last observed.
        books: the leader's state.
        fencing_token: the term's fencing token; the store refuses it once it has received a later one.
        term: the term's number and its leader.
        clocks: the clocks that are read while the cluster is observed.
        silent: the last sign of life of each silent node, keyed by node, in nanoseconds since 1970.
        servers: the run ids of the Redis servers that hold the store, as one text, as last observed.
        capacity: keyed by model, the capacity that was last written to the store, in microGPU-seconds a second; None
            before the first write, and after a write without an answer.
        silent_stored: the silent nodes as they were last written to the store; None as for `capacity`.
        not_settled: the accounts whose settlement fails, as last written to the store; None as for `capacity`.
        nodes: counts the GPUs of nodes.
        full: whether the store has no memory left for new sessions; these are opened once it has memory again.
        held_back: the uids of the sessions that are not opened until the store has memory.
        resumed: the fields that are to be removed from the store's hash `keys.UNMETERED`, since the pods of their
            sessions are observed again. The hash keeps ends of sessions apart from the sessions.
        noted_ends: the entries of that hash about sessions that hold nothing by another stack, keyed by field: a
            session's uid, or the uid and `keys.SEEN`. `note_ends` removes them from the hash, except the ends that the
            store still lacks.
        store_time: the time by the store's clock when the reconciliation began.
    """

    client: Store
    source: Source
    books: Books
    fencing_token: int
    term: HeldTerm
    clocks: Clocks
    silent: dict[str, int] = field(default_factory=dict)
    servers: str = ""
    capacity: Mapping[str, int] | None = None
    silent_stored: Mapping[str, Instant] | None = None
    not_settled: AbstractSet[str] | None = None
    nodes: NodeCapacity = field(default_factory=NodeCapacity)
    full: bool = False
    held_back: set[str] = field(default_factory=set)
    resumed: AbstractSet[str] = frozenset()
    noted_ends: Mapping[str, Instant] = field(default_factory=dict)
    store_time: Instant = FOREVER
    _inherited: bool = False
    _counter: int = 0

    def inherit_silent_nodes(self) -> None:
        """Adopts the silent nodes that the previous leader stored.

        Only the first call in a term does so: later, this leader has observed the nodes itself.

        Raises:
            redis.RedisError: the store does not answer.
        """
        if self._inherited:
            return
        try:
            self.silent = reading.silent(self.client)
        except RecordError as error:
            _log.error("silent nodes cannot be read", error=str(error))
        self._inherited = True

    def note_silent_nodes(self) -> None:
        """Sets `silent` to the nodes that are silent now, by the mirrors of the cluster.

        A node whose object is deleted while it is silent stays in `silent` as long as it has sessions, or until a node
        of its name reports. The API server deletes the node's pods later, and until then nothing reports whether they
        run.
        """
        silent = nodes_that_are_silent(self.source.mirrors)
        if self.silent.keys() - silent.keys():
            present = {name_of(node) for node in self.source.mirrors.nodes.items()}
            deleted = self.silent.keys() - silent.keys() - present
            if not self.books.unreadable:  # or else it may have sessions that are not read
                deleted &= {each.session.node for each in self.books.pods.sessions.all()}
            silent |= {name: self.silent[name] for name in deleted}
        self.silent = silent

    def surely_past(self, now: Instant) -> Instant:
        """Returns the earlier of `now`, by the local clock, and the store's time: both clocks have reached it.

        Irrevocable changes are made only up to that instant, so that a clock that was ahead leaves no trace once it is
        right.
        """
        return min(now, self.store_time)

    def perhaps_past(self, now: Instant) -> Instant:
        """Returns the later of the local clock's time, `now`, and the store's.

        A stored instant that is later than this was written by a clock that was ahead.
        """
        return max(now, self.store_time)

    def next_revision(self) -> Revision:
        """Returns the revision of the next settlement; each call returns a higher one than all calls before."""
        self._counter += 1
        return Revision(self.fencing_token, self._counter)

    def meter_rules(self) -> MeterRules:
        """Returns the rules that start sessions and set their rates, by the present settings, prices and cluster."""
        rules = self.books.rules
        prices = self.books.prices or rules.prices
        uids, held_of = namespace_uids(self.source.mirrors), self.held_of()
        drivers = None if rules.own_resources is None else rules.drivers
        return MeterRules(
            rules.charge, rules.meter_from, prices, uids, rules.labels, held_of, self.books.since, drivers
        )

    def held_of(self) -> HeldOf:
        """Returns a function that decides, from a bound pod as JSON, which parts of GPUs it holds by other stacks.

        The function decides by the nodes as they are now. If pods of other stacks are not metered, it finds no parts.
        """
        own = self.books.rules.own_resources
        drivers = self.books.rules.drivers
        return holds_nothing_else if own is None else holdings_of(self.source.mirrors, own, drivers)

    def reported(self, uid: str) -> Instant | None:
        """Returns the instant of the last report of the pod with this uid.

        Returns:
            None if the pod sent no report, or the store's entry is unreadable.

        Raises:
            redis.RedisError: the store does not answer.
        """
        try:
            return whole(self.client.hget(keys.report(uid), "at"))
        except redis.ResponseError as error:
            if concerns_all(error):
                raise
            return None

    def charged_until(self, sessions: Iterable[MeteredSession], now: Instant) -> list[int]:
        """Returns the instant up to which each session is charged, in nanoseconds since 1970.

        The instant is the end of an ended session. For a pod on a silent node, it is the last sign of life, but no
        earlier than the session's start. For any other session, it is `now`.

        Raises:
            redis.RedisError: a node is silent, and the store does not answer when a pod's last report is read.
        """
        if not self.silent:
            return [now if metered.session.end is None else metered.session.end for metered in sessions]
        return [self._until(metered, now) for metered in sessions]

    def _until(self, metered: MeteredSession, now: Instant) -> int:
        session = metered.session
        if session.end is not None:
            return session.end
        silent = self.silent.get(session.node)
        return now if silent is None else max(session.start, alive_until(now, silent, self.reported(session.uid)))

    def replicated(self, what: str, accounts: Sequence[str]) -> bool:
        """Waits until the store's replicas hold the last writes to these accounts; returns whether they do.

        It waits at most the rules' `replica_wait_seconds` for each server. If the result is False, the caller must send
        the writes again. It is also False if a server of the store was replaced meanwhile, and True if the store has no
        replicas.

        Args:
            what: the kind of write, for the log.
            accounts: the accounts that were written.

        Raises:
            redis.RedisError: the store does not answer.
        """
        seconds = self.books.rules.replica_wait_seconds
        kept = (
            replicated(self.client, self.fencing_token, seconds, accounts) and identity(self.client)[0] == self.servers
        )
        if not kept:
            _log.warning("write not replicated: it is sent again", what=what, count=len(accounts))
        return kept


def raise_if_general(error: StoreError) -> None:
    """Raises an error of the store that every write would meet; returns if it concerns one write alone."""
    if is_general(error):
        raise error


def is_general(error: StoreError) -> bool:
    """Returns whether every write to the store would meet this error, and not only the write that met it."""
    return isinstance(error, StoreEmptyError | FencedError | StoreUnavailableError)


def checked(answer: PeriodTotals | StoreError) -> PeriodTotals:
    """Returns the store's answer if it is a period's totals; raises it if it is an error."""
    if isinstance(answer, StoreError):
        raise answer
    return answer
