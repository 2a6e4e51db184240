"""Answers filter and prioritize: the node for a pod, and the reason against each other node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from scheduler.cluster.budgets import Standing
from scheduler.cluster.objects import PodError, WaitingPod, read_waiting
from scheduler.cluster.refusals import Refusal
from scheduler.cluster.state import State
from scheduler.cluster.waiting import FITS
from scheduler.extender.wire import MAX_SCORE, FilterArguments, FilterResult, encode_names
from scheduler.gangs.holding import explain_member, place_member, release_overdue
from scheduler.placement.fleet import Ints

LOOKS = 4
"""The number of best nodes that are looked up by name before all names that kube-scheduler sent are read."""
BOUND = "gpu: the pod is bound already"
UNKNOWN_NODE = "gpu: the node publishes no inventory of GPUs that can be used"


class _Asked:
    """The nodes that kube-scheduler asks about. Their rows are looked up once an answer needs all of them."""

    def __init__(self, state: State, arguments: FilterArguments) -> None:
        self._state = state
        self._arguments = arguments

    def has(self, name: str) -> bool:
        """Whether kube-scheduler asks about this node."""
        return self._arguments.has(name)

    @property
    def names(self) -> list[str]:
        """The names of the nodes."""
        return self._arguments.node_names

    @property
    def names_json(self) -> msgspec.Raw:
        """The names as kube-scheduler sent them, in JSON."""
        return self._arguments.names_json

    @cached_property
    def known(self) -> tuple[Ints, list[str]]:
        """The rows of the nodes, and the names of those that offer no devices."""
        return self._state.rows_of(self.names)


def filter_nodes(state: State, arguments: FilterArguments, now: float) -> FilterResult:
    """Returns the best node alone, with the pod's devices reserved; all that fit where the pod prefers some nodes.

    With one node, kube-scheduler scores none, and its other extenders and plugins are asked about one.

    Args:
        state: the cluster.
        arguments: kube-scheduler's question.
        now: monotonic seconds.

    Raises:
        ArgumentsError: the question's list of nodes cannot be read.
    """
    asked = _Asked(state, arguments)
    try:
        pod = read_waiting(arguments.pod)
    except PodError as error:
        return FilterResult([], failed_and_unresolvable_nodes=dict.fromkeys(asked.names, str(error)))
    with state.lock:
        state.expire(now)
        release_overdue(state, now)
        state.ask(pod)
        earlier = _bound_before(state, pod, asked)
        if earlier is not None:
            return earlier
        if pod.rules.only_where_named:
            state.name_nodes(pod, asked.names)
        gang = state.gangs.wait(pod)
        if gang is None or gang.hold is None:
            state.forget(pod.uid)
        block = budget_block(state, pod)
        if block is not None:
            return _blocked(state, pod, asked.names, block)
        with state.without(state.lifted_for(pod)):
            chosen, text = _place(state, pod, asked, now)
        if chosen:
            state.waiting.remove(pod.uid)
            return FilterResult(chosen)
        rows, unknown = asked.known
        if text:
            state.waiting.refuse(pod)
            return FilterResult(
                [],
                failed_nodes=dict.fromkeys(_names(state, rows), text),
                failed_and_unresolvable_nodes=dict.fromkeys(unknown, UNKNOWN_NODE),
            )
        refusal = state.refusals.of(pod.request, rows)
        state.waiting.refuse(pod, fragmented=refusal.fragmented)
        return _refusal(refusal, unknown)


@dataclass(frozen=True)
class BudgetBlock:
    """The reason for which a budget keeps a pod from every node, and the standing from which it follows."""

    standing: Standing
    message: str


def budget_block(state: State, pod: WaitingPod) -> BudgetBlock | None:
    """Returns what keeps the pod from every node for its budget; None where nothing does.

    The states of budgets change at any time, so one answer follows from one call.
    """
    standing, budget = state.budgets.standing_and_name(pod.namespace)
    if standing is Standing.HELD:
        message = f"budget: the GPU budget {budget} is spent and holds its pods until it has money again"
        return BudgetBlock(standing, message)
    if standing is Standing.OVER and state.others_wait(pod.uid):
        return BudgetBlock(standing, f"budget: the GPU budget {budget} is spent, and pods within theirs wait for GPUs")
    return None


def explain_pod(state: State, pod: WaitingPod, block: BudgetBlock | None) -> str:
    """Returns why the pod waits now, over all nodes; FITS where no cause of FairGPU's is left."""
    if block is not None:
        return block.message
    missing = explain_member(state, pod) if pod.gang is not None else ""
    if missing:
        return missing
    rows = np.array(sorted(state.fleet.rows.values()), np.int64)
    with state.without(state.lifted_for(pod)):
        if state.reservation(pod.uid) is not None or len(state.fitting(pod, rows)):
            return FITS
    return "; ".join(state.refusals.of(pod.request, rows).texts) or UNKNOWN_NODE


