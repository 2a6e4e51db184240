"""Decides which running pods of spent budgets get a notice or are evicted, in which order, and when.

A pod gets a notice first, and is evicted only if its budget is still spent when the notice ends. If the notice cannot
be written, the pod is evicted without one, no sooner than the notice would have allowed. A pod without the label of GPU
pods gets neither. Pods that hold GPUs by claims and lack the label get it by `label_writes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from fairgpu.cluster.api import Json
from fairgpu.states import BudgetState
from timekeeper.controller.pod_writes import PodWrite, Step
from timekeeper.controller.state.books import Books
from timekeeper.controller.state.figures import Figures, how_to_give_more
from timekeeper.domain.budgets import Budget
from timekeeper.domain.money import SECOND, display
from timekeeper.domain.pods import PodFacts
from timekeeper.domain.state import Enforcement, OnExhausted
from timekeeper.domain.timestamps import SKEW, Instant, format_exact, format_instant
from timekeeper.sources.base import MAX_TERMINATION_SECONDS, ObjectEvent


@dataclass(frozen=True, slots=True)
class Due:
    """A pod, and the write that is due on it: a notice of eviction, an eviction, or the removal of a notice.

    Attributes:
        pod: the pod.
        step: the kind of the write.
        at: the instant of the pod's eviction; 0 if the write removes a notice.
    """

    pod: PodFacts
    step: Step
    at: Instant = 0


def must_evict(budget: Budget, figures: Figures) -> bool:
    """Returns whether the running pods of a budget must be evicted.

    This is so if the budget's enforcement is evict, its money is spent, and it has no grace left.
    """
    return budget.enforcement is Enforcement.EVICT and figures.state in {BudgetState.OVER, BudgetState.HELD}


def due(budget: Budget, figures: Figures, pods: Iterable[PodFacts], now: Instant) -> list[Due]:
    """Returns the notices, evictions and removals of notices that are due on a budget's pods, in the order of writing.

    Pods admitted over budget go first, then pods without a high task priority. Among equals, the pod that has run for
    the shortest time goes first, since the least work is lost with it. If the budget deprioritizes, pods admitted
    over budget stay: they run on spare GPUs and are the first to lose them. Nothing is due on a pod that has no node,
    has ended or ends anyway. Nothing is due on a pod without the label of GPU pods: the policies neither protect a
    notice on it nor allow its eviction.

    Args:
        figures: the budget's figures.
        pods: all pods of the namespaces that the budget pays for.
    """
    running = [pod for pod in pods if pod.bound and not pod.terminal and not ends_anyway(pod) and pod.guarded]
    if not must_evict(budget, figures):
        return [Due(pod, Step.CALL_OFF) for pod in running if pod.evict_at is not None]
    stays = budget.on_exhausted is OnExhausted.DEPRIORITIZE
    steps = []
    for pod in sorted(running, key=_order):
        if pod.admitted_over_budget and stays:
            if pod.evict_at is not None:
                steps.append(Due(pod, Step.CALL_OFF))
        elif not _has_notice(pod, budget, figures, now):
            steps.append(Due(pod, Step.NOTICE, now + budget.eviction_notice))
        elif pod.evict_at is not None and pod.evict_at <= now:
            steps.append(Due(pod, Step.EVICT, pod.evict_at))
    return steps


def ends_anyway(pod: PodFacts) -> bool:
    """Returns whether a pod is being deleted with a grace period of at most MAX_TERMINATION_SECONDS.

    Such a pod ends soon without an eviction.

    The author of a deletion sets its grace period, and a process may ignore the signal to end: with a year of grace,
    the process could run on for a year. The deletionTimestamp proves nothing: with three centuries of grace it
    overflows and lies in the past.
    """
    return pod.deletion_grace is not None and pod.deletion_grace <= MAX_TERMINATION_SECONDS


def _has_notice(pod: PodFacts, budget: Budget, figures: Figures, now: Instant) -> bool:
    """Whether the pod carries a notice that counts.

    A notice counts if it ends after the budget was exhausted. It must also end at most `eviction_notice` from now.
    """
    if pod.evict_at is None:
        return False
    return (figures.exhausted_at or 0) <= pod.evict_at <= now + budget.eviction_notice


def _order(pod: PodFacts) -> tuple[bool, bool, int, str]:
    return not pod.admitted_over_budget, pod.high_priority, -(pod.scheduled or pod.created), pod.uid


FRESH = 30 * SECOND
"""The greatest age, in nanoseconds, of figures that justify an eviction.

