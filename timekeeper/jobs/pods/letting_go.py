"""Which pods the meter's finalizer has to leave: nothing more will be charged for them."""

from __future__ import annotations

from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.memory.metered import Metered
from timekeeper.jobs.pods.writes import PodWrite, Step
from timekeeper.metering.pods import PodFacts


def removals(books: Books) -> tuple[PodWrite, ...]:
    """The finalizers that can be taken off, as far as the books know."""
    sessions, holds = books.pods.sessions, books.rules.holds_pods
    return tuple(
        PodWrite(pod.uid, pod.namespace, pod.name, books.account_of(pod.namespace), Step.FINALIZER)
        for pod in books.pods.facts.values()
        if pod.held and may_go(pod, sessions.get(pod.uid), holds=holds)
    )


def may_go(pod: PodFacts, metered: Metered | None, *, holds: bool) -> bool:
    """Whether a pod's finalizer may be removed.

    Args:
        pod: a pod with the finalizer.
        metered: its session; None where it never held anything.
        holds: whether pods are to be held at all.

    It may as soon as the pod holds nothing any more and the store has the close of its session, or there never was one.
    """
    if not holds:
        return True
    if not pod.terminal and not pod.removed:
        return False
    return metered is None or metered.acknowledged.closed
