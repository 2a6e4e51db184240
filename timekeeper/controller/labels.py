"""Decides which pods get the label of GPU pods from the timekeeper: those that hold GPUs by claims, and lack it.

Admission labels each pod whose claim is for a GPU by then. A claim may be deleted and made again under its name while
its pod waits, and a DeviceClass may be one that the webhook's settings do not list. What a claim holds is known once it
is allocated.
"""

from __future__ import annotations

from timekeeper.controller.pod_writes import PodWrite, Step
from timekeeper.controller.state.books import Books
from timekeeper.domain.pods import PodFacts


def labels(books: Books) -> tuple[PodWrite, ...]:
    """Returns the writes of the label that are due: on bound pods that reserve a claim whose session is open.

    Namespaces whose pods are charged to the account overhead are left alone.

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
    """Whether a pod that reserves a claim is to get the label.

    A pod that also asks for FairGPU's own resources is older than the label, which makes its annotations count: an
    admin labels it.
    """
    if pod.guarded or not pod.bound or pod.terminal:
        return False
    return pod.reservation is None or bool(pod.reservation.holdings)
