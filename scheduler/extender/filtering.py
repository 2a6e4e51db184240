"""Answers kube-scheduler's calls filter (the node for a pod, and why not the others) and prioritize (nodes' scores)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from fairgpu.json_values import mapping
from scheduler.cluster.budgets import BudgetEffect
from scheduler.cluster.objects import PodError, WaitingPod, read_waiting
from scheduler.cluster.refusals import Refusal
from scheduler.cluster.state import Asked, State
from scheduler.cluster.waiting import FITS
from scheduler.extender.wire import MAX_SCORE, FilterArguments, FilterResult, encode_names, joined
from scheduler.gangs.holding import explain_member, place_member, release_overdue
from scheduler.placement.causes import Cause
from scheduler.placement.fleet import Ints, NodeSet

LOOKS = 4
"""The number of best nodes that are looked up by name before all names that kube-scheduler sent are read."""
BOUND = "gpu: the pod is bound already"
GONE = "gpu: the pod was deleted, or has ended"
UNDECIDED = "gpu: it is not known yet whether an earlier Binding was made"
UNKNOWN_NODE = "gpu: the node publishes no inventory of GPUs that can be used"
KEPT_AWAY = "gpu: kube-scheduler's rules keep the pod from each node with room for it"


class _Asked:
    """The nodes that one call of kube-scheduler asks about, looked up in the fleet only if an answer needs it."""

    def __init__(self, state: State, arguments: FilterArguments) -> None:
        self._state = state
        self._arguments = arguments

    def has(self, name: str) -> bool:
        """Whether kube-scheduler asks about the node of this name."""
        return self._arguments.has(name)

    @property
    def names(self) -> list[str]:
        return self._arguments.node_names

    @cached_property
    def _rows_asked(self) -> Asked:
        return self._state.rows_asked(self._arguments.names_key, lambda: self.names)

    @property
    def rows(self) -> Ints:
        """The indexes in the Fleet's arrays of the named nodes that offer devices, in any order."""
        return self._rows_asked.rows

    @property
    def rows_json(self) -> msgspec.Raw:
        """The names of the nodes in `rows`, as a JSON list."""
        if self._rows_asked.names_json is None:
            self._rows_asked.names_json = encode_names(_names(self._state, self.rows))
        return self._rows_asked.names_json

    @property
    def unknown(self) -> list[str]:
        """The names of the nodes that offer no devices."""
        return self._rows_asked.unknown

    def with_text(self, text: str) -> msgspec.Raw:
        """Returns a JSON object that gives each of the nodes this text, keyed by node name."""
        return self._state.refusals.with_one_text(text, self._arguments.names_key, lambda: self.names)


def filter_nodes(state: State, arguments: FilterArguments, now: float) -> FilterResult:
    """Returns the best node for a pod, or the one on which devices are kept for it, and reserves devices there.

    Since the answer has a single node, kube-scheduler needs no scores, and its other extenders and plugins look at that
    node alone. If the pod has no gang and may choose among nodes (`WaitingPod.prefers`), all nodes that fit are
    returned, and nothing is reserved. If no node fits, the result has a reason for each node.

    It first frees the reservations of all pods whose time limit has passed, and the pod's own earlier reservation. It
    keeps the reservation of a pod whose Binding was sent, and of a pod for whose gang devices are held.

    Args:
        arguments: kube-scheduler's question: the pod and the nodes.
        now: the present time, in seconds of a monotonic clock.

    Raises:
        ArgumentsError: the question's pod or list of nodes cannot be read.
    """
    asked = _Asked(state, arguments)
    try:
        pod = read_waiting(arguments.pod)
    except PodError as error:
        return FilterResult([], failed_and_unresolvable_nodes=asked.with_text(str(error)))
    with state.lock:
        state.expire(now)
        release_overdue(state, now)
        state.ask(pod)
        earlier = _needs_no_place(state, pod, asked)
        if earlier is not None:
            return earlier
        if pod.rules.only_where_named:
            state.name_nodes(pod, asked.rows)
        gang = state.gangs.wait(pod)
        if gang is None or gang.hold is None:
            state.forget(pod.uid)
        block = budget_block(state, pod)
        if block is not None:
            return _blocked(state, pod, asked, block)
        with state.without(state.lifted_for(pod)):
            chosen, text = _place(state, pod, asked, now)
            kept_from = None if chosen or text else _room_elsewhere(state, pod, asked.rows)
        if chosen:
            state.waiting.remove(pod.uid)
            return FilterResult(chosen)
        if text:
            state.waiting.refuse(pod, text)
            return _waits_for_gang(state, asked, text)
        refusal = state.refusals.of(pod.request, asked.rows)
        answer = "; ".join(refusal.texts) or UNKNOWN_NODE
        state.waiting.refuse(pod, answer, fragmented=refusal.fragmented, kept_from=kept_from)
        return _refusal(refusal, asked.unknown)


