"""Meter sessions: the time for which a pod's reservation is charged, and the proof of its end.

A node's clock never sets a start. Every instant is bounded by the API server's timestamps and by the timekeeper's own
observations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from timekeeper.domain.attribution import Attribution
from timekeeper.domain.holdings.holding import Doubt, Holding
from timekeeper.domain.money import SECOND
from timekeeper.domain.pods import PodFacts
from timekeeper.domain.reservations import Tariff
from timekeeper.domain.timestamps import MINUTE, Instant, instant_or_none

NODE_SKEW = 10 * SECOND
"""The most that a node's clock may be behind the API server's before FairGPU corrects the node's timestamps."""


CLAIM = "resourceclaim/"
"""The prefix of a session's name if the session is of a ResourceClaim. No pod's name has a slash."""


class MeterFrom(StrEnum):
    """The event from which a pod is charged: its binding to a node, or the first observation that it runs."""

    BIND = "bind"
    RUNNING = "running"


class EndProof(StrEnum):
    """The evidence from which a session's end was determined, the most reliable first."""

    FINISHED = "finished"
    """The pod is in a terminal phase, and the latest finishedAt of its containers is the end."""
    TERMINAL = "terminal"
    """A terminal phase of the pod was observed, but no container's status states a finishedAt."""
    DELETED = "deleted"
    """The watch reported the pod's deletion, or a finalizer kept the deleted pod."""
    LAST_SEEN = "last-seen"
    """The pod was missing after a time without observation, or its node was silent; the end is its last known sign of
    life.
    """


