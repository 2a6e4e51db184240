"""Sessions on the meter: opened and ended by what the mirrors show of pods and nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from fairgpu.charging import ChargeRules
from timekeeper.jobs.memory.acknowledged import NOTHING, Acknowledged
from timekeeper.metering.attribution import attribution
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


@dataclass(slots=True)
class Metered:
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
    return Metered(session, pod.reservation)


def seen(metered: Metered, pod: PodFacts, rules: MeterRules, alive: Callable[[], int | None], now: int) -> None:
    """Takes over what the pod shows now; `alive` is until when the pod of a silent node counts as such."""
    if metered.reservation is None:
        metered.reservation = pod.reservation
    if not metered.session.namespace_uid and metered.session.end is None:
        which = rules.namespace_uid(pod.namespace)
        if which:
            metered.session = replace(metered.session, namespace_uid=which)
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