@dataclass(frozen=True)
class BudgetBlock:
    """The reason why a budget keeps a pod from every node.

    Attributes:
        effect: the effect of the budget on the pods of its namespaces.
        message: the reason, for the pod's author.
    """

    effect: BudgetEffect
    message: str


def budget_block(state: State, pod: WaitingPod) -> BudgetBlock | None:
    """Returns the reason why a pod's budget keeps the pod from every node; None if the budget lets it be placed.

    A budget's state may change between two calls, so a caller asks once and uses that answer throughout.
    """
    effect, name = state.budgets.effect_and_name(pod.namespace)
    budget = f"the GPU budget {name}" if name else "the namespace's GPU budget"
    if effect is BudgetEffect.HELD:
        message = f"budget: {budget} is spent and holds its pods until it has money again"
        return BudgetBlock(effect, message)
    lowest = state.lowest_in_budget() if effect is BudgetEffect.OVER else None
    # kube-scheduler asks about pods of higher priority first. A pod that was admitted within its budget has the
    # priority of those that still are, so its place behind them is decided here.
    if lowest is not None and pod.priority >= lowest:
        return BudgetBlock(effect, f"budget: {budget} is spent, and pods within theirs wait for GPUs")
    return None


def explain_pod(state: State, pod: WaitingPod, block: BudgetBlock | None, kept_from: NodeSet | None = None) -> str:
    """Returns why a pod waits now, as a text for its author; FITS if FairGPU has no reason against it.

    Only nodes that the pod's rules (`Rules`) allow count.

    Args:
        block: the answer of `budget_block` for the pod.
        kept_from: nodes that do not count: they had room, and kube-scheduler did not take them; None for none.
    """
    if block is not None:
        return block.message
    rows = state.allowed(pod.rules)
    if kept_from is not None:
        rows = rows[~state.fleet.within(kept_from)[rows]]
    with state.without(state.lifted_for(pod)):
        missing = explain_member(state, pod, rows) if pod.gang is not None else ""
        if missing:
            return missing
        if state.reservation(pod.uid) is not None or len(state.fitting(pod, rows)):
            return FITS
        texts = state.refusals.of(pod.request, rows).texts
    return "; ".join(texts) or (KEPT_AWAY if state.fleet.rows else UNKNOWN_NODE)


def _room_elsewhere(state: State, pod: WaitingPod, asked: Ints) -> NodeSet | None:
    """Returns the nodes that a pod's rules allow and that have room, but that kube-scheduler left out.

    `asked` has the indexes in the fleet of the nodes about which kube-scheduler asks. The result is None if
    kube-scheduler asks about all nodes.
    """
    if len(asked) == len(state.fleet.rows):
        return None
    other = np.zeros(state.fleet.size, np.bool_)
    other[state.allowed(pod.rules)] = True
    other[asked] = False
    return state.fleet.set_of(state.fitting(pod, np.flatnonzero(other)))


def _needs_no_place(state: State, pod: WaitingPod, question: _Asked) -> FilterResult | None:
    """Returns the answer to `filter` for a pod that is gone or bound, or whose Binding was sent; None for any other."""
    if state.gone(pod.uid):
        # kube-scheduler has not seen it yet. No later event would remove what is stored of the pod now.
        return FilterResult([], failed_and_unresolvable_nodes=question.with_text(GONE))
    kept = state.reservation(pod.uid)
    if kept is not None and kept.sent:
        # It is not known yet whether the pod was bound: it may hold these devices, and must not hold others.
        if question.has(kept.placed.node):
            return FilterResult([kept.placed.node])
        return FilterResult([], failed_nodes=question.with_text(UNDECIDED))
    if state.bound(pod.uid):
        # kube-scheduler has not seen it yet. What the pod holds stays as the API server has it.
        return FilterResult([], failed_nodes=question.with_text(BOUND))
    return None


def _waits_for_gang(state: State, question: _Asked, text: str) -> FilterResult:
    """Returns the answer to `filter` for a pod that waits because of its gang; `text` is the reason."""
    if not question.unknown:
        return FilterResult([], failed_nodes=question.with_text(text))
    return FilterResult(
        [],
        failed_nodes=dict.fromkeys(_names(state, question.rows), text),
        failed_and_unresolvable_nodes=dict.fromkeys(question.unknown, UNKNOWN_NODE),
    )


