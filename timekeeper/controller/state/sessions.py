"""A session as the store has acknowledged it: one value, which the next leader reads from the store again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from fairgpu.charging import ChargeRules
from timekeeper.domain.attribution import attribution
from timekeeper.domain.charges import Assignments, HourlyPoint, rate_now
from timekeeper.domain.pods import PodFacts
from timekeeper.domain.pricing import Prices
from timekeeper.domain.reports import Bases
from timekeeper.domain.reservations import Reservation, tariff
from timekeeper.domain.sessions import (
    MeterFrom,
    Session,
    end_at_deletion,
    end_at_terminal_phase,
    end_found_missing,
    end_found_terminal,
    end_with_finalizer,
    start_of,
)
from timekeeper.sources.base import Departure, DepartureProof

Key = tuple[str, int]
"""An account and the start of one of its periods."""


class Posted(NamedTuple):
    """A session's posting in one period of one account, as the store holds it.

    Attributes:
        amount: the session's cumulative amount in the period, in microGPU-seconds.
        cut: the last cut that was put down to hours; None before the first.
        finalized: whether the period's sum of sessions whose pods are gone holds the amount.
    """

    amount: int
    cut: HourlyPoint | None = None
    finalized: bool = False


class RecordedUse(NamedTuple):
    """The part of a session's record that its reports fill.

    Attributes:
        billed: what the reports amounted to when each stretch of the session began, where use is billed.
        reported: the GPU time that they told of when each stretch began.
        total: what they come to, where use is billed; None before the first.
        missing: what the devices are reserved at that they have not named, and what all are.
    """

    billed: Bases = ()
    reported: Bases = ()
    total: int | None = None
    missing: tuple[int, int] = (0, 0)


_NO_USE = RecordedUse()


class Acknowledged(NamedTuple):
    """A session as the store holds it.

    Attributes:
        periods: what it holds in each period that may still change.
        settled_until: periods that end by then are final: what they hold is not computed again, unless the session
            turns out to have ended before.
        session: the session as it was when its record was written; None where there is no record.
        use: what the record says of its reports.
        open_under: the account under which the session stands as open; empty for none.
        also_open: further accounts under which it may stand as open: a move was written in part.
        ended_under: the account that holds the record of the session's end; empty for none.
        posted_at: up to when the ledger holds it, in nanoseconds since 1970 (see `posting`).
        posted_rate: its rate then, in microGPU-seconds a second.
        closed: whether the store, and a replica where there is one, holds its end.
    """

    periods: Mapping[Key, Posted] = MappingProxyType({})
    settled_until: int = 0
    session: Session | None = None
    use: RecordedUse = _NO_USE
    open_under: str = ""
    posted_at: int = 0
    posted_rate: int = 0
    closed: bool = False
    also_open: frozenset[str] = frozenset()
    ended_under: str = ""

    def amount(self, key: Key) -> int:
        """The amount in a period; 0 where nothing of it is known."""
        known = self.periods.get(key)
        return 0 if known is None else known.amount


NOTHING = Acknowledged()
"""The value of a session that the store does not hold."""


def posting(session: Session, payers: Assignments, periods: Mapping[Key, Posted], open_under: str) -> tuple[int, int]:
    """The instant up to which the ledger holds an open session, and its rate then.

    That is the last cut in the latest period of the account under which it is open. Where there is none yet, it is the
    beginning of the stretch there.
    """
    starts = [start for account, start in periods if account == open_under]
    if not starts:
        return 0, 0
    found = periods[open_under, max(starts)]
    moved = max((since for since, account in payers[1:] if account == open_under), default=0)
    at = max(session.start, *starts, moved) if found.cut is None else found.cut.until
    return at, rate_now(session.tariff, at)


def forgotten(acknowledged: Acknowledged) -> Acknowledged:
    """The value after the store was emptied: it keeps only the totals of reports at which periods began."""
    use = acknowledged.use
    return Acknowledged(settled_until=first_known(use), use=use)


def first_known(use: RecordedUse) -> int:
    """Periods that end by then cannot be computed again: nobody knows what had been used when they began."""
    return min((period for _, period, _ in use.billed), default=0)


def with_use(session: Session, use: RecordedUse) -> Session:
    """A session as its record tells it."""
    if use == _NO_USE:
        return session
    return replace(
        session, use_bases=use.billed, report_bases=use.reported, use_total=use.total, use_missing=use.missing
    )


def use_of(record: Session) -> RecordedUse:
    """Reads the totals of reports from a session's record."""
    return RecordedUse(record.use_bases, record.report_bases, record.use_total, record.use_missing)


def without_use(record: Session) -> Session:
    """The session of a record, as far as it is known from its pod."""
    if use_of(record) == _NO_USE:
        return record
    return replace(record, use_bases=(), report_bases=(), use_total=None, use_missing=(0, 0))


