"""Dynamic Resource Allocation: what a ResourceClaim holds by its allocation, joined to the devices of ResourceSlices.

Sources:

- API: kubernetes/kubernetes, staging/src/k8s.io/api/resource, types.go of v1, v1beta2 and v1beta1.
- NVIDIA: k8s-dra-driver-gpu v25.3, cmd/gpu-kubelet-plugin/deviceinfo.go (attributes); counters are since v25.12,
  cmd/gpu-kubelet-plugin/partitions.go.
- AMD: ROCm/k8s-gpu-dra-driver, cmd/gpu-kubeletplugin/deviceinfo.go; its partitions have a profile and no counters.
- Intel: intel-resource-drivers-for-kubernetes, cmd/kubelet-gpu-plugin and cmd/kubelet-gaudi-plugin, node_state.go.
- TPU: kubernetes-sigs/dra-driver-google-tpu v0.2.0, cmd/tpu-dra-kubeletplugin/manager.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, NamedTuple

from fairgpu.json_values import mapping, mappings
from fairgpu.names import TERMINAL_PHASES
from fairgpu.quantity import QuantityError, parse_quantity
from timekeeper.domain.holdings import listed, nvidia
from timekeeper.domain.holdings.holding import (
    UNKNOWN_MODEL,
    WHOLE,
    BoundPod,
    Decision,
    Doubt,
    Holding,
    join,
    read_bound_pod,
    summed,
)

WAY: Final = "dra"
DRIVERS: Final = frozenset({"gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com", "gaudi.intel.com", "tpu.google.com"})
"""The drivers whose devices are accelerators. A claim for another driver's device, such as a NIC, costs nothing."""
MODEL_ATTRIBUTES: Final = ("productName", "model", "tpuGen")
"""The attributes that name a device's model. The first of them that the device has counts."""
PROFILE: Final = "profile"
PARTITION: Final = "partitionProfile"
ATTRIBUTES: Final = frozenset({*MODEL_ATTRIBUTES, PROFILE, PARTITION})
"""All attributes of devices that FairGPU reads; others are dropped."""
MEMORY: Final = "memory"
COMPUTE: Final = "multiprocessors"
"""The counter of compute; only NVIDIA's driver has counters."""


@dataclass(frozen=True, slots=True)
class SliceDevice:
    """A device of a ResourceSlice.

    Attributes:
        model: the model's name; UNKNOWN_MODEL if no attribute names it.
        capacity: the amount of each of its capacities, in the unit of its slice, keyed by name without a domain.
        counters: the share of each counter that the device consumes, from 0 to 1, keyed by the counter's name.
        counter_sets: the names of the counter sets of its pool from which it consumes.
        profile: the profile of a MIG device; empty for any other.
        partition: the compute and memory modes of an AMD GPU, such as `cpx_nps4`; empty for any other.
        shared: whether several claims may each have a part of its capacity.
        node: the node that it is on; empty if its slice names none.
    """

    model: str = UNKNOWN_MODEL
    capacity: Mapping[str, Fraction] = field(default_factory=dict)
    counters: Mapping[str, Fraction] = field(default_factory=dict)
    counter_sets: frozenset[str] = frozenset()
    profile: str = ""
    partition: str = ""
    shared: bool = False
    node: str = ""


DeviceKey = tuple[str, str, str]
"""Driver, pool and name of a device, which together are unique in a cluster."""


def read_slices(slices: Iterable[Mapping[str, Any]]) -> dict[DeviceKey, SliceDevice]:
    """Returns the devices of ResourceSlices, keyed by (driver, pool, name).

    Of each pool, only the slices of its highest generation count. The counters of a device may stand in another slice
    of its pool. A field that is missing or of another type counts as absent.

    Args:
        slices: the ResourceSlice objects.
    """
    latest: dict[tuple[str, str], int] = {}
    specs = [mapping(item.get("spec")) for item in slices]
    for spec in specs:
        pool = _pool(spec)
        latest[pool] = max(latest.get(pool, 0), _generation(spec))
    present = [spec for spec in specs if _generation(spec) == latest[_pool(spec)]]
    counters: dict[tuple[str, str], dict[tuple[str, str], Fraction]] = {}
    for spec in present:
        for group in mappings(spec.get("sharedCounters")):
            totals = {
                (str(group.get("name")), name): amount for name, amount in _amounts(group.get("counters")).items()
            }
            counters.setdefault(_pool(spec), {}).update(totals)
    return {
        (*_pool(spec), str(device.get("name"))): _device(device, counters.get(_pool(spec), {}), _node(spec))
        for spec in present
        for device in mappings(spec.get("devices"))
    }


