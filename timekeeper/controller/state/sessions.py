"""Metered sessions in memory. Each has its state as the store acknowledged it; a new leader reads that state back.

That state consists of the session's amounts, and of its record: the session itself, and the totals of its reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from fairgpu.charging import ChargeRules
from timekeeper.domain.attribution import attribution
from timekeeper.domain.charges import Assignments, HourlyPoint, rate_now
from timekeeper.domain.holdings.holding import Decision, Holding
from timekeeper.domain.pods import PodFacts, holds_nothing_else
from timekeeper.domain.pricing import Prices
from timekeeper.domain.reports import Bases
from timekeeper.domain.reservations import Reservation, tariff
from timekeeper.domain.sessions import (
    CLAIM,
    MeterFrom,
    Session,
    alive_until,
    end_at_deletion,
    end_at_terminal_phase,
    end_found_missing,
    end_with_finalizer,
    start_of,
)
from timekeeper.domain.timestamps import Instant
from timekeeper.sources.base import Departure, DepartureProof

Key = tuple[str, int]
"""An account, and the start of one of its periods in nanoseconds since 1970."""


class AcknowledgedAmount(NamedTuple):
    """The amount of a session in one period of one account, as the store holds it.

    Attributes:
        amount: the session's cumulative amount in the period, in microGPU-seconds.
        last_point: the last hourly point that the store holds; None before the first.
        finalized: whether the period's sum of finalized sessions contains the amount.
    """

    amount: int
    last_point: HourlyPoint | None = None
    finalized: bool = False


class RecordedUse(NamedTuple):
    """The part of a session's record that its reports fill. Amounts are microGPU-seconds.

    Attributes:
        billed: if usage is billed, for each segment its account, its period, and the cost of all use that was reported
            before the segment began.
        reported: for each segment its account, its period, and all GPU time that was reported before it began.
        total: if usage is billed, the cost of all reported use; None before the first report.
        missing: if usage is billed, the reserved rates of the devices that no report has named, and of all devices, in
            microGPU-seconds a second; (0, 0) if reports have named every device, or before the first report.
    """

    billed: Bases = ()
    reported: Bases = ()
    total: int | None = None
    missing: tuple[int, int] = (0, 0)


_NO_USE = RecordedUse()


class Acknowledged(NamedTuple):
    """A session as the store holds it: the base from which the next settlement is computed.

    Attributes:
        periods: the amount in each period that may still change, keyed by account and start of the period.
        settled_until: the instant up to which periods are final. The amount of a period that ends by then is computed
            again only if the session turns out to have ended earlier.
        session: the session in the store's record; None if there is no record.
        use: the recorded use of the session's reports.
        open_under: the account under which the session is open; empty for none.
        posted_at: the instant up to which the ledger has entries of the session (see `posting`).
        posted_rate: the session's rate at that instant, in microGPU-seconds a second.
        closed: whether the store holds the session's end, and a replica holds it, too, if there is one.
        also_open: further accounts under which the session may be open, because only a part of its change to another
            payer was written.
        ended_under: the account that holds the record of the session's end; empty for none.
    """

    periods: Mapping[Key, AcknowledgedAmount] = MappingProxyType({})
    settled_until: Instant = 0
    session: Session | None = None
    use: RecordedUse = _NO_USE
    open_under: str = ""
    posted_at: Instant = 0
    posted_rate: int = 0
    closed: bool = False
    also_open: frozenset[str] = frozenset()
    ended_under: str = ""

    def amount(self, key: Key) -> int:
        """Returns the session's stored amount in a period, in microGPU-seconds; 0 if the store holds none.

        Args:
            key: the account and the start of the period.
        """
        known = self.periods.get(key)
        return 0 if known is None else known.amount


NOTHING = Acknowledged()
"""The acknowledged state of a session that the store does not hold."""


def posting(
    session: Session, payers: Assignments, periods: Mapping[Key, AcknowledgedAmount], open_under: str
) -> tuple[int, int]:
    """Returns the instant up to which the ledger has entries of an open session, and the session's rate then.

    The instant (nanoseconds since 1970) is the last hourly point in the latest period of the account under which the
    session is open. Without an hourly point, it is the start of the session's segment in that period. Both results are
    0 if that account has no amount of the session.

    Args:
        payers: the payers of its namespace, in order of time.
        periods: its stored amounts, keyed by account and start of the period.
        open_under: the account under which it is open; empty for none.
    """
    starts = [start for account, start in periods if account == open_under]
    if not starts:
        return 0, 0
    amount = periods[open_under, max(starts)]
    moved = max((since for since, account in payers[1:] if account == open_under), default=0)
    at = max(session.start, *starts, moved) if amount.last_point is None else amount.last_point.until
    return at, rate_now(session.tariff, at)


def running_on(
    known: Acknowledged,
    session: Session,
    payers: Assignments,
    periods: Mapping[Key, AcknowledgedAmount],
    until: Instant,
    settled_until: Instant,
) -> Acknowledged:
    """Returns the acknowledged state of a session that is not closed: `known` with these amounts in its periods.

    An amount of 0 in a period that begins after `until` is dropped. It comes from a clock that was ahead: the session
    has not reached that period.

    Args:
        known: the session as the store holds it, but for its amounts.
        session: the session, as its pod shows it.
        payers: the payers of its namespace, in order of time.
        periods: its amounts as the store holds them, in the periods that may still change.
        until: the instant up to which it is charged.
        settled_until: the instant up to which periods are final. Periods before the recorded use are final, too.
    """
    kept = {key: amount for key, amount in periods.items() if amount.amount != 0 or key[1] <= until}
    at, rate = posting(session, payers, kept, known.open_under)
    final = max(settled_until, first_known(known.use))
    return known._replace(periods=kept, settled_until=final, posted_at=at, posted_rate=rate, closed=False)


def recorded_use_alone(acknowledged: Acknowledged) -> Acknowledged:
    """Returns an acknowledged session reduced to its recorded use.

    The caller reads the store's records of the session again and adds the rest from them. Periods before the recorded
    use stay final, since they cannot be computed again.
    """
    use = acknowledged.use
    return Acknowledged(settled_until=first_known(use), use=use)


def last_amounts_alone(acknowledged: Acknowledged) -> Acknowledged:
    """Returns the acknowledged state of an ended session reduced to its recorded use and its amounts since then.

    Kept are the amounts in periods from the first one with recorded use on, or all amounts without recorded use. Their
    hourly points are left out. The leader settles with the result if the store may lack these amounts. If usage is
    billed, the amounts cannot be computed again, since the reports of an ended session are deleted.
    """
    known = recorded_use_alone(acknowledged)
    last = {key: each for key, each in acknowledged.periods.items() if key[1] >= known.settled_until}
    return known._replace(periods={key: AcknowledgedAmount(each.amount) for key, each in last.items()})


def first_known(use: RecordedUse) -> Instant:
    """Returns the start of the first period whose billed use is recorded; 0 if none is.

    Earlier periods are final.
    """
    return min((period for _, period, _ in use.billed), default=0)


def with_use(session: Session, use: RecordedUse) -> Session:
    """Returns the session with this recorded use, in the form that the store's record has."""
    if use == _NO_USE:
        return session
    return replace(
        session, use_bases=use.billed, report_bases=use.reported, use_total=use.total, use_missing=use.missing
    )


