"""Reads which GPUs of other stacks a pod asks for, where those stacks share a cluster's GPUs beside FairGPU.

The other stack's scheduler decides which GPUs the pod gets. Until then, the pod's request bounds the cost: each unit of
a resource counts as a whole GPU, or as the smaller share that the request itself states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from fairgpu.charging import ChargeRules, UnplacedShare, unplaced_rate
from fairgpu.container_parser import MAX_CONTAINERS
from fairgpu.demand import is_native_sidecar, peak
from fairgpu.dialects import aliyun, hami, kai, registry, volcano
from fairgpu.dialects.reading import DialectSettings
from fairgpu.json_values import list_of, mapping
from fairgpu.pod import read_pod
from fairgpu.quantity import MIB, QuantityError, parse_count, parse_quantity
from fairgpu.request import GPURequest

MOST_UNITS: Final = 10**6
"""The most units of one resource that are charged; a larger request is charged as this many. No node has as many."""
_NUMBERS: Final = frozenset({hami.COUNT, volcano.COUNT, volcano.WHOLE_GPUS, aliyun.COUNT})
SIZES: Final = registry.FOREIGN.resources - _NUMBERS
"""The dialects' resources that state how large the container's share of each GPU is, such as its memory, and not a
number of GPUs."""
_INTEL_SIZES: Final = frozenset({"gpu.intel.com/millicores", "gpu.intel.com/tiles", "gpu.intel.com/memory.max"})
_ASCEND, _ASCEND_SIZES = "huawei.com/Ascend", ("-memory", "-core")
"""The names of sizes that a container requests beside the device itself: those of Intel's resource manager, and, by
prefix and endings, those of HAMi for Huawei's devices."""


class StackNames:
    """The names by which pods ask for GPUs of other stacks.

    Attributes:
        resources: the names of resources that stand for such GPUs in a container's limits or requests.
        prefixes: prefixes; each resource whose name begins with one of them stands for such GPUs, too.
        annotations: the keys of pods' annotations that ask for such GPUs.
    """

    def __init__(self, resources: frozenset[str], prefixes: tuple[str, ...], annotations: frozenset[str]) -> None:
        self.resources: Final = resources
        self.prefixes: Final = prefixes
        self.annotations: Final = annotations

    def among(self, amounts: Mapping[str, Any]) -> list[str]:
        """Returns the names among a container's resources that request GPUs of other stacks.

        Args:
            amounts: the container's limits or requests: amounts, keyed by the resource's name.
        """
        return [name for name in amounts if name in self.resources or name.startswith(self.prefixes)]


class Asked:
    """The GPUs of other stacks that a pod asks for, as shares of GPUs of unknown model.

    Attributes:
        containers: the share of each main container, in the pod's order; None if the container asks for no GPU.
        init: for each init container, in the pod's order, a pair: its share, None if it asks for no GPU, and whether it
            is a native sidecar, which runs until the pod ends.
        claims: the number of GPU claims in the pod's `spec.resourceClaims`; each is charged as one GPU.
    """

    def __init__(
        self,
        containers: tuple[UnplacedShare | None, ...],
        init: tuple[tuple[UnplacedShare | None, bool], ...],
        claims: int,
    ) -> None:
        self.containers: Final = containers
        self.init: Final = init
        self.claims: Final = claims

    def rate(self, price: Fraction, rules: ChargeRules) -> int:
        """Returns the most that the pod costs, in microGPU-seconds a second.

        Args:
            price: GPU-hours charged for an hour of a whole GPU; 1 without prices.
            rules: the admin's rules for charging.
        """

        def of(share: UnplacedShare | None) -> int:
            return 0 if share is None else unplaced_rate(share, price, rules)

        by_claims = unplaced_rate(UnplacedShare(self.claims, 100 * self.claims), price, rules) if self.claims else 0
        steps = [(of(share), keeps_running) for share, keeps_running in self.init]
        return by_claims + peak([of(share) for share in self.containers], steps)


def read_asked(pod: Mapping[str, Any], names: StackNames, dialects: DialectSettings, claims: int = 0) -> Asked | None:
    """Returns the GPUs of other stacks that a pod asks for; None if it asks for none.

    A pod asks for GPUs if it uses one of the names, has a claim, or has an annotation of KAI with a container's GPU
    memory. A name with the amount 0 counts as used, as it does for the admission policy fairgpu-spec. The result is
    also None for a pod without containers, or with more than MAX_CONTAINERS containers or init containers.

    Args:
        pod: the pod, as JSON.
        names: the names by which pods ask for GPUs of other stacks.
        dialects: the admin's settings of the dialects.
        claims: the number of GPU claims in the pod's `spec.resourceClaims`.
    """
    spec, annotations = mapping(pod.get("spec")), mapping(mapping(pod.get("metadata")).get("annotations"))
    containers, init = list_of(spec.get("containers")), list_of(spec.get("initContainers"))
    if not containers or max(len(containers), len(init)) > MAX_CONTAINERS:
        return None
    named = {
        (field, index): (mapping(resources), found)
        for field, items in (("containers", containers), ("initContainers", init))
        for index, item in enumerate(items)
        if (found := _named(resources := mapping(mapping(item).get("resources")), names))
    }
    annotated = not names.annotations.isdisjoint(annotations)
    own = {} if not annotations else _own_memory(annotations, containers, init)
    if not named and not annotated and not own and not claims:
        return None
    requests: dict[tuple[str, int], GPURequest] = {}
    if annotated or any(not registry.FOREIGN.resources.isdisjoint(found) for _, found in named.values()):
        reading = read_pod(_without_own_memory(pod) if own else pod, dialects, dialects=registry.FOREIGN)
        for container in (*reading.containers, *reading.init):
            if container.request is not None:
                requests[str(container.path[-2]), container.index] = container.request

    def share(field: str, index: int) -> UnplacedShare | None:
        resources, gpu_names = named.get((field, index), ({}, []))
        beside = _share(requests.get((field, index)), resources, gpu_names)
        return _together(own.get((field, index)), beside)

    return Asked(
        tuple(share("containers", index) for index in range(len(containers))),
        tuple((share("initContainers", index), is_native_sidecar(mapping(item))) for index, item in enumerate(init)),
        claims,
    )


