"""Decides which parts of GPUs a bound pod holds; the first stack that covers an extended resource decides about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final

from timekeeper.domain.holdings import aliyun, gpu_manager, hami, kai, listed, nvidia, volcano
from timekeeper.domain.holdings.hami import decode_lists
from timekeeper.domain.holdings.holding import NOTHING, BoundPod, Container, Decision, Doubt, HostNode, join, summed
from timekeeper.domain.holdings.listed import TABLE, Listed

Way = Callable[[BoundPod, HostNode], Decision]

WAYS: Final[tuple[Way, ...]] = (
    kai.decide,
    hami.decide,
    volcano.decide,
    aliyun.decide,
    gpu_manager.decide,
    nvidia.decide,
)
"""The functions that decide what a pod holds by one stack each, in the order in which they are asked.

A stack that has annotations of its own comes before the device plugin whose resources it uses.
"""

NAMES: Final = (
    hami.RESOURCES
    | volcano.RESOURCES
    | aliyun.RESOURCES
    | gpu_manager.RESOURCES
    | TABLE.keys()
    | {nvidia.GPU, nvidia.GPU + nvidia.SHARED_SUFFIX}
)
"""The extended resources whose holders are metered.

The resources of MIG are not listed: their common prefix identifies them. The admin's settings add further resources.
"""


def is_accelerator(resource: str, own: Mapping[str, Listed]) -> bool:
    """Returns whether a pod that asks for an extended resource may hold a part of a GPU or another accelerator.

    Args:
        own: the resources that the admin lists in the settings, keyed by name.
    """
    return resource in NAMES or resource.startswith(nvidia.MIG_PREFIX) or resource in own


def is_read(resource: str, own: Mapping[str, Listed]) -> bool:
    """Returns whether the amount of an extended resource that a pod asks for decides which parts of GPUs it holds.

    Such a resource is an accelerator, or states the part that the pod takes of one.

    Args:
        own: the resources that the admin lists in the settings, keyed by name.
    """
    if resource in listed.INTEL_SIZES:
        return True
    named = (resource.removesuffix(suffix) for suffix in listed.ASCEND_SIZES)
    return is_accelerator(resource, own) or any(is_accelerator(name, own) for name in named)


ANNOTATIONS: Final = (
    hami.ALLOCATED,
    volcano.ALLOCATED,
    kai.FRACTION,
    kai.MEMORY,
    kai.DEVICES,
    kai.RECEIVED,
    aliyun.DEVICE_MEMORY,
    aliyun.ALLOCATION,
)
"""The annotations of pods that decide what they hold."""

ASKING_ANNOTATIONS: Final = (kai.FRACTION, kai.MEMORY)
"""The annotations by which a pod asks for a part of a GPU without naming a resource."""

ASKING_SCHEDULERS: Final = kai.SCHEDULERS
"""The schedulers whose pods may hold a part of a GPU without naming a resource."""

is_of_a_container: Final = kai.is_of_a_container
"""Returns whether an annotation of a pod decides what one of its containers holds."""

MOST_OF_CONTAINERS: Final = kai.MOST_OF_CONTAINERS
"""The most annotations for single containers that are read of a pod; a pod with more holds whole GPUs."""

LABEL: Final = kai.GROUP
"""The label that decides what a pod holds; on some pods a slash and a suffix follow the label's key."""


def decide(pod: BoundPod, node: HostNode, own: Mapping[str, Listed]) -> Decision:
    """Returns the parts of GPUs that a bound pod holds by other stacks; each of its extended resources is counted once.

    KAI's reservation pods count as holding nothing.

    Args:
        own: the resources that the admin lists in the settings, keyed by name. They override FairGPU's own table.
    """
    if kai.reserves(pod):
        return NOTHING
    decisions = [listed.decide(pod, node, own)] if own else []
    covered: frozenset[str] = frozenset().union(*(decision.resources for decision in decisions))
    for way in (*WAYS, _by_table):
        decision = way(pod.without(covered), node)
        decisions.append(decision)
        covered |= decision.resources
    doubts: frozenset[Doubt] = frozenset().union(*(decision.doubts for decision in decisions))
    return Decision(join(*(holding for decision in decisions for holding in decision.holdings)), doubts, covered)


def capacity(node: HostNode, own: Mapping[str, Listed]) -> dict[str, Fraction]:
    """Returns the number of a node's GPUs that other stacks share, keyed by model.

    HAMi and Volcano list the node's GPUs in an annotation: the devices of the first readable list are counted. An
    Ascend device in such a list counts under the model that its pods are charged for. Without a readable list, the
    result is the number of GPUs that a pod would hold if it asked for everything that the node offers.

    Args:
        own: the resources that the admin lists in the settings, keyed by name.
    """
    ascend = (name for name in sorted(node.annotations) if name.startswith(listed.ASCEND_REGISTER))
    for register in (hami.REGISTER, volcano.REGISTER, *ascend):
        devices = decode_lists(node.annotations.get(register), None).node
        if devices is not None:
            resource = register.replace(listed.ASCEND_REGISTER, listed.ASCEND)
            entry = own.get(resource) or TABLE.get(resource)
            models = Counter(listed.model_of(entry, node) if entry else item.model for item in devices.values())
            return {model: Fraction(count) for model, count in models.items()}
    return summed(
        (holding.model, holding.count * max(holding.time, holding.memory)) for holding in decide_all(node, own).holdings
    )


def models_of(node: HostNode, own: Mapping[str, Listed]) -> frozenset[str]:
    """Returns the models of the GPUs that other stacks share on a node; UNKNOWN_MODEL stands for one without a name.

    Args:
        own: the resources that the admin lists in the settings, keyed by name.
    """
    return frozenset(holding.model for holding in decide_all(node, own).holdings)


def decide_all(node: HostNode, own: Mapping[str, Listed]) -> Decision:
    """Returns the parts of GPUs that a pod would hold if it asked for all GPUs that a node offers.

    The assumed pod has no annotations. Intel's GPUs of both drivers count as if one driver served them: the node states
    one sum of memory and tiles for all its Intel GPUs, which would otherwise count twice.

    Args:
        own: the resources that the admin lists in the settings, keyed by name.
    """
    sized = listed.INTEL_SIZES
    offered = {name: units for name, units in node.capacity.items() if is_accelerator(name, own) or name in sized}
    drivers = [name for name in listed.INTEL_GPUS if name in offered and name not in own]
    for other in drivers[1:]:
        offered[drivers[0]] += offered.pop(other)
    return decide(BoundPod(containers=(Container(offered),)), node, own)


def _by_table(pod: BoundPod, node: HostNode) -> Decision:
    return listed.decide(pod, node, TABLE)
