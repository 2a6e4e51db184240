"""Holds devices for all pods of a gang at once; none is bound before kube-scheduler has called `bind` for all.

kube-scheduler places one pod at a time. So when it first asks about a pod of a gang, all pods of the gang are placed,
or none is. Each pod then gets the node that is held for it, and its bind waits for the binds of the others, as permit
plugins do (https://kubernetes.io/docs/concepts/scheduling-eviction/scheduling-framework/#permit). Devices that are held
and not bound in time are freed together, so that two gangs never each hold a half.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
import structlog

from scheduler.cluster.gang_pods import Gang, GangKey, GangRefusal, Hold
from scheduler.cluster.objects import WaitingPod
from scheduler.cluster.state import State
from scheduler.placement.fleet import Ints
from scheduler.placement.together import Part, place_together

_log = structlog.get_logger(__name__)

FREED = "gang: the devices that were held for its pods are free again"


def place_member(state: State, pod: WaitingPod, rows: Ints, now: float) -> tuple[list[str], str]:
    """Returns the node for a pod of a gang; places all pods of the gang if devices are not held for them yet.

    Args:
        state: the scheduler's state; the caller holds its lock.
        rows: the indexes in the fleet of the nodes on which kube-scheduler would place the pod.
        now: the present time, in seconds of a monotonic clock.

    Returns:
        At most one node's name, and the reason why the pod waits because of its gang. Both are empty if no node has
        room for the pod.
    """
    key = _key(pod)
    gang = state.gangs.of(key)
    named = state.fleet.set_of(rows)
    if pod.uid in gang.nodes and gang.nodes[pod.uid].bits != named.bits:
        # The last attempt kept the pod from some of these nodes, or placed it on others.
        gang.refusal = None
    gang.nodes[pod.uid] = named
    gang.awaited.discard(pod.uid)
    kept = state.reservation(pod.uid)
    if kept is not None and kept.placed.node in state.fleet.names[rows]:
        return [kept.placed.node], ""
    if len(gang.placed) >= gang.size(key):
        reservation = state.choose(pod, rows, now)
        return ([] if reservation is None else [reservation.placed.node]), ""
    text = _missing(key, gang) or _others_first(key, gang, pod) or _try(state, key, pod, rows, now)
    kept = state.reservation(pod.uid)
    return ([] if text or kept is None else [kept.placed.node]), text


def arrive(state: State, uid: str, node: str, now: float) -> Hold | None:
    """Stores that kube-scheduler has called `bind` for a pod of a gang.

    After the call for the last pod for which devices are held, the hold ends, and the binds of all these pods continue.
    But if one of the pods can no longer go to its node, the devices are freed, and the binds fail.

    Args:
        uid: the pod's uid.
        node: the name of the node to which the pod is to be bound.
        now: the present time, in seconds of a monotonic clock.

    Returns:
        The hold whose outcome the bind must wait for; None if it need not wait.
    """
    with state.lock:
        key = state.gangs.key_of(uid)
        gang = state.gangs.of(key) if key is not None else None
        if key is None or gang is None or gang.hold is None or uid not in gang.hold.uids:
            return None
        hold, kept = gang.hold, state.reservation(uid)
        if kept is None or kept.placed.node != node:
            return None
        hold.arrived.add(uid)
        if hold.arrived >= hold.uids and len(gang.placed) + len(hold.uids) >= gang.size(key):
            fault = _withdrawn(state, hold)
            if fault:
                release(state, key, gang, f"gang: since the nodes were chosen: {fault}")
                return hold
            state.gangs.end_hold(key)
            gang.placed |= hold.uids
            for one in hold.uids:
                gang.waiting.pop(one, None)
                state.hold_until(one, now)
            hold.outcome.set_result("")
            state.gangs.outcomes["placed"] += 1
            _log.info("gang placed", gang=str(key), pods=len(hold.uids))
        return hold


def _withdrawn(state: State, hold: Hold) -> str:
    """Returns why one of the pods for which devices are held can no longer go to its node; empty if all can."""
    kept = [reservation for uid in sorted(hold.uids) if (reservation := state.reservation(uid)) is not None]
    return next((fault for one in kept if (fault := state.withdrawn(one))), "")


def release_overdue(state: State, now: float) -> None:
    """Frees the devices of each gang whose hold has reached its deadline (`Hold.until`); its waiting binds fail.

    Args:
        now: the present time, in seconds of a monotonic clock.
    """
    with state.lock:
        for key, gang in state.gangs.held():
            hold = gang.hold
            if hold is not None and hold.until <= now:
                gang.awaited = (hold.uids - hold.arrived) & gang.waiting.keys()
                release(state, key, gang, cause(gang.size(key), len(gang.placed) + len(hold.arrived)))


def release(state: State, key: GangKey, gang: Gang, text: str) -> None:
    """Frees all devices that are held for a gang, and ends the binds of its pods that wait for the other pods.

    Args:
        state: the scheduler's state; the caller holds its lock.
        key, gang: the gang.
        text: the reason with which these binds fail.
    """
    hold = gang.hold
    if hold is None:
        return
    state.gangs.end_hold(key)
    for uid in hold.uids:
        state.forget(uid)
    hold.outcome.set_result(text)
    if not hold.uids:
        return
    state.gangs.outcomes["released"] += 1
    state.keeps += 1
    _log.info("gang released", gang=str(key), cause=text)


def cause(size: int, fitting: int) -> str:
    """Returns the text that says why a gang waits: how many of its pods fit.

    Args:
        size: the number of its pods.
        fitting: the number of its pods that fit at once or, after a hold, that kube-scheduler placed in time.
    """
    return f"gang: {fitting} of {size} fit"


def explain_member(state: State, pod: WaitingPod, rows: Ints) -> str:
    """Returns why a pod waits because of its gang; empty if the gang fits now. No devices are reserved.

    The text is also empty if the gang needs no more pods, if the pod has a reservation, or if devices are held for the
    gang and none of its pods is missing.

    Args:
        state: the scheduler's state; the caller holds its lock.
        rows: the indexes in the fleet of the nodes on which the pod may be placed. The gang's other pods may be placed
            wherever their own rules allow.
    """
    key = _key(pod)
    gang = state.gangs.of(key)
    size = gang.size(key)
    if state.reservation(pod.uid) is not None or len(gang.placed) >= size:
        return ""
    missing = _missing(key, gang)
    if missing or gang.hold is not None:
        return missing
    asked = rows.tobytes(), frozenset(gang.waiting)
    known = gang.forecast
    if known is None or (known.versions, known.rows, known.uids) != ((state.fleet.contents, state.sites), *asked):
        chosen = _first([pod], gang.waiting.values(), size - len(gang.placed))
        fitting = _forecast(state, chosen, rows)
        text = "" if fitting == len(chosen) else cause(size, len(gang.placed) + fitting)
        known = gang.forecast = GangRefusal(text, (state.fleet.contents, state.sites), *asked)
    return known.text


def _forecast(state: State, pods: Sequence[WaitingPod], rows: Ints) -> int:
    """Returns how many of some pods of a gang fit at once; the answer is kept for equal pods of other gangs.

    `rows` has the indexes in the fleet of the nodes on which the first pod may be placed.
    """
    versions = state.fleet.contents, state.sites
    if state.gangs.forecasts[0] != versions:
        state.gangs.forecasts = versions, {}
    known = state.gangs.forecasts[1]
    nodes = blake2b(rows.tobytes(), digest_size=16).digest()
    kind = (nodes, *((pod.request, repr(pod.rules)) for pod in pods))
    if kind not in known:
        parts = [Part(pod.uid, pod.request, state.allowed(pod.rules) if at else rows) for at, pod in enumerate(pods)]
        _, known[kind] = place_together(state.chooser, parts)
    return known[kind]


def _key(pod: WaitingPod) -> GangKey:
    if pod.gang is None:
        raise ValueError(f"pod {pod.namespace}/{pod.name} is of no gang")
    return GangKey(pod.namespace, *pod.gang)


def _missing(key: GangKey, gang: Gang) -> str:
    """Returns why no devices may be held for a gang yet: pods are missing, or kube-scheduler must ask about some first.

    The text is empty if devices may be held.
    """
    there, size = len(gang.placed) + len(gang.waiting), gang.size(key)
    if there < size:
        return f"gang: {there} of {size} pods are there"
    if gang.awaited:
        return cause(size, size - len(gang.awaited))
    return ""


def _others_first(key: GangKey, gang: Gang, pod: WaitingPod) -> str:
    """Returns why a pod must wait because its gang is complete without it; empty if the gang needs the pod.

    A gang is complete if as many pods as it needs are placed or have devices held for them.
    """
    held, size = 0 if gang.hold is None else len(gang.hold.uids - {pod.uid}), gang.size(key)
    return f"gang: {size} of its pods are placed before any other" if len(gang.placed) + held >= size else ""


def _try(state: State, key: GangKey, pod: WaitingPod, rows: Ints, now: float) -> str:
    """Holds devices for all pods that a gang lacks, `pod` among them; returns why that is impossible, or "".

    `rows` has the indexes in the fleet of the nodes that kube-scheduler asks about. `now` is in monotonic seconds.
    """
    gang = state.gangs.of(key)
    asked, size = (rows.tobytes(), frozenset(gang.waiting)), gang.size(key)
    known = gang.refusal
    if known is not None and (known.versions, known.rows, known.uids) == ((state.fleet.contents, state.sites), *asked):
        return known.text
    fitting = _hold(state, key, gang, pod, now)
    if fitting == size:
        return ""
    gang.refusal = GangRefusal(cause(size, fitting), (state.fleet.contents, state.sites), *asked)
    return gang.refusal.text


def _hold(state: State, key: GangKey, gang: Gang, pod: WaitingPod, now: float) -> int:
    """Holds devices for all pods that a gang lacks, `pod` among them, or for none.

    Returns the number of the gang's pods that fit, including the pods that are already placed. It equals `gang.size` if
    the devices are held, and only then. `now` is in monotonic seconds.
    """
    hold = state.gangs.begin_hold(key, now + state.gang_seconds)
    # Those that arrived stay: kube-scheduler has counted them to their nodes.
    steady = {uid for uid in hold.arrived if state.reservation(uid) is not None}
    kept = steady | {uid for uid in hold.uids if uid != pod.uid and state.reservation(uid) is not None}
    most, size = 0, gang.size(key)
    for stay in dict.fromkeys((frozenset(kept), frozenset(steady))):
        for uid in hold.uids - stay:
            state.forget(uid)
        hold.uids, hold.arrived = set(stay), hold.arrived & stay
        lacking = size - len(gang.placed) - len(stay)
        chosen = _first([pod], (one for one in gang.waiting.values() if one.uid not in stay), lacking)
        parts = [Part(one.uid, one.request, _rows_of(state, gang, one, pod)) for one in chosen]
        places, fitting = place_together(state.chooser, parts)
        most = max(most, len(gang.placed) + len(stay) + fitting)
        if places:
            for one in chosen:
                state.keep(one, places[one.uid], None)
            hold.uids |= places.keys()
            state.gangs.version += 1
            return size
    release(state, key, gang, cause(size, most))
    return most


def _first(first: Sequence[WaitingPod], others: Iterable[WaitingPod], count: int) -> list[WaitingPod]:
    """Returns at most `count` pods: those in `first`, then the oldest of the others."""
    uids = {pod.uid for pod in first}
    rest = sorted((pod for pod in others if pod.uid not in uids), key=lambda pod: (pod.created, pod.uid))
    return [*first, *rest][:count]


def _rows_of(state: State, gang: Gang, pod: WaitingPod, asked: WaitingPod) -> Ints:
    """Returns the indexes in the fleet of the nodes on which a pod of a gang may be placed.

    These are the nodes that kube-scheduler last named for it. kube-scheduler asks about the pod `asked` now: if both
    request the same, the nodes that it named for `asked` count as well, as far as the rules of `pod` allow them. They
    do not count for a pod whose node other pods or volumes decide on. If it named none for either, the answer has all
    nodes that the rules of `pod` allow.
    """
    own, others = gang.nodes.get(pod.uid), gang.nodes.get(asked.uid)
    if pod.request != asked.request or (own is not None and pod.rules.only_where_named):
        others = None
    if own is None and others is None:
        return state.allowed(pod.rules)
    rows = np.zeros(state.fleet.size, np.bool_)
    if others is not None:
        rows[state.allowed(pod.rules)] = True
        rows &= state.fleet.within(others)
    return np.flatnonzero(rows if own is None else rows | state.fleet.within(own))