def _own_memory(
    annotations: Mapping[str, Any], containers: list[Any], init: list[Any]
) -> dict[tuple[str, int], UnplacedShare]:
    """Returns the shares of the containers for which annotations of the pod ask for GPU memory, as KAI reads them.

    A share's key is the list that has the container, `containers` or `initContainers`, and the container's index in the
    list. A container for which the annotations state only a memory limit requests that limit. The number of GPUs is
    that of the annotation `kai.DEVICES`, else 1. A value that is no quantity of memory above 0 asks for whole GPUs.
    """
    shares = {}
    count = min(max(_units(annotations.get(kai.DEVICES, 1)), 1), MOST_UNITS)
    for field, items in (("containers", containers), ("initContainers", init)):
        for index, item in enumerate(items):
            begins = f"{kai.OF_CONTAINER}{mapping(item).get('name')}"
            request, limit = f"{begins}{kai.MEMORY_REQUEST}", f"{begins}{kai.MEMORY_LIMITED}"
            if request in annotations or limit in annotations:
                mib = _mib(annotations[request if request in annotations else limit])
                shares[field, index] = (
                    UnplacedShare(count, 0, count * mib) if mib else UnplacedShare(count, 100 * count)
                )
    return shares


def _without_own_memory(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a pod without the annotations that `_own_memory` counts, so that no dialect counts them again."""
    metadata = mapping(pod.get("metadata"))
    others = {
        key: value
        for key, value in mapping(metadata.get("annotations")).items()
        if not (key.startswith(kai.OF_CONTAINER) and key.endswith((kai.MEMORY_REQUEST, kai.MEMORY_LIMITED)))
    }
    return {**pod, "metadata": {**metadata, "annotations": others}}


def _mib(text: Any) -> int:
    """Returns a quantity of bytes in MiB, rounded up; 0 for a text that is no quantity above 0."""
    try:
        return max(math.ceil(parse_quantity(text) / MIB), 0)
    except QuantityError:
        return 0


def _together(own: UnplacedShare | None, beside: UnplacedShare | None) -> UnplacedShare | None:
    """Returns the sum of two shares of one container; None if both are None.

    `own` is the share that the pod's annotations ask for by the container's name. `beside` is the share that the
    container's resources ask for.
    """
    if own is None or beside is None:
        return own or beside
    return UnplacedShare(
        own.gpus + beside.gpus,
        own.core_percent + beside.core_percent,
        own.memory_mib + beside.memory_mib,
        own.memory_percentage + beside.memory_percentage,
    )


def _named(resources: Mapping[str, Any], names: StackNames) -> list[str]:
    limits, requests = mapping(resources.get("limits")), mapping(resources.get("requests"))
    in_limits = names.among(limits)
    return [*in_limits, *(name for name in names.among(requests) if name not in limits)] if requests else in_limits


def _share(request: GPURequest | None, resources: Mapping[str, Any], gpu_names: list[str]) -> UnplacedShare | None:
    """Returns the share of GPUs that a container's resources ask for; None if they ask for none.

    The share is the sum of the request that a dialect reads, and of a whole GPU for each unit of any other resource in
    `gpu_names` that counts GPUs. A container that states only sizes, which no dialect reads, asks for one GPU, or for
    none if all sizes are 0.

    Args:
        request: the request that a dialect reads from the container; None if no dialect does.
        resources: the container's resources, as JSON with `requests` and `limits`.
        gpu_names: the names of the resources among these that ask for GPUs of other stacks.
    """
    amounts = {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}
    read = registry.FOREIGN.resources if request is not None else frozenset[str]()
    units = [_units(amounts.get(name)) for name in gpu_names if name not in read and not _is_size(name)]
    whole = min(sum(units), MOST_UNITS)
    if request is None and not units and any(_units(amounts.get(name)) for name in gpu_names):
        whole = 1  # it says how much of a GPU, in a form that no dialect reads
    if request is None:
        return UnplacedShare(whole, 100 * whole) if whole else None
    return UnplacedShare(
        request.gpus + whole,
        request.core_percent + 100 * whole,
        request.memory_mib or 0,
        request.memory_percentage or 0,
    )


def _is_size(name: str) -> bool:
    of_device = name in _INTEL_SIZES or (name.startswith(_ASCEND) and name.endswith(_ASCEND_SIZES))
    return of_device or name in SIZES


def _units(value: Any) -> int:
    try:
        return min(parse_count(value), MOST_UNITS)
    except QuantityError:
        return 1  # the API server refuses it, or takes it in a form that FairGPU does not read