def _blocked(state: State, pod: WaitingPod, question: _Asked, block: BudgetBlock) -> FilterResult:
    """Returns the answer to `filter` for a pod that its budget keeps from every node.

    The pod's reservation is removed, and the refusal is stored among the waiting pods.
    """
    state.forget(pod.uid)
    state.waiting.refuse(pod, block.message)
    failed = question.with_text(block.message)
    if block.effect is BudgetEffect.HELD:
        return FilterResult([], failed_and_unresolvable_nodes=failed)
    return FilterResult([], failed_nodes=failed)


def _place(state: State, pod: WaitingPod, question: _Asked, now: float) -> tuple[list[str] | msgspec.Raw, str]:
    """Returns the names of the nodes to answer for a pod, and the reason why the pod must wait because of its gang.

    There is no name if the pod fits nowhere. The reason is empty if no gang keeps the pod waiting. Most pods get one
    node alone, on which devices are then reserved: the node of their earmark, else the best one. A pod without a
    gang that may choose among nodes (`WaitingPod.prefers`) gets all nodes on which it fits, and nothing is reserved.
    """
    if pod.gang is not None:
        return place_member(state, pod, question.rows, now)
    if pod.prefers:
        fitting = state.fitting(pod, question.rows)
        everywhere = len(fitting) == len(question.rows)
        text = question.rows_json if everywhere else encode_names(_names(state, fitting))
        state.note_scored(bytes(text), fitting)
        return (text if len(fitting) else []), ""
    freed = state.earmarks.get(pod.uid)
    reservation = None
    if freed is not None and question.has(freed[1].node):
        # The pod takes the devices that were freed for it, where they suffice.
        row = state.fleet.rows.get(freed[1].node)
        reservation = None if row is None else state.choose(pod, np.array([row]), now)
    if reservation is None:
        row = state.first(pod, question.has, LOOKS)
        if row is None and state.refusals.is_refused(pod.request, question.rows):
            return [], ""
        rows = question.rows if row is None else np.array([row])
        reservation = state.choose(pod, rows, now)
    return ([] if reservation is None else [reservation.placed.node]), ""


def prioritize_nodes(state: State, arguments: FilterArguments) -> Ints:
    """Returns a score for each node, in the order of the question: the best node has MAX_SCORE, the worst 0.

    All nodes have 0 if none is better than another, or if the extender cannot place the pod.

    Args:
        arguments: kube-scheduler's question: the pod and the nodes.

    Raises:
        ArgumentsError: the question's pod or list of nodes cannot be read.
    """
    with state.lock:
        pod = _asked_before(state, arguments)
        # kube-scheduler sends back the names that filter has answered, in the same order.
        rows = state.scored(arguments.names_text)
        if rows is None:
            rows = state.rows_in_order(arguments.node_names)
        scores, known = np.zeros(len(rows), np.int64), rows >= 0
        if pod is not None:
            gains = state.chooser.gains(pod.request)[rows[known]]
            levels = np.unique(gains)
            scores[known] = np.searchsorted(levels, gains) * MAX_SCORE // max(len(levels) - 1, 1)
    return scores


def _asked_before(state: State, arguments: FilterArguments) -> WaitingPod | None:
    """Returns the pod of a call `prioritize`: as `filter` has just read it, else read from the call's own JSON.

    None if the extender cannot place the pod.
    """
    known = state.pod_asked_about(str(mapping(arguments.pod.get("metadata")).get("uid", "")))
    if known is not None:
        return known
    try:
        return read_waiting(arguments.pod)
    except PodError:
        return None


def _refusal(refusal: Refusal, unknown: list[str]) -> FilterResult:
    """Returns the answer to `filter` that gives each node its reason; `unknown` are nodes that offer no devices.

    Reasons that hold even if other pods end are in `failed_and_unresolvable_nodes`.
    """
    final = refusal.final
    if unknown:
        # A node without devices also has the first cause, of too few GPUs. Of nine texts kube-scheduler might cut one.
        text = UNKNOWN_NODE if len(refusal.texts) < len(Cause) else refusal.texts[Cause.DEVICES]
        final = joined(final, msgspec.Raw(msgspec.json.encode(dict.fromkeys(unknown, text))))
    return FilterResult([], failed_nodes=refusal.passing, failed_and_unresolvable_nodes=final)


def _names(state: State, rows: Ints) -> list[str]:
    names: list[str] = state.fleet.names[rows].tolist()
    return names