def decide(claim: Mapping[str, Any], devices: Mapping[DeviceKey, SliceDevice], drivers: frozenset[str]) -> Decision:
    """Returns the parts of GPUs that a ResourceClaim holds; none before it is allocated.

    - A whole device is one GPU, and so is a device that no ResourceSlice describes.
    - A partition that consumes counters of its GPU has the shares of memory and of time that these counters state. If
      no counter is for compute, its share of time is the mean of its shares of all counters. If none is for memory, its
      share of memory equals that of time.
    - A partition without counters is the part of a GPU that its profile (of AMD: its modes) states.
    - If several claims share a device by its capacities, such as memory, the claim holds the largest share that it has
      of any of them; if no share is known, the whole device.
    - A device to which the claim has administrative access counts for nothing.

    Args:
        devices: the devices of the cluster, keyed by (driver, pool, name).
        drivers: the names of the drivers whose devices are charged.
    """
    doubts: set[Doubt] = set()
    holdings = []
    for result in results_of(claim):
        driver = str(result.get("driver"))
        if driver not in drivers or result.get("adminAccess") is True:
            continue
        device = devices.get((driver, str(result.get("pool")), str(result.get("device"))))
        if device is None:
            doubts |= {Doubt.DEVICE_UNKNOWN, Doubt.MODEL_UNKNOWN}
            holdings.append(Holding(WAY, UNKNOWN_MODEL, 1, WHOLE, WHOLE))
            continue
        if not device.model:
            doubts.add(Doubt.MODEL_UNKNOWN)
        time, memory = _part(device, _amounts(result.get("consumedCapacity")), doubts)
        holdings.append(Holding(WAY, device.model, 1, time, memory))
    return Decision(join(*holdings), frozenset(doubts))


def capacity(devices: Mapping[DeviceKey, SliceDevice]) -> dict[str, Fraction]:
    """Returns the number of whole GPUs that the published devices make up, keyed by model.

    A driver publishes a GPU and each partition that the GPU can have as separate devices, which consume the same set of
    counters. They cannot all be allocated at once, so each set counts as one GPU. A device without a set counts as a
    GPU, or as the part that its profile (of AMD: its modes) states.

    Args:
        devices: the devices, keyed by (driver, pool, name).
    """
    sets = {
        (driver, pool, name): device.model
        for (driver, pool, _), device in devices.items()
        for name in device.counter_sets
    }
    apart = [(one.model, max(_part(one, {}, set()))) for one in devices.values() if not one.counter_sets]
    return summed([*((model, WHOLE) for model in sets.values()), *apart])