@dataclass(frozen=True, slots=True)
class Session:
    """The time for which a pod, or an allocation of a ResourceClaim, is charged. Instants are nanoseconds since 1970.

    Attributes:
        uid: the pod's uid; for a claim, the claim's uid, an id of the allocation, and the start, as one text.
        namespace: the namespace of the pod or claim.
        pod: the pod's name; for a claim, CLAIM and the claim's name.
        node: the pod's node; for a claim, a node of its devices, or empty if none of them names one.
        start: the instant from which it is charged.
        tariff: pairs of an instant and the rate from then on, in microGPU-seconds a second; the first is at `start`.
        end: its end; None while it runs.
        proof: the evidence of its end; None while it runs.
        use_bases: for each segment, in order of time, its account, its period, and the price of all use that reports
            had stated when the segment began, in microGPU-seconds. Empty if reservations are billed.
        use_missing: two rates in microGPU-seconds a second: the rate of the devices that no report has named, which are
            charged as reserved, and the rate of all devices. Both are 0 if reports have named all devices or none.
        use_total: the price of all use that reports had stated when this record was written, in microGPU-seconds; None
            before the first report, and if reservations are billed.
        namespace_uid: the uid of the pod's namespace, as a deleted namespace may be created again; empty if it was
            not observed.
        attribution: the owner, labels and models that its use is attributed to; None in records of earlier versions.
        report_bases: for each segment, in order of time, its account, its period, and the GPU time that reports had
            stated when the segment began, in microGPU-seconds.
        holdings: the parts of GPUs that the pod or claim holds by another stack, as they were decided when the session
            opened, or again by labels of a new node that came soon after.
        doubts: the facts about the holdings that were not known, sorted; a rule decided what is charged.
        idle: whether it is a claim that no pod reserves.
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
    holdings: tuple[Holding, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    idle: bool = False


def start_of(pod: PodFacts, now: Instant, meter_from: MeterFrom = MeterFrom.BIND) -> Instant | None:
    """Returns the instant from which a pod is charged; None while it is not charged.

    A pod is charged once it has a node and a GPU reservation. A pod without a valid allocation was bound by another
    scheduler, and no node agent gives it devices. Such a pod is charged from the observation that one of its GPU
    containers has started, whatever `meter_from` says.

    Args:
        pod: the pod as it is observed for the first time.
        now: the instant of the observation.
        meter_from: the event from which pods with a valid allocation are charged.
    """
    if not pod.bound or pod.reservation is None:
        return None
    # The kubelet's startedAt is by the node's clock, so only our own observation counts.
    if not pod.reservation.placed:
        return now if pod.started else None
    if meter_from is MeterFrom.RUNNING:
        return now if pod.running else None
    scheduled = max(pod.created, now if pod.scheduled is None else pod.scheduled)
    return min(scheduled, now)


def alive_until(now: int, node_silent_since: int | None, reported: int | None) -> int:
    """Returns the instant up to which a running session is charged: `now`, or, on a silent node, the last sign of life.

    Once the node reports again, the whole gap is charged, because the reservation was held all along. Instants are
    nanoseconds since 1970.

    Args:
        now: the instant up to which the watch of pods is current.
        node_silent_since: the node Lease's renewTime while the node's Ready condition is Unknown; else None.
        reported: the instant of the pod's last authenticated report; None without one.
    """
    if node_silent_since is None:
        return now
    return min(now, max(node_silent_since, node_silent_since if reported is None else reported))


def ended(
    session: Session, end: Instant, proof: EndProof, now: Instant, silent_since: Instant | None = None
) -> Session:
    """Returns a session with its end set: not before the session's start, and not after `now`.

    If `silent_since` is earlier than `end`, the session ends at `silent_since`, and the proof is LAST_SEEN.

    Args:
        end: the instant at which the session ended by the evidence `proof`.
        proof: the evidence of the end.
        now: the instant of the observation.
        silent_since: the pod's last sign of life if its node is silent; None if the node reports.
    """
    end = min(end, now)
    alive = alive_until(end, silent_since, None)
    return replace(session, end=max(session.start, alive), proof=EndProof.LAST_SEEN if alive < end else proof)


def end_at_terminal_phase(
    session: Session, pod: PodFacts, now: Instant, seen: Instant = 0, silent_since: Instant | None = None
) -> Session:
    """Returns a session with its end set, for a pod that is observed in a terminal phase.

    The end is the latest finishedAt of the pod's containers. If no container states one, the end is the last change of
    the pod's conditions or, if later, the instant at which the pod was last seen alive. It is not `now`: the pod may
    have failed long ago, since pods that a node refuses or evicts stay on the API server for weeks.

    On a silent node, an end that no finishedAt states is no later than the last sign of life: Kubernetes sets the phase
    of a pod that it collects from a lost node, and no kubelet says when the containers ended
    (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-garbage-collection).

    Args:
        pod: the pod, whose phase is Succeeded or Failed.
        now: the instant of the observation.
        seen: the instant at which the pod was last seen alive; 0 if it was not.
        silent_since: the pod's last sign of life if its node is silent; None if the node reports.
    """
    finished = finished_at(pod)
    if finished is None:
        return ended(session, max(seen, pod.changed or 0), EndProof.TERMINAL, now, silent_since)
    return ended(session, finished, EndProof.FINISHED, now)


def finished_at(pod: PodFacts) -> Instant | None:
    """Returns when the last of a pod's containers finished; None if that is not stated.

    The kubelet stamps finishedAt by the node's clock. If the kubelet's first timestamp of the pod is more than
    NODE_SKEW before the pod's binding, the node's clock is behind by at least that difference, and the difference is
    added. Otherwise a pod on such a node would cost nothing.
    """
    if pod.finished is None or pod.begun is None:
        return pod.finished
    behind = max(pod.created, pod.scheduled or 0) - pod.begun
    return pod.finished + (behind if behind > NODE_SKEW else 0)


def end_with_finalizer(session: Session, pod: PodFacts, now: Instant, silent_since: Instant | None) -> Session:
    """Returns a session with its end set, for a pod that FairGPU's finalizer keeps on the API server.

    The end is the one that the pod object states, or else the deletionTimestamp, so that every later leader finds the
    same end. Only if the object has neither, it is `now`. On a silent node, an end that no finishedAt states is no
    later than the last sign of life.

    Args:
        pod: the pod, which is in a terminal phase, or has ended but for its finalizers.
        now: the instant of the observation.
        silent_since: the pod's last sign of life if its node is silent; None if the node reports.
    """
    if pod.terminal and (pod.finished is not None or pod.changed is not None):
        return end_at_terminal_phase(session, pod, now, silent_since=silent_since)
    return end_at_deletion(session, pod, now if pod.deleted is None else min(pod.deleted, now), silent_since)


def end_at_deletion(
    session: Session, last: PodFacts | None, received: Instant, silent_since: Instant | None
) -> Session:
    """Returns a session with its end set, for a pod whose deletion the watch reported.

    The end is when the pod's last container finished, if `last` is terminal and states that. Otherwise it is `received`
    or, on a silent node, the last sign of life if that is earlier.

    Args:
        last: the pod's last version, which may be terminal with a finishedAt; None if it is not known.
        received: the instant at which the deletion was received.
        silent_since: the pod's last sign of life if its node is silent; None if the node reports.
    """
    if last is not None and last.terminal and last.finished is not None:
        return end_at_terminal_phase(session, last, received)
    return ended(session, received, EndProof.DELETED, received, silent_since)


def end_found_missing(session: Session, last_seen: Instant, now: Instant) -> Session:
    """Returns a session that ends with its pod's last sign of life, for a pod that went missing while unobserved.

    Args:
        last_seen: the instant of that sign of life.
        now: the present instant; the session ends no later.
    """
    return ended(session, last_seen, EndProof.LAST_SEEN, now)


Json = Mapping[str, Any]

LONGEST_UNNOTICED = 5 * MINUTE
"""The longest time for which a silent node may count as ready: the node controller's default
--node-monitor-grace-period is 50 s
(https://kubernetes.io/docs/reference/command-line-tools-reference/kube-controller-manager/)."""


def silent_nodes(nodes: Iterable[Json], lease_of: Callable[[], Mapping[str, Json]]) -> dict[str, int]:
    """Returns the last sign of life of each silent node in nanoseconds since 1970, keyed by the node's name.

    A node's last sign of life is the last renewal of its Lease. The kubelet stamps the renewal by the node's clock,
    which may be wrong. The result is therefore at most the instant at which the node controller noticed the silence,
    and at least LONGEST_UNNOTICED before that instant.

    Args:
        nodes: the Nodes, as JSON.
        lease_of: returns the nodes' Leases, keyed by the node's name; called only if a node is silent.
    """
    silent = [(str(node["metadata"]["name"]), condition) for node in nodes if (condition := _unknown_ready(node))]
    if not silent:
        return {}
    leases = lease_of()
    return {name: _last_sign_of_life(leases.get(name), condition) for name, condition in silent}


def _unknown_ready(node: Json) -> Json | None:
    for condition in (node.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "Ready":
            return condition if condition.get("status") == "Unknown" else None
    return None


def _last_sign_of_life(lease: Json | None, condition: Json) -> int:
    renewed = instant_or_none(((lease or {}).get("spec") or {}).get("renewTime")) or 0
    noticed = instant_or_none(condition.get("lastTransitionTime"))
    return renewed if noticed is None else min(max(renewed, noticed - LONGEST_UNNOTICED), noticed)