def use_of(record: Session) -> RecordedUse:
    """Returns the part of a session's record that its reports filled."""
    return RecordedUse(record.use_bases, record.report_bases, record.use_total, record.use_missing)


def without_use(record: Session) -> Session:
    """Returns the session of a store's record without the recorded use, so that it contains only what its pod shows."""
    if use_of(record) == _NO_USE:
        return record
    return replace(record, use_bases=(), report_bases=(), use_total=None, use_missing=(0, 0))


@dataclass(slots=True)
class MeteredSession:
    """A session that is being metered: as its pod shows it, and as the store has acknowledged it.

    Attributes:
        session: the session, as its pod shows it.
        reservation: the pod's reservation, needed when prices change. None for a session that was read from the store
            without holdings by another stack, until this leader observes the pod.
        pod_deleted: whether the pod is deleted from the API server.
        acknowledged: the session as the store holds it.
    """

    session: Session
    reservation: Reservation | None = None
    pod_deleted: bool = False
    acknowledged: Acknowledged = NOTHING


class Meters:
    """The sessions that are being metered, indexed by uid and by namespace."""

    def __init__(self) -> None:
        self._by_uid: dict[str, MeteredSession] = {}
        self._by_namespace: dict[str, dict[str, MeteredSession]] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def get(self, uid: str) -> MeteredSession | None:
        """Returns the metered session with this uid; None if there is none."""
        return self._by_uid.get(uid)

    def all(self) -> list[MeteredSession]:
        """Returns all metered sessions."""
        return list(self._by_uid.values())

    def of_namespaces(self, namespaces: Iterable[str]) -> list[MeteredSession]:
        """Returns the metered sessions of these namespaces."""
        return [metered for name in namespaces for metered in self._by_namespace.get(name, {}).values()]

    def namespaces(self) -> set[str]:
        """Returns the namespaces that have metered sessions."""
        return set(self._by_namespace)

    def keep(self, metered: MeteredSession) -> MeteredSession:
        """Adds a metered session if no session has its uid yet; returns the session that has the uid then."""
        known = self._by_uid.setdefault(metered.session.uid, metered)
        self._by_namespace.setdefault(known.session.namespace, {})[known.session.uid] = known
        return known

    def drop(self, metered: MeteredSession) -> None:
        """Removes a session that is no longer metered."""
        uid, namespace = metered.session.uid, metered.session.namespace
        del self._by_uid[uid]
        del self._by_namespace[namespace][uid]
        if not self._by_namespace[namespace]:
            del self._by_namespace[namespace]