def results_of(claim: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the entries of `status.allocation.devices.results` of a ResourceClaim; none before it is allocated."""
    allocation = mapping(mapping(claim.get("status")).get("allocation"))
    return mappings(mapping(allocation.get("devices")).get("results"))


def reserving_pods(claim: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the uids of the pods that reserve a ResourceClaim object; there may be several."""
    consumers = mappings(mapping(claim.get("status")).get("reservedFor"))
    return tuple(str(item.get("uid")) for item in consumers if item.get("resource") == "pods")


def names_drivers(claim: Mapping[str, Any], drivers: frozenset[str]) -> bool:
    """Returns whether the allocation of a ResourceClaim names a device of any of these drivers."""
    return any(item.get("driver") in drivers for item in results_of(claim))


def unlisted_drivers(claim: Mapping[str, Any], drivers: frozenset[str]) -> frozenset[str]:
    """Returns the drivers of a ResourceClaim's devices that are not among `drivers`; their devices cost nothing.

    Args:
        drivers: the names of the drivers whose devices are charged.
    """
    return frozenset(str(item.get("driver")) for item in results_of(claim)) - drivers


FullName = tuple[str, str]
"""The namespace and the name of an object."""


def without_claimed(
    pod: Mapping[str, Any], claims: Callable[[], Mapping[FullName, Mapping[str, Any]]], drivers: frozenset[str]
) -> BoundPod:
    """Returns a bound pod without the extended resources for which kube-scheduler made a ResourceClaim.

    The claim is charged in place of these resources. The pod's status names the claim. The status is believed only if
    the claim is reserved for the pod and has a device of one of the drivers. Once a pod has ended, Kubernetes takes the
    devices from its claim and deletes the claim. The status of such a pod is therefore believed even if the claim is
    not reserved for the pod, has no devices, or does not exist.

    Args:
        pod: the Pod object.
        claims: returns the ResourceClaim objects, keyed by namespace and name.
        drivers: the names of the drivers whose devices are charged.
    """
    bound = read_bound_pod(pod)
    covering = extended_claim(pod)
    if covering is None:
        return bound
    claim = claims().get((bound.namespace, covering.claim), {})
    ended = mapping(pod.get("status")).get("phase") in TERMINAL_PHASES
    of_the_pod = ended or str(mapping(pod.get("metadata")).get("uid")) in reserving_pods(claim)
    freed = ended and not results_of(claim)
    believed = freed or (of_the_pod and names_drivers(claim, drivers))
    return bound.without(covering.resources) if believed else bound


class ExtendedClaim(NamedTuple):
    """The ResourceClaim that kube-scheduler made for extended resources of a pod.

    Attributes:
        claim: the claim's name.
        resources: the names of the extended resources.
    """

    claim: str
    resources: frozenset[str]


def extended_claim(pod: Mapping[str, Any]) -> ExtendedClaim | None:
    """Returns the ResourceClaim that kube-scheduler made for a pod's extended resources; None if it made none.

    Source: kubernetes/kubernetes v1.34, staging/src/k8s.io/api/core/v1/types.go, PodExtendedResourceClaimStatus.
    """
    status = mapping(mapping(pod.get("status")).get("extendedResourceClaimStatus"))
    names = frozenset(str(item.get("resourceName")) for item in mappings(status.get("requestMappings")))
    return ExtendedClaim(str(status.get("resourceClaimName")), names) if names else None


def _part(device: SliceDevice, consumed: Mapping[str, Fraction], doubts: set[Doubt]) -> tuple[Fraction, Fraction]:
    if device.counters:
        average = sum(device.counters.values(), Fraction(0)) / len(device.counters)
        time = device.counters.get(COMPUTE, average)
        return min(time, WHOLE), min(device.counters.get(MEMORY, time), WHOLE)
    if device.profile:
        return nvidia.mig_part(device.profile, device.model, None, None, doubts)
    if device.partition:
        part = Fraction(1, listed.amd_parts(device.partition, device.model, doubts))
        return part, part
    if not device.shared:
        return WHOLE, WHOLE
    shares = [
        min(amount / device.capacity[name], WHOLE) for name, amount in consumed.items() if device.capacity.get(name)
    ]
    if not shares:
        doubts.add(Doubt.SIZE_UNKNOWN)
        return WHOLE, WHOLE
    return max(shares), max(shares)


def _pool(spec: Mapping[str, Any]) -> tuple[str, str]:
    return str(spec.get("driver")), str(mapping(spec.get("pool")).get("name"))


def _generation(spec: Mapping[str, Any]) -> int:
    generation = mapping(spec.get("pool")).get("generation")
    return generation if isinstance(generation, int) and not isinstance(generation, bool) else 0


def _node(spec: Mapping[str, Any]) -> str:
    name = spec.get("nodeName")
    return name if isinstance(name, str) else ""


def _device(item: Mapping[str, Any], counters: Mapping[tuple[str, str], Fraction], node: str) -> SliceDevice:
    # v1beta1 has the fields of a device one level deeper, in `basic`.
    fields = mapping(item.get("basic")) or item
    attributes = {_own(name): mapping(value) for name, value in mapping(fields.get("attributes")).items()}
    named = [_text(attributes.get(key, {})) for key in MODEL_ATTRIBUTES]
    consumed = {str(group.get("counterSet")): _amounts(group.get("counters")) for group in _consumed(fields)}
    shares = {
        name: min(consumed[group].get(name, Fraction(0)) / whole, WHOLE)
        for (group, name), whole in counters.items()
        if group in consumed
    }
    return SliceDevice(
        model=next((name for name in named if name), UNKNOWN_MODEL),
        capacity=_amounts(fields.get("capacity")),
        counters=shares,
        counter_sets=frozenset(group for group, _ in counters if group in consumed),
        profile=_text(attributes.get(PROFILE, {})),
        partition=_text(attributes.get(PARTITION, {})),
        shared=fields.get("allowMultipleAllocations") is True,
        node=node or _node(fields),
    )


def _text(attribute: Mapping[str, Any]) -> str:
    value = attribute.get("string")
    return value if isinstance(value, str) else ""


def _consumed(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    return mappings(fields.get("consumesCounters"))


def _amounts(values: Any) -> dict[str, Fraction]:
    """Returns the amounts above 0 in a JSON object, keyed by name without a domain.

    Each is a quantity, or an object with a quantity as its field `value`; others are left out.
    """
    amounts = {}
    for name, value in mapping(values).items():
        try:
            amount = parse_quantity(mapping(value).get("value") if isinstance(value, dict) else value)
        except QuantityError:
            continue
        if amount > 0:
            amounts[_own(name)] = amount
    return amounts


def _own(name: str) -> str:
    """Returns the name of an attribute or a capacity without its domain, which is the driver's by default."""
    return name.rpartition("/")[2]
