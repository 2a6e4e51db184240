"""Sessions on the meter: opened and ended by what the mirrors show of pods and nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from fairgpu.charging import ChargeRules
from timekeeper.metering.attribution import attribution
from timekeeper.metering.cuts import Cut
from timekeeper.metering.pods import PodFacts
from timekeeper.metering.reservations import Reservation, tariff
from timekeeper.metering.sessions import (
    MeterFrom,
    Session,
    end_at_deletion,
    end_at_terminal_phase,
    end_before_sight,
    end_of_the_held,
    end_unwatched,
    start_of,
)
from timekeeper.rules.pricing import Prices
from timekeeper.sources.mirror import Departure, DepartureProof

Key = tuple[str, int]
"""An account and the start of one of its periods."""


@dataclass(slots=True)
class Metered:
    """A session and what the store is known to hold of it.

    Attributes:
        session: the session.
        reservation: what it holds, to price it anew; None where its pod is gone.
        written: its amount in each period that may still change.
        gone_in: its amount in each period whose sum of those that are gone is known to hold it.
        cut_at: the last cut that the store is known to hold, in each of those periods.
        reported: GPU time that its reports tell of, in microGPU-seconds; None before the first.
        final_until: periods that end by then are written for good.
        recorded_in: the account under which the store has it down as open; empty for none.
        posted_at: when the ledger last got an entry of it.
        posted_rate: its rate then.
        closed: whether the store holds its close.
        pod_gone: whether its pod has left the API server.
        used: what its reports amount to, where use is billed; None before the first.
        record_stale: whether the store's record of it must be written anew.
    """

    session: Session
    reservation: Reservation | None = None
    written: dict[Key, int] = field(default_factory=dict)
    gone_in: dict[Key, int] = field(default_factory=dict)
    cut_at: dict[Key, Cut] = field(default_factory=dict)
    reported: int | None = None
    final_until: int = 0
    recorded_in: str = ""
    posted_at: int = 0
    posted_rate: int = 0
    closed: bool = False
    pod_gone: bool = False
    used: int | None = None
    record_stale: bool = False

    def forget_store(self) -> None:
        """The store was emptied: it holds nothing of this session."""
        self.written, self.final_until, self.recorded_in, self.closed = {}, self.known_from, "", False
        self.cut_at, self.gone_in = {}, {}

    @property
    def known_from(self) -> int:
        """Periods that end by then cannot be computed again: nobody knows any more what had been used before them."""
        return min((period for _, period, _ in self.session.use_bases), default=0)


class Meters:
    """The sessions on the meter by uid, and by namespace."""

    def __init__(self) -> None:
        self._by_uid: dict[str, Metered] = {}
        self._by_namespace: dict[str, dict[str, Metered]] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def get(self, uid: str) -> Metered | None:
        """The session of that uid."""
        return self._by_uid.get(uid)

    def all(self) -> list[Metered]:
        """Every session."""
        return list(self._by_uid.values())

    def of_namespace(self, namespace: str) -> Iterable[Metered]:
        """The sessions of a namespace."""
        return self._by_namespace.get(namespace, {}).values()

    def namespaces(self) -> set[str]:
        """The namespaces that have any."""
        return set(self._by_namespace)

    def keep(self, metered: Metered) -> Metered:
        """The session that is known under this uid; this one where none is."""
        known = self._by_uid.setdefault(metered.session.uid, metered)
        self._by_namespace.setdefault(known.session.namespace, {})[known.session.uid] = known
        return known

    def drop(self, metered: Metered) -> None:
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


def opened(pod: PodFacts, rules: MeterRules, now: int) -> Metered | None:
    """A meter for a pod seen for the first time, ended where the pod is terminal; None where it holds nothing."""
    start = start_of(pod, now, rules.meter_from)
    if start is None or pod.reservation is None:
        return None
    rates = tariff(pod.reservation, rules.prices, start, rules.charge)
    which = rules.namespace_uid(pod.namespace)
    shown = attribution(pod.origin, pod.reservation, rules.labels, rules.charge)
    session = Session(pod.uid, pod.namespace, pod.name, pod.node, start, rates, namespace_uid=which, attribution=shown)
    if pod.held and (pod.terminal or pod.removed):
        session = end_of_the_held(session, pod, now, None)
    elif pod.terminal:
        session = end_before_sight(session, pod, now)
    return Metered(session, pod.reservation, posted_at=start)


def seen(metered: Metered, pod: PodFacts, rules: MeterRules, alive: Callable[[], int | None], now: int) -> None:
    """Takes over what the pod shows now; `alive` is until when the pod of a silent node counts as such."""
    if metered.reservation is None:
        metered.reservation = pod.reservation
    if not metered.session.namespace_uid and metered.session.end is None:
        which = rules.namespace_uid(pod.namespace)
        if which:
            metered.session, metered.record_stale = replace(metered.session, namespace_uid=which), True
    if pod.held and (pod.terminal or pod.removed) and metered.session.end is None:
        metered.session = end_of_the_held(metered.session, pod, now, alive())
    if pod.terminal and metered.session.end is None:
        metered.session = end_at_terminal_phase(metered.session, pod, now)


def departed(
    metered: Metered, departure: Departure, last: PodFacts, silent: int | None, reported: int | None, now: int
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


def missing(metered: Metered, last_seen: int, reported: int | None, now: int) -> None:
    """Ends the session of a pod that is not there, and that nobody saw leave."""
    metered.pod_gone = True
    if metered.session.end is None:
        metered.session = end_unwatched(metered.session, max(last_seen, reported or 0), now)
