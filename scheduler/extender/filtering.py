"""Answers filter and prioritize: the node for a pod, and the reason against each other node."""

from __future__ import annotations

import msgspec
import numpy as np

from scheduler.cluster.budgets import Standing
from scheduler.cluster.objects import PodError, WaitingPod, read_waiting
from scheduler.cluster.refusals import Refusal
from scheduler.cluster.state import State
from scheduler.cluster.waiting import FITS
from scheduler.extender.wire import MAX_SCORE, FilterArguments, FilterResult, HostPriority
from scheduler.gangs.holding import explain_member, place_member, release_overdue
from scheduler.placement.fleet import Ints

BOUND = "gpu: the pod is bound already"
UNKNOWN_NODE = "gpu: the node publishes no inventory of GPUs that can be used"


def filter_nodes(state: State, arguments: FilterArguments, now: float) -> FilterResult:
    """Returns the best node alone, with the pod's devices reserved; all that fit where the pod prefers some nodes.

    With one node, kube-scheduler scores none, and its other extenders and plugins are asked about one.

    Args:
        state: the cluster.
        arguments: kube-scheduler's question.
        now: monotonic seconds.
    """
    names = arguments.node_names or []
    try:
        pod = read_waiting(arguments.pod)
    except PodError as error:
        return FilterResult([], failed_and_unresolvable_nodes=dict.fromkeys(names, str(error)))
    with state.lock:
        state.expire(now)
        release_overdue(state, now)
        state.ask(pod)
        rows, unknown = state.rows_of(names)
        earlier = _bound_before(state, pod, names)
        if earlier is not None:
            return earlier
        state.name_nodes(pod, names)
        gang = state.gangs.wait(pod)
        if gang is None or gang.hold is None:
            state.forget(pod.uid)
        closed = kept_out(state, pod)
        if closed:
            return _closed(state, pod, names, closed)
        free = state.lifted_for(pod)
        known = state.refusals.known(pod.request, rows) if gang is None and not free else None
        with state.without(free):
            chosen, text = ([], "") if known else _place(state, pod, rows, now)
        if chosen:
            state.waiting.remove(pod.uid)
            return FilterResult(chosen)
        state.waiting.refuse(pod)
        if text:
            return FilterResult([], dict.fromkeys(_names(state, rows), text), dict.fromkeys(unknown, UNKNOWN_NODE))
        return _refusal(known or state.refusals.of(pod.request, rows), unknown)


def kept_out(state: State, pod: WaitingPod) -> str:
    """Returns why the pod's budget keeps it from every node; empty where it does not."""
    standing, budget = state.budgets.standing(pod.namespace), state.budgets.name(pod.namespace)
    if standing is Standing.HELD:
        return f"budget: the GPU budget {budget} is spent and holds its pods until it has money again"
    if standing is Standing.OVER and state.others_wait(pod.uid):
        return f"budget: the GPU budget {budget} is spent, and pods within theirs wait for GPUs"
    return ""


def explain_pod(state: State, pod: WaitingPod) -> str:
    """Returns why the pod waits now, over all nodes; FITS where no cause of FairGPU's is left."""
    closed = kept_out(state, pod)
    if closed:
        return closed
    missing = explain_member(state, pod) if pod.gang is not None else ""
    if missing:
        return missing
    rows = np.array(sorted(state.fleet.rows.values()), np.int64)
    with state.without(state.lifted_for(pod)):
        if state.reservation(pod.uid) is not None or len(state.fitting(pod, rows)):
            return FITS
    return "; ".join(state.refusals.of(pod.request, rows).texts) or UNKNOWN_NODE


def _bound_before(state: State, pod: WaitingPod, names: list[str]) -> FilterResult | None:
    """Returns the answer for a pod that is bound, or may be; None for one that is not."""
    kept = state.reservation(pod.uid)
    if kept is not None and kept.sent:
        # It is not known yet whether the pod was bound: it may hold these devices, and must not hold others.
        return FilterResult([kept.placed.node]) if kept.placed.node in names else _undecided(names)
    if state.bound(pod.uid):
        # kube-scheduler has not seen it yet. What the pod holds stays as the API server has it.
        return FilterResult([], failed_nodes=dict.fromkeys(names, BOUND))
    return None


def _closed(state: State, pod: WaitingPod, names: list[str], text: str) -> FilterResult:
    """Returns the answer for a pod that its budget keeps from every node."""
    state.forget(pod.uid)
    state.waiting.refuse(pod)
    failed = dict.fromkeys(names, text)
    held = state.budgets.standing(pod.namespace) is Standing.HELD
    return FilterResult([], {}, failed) if held else FilterResult([], failed)


def _place(state: State, pod: WaitingPod, rows: Ints, now: float) -> tuple[list[str], str]:
    """Returns the nodes to answer, the best alone or all that fit where the pod prefers some, and what a gang lacks."""
    if pod.gang is not None:
        return place_member(state, pod, rows, now)
    if pod.prefers:
        return _names(state, state.fitting(pod, rows)), ""
    freed = state.earmarks.get(pod.uid)
    row = state.fleet.rows.get(freed[1].node) if freed is not None else None
    reservation = None
    if row is not None and row in rows:
        # What was freed for it is taken by it, where it suffices.
        reservation = state.choose(pod, np.array([row]), now)
    if reservation is None:
        reservation = state.choose(pod, rows, now)
    return ([] if reservation is None else [reservation.placed.node]), ""


def prioritize_nodes(state: State, arguments: FilterArguments) -> list[HostPriority]:
    """Scores nodes by rank: the best node has MAX_SCORE, the worst 0."""
    names = arguments.node_names or []
    try:
        pod = read_waiting(arguments.pod)
    except PodError:
        return [HostPriority(name, 0) for name in names]
    with state.lock:
        rows, unknown = state.rows_of(names)
        gains = state.chooser.gains(pod.request)[rows]
        ranks = np.unique(gains, return_inverse=True)[1]
        best = max(int(ranks.max(initial=0)), 1)
        scores = (ranks * MAX_SCORE // best).tolist()
        known = [HostPriority(name, score) for name, score in zip(_names(state, rows), scores, strict=True)]
    return known + [HostPriority(name, 0) for name in unknown]


def _undecided(names: list[str]) -> FilterResult:
    return FilterResult(
        [], failed_nodes=dict.fromkeys(names, "gpu: it is not known yet whether an earlier Binding was made")
    )


def _refusal(refusal: Refusal, unknown: list[str]) -> FilterResult:
    """Returns one text for each cause; causes that no end of another pod removes are kept apart."""
    final: dict[str, str] | msgspec.Raw = refusal.final
    if unknown:
        final = msgspec.json.decode(refusal.final, type=dict[str, str]) | dict.fromkeys(unknown, UNKNOWN_NODE)
    return FilterResult([], refusal.passing, final)


def _names(state: State, rows: Ints) -> list[str]:
    names: list[str] = state.fleet.names[rows].tolist()
    return names