def _bound_before(state: State, pod: WaitingPod, asked: _Asked) -> FilterResult | None:
    """Returns the answer for a pod that is bound, or may be; None for one that is not."""
    kept = state.reservation(pod.uid)
    if kept is not None and kept.sent:
        # It is not known yet whether the pod was bound: it may hold these devices, and must not hold others.
        return FilterResult([kept.placed.node]) if asked.has(kept.placed.node) else _undecided(asked.names)
    if state.bound(pod.uid):
        # kube-scheduler has not seen it yet. What the pod holds stays as the API server has it.
        return FilterResult([], failed_nodes=dict.fromkeys(asked.names, BOUND))
    return None


def _blocked(state: State, pod: WaitingPod, names: list[str], block: BudgetBlock) -> FilterResult:
    """Returns the answer for a pod that its budget keeps from every node."""
    state.forget(pod.uid)
    state.waiting.refuse(pod)
    failed = dict.fromkeys(names, block.message)
    if block.standing is Standing.HELD:
        return FilterResult([], failed_and_unresolvable_nodes=failed)
    return FilterResult([], failed_nodes=failed)


def _place(state: State, pod: WaitingPod, asked: _Asked, now: float) -> tuple[list[str] | msgspec.Raw, str]:
    """Returns the nodes to answer, the best alone or all that fit where the pod prefers some, and what a gang lacks."""
    if pod.gang is not None:
        return place_member(state, pod, asked.known[0], now)
    if pod.prefers:
        fitting = state.fitting(pod, asked.known[0])
        # Where all of them fit the answer is the question.
        text = asked.names_json if len(fitting) == len(asked.names) else encode_names(_names(state, fitting))
        state.note_scored(bytes(text), fitting)
        return (text if len(fitting) else []), ""
    freed = state.earmarks.get(pod.uid)
    reservation = None
    if freed is not None and asked.has(freed[1].node):
        # What was freed for it is taken by it, where it suffices.
        row = state.fleet.rows.get(freed[1].node)
        reservation = None if row is None else state.choose(pod, np.array([row]), now)
    if reservation is None:
        row = state.first(pod, asked.has, LOOKS)
        rows = asked.known[0] if row is None else np.array([row])
        reservation = state.choose(pod, rows, now)
    return ([] if reservation is None else [reservation.placed.node]), ""


def prioritize_nodes(state: State, arguments: FilterArguments) -> dict[int, list[str]]:
    """Returns the nodes by their score, which is their rank: the best node has MAX_SCORE, the worst 0.

    Raises:
        ArgumentsError: the question's list of nodes cannot be read.
    """
    try:
        pod = read_waiting(arguments.pod)
    except PodError:
        return {0: arguments.node_names}
    with state.lock:
        # kube-scheduler sends back the names that filter has answered, in the same order.
        rows = state.scored(arguments.names_text)
        unknown: list[str] = []
        if rows is None:
            rows, unknown = state.rows_of(arguments.node_names)
        gains = state.chooser.gains(pod.request)[rows]
        levels = np.unique(gains)
        scores = np.searchsorted(levels, gains) * MAX_SCORE // max(len(levels) - 1, 1)
        found = {int(score): _names(state, rows[scores == score]) for score in np.unique(scores)}
    return found | {0: found.get(0, []) + unknown}


def _undecided(names: list[str]) -> FilterResult:
    return FilterResult(
        [], failed_nodes=dict.fromkeys(names, "gpu: it is not known yet whether an earlier Binding was made")
    )


def _refusal(refusal: Refusal, unknown: list[str]) -> FilterResult:
    """Returns one text for each cause; causes that no end of another pod removes are kept apart."""
    final: dict[str, str] | msgspec.Raw = refusal.final
    if unknown:
        final = msgspec.json.decode(refusal.final, type=dict[str, str]) | dict.fromkeys(unknown, UNKNOWN_NODE)
    return FilterResult([], failed_nodes=refusal.passing, failed_and_unresolvable_nodes=final)


def _names(state: State, rows: Ints) -> list[str]:
    names: list[str] = state.fleet.names[rows].tolist()
    return names