class Decided(NamedTuple):
    """The start of a session, and the parts of GPUs that it holds by another stack, as they were decided once."""

    start: Instant
    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class MeterRules:
    """The rules that start a session and set its rate.

    Attributes:
        charge: the rules for the cost of a reservation.
        meter_from: the event that starts a pod's session.
        prices: the price of each model over time.
        namespace_uid: returns the uid of the namespace with this name; empty if there is none.
        labels: the keys of the pod labels that usage is attributed to.
        held_of: returns the parts of GPUs that a bound pod holds by another stack.
        since: the instant from which such parts are metered.
        drivers: the drivers of Dynamic Resource Allocation whose claims are metered; None if pods of other stacks
            are not metered.
        decided: the start and the holdings that an earlier leader decided for sessions that the store lacks, keyed by
            the session's uid.
    """

    charge: ChargeRules
    meter_from: MeterFrom
    prices: Prices
    namespace_uid: Callable[[str], str]
    labels: tuple[str, ...] = ()
    held_of: Callable[[Mapping[str, Any]], Decision] = holds_nothing_else
    since: Instant = 0
    drivers: frozenset[str] | None = None
    decided: Mapping[str, Decided] = field(default_factory=dict)


def allocation_of(session: Session) -> str:
    """Returns the id of the pod or of the claim's allocation that a session meters.

    For a claim it is the claim's uid and the allocation's id: the session's uid without the start at its end, since two
    leaders may have begun the session at different instants.
    """
    return session.uid.rpartition("-")[0] if session.pod.startswith(CLAIM) else session.uid


def loaded(record: Session) -> MeteredSession:
    """Returns the metered session of a store's record, without the recorded use and with nothing acknowledged yet.

    The reservation has the record's holdings by another stack. Without such holdings it is None until this leader
    observes the pod.
    """
    session = without_use(record)
    return MeteredSession(session, Reservation((), holdings=session.holdings) if session.holdings else None)


