"""Meter sessions: from when until when a pod's reservation is charged, and what proves it.

Node clocks never set a start. Every instant is clamped to what the API server stamped and what was seen here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from timekeeper.metering.attribution import Attribution
from timekeeper.metering.pods import PodFacts
from timekeeper.metering.reservations import Tariff
from timekeeper.rules.money import SECOND

NODE_SKEW = 10 * SECOND
"""How far a node's clock may be behind the API server's without its stamps being set right."""


class MeterFrom(StrEnum):
    """What starts the meter: the pod is bound to its node, or it was first seen running."""

    BIND = "bind"
    RUNNING = "running"


class EndProof(StrEnum):
    """What an end is known by, best first."""

    FINISHED = "finished"
    """The latest finishedAt of its containers, at a terminal phase."""
    TERMINAL = "terminal"
    """The terminal phase was seen, without any finishedAt."""
    DELETED = "deleted"
    """The watch told of its deletion, or a finalizer kept the pod to tell of it."""
    LAST_SEEN = "last-seen"
    """It was gone when somebody looked again; this is when it was last known to live."""


@dataclass(frozen=True, slots=True)
class Session:
    """One pod's reservation on the meter. Instants are nanoseconds since 1970.

    Attributes:
        tariff: its rates over time, the first from `start`.
        end: when it ended; None while it runs.
        proof: what the end is known by.
        use_bases: (account, period, microGPU-seconds): what its reports came to when each stretch of it began, in order
            of time, where use is billed.
        use_missing: what its devices are reserved at that no report has named, where use is billed and another one has
            been, and what all of them are, in microGPU-seconds a second.
        use_total: what its reports came to when the record was written, where use is billed; None before the first.
        namespace_uid: which namespace of that name the pod was in, as one that is deleted may be made again; empty
            where it was not seen.
        attribution: what its use is put down to; None in records of earlier versions.
        report_bases: (account, period, microGPU-seconds): what GPU time they came to then.
    """

    uid: str
    namespace: str
    pod: str
    node: str
    start: int
    tariff: Tariff
    end: int | None = None
    proof: EndProof | None = None
    use_bases: tuple[tuple[str, int, int], ...] = ()
    namespace_uid: str = ""
    attribution: Attribution | None = None
    report_bases: tuple[tuple[str, int, int], ...] = ()
    use_total: int | None = None
    use_missing: tuple[int, int] = (0, 0)


def start_of(pod: PodFacts, now: int, meter_from: MeterFrom = MeterFrom.BIND) -> int | None:
    """When the meter of a pod that is seen for the first time starts; None while it holds nothing.

    Somebody else than FairGPU's scheduler bound a pod without a valid allocation, and no node agent gives it devices:
    its binding costs nothing, whatever starts the meter. Its meter starts once a GPU container of it was started.

    Args:
        pod: the pod as seen now.
        now: when it is seen.
        meter_from: what starts the meter.
    """
    if not pod.bound or pod.reservation is None:
        return None
    # The kubelet's startedAt is a node's clock, so that only our own sight of it counts.
    if not pod.reservation.placed:
        return now if pod.started else None
    if meter_from is MeterFrom.RUNNING:
        return now if pod.running else None
    scheduled = max(pod.created, now if pod.scheduled is None else pod.scheduled)
    return min(scheduled, now)


def alive_until(now: int, node_silent_since: int | None, reported: int | None) -> int:
    """Until when a session that has not ended is charged: now, or the last sign of life behind a silent node.

    Once the node speaks again, the whole gap is charged, as the reservation was held all along.

    Args:
        now: the instant up to which the watch is current.
        node_silent_since: the node Lease's renewTime while the node's Ready condition is Unknown; else None.
        reported: the last authenticated report of this pod, or None.
    """
    if node_silent_since is None:
        return now
    return min(now, max(node_silent_since, node_silent_since if reported is None else reported))


def ended(session: Session, end: int, proof: EndProof, now: int) -> Session:
    """The session with its end, which lies neither before its start nor in the future."""
    return replace(session, end=max(session.start, min(end, now)), proof=proof)


def end_at_terminal_phase(session: Session, pod: PodFacts, now: int) -> Session:
    """Ends the session of a pod that is in a terminal phase, as seen at `now`."""
    finished = finished_at(pod)
    if finished is None:
        return ended(session, now, EndProof.TERMINAL, now)
    return ended(session, finished, EndProof.FINISHED, now)


def finished_at(pod: PodFacts) -> int | None:
    """When a pod's containers had finished; None where it does not say.

    Its kubelet stamps that by the node's clock. Where that says that the pod was there well before it was bound, the
    clock is behind by so much at least: else a pod on such a node would cost nothing.
    """
    if pod.finished is None or pod.begun is None:
        return pod.finished
    behind = max(pod.created, pod.scheduled or 0) - pod.begun
    return pod.finished + (behind if behind > NODE_SKEW else 0)


def end_before_sight(session: Session, pod: PodFacts, now: int) -> Session:
    """Ends the session of a pod that is first seen in a terminal phase.

    Without any finishedAt the last change that it tells of is its last proof of life: it may have failed long ago, as
    those that a node refuses or evicts stay on the API server for weeks.
    """
    if pod.finished is None:
        return ended(session, pod.changed or session.start, EndProof.LAST_SEEN, now)
    return end_at_terminal_phase(session, pod, now)


def end_of_the_held(session: Session, pod: PodFacts, now: int, silent_since: int | None) -> Session:
    """Ends the session of a pod that its finalizer keeps, by what the object tells: whoever looks when, finds the same.

    Args:
        session: the session.
        pod: the pod, terminal or removed.
        now: when that is seen.
        silent_since: until when a silent node's pod counts as alive (see alive_until); None where the node speaks.
    """
    if pod.terminal and (pod.finished is not None or pod.changed is not None):
        finished = finished_at(pod)
        end = pod.changed if finished is None else finished
        proof = EndProof.TERMINAL if pod.finished is None else EndProof.FINISHED
        return ended(session, end or now, proof, now)
    return end_at_deletion(session, pod, now if pod.deleted is None else min(pod.deleted, now), silent_since)


def end_at_deletion(session: Session, last: PodFacts | None, received: int, silent_since: int | None) -> Session:
    """Ends the session of a pod whose deletion the watch told.

    Args:
        session: the session.
        last: the pod as it last was, which may be terminal with a finishedAt.
        received: when the deletion was heard of.
        silent_since: until when a silent node's pod counts as alive (see alive_until); None where the node speaks.
    """
    if last is not None and last.terminal and last.finished is not None:
        return end_at_terminal_phase(session, last, received)
    if silent_since is not None and silent_since < received:
        return ended(session, silent_since, EndProof.LAST_SEEN, received)
    return ended(session, received, EndProof.DELETED, received)


def end_unwatched(session: Session, last_seen: int, now: int) -> Session:
    """Ends the session of a pod that was gone when somebody looked again."""
    return ended(session, last_seen, EndProof.LAST_SEEN, now)
