"""KAI: fractions of a GPU by annotations, on GPUs that its reservation pods hold for it.

Source: KAI-Scheduler v0.9, pkg/common/constants/constants.go (annotations, labels) and
pkg/binder/binding/resourcereservation (reservation pods: one for each shared GPU, with `nvidia.com/gpu: 1`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from timekeeper.domain.holdings import nvidia
from timekeeper.domain.holdings.holding import NOTHING, UNKNOWN_MODEL, WHOLE, Decision, Doubt, Holding, join
from timekeeper.domain.holdings.observed import BoundPod, HostNode

WAY: Final = "kai"
FRACTION: Final = "gpu-fraction"
MEMORY: Final = "gpu-memory"
DEVICES: Final = "gpu-fraction-num-devices"
RECEIVED: Final = "received-resource-type"
RECEIVED_FRACTION: Final = "Fraction"
SCHEDULERS: Final = frozenset({"kai-scheduler", "runai-scheduler"})
"""The default names of its scheduler: a pod's annotations may be removed while it runs, its scheduler's name not."""
GROUP: Final = "runai-gpu-group"
"""On a pod: the shared GPU that it is on; with a slash and a suffix where it is on several."""
RESERVATION_NAMESPACES: Final = frozenset({"kai-resource-reservation", "runai-reservation"})


def reserves(pod: BoundPod) -> bool:
    """Whether a pod only keeps a GPU for the fractions that share it; the fractions are billed, and it is not.

    The namespace is `runai-reservation` up to v0.5.
    """
    return pod.namespace in RESERVATION_NAMESPACES


def decide(pod: BoundPod, node: HostNode) -> Decision:
    """Returns the fraction of each of its GPUs that a pod holds.

    KAI marks a pod that it has bound to a fraction. Without the mark the annotations are a wish that no scheduler
    granted, and hold nothing.
    """
    grouped = any(label == GROUP or label.startswith(f"{GROUP}/") for label in pod.labels)
    wished = FRACTION in pod.annotations or MEMORY in pod.annotations
    if not wished or not (grouped or pod.annotations.get(RECEIVED) == RECEIVED_FRACTION):
        return NOTHING
    model = nvidia.model_of(node)
    doubts = set() if model else {Doubt.MODEL_UNKNOWN}
    share = _share(pod, node, doubts)
    count = _whole(pod.annotations.get(DEVICES, "1")) or 1
    return Decision(join(Holding(WAY, model or UNKNOWN_MODEL, count, share, share)), frozenset(doubts))


def _share(pod: BoundPod, node: HostNode, doubts: set[Doubt]) -> Fraction:
    """Returns the share of each GPU: the fraction, or the memory in MiB of the GPU's; a whole GPU if unreadable."""
    if FRACTION in pod.annotations:
        try:
            fraction = Fraction(pod.annotations[FRACTION].strip()[:_LONGEST])
        except (ValueError, ZeroDivisionError):
            fraction = Fraction(0)
        if 0 < fraction <= 1:
            return fraction
        doubts.add(Doubt.ALLOCATION_UNREADABLE)
        return WHOLE
    asked, total = _whole(pod.annotations[MEMORY]), nvidia.memory_mib(node)
    if not asked:
        doubts.add(Doubt.ALLOCATION_UNREADABLE)
        return WHOLE
    if not total:
        doubts.add(Doubt.SIZE_UNKNOWN)
        return WHOLE
    return min(Fraction(asked, total), WHOLE)


_LONGEST = 20
"""The most characters of a fraction that are read; its author may write as many as they like."""


def _whole(text: str) -> int:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else 0
