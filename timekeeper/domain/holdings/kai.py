"""KAI: fractions of a GPU by annotations, on GPUs that its reservation pods hold for it.

Source: KAI-Scheduler d5bc503a (after v0.17.0), pkg/common/constants/constants.go (annotations, labels),
pkg/binder/common/constants.go (the mark of a fraction), pkg/binder/binding/binder.go (which writes it) and
pkg/binder/binding/resourcereservation (reservation pods: one for each shared GPU, with `nvidia.com/gpu: 1`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from fairgpu.dialects.kai import MEMORY_LIMITED, MEMORY_REQUEST, OF_CONTAINER
from fairgpu.existing import RESERVATIONS
from fairgpu.quantity import MIB, QuantityError, parse_quantity
from timekeeper.domain.holdings import nvidia
from timekeeper.domain.holdings.holding import (
    MOST_PARTS,
    NOTHING,
    UNKNOWN_MODEL,
    WHOLE,
    BoundPod,
    Decision,
    Doubt,
    Holding,
    HostNode,
    join,
)

WAY: Final = "kai"
FRACTION: Final = "gpu-fraction"
MEMORY: Final = "gpu-memory"
DEVICES: Final = "gpu-fraction-num-devices"
MOST_OF_CONTAINERS: Final = 16
"""The most annotations for single containers that are read of a pod. KAI refuses a pod that has them for two
containers.
"""
RECEIVED: Final = "received-resource-type"
RECEIVED_FRACTION: Final = "Fraction"
SCHEDULERS: Final = frozenset({"kai-scheduler", "runai-scheduler"})
"""The default names of KAI's scheduler. They identify its pods even if annotations are removed: `schedulerName` is
immutable.
"""
GROUP: Final = "runai-gpu-group"
"""The label of a pod that names its shared GPU. A pod on several GPUs has one label for each, with a slash and a
suffix.
"""


def is_of_a_container(annotation: str) -> bool:
    """Returns whether a pod's annotation with this key asks KAI for a part of a GPU's memory for one container."""
    return annotation.startswith(OF_CONTAINER) and annotation.endswith((MEMORY_REQUEST, MEMORY_LIMITED))


def reserves(pod: BoundPod) -> bool:
    """Returns whether a pod is one of KAI's reservation pods, which are not billed.

    Such a pod only reserves a GPU for the pods that share it. Those pods are billed for the GPU.
    """
    return pod.namespace in RESERVATIONS


def decide(pod: BoundPod, node: HostNode) -> Decision:
    """Returns the fractions of GPUs that a pod holds by KAI: the same fraction of each of its GPUs.

    KAI writes a label or an annotation (GROUP, RECEIVED) on a pod that it has bound to a fraction. On a pod with
    neither, the annotations are a request that no scheduler granted, and the pod holds nothing. If KAI has bound the
    pod but its request cannot be read, the pod holds whole GPUs.
    """
    grouped = any(label == GROUP or label.startswith(f"{GROUP}/") for label in pod.labels)
    if not grouped and pod.annotations.get(RECEIVED) != RECEIVED_FRACTION:
        return NOTHING
    model = nvidia.model_of(node)
    doubts = set() if model else {Doubt.MODEL_UNKNOWN}
    share = _share(pod, node, doubts)
    count = min(_whole(pod.annotations.get(DEVICES, "1")), MOST_PARTS) or 1
    return Decision(join(Holding(WAY, model or UNKNOWN_MODEL, count, share, share)), frozenset(doubts))


def _share(pod: BoundPod, node: HostNode, doubts: set[Doubt]) -> Fraction:
    """Returns the share that a pod asks for of each of its GPUs, from 0 to 1: by memory, or as a fraction.

    As in KAI, a container's own memory comes before the pod's annotations, and a limit without a request is the
    request. Of several containers, the one with the most memory counts. An unreadable annotation stands for a whole
    GPU, and adds a doubt to `doubts`.
    """
    of_containers = {key: text for key, text in pod.annotations.items() if is_of_a_container(key)}
    if len(of_containers) > MOST_OF_CONTAINERS:
        doubts.add(Doubt.ALLOCATION_UNREADABLE)
        return WHOLE
    if of_containers:
        amounts = (_mib(text) for key, text in of_containers.items() if not _has_request(key, of_containers))
        return _of_memory(max(amounts), node, doubts)
    if FRACTION in pod.annotations:
        text = pod.annotations[FRACTION].strip()
        fraction = Fraction(text) if _DECIMAL.fullmatch(text) else Fraction(0)
        if 0 < fraction <= 1:
            return fraction
        doubts.add(Doubt.ALLOCATION_UNREADABLE)
        return WHOLE
    return _of_memory(Fraction(_whole(pod.annotations.get(MEMORY, ""))), node, doubts)


def _has_request(key: str, of_containers: Mapping[str, str]) -> bool:
    """Returns whether `key` names a container's memory limit that does not count, since its request is given, too.

    Args:
        key: the key of an annotation.
        of_containers: the pod's annotations about the memory of its containers.
    """
    return key.endswith(MEMORY_LIMITED) and key.removesuffix(MEMORY_LIMITED) + MEMORY_REQUEST in of_containers


def _of_memory(asked: Fraction, node: HostNode, doubts: set[Doubt]) -> Fraction:
    """Converts `asked` MiB of memory to a share of a GPU of the node, at most 1.

    The share is 1, and a doubt is added to `doubts`, if the node does not state its GPUs' memory, or for 0 MiB: 0
    stands for an unreadable amount.
    """
    total = nvidia.memory_mib(node)
    if not asked:
        doubts.add(Doubt.ALLOCATION_UNREADABLE)
        return WHOLE
    if not total:
        doubts.add(Doubt.SIZE_UNKNOWN)
        return WHOLE
    return min(asked / total, WHOLE)


def _mib(text: str) -> Fraction:
    try:
        return max(parse_quantity(text.strip()) / MIB, Fraction(0))
    except QuantityError:
        return Fraction(0)


_DECIMAL = re.compile(r"[+]?(?:[0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,2})?")
"""The texts that are read as a fraction.

Digits and exponent are bounded, since a user writes the text, and an exponent can demand any amount of memory. A longer
text is refused and not cut off: cut off, it would be another number.
"""
_WHOLE_NUMBER = re.compile(r"[+]?0*([0-9]+)")
_LONGEST = 12
"""The most digits of a whole number without its leading zeros; KAI reads any number of zeros, and a sign."""


def _whole(text: str) -> int:
    matched = _WHOLE_NUMBER.fullmatch(text.strip())
    if matched is None:
        return 0
    return int(matched[1]) if len(matched[1]) <= _LONGEST else 10**_LONGEST
