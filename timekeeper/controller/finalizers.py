"""Decides which pods lose the meter's finalizer: those whose last settlement the store holds."""

from __future__ import annotations

from timekeeper.controller.pod_writes import PodWrite, Step
from timekeeper.controller.state.books import Books
from timekeeper.controller.state.sessions import MeteredSession
from timekeeper.domain.pods import PodFacts


def removals(books: Books) -> tuple[PodWrite, ...]:
    """Returns the removals of finalizers that are due."""
    sessions, holds = books.pods.sessions, books.rules.holds_pods
    return tuple(
        PodWrite(pod.uid, pod.namespace, pod.name, books.account_of(pod.namespace), Step.FINALIZER)
        for pod in books.pods.facts.values()
        if pod.held and may_go(pod, sessions.get(pod.uid), holds=holds)
    )


def may_go(pod: PodFacts, metered: MeteredSession | None, *, holds: bool) -> bool:
    """Whether a pod's finalizer may be removed: the pod has ended and its session is closed, or it never had one.

    Args:
        pod: a pod with the finalizer.
        metered: its session; None where it never held a device.
        holds: whether the settings give pods a finalizer at all; if not, leftover ones are removed.
    """
    if not holds:
        return True
    if not pod.terminal and not pod.removed:
        return False
    return metered is None or metered.acknowledged.closed