Since older figures were computed, the budget may have received money.
"""


def eviction_writes(
    books: Books, settled_at: Instant, surely_past: Instant, now: Instant, without_notice_seconds: float
) -> tuple[PodWrite, ...] | None:
    """Returns the writes to pods, for the pod writer, by which all spent budgets that evict do so.

    A write puts a notice on a pod, evicts it, or removes the notice of a pod that is to run on.

    Args:
        books: the leader's state, with the figures of all budgets.
        settled_at: the instant of the last reconciliation.
        surely_past: the earlier of `settled_at` and the store's time at that moment.
        without_notice_seconds: the time for which the writing of a notice is tried, or the budget's time of notice if
            that is longer; after that time, the pod is evicted without a notice.

    Returns:
        The writes; None if nothing can be decided. That is so if the figures are older than FRESH, or if the local
            clock was more than SKEW ahead of the store's: then the budget may have been charged for time that has not
            passed yet, and an eviction cannot be undone.
    """
    if now - settled_at > FRESH or settled_at - surely_past > SKEW:
        return None
    return tuple(
        _write(step, books, name, without_notice_seconds)
        for name, facts in _pods_by_account(books).items()
        if name in books.figures
        for step in due(books.accounts[name].budget, books.figures[name], facts, settled_at)
    )


def _pods_by_account(books: Books) -> dict[str, list[PodFacts]]:
    """Returns the pods that `due` must examine, keyed by the account that pays for them.

    These are all pods of budgets that evict. Of any other budget they are the pods with a notice, which is removed.
    """
    pods_of: dict[str, list[PodFacts]] = {}
    for pod in books.pods.facts.values():
        name = books.account_of(pod.namespace)
        account = books.accounts.get(name)
        if account is not None and (account.budget.enforcement is Enforcement.EVICT or pod.evict_at is not None):
            pods_of.setdefault(name, []).append(pod)
    return pods_of


def _write(step: Due, books: Books, name: str, without_notice_seconds: float) -> PodWrite:
    """Returns the write that is due on a pod of the account `name`, with the events to write after it.

    If a notice cannot be written for `without_notice_seconds`, the pod is evicted without it, no sooner than the notice
    would have allowed. Then the pod gets an event, and so does the GPUBudget, if any: perhaps somebody other than the
    pod's owner is the cause.
    """
    budget, figures, pod = books.accounts[name].budget, books.figures[name], step.pod
    written = partial(PodWrite, pod.uid, pod.namespace, pod.name, name)
    events = partial(_events, step=step, budget=budget, figures=figures)
    if step.step is not Step.NOTICE:
        return written(step.step, events=events)
    at_budget = books.budgets.objects.get(name)
    unannounced = partial(_events_without_notice, budget=budget, figures=figures, at_budget=at_budget)
    return written(
        Step.NOTICE,
        format_exact(step.at),
        events,
        instead=written(Step.EVICT, events=unannounced),
        instead_seconds=max(without_notice_seconds, budget.eviction_notice / SECOND),
    )


def _events(item: Json, step: Due, budget: Budget, figures: Figures) -> tuple[ObjectEvent, ...]:
    return (notice_of(item, step, budget, figures),)


def _events_without_notice(
    item: Json, budget: Budget, figures: Figures, at_budget: Json | None
) -> tuple[ObjectEvent, ...]:
    """Returns the events of an eviction without notice: one about the pod (`item`), one about the GPUBudget, if any.

    Args:
        at_budget: the GPUBudget (JSON); None if the account has none.
    """
    metadata = item["metadata"]
    spent = _spent(budget, figures)
    message = f"{spent}, and no notice could be written on this pod: it is evicted without."
    at_pod = ObjectEvent(item, "BudgetEviction", message, warning=True, occasion="without notice")
    if at_budget is None:
        return (at_pod,)
    message = (
        f"{spent}. No notice could be written on the pod {metadata['namespace']}/{metadata['name']}: it is evicted "
        "without."
    )
    return at_pod, ObjectEvent(
        at_budget, "BudgetEvictionWithoutNotice", message, warning=True, occasion=metadata["uid"]
    )


def notice_of(item: Json, step: Due, budget: Budget, figures: Figures) -> ObjectEvent:
    """Returns the event of a pod's notice, of its eviction, or of the removal of its notice.

    Args:
        item: the pod (JSON).
        step: the write that was done on it.
        figures: the budget's figures.
    """
    spent = _spent(budget, figures)
    if step.step is Step.NOTICE:
        message = (
            f"{spent}: this pod is evicted at {format_instant(step.at)} unless there is money by then. Save what it "
            f"has done. {how_to_give_more(budget)}."
        )
        return ObjectEvent(item, "BudgetEvictionNotice", message, warning=True, occasion=format_exact(step.at))
    if step.step is Step.EVICT:
        message = f"{spent}, and the notice is over: this pod is evicted."
        return ObjectEvent(item, "BudgetEviction", message, warning=True, occasion=format_exact(step.at))
    return ObjectEvent(item, "BudgetEvictionCalledOff", f"This pod goes on: {budget.name} lets it run again.")


def _spent(budget: Budget, figures: Figures) -> str:
    return f"{display(figures.spent)} of {display(figures.limits.available or 0)} GPU-hours of {budget.name} are spent"


def label_writes(books: Books) -> tuple[PodWrite, ...]:
    """Returns the writes of the label of GPU pods that are due: on bound pods that reserve claims with open sessions.

    Admission labels each pod whose claim asks for a GPU when the pod is created. It misses a pod whose claim is later
    made again under the same name, or whose DeviceClass the webhook's settings do not list. Only an allocated claim
    states what it holds. Pods in namespaces that are charged to the account overhead get no label.

    Args:
        books: the leader's state.
    """
    pods = map(books.pods.facts.get, books.claims.reserving_pods())
    due = {pod.uid: pod for pod in pods if pod is not None and _lacks_the_label(pod)}
    return tuple(
        PodWrite(pod.uid, pod.namespace, pod.name, books.account_of(pod.namespace), Step.LABEL)
        for pod in due.values()
        if pod.namespace not in books.rules.overhead
    )


def _lacks_the_label(pod: PodFacts) -> bool:
    """Returns whether a pod that reserves a claim must get the label.

    The result is False for a pod that has the label, is not bound or has ended. It is also False for a pod that asks
    for FairGPU's own resources beside the claim: with the label, FairGPU would act on the annotations that the pod's
    creator wrote while nothing protected them. An admin must add that label.
    """
    if pod.guarded or not pod.bound or pod.terminal:
        return False
    return pod.reservation is None or bool(pod.reservation.holdings)
