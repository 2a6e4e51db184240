"""Which running pods of a spent budget go, in which order, and when: notice first, and only while the money is gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fairgpu.states import BudgetState
from timekeeper.jobs.memory.figures import Figures
from timekeeper.jobs.pods.writes import Step
from timekeeper.metering.pods import PodFacts
from timekeeper.rules.budgets import Budget
from timekeeper.rules.state import Enforcement, OnExhausted
from timekeeper.sources.source import MAX_TERMINATION_SECONDS


@dataclass(frozen=True, slots=True)
class Due:
    """A pod, what it is due, and when it goes (nanoseconds since 1970; of no meaning once it is called off)."""

    pod: PodFacts
    step: Step
    at: int = 0


def must_go(budget: Budget, found: Figures) -> bool:
    """Whether the budget's running pods are to be evicted: it says so, it is spent, and its grace is over."""
    return budget.enforcement is Enforcement.EVICT and found.state in {BudgetState.OVER, BudgetState.HELD}


def due(budget: Budget, found: Figures, pods: Iterable[PodFacts], now: int) -> list[Due]:
    """What the budget's pods are due, in the order in which it is to be done.

    First go those that came in as over budget, then those without a high task priority, and of these always the one
    that has run for the shortest time: least is lost with it. Where the budget deprioritizes, those that came in as
    over budget stay: they run in what others leave and yield first, as they were told.

    Args:
        budget: the budget.
        found: its figures.
        pods: all pods of the namespaces that it pays for.
        now: nanoseconds since 1970.
    """
    running = [pod for pod in pods if pod.bound and not pod.terminal and not ends_anyway(pod)]
    if not must_go(budget, found):
        return [Due(pod, Step.CALL_OFF) for pod in running if pod.evict_at is not None]
    stays = budget.on_exhausted is OnExhausted.DEPRIORITIZE
    steps = []
    for pod in sorted(running, key=_order):
        if pod.came_over and stays:
            if pod.evict_at is not None:
                steps.append(Due(pod, Step.CALL_OFF))
        elif not _was_told(pod, budget, found, now):
            steps.append(Due(pod, Step.NOTICE, now + budget.eviction_notice))
        elif pod.evict_at is not None and pod.evict_at <= now:
            steps.append(Due(pod, Step.EVICT, pod.evict_at))
    return steps


def ends_anyway(pod: PodFacts) -> bool:
    """Whether a pod is being deleted and gone as soon as one that is evicted.

    Whoever deletes a pod says how long it may go on, and a process may ignore that it is told to end: with a year of
    grace it would outlast any eviction. Its deletionTimestamp is no proof: three centuries of grace wrap into the past.
    """
    return pod.deletion_grace is not None and pod.deletion_grace <= MAX_TERMINATION_SECONDS


def _was_told(pod: PodFacts, budget: Budget, found: Figures, now: int) -> bool:
    """Whether the pod has a notice of this exhaustion, and no longer one than the budget gives."""
    if pod.evict_at is None:
        return False
    return (found.exhausted_at or 0) <= pod.evict_at <= now + budget.eviction_notice


def _order(pod: PodFacts) -> tuple[bool, bool, int, str]:
    return not pod.came_over, pod.high_priority, -(pod.scheduled or pod.created), pod.uid