@dataclass(slots=True)
class MeteredSession:
    """A session on the meter.

    Attributes:
        session: the session, as its pod shows it.
        reservation: what it holds, to price it anew; None where its pod is gone.
        pod_gone: whether its pod has left the API server.
        acknowledged: what the store has acknowledged of it.
    """

    session: Session
    reservation: Reservation | None = None
    pod_gone: bool = False
    acknowledged: Acknowledged = NOTHING


class Meters:
    """The sessions on the meter by uid, and by namespace."""

    def __init__(self) -> None:
        self._by_uid: dict[str, MeteredSession] = {}
        self._by_namespace: dict[str, dict[str, MeteredSession]] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def get(self, uid: str) -> MeteredSession | None:
        """The session of that uid."""
        return self._by_uid.get(uid)

    def all(self) -> list[MeteredSession]:
        """Every session."""
        return list(self._by_uid.values())

    def of_namespace(self, namespace: str) -> Iterable[MeteredSession]:
        """The sessions of a namespace."""
        return self._by_namespace.get(namespace, {}).values()

    def namespaces(self) -> set[str]:
        """The namespaces that have any."""
        return set(self._by_namespace)

    def keep(self, metered: MeteredSession) -> MeteredSession:
        """The session that is known under this uid; this one where none is."""
        known = self._by_uid.setdefault(metered.session.uid, metered)
        self._by_namespace.setdefault(known.session.namespace, {})[known.session.uid] = known
        return known

    def drop(self, metered: MeteredSession) -> None:
        """Takes a session off the meter."""
        uid, namespace = metered.session.uid, metered.session.namespace
        del self._by_uid[uid]
        del self._by_namespace[namespace][uid]
        if not self._by_namespace[namespace]:
            del self._by_namespace[namespace]


@dataclass(frozen=True, slots=True)
class MeterRules:
    """What starts the meter, what a reservation costs, and which namespace of a name there is now (its uid, or "").

    `labels` are the keys of those labels of pods that are kept for showback.
    """

    charge: ChargeRules
    meter_from: MeterFrom
    prices: Prices
    namespace_uid: Callable[[str], str]
    labels: tuple[str, ...] = ()


def opened(pod: PodFacts, rules: MeterRules, now: int) -> MeteredSession | None:
    """A meter for a pod seen for the first time, ended where the pod is terminal; None where it holds nothing."""
    start = start_of(pod, now, rules.meter_from)
    if start is None or pod.reservation is None:
        return None
    rates = tariff(pod.reservation, rules.prices, start, rules.charge)
    which = rules.namespace_uid(pod.namespace)
    shown = attribution(pod.origin, pod.reservation, rules.labels, rules.charge)
    session = Session(pod.uid, pod.namespace, pod.name, pod.node, start, rates, namespace_uid=which, attribution=shown)
    if pod.held and (pod.terminal or pod.removed):
        session = end_with_finalizer(session, pod, now, None)
    elif pod.terminal:
        session = end_found_terminal(session, pod, now)
    return MeteredSession(session, pod.reservation)


def seen(metered: MeteredSession, pod: PodFacts, rules: MeterRules, alive: Callable[[], int | None], now: int) -> None:
    """Takes over what the pod shows now; `alive` is until when the pod of a silent node counts as such."""
    if metered.reservation is None:
        metered.reservation = pod.reservation
    if not metered.session.namespace_uid and metered.session.end is None:
        which = rules.namespace_uid(pod.namespace)
        if which:
            metered.session = replace(metered.session, namespace_uid=which)
    if pod.held and (pod.terminal or pod.removed) and metered.session.end is None:
        metered.session = end_with_finalizer(metered.session, pod, now, alive())
    if pod.terminal and metered.session.end is None:
        metered.session = end_at_terminal_phase(metered.session, pod, now)


def departed(
    metered: MeteredSession, departure: Departure, last: PodFacts, silent: int | None, reported: int | None, now: int
) -> None:
    """Ends the session of a pod that left.

    Args:
        metered: the session.
        departure: how it is known that the pod left, and when.
        last: the pod as it last was.
        silent: since when its node is silent, or None.
        reported: when the pod last reported, or None.
        now: nanoseconds since 1970.
    """
    metered.pod_gone = True
    if metered.session.end is not None:
        return
    if departure.proof is DepartureProof.DELETED:
        alive = None if silent is None else max(silent, reported or 0)
        metered.session = end_at_deletion(metered.session, last, departure.at, alive)
    else:
        missing(metered, departure.at, reported, now)


def missing(metered: MeteredSession, last_seen: int, reported: int | None, now: int) -> None:
    """Ends the session of a pod that is not there, and that nobody saw leave."""
    metered.pod_gone = True
    if metered.session.end is None:
        metered.session = end_found_missing(metered.session, max(last_seen, reported or 0), now)