def opened(
    pod: PodFacts, rules: MeterRules, alive: Callable[[], Instant | None], now: Instant
) -> MeteredSession | None:
    """Starts the session of a pod that is observed for the first time; returns None if the pod is not charged (yet).

    A pod is charged once it has a reservation and `start_of` returns an instant. A pod that holds GPUs by another stack
    and ended before such pods were metered is not charged. The session of a pod that has ended is ended at once. If an
    earlier leader decided the session's holdings and start, these count.

    Args:
        rules: the rules that start a session and set its rate.
        alive: returns the instant until which a pod on a silent node counts as alive; None if the node is not silent.
        now: the instant of the observation.
    """
    decided = rules.decided.get(pod.uid) if pod.bound else None
    if decided is not None:
        pod = pod._replace(reservation=Reservation((), holdings=decided.holdings))
    start = start_of(pod, now, rules.meter_from)
    if start is None or pod.reservation is None:
        return None
    if pod.reservation.holdings:
        if pod.terminal and (pod.finished or pod.changed or 0) <= rules.since:
            return None  # it ended before metering began
        start = min(max(start, rules.since), now) if decided is None else decided.start
    rates = tariff(pod.reservation, rules.prices, start, rules.charge)
    which = rules.namespace_uid(pod.namespace)
    shown = attribution(pod.origin, pod.reservation, rules.labels, rules.charge)
    session = Session(pod.uid, pod.namespace, pod.name, pod.node, start, rates, namespace_uid=which, attribution=shown)
    if pod.reservation.holdings:
        doubts = tuple(sorted(pod.reservation.doubts))
        session = replace(session, holdings=pod.reservation.holdings, doubts=doubts)
    if pod.held and (pod.terminal or pod.removed):
        session = end_with_finalizer(session, pod, now, alive())
    elif pod.terminal:
        session = end_at_terminal_phase(session, pod, now, silent_since=alive())
    return MeteredSession(session, pod.reservation)


def update_from_pod(
    metered: MeteredSession,
    pod: PodFacts,
    rules: MeterRules,
    seen: Instant,
    alive: Callable[[], Instant | None],
    now: Instant,
) -> None:
    """Adds to a session the facts that its pod now shows: its end, and a reservation or namespace uid that it lacked.

    Args:
        rules: the rules that set its rate.
        seen: the latest instant up to which pods were observed before.
        alive: returns the instant until which a pod on a silent node counts as alive, in nanoseconds since 1970; None
            if the node is not silent.
        now: the instant of the observation.
    """
    if metered.reservation is None:
        metered.reservation = pod.reservation
    if not metered.session.namespace_uid and metered.session.end is None:
        which = rules.namespace_uid(pod.namespace)
        if which:
            metered.session = replace(metered.session, namespace_uid=which)
    if pod.held and (pod.terminal or pod.removed) and metered.session.end is None:
        metered.session = end_with_finalizer(metered.session, pod, now, alive())
    if pod.terminal and metered.session.end is None:
        metered.session = end_at_terminal_phase(metered.session, pod, now, seen, alive())


def end_deleted(
    metered: MeteredSession,
    departure: Departure,
    last: PodFacts,
    silent: Instant | None,
    reported: Instant | None,
    now: Instant,
) -> None:
    """Ends the session of a deleted pod: when the pod's last version says that it ended, or else with the deletion.

    If the watch missed the deletion, the session ends with the last sign of life of the pod or its node. If the watch
    reported it, but the node is silent, the session ends with the last sign of life in place of a later deletion. A
    session that has ended before keeps its end. The pod is marked as deleted in any case.

    Args:
        departure: the deletion as observed: its proof and instant.
        last: the pod's last version.
        silent: the last sign of life of the pod's node if it is silent; None if it is not.
        reported: the instant of the pod's last report; None without a report.
        now: the present instant. A session whose pod's deletion the watch missed ends no later.
    """
    metered.pod_deleted = True
    if metered.session.end is not None:
        return
    if departure.proof is DepartureProof.DELETED:
        alive = None if silent is None else max(silent, reported or 0)
        metered.session = end_at_deletion(metered.session, last, departure.at, alive)
    else:
        end_unseen(metered, departure.at, silent, reported, now)


def end_unseen(
    metered: MeteredSession, last_seen: Instant, silent: Instant | None, reported: Instant | None, now: Instant
) -> None:
    """Ends the session of a pod whose deletion was not observed, with the last sign of life of the pod or its node.

    A session that has ended before keeps its end. The pod is marked as deleted in any case.

    Args:
        last_seen: the last instant at which the pod's object was seen.
        silent: the last sign of life of the pod's node if it is silent; None if it is not.
        reported: the instant of the pod's last report; None without a report.
        now: the present instant; the session ends no later.
    """
    metered.pod_deleted = True
    if metered.session.end is None:
        alive = max(alive_until(last_seen, silent, None), reported or 0)
        metered.session = end_found_missing(metered.session, alive, now)
