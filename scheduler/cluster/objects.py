"""Reads pods and nodes of the API server, as JSON, into the values that placement takes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from functools import lru_cache, partial
from sys import intern
from typing import Annotated, Any, Literal

import msgspec

from fairgpu import allocation, inventory, names
from fairgpu.choices import parse_gang, read_choices
from fairgpu.demand import is_native_sidecar, peak
from fairgpu.dialects import registry
from fairgpu.dialects.reading import DialectSettings
from fairgpu.faults import explain
from fairgpu.json_values import mapping, mappings
from fairgpu.pod import PodReading, read_pod
from fairgpu.quantity import MIB, QuantityError, parse_quantity
from fairgpu.request import HIGH_PRIORITY, Gang, Placement
from scheduler.cluster.eligible import ANYWHERE, Rules, Site, others_asked, others_of, rules_of
from scheduler.placement.choosing import Placed
from scheduler.placement.fleet import Node
from scheduler.placement.holding import Holding, Piece, Share, pieces_of
from scheduler.placement.request import MAX_GPUS_OF_A_CONTAINER, Request, Wanted, need_of

Json = Mapping[str, Any]

PLACEABLE = "fairgpu.io/Placeable"
"""The type of the condition that says whether a waiting pod fits now, and if not, why."""
MOST = 1 << 40
"""The most processor time (thousandths of a core), memory (MiB) and number of pods that are counted, as no node has
more.

The API server admits `cpu: 9E`. The fleet counts in whole numbers of 64 bits, which hold the sum of a million such.
"""
UNLABELLED = f"the pod asks for no GPU of FairGPU's, and has no label {names.POD_LABEL}: {names.POD_LABEL_VALUE}"
CANONICAL = DialectSettings(max_gpus_per_node=MAX_GPUS_OF_A_CONTAINER)


class PodError(ValueError):
    """Raised for a pod that the extender cannot place; the message says why and what to write instead."""


_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Whole = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class _Device(msgspec.Struct, rename={"total_mib": "totalMiB", "memory_mib": "memoryMiB"}, gc=False):
    uuid: _Text
    model: _Text
    total_mib: Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
    core: Annotated[int, msgspec.Meta(ge=0, le=100)]
    memory_mib: _Whole


class _Container(msgspec.Struct):
    name: _Text
    devices: list[_Device]


class _Allocation(msgspec.Struct):
    v: Literal[1]
    node: _Text
    containers: list[_Container]


_ALLOCATION = msgspec.json.Decoder(_Allocation)

_SHORT = re.compile(r"Insufficient |Too many pods|\b(gpu(-\w+)?|gang|budget): ")
"""The causes in kube-scheduler's reason why a pod waits that name something short: its own
(https://github.com/kubernetes/kubernetes/blob/v1.34.2/pkg/scheduler/framework/plugins/noderesources/fit.go), and those
that the extender has answered."""


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that requests devices and is not placed yet.

    Attributes:
        uid, namespace, name: identify the pod.
        request: the GPUs, processor time and memory that the pod needs.
        containers: the names of its GPU containers, init containers first, in the order of `Request.steps`.
        prefers: whether kube-scheduler weighs several nodes for it: it has soft preferences among nodes, or the
            placement `spread`.
        priority: the number of its priority class.
        created: when it was created (RFC 3339).
        gang: its gang's name and number of pods; None if it has none.
        high_priority: whether its author chose a high task priority.
        rules: the part of its spec that decides on which nodes it may run.
        waits_for_others: whether it waits only for what `Rules.only_where_named` names, such as a volume or other
            pods: the last reason in kube-scheduler's condition names nothing that is short on a node.
    """

    uid: str
    namespace: str
    name: str
    request: Request
    containers: tuple[str, ...]
    prefers: bool = False
    priority: int = 0
    created: str = ""
    gang: Gang | None = None
    high_priority: bool = False
    rules: Rules = ANYWHERE
    waits_for_others: bool = False


@dataclass(frozen=True, slots=True)
class PodNote:
    """The facts about a pod that the scheduler keeps, as the API server last showed them.

    Attributes:
        uid, namespace, name: identify the pod.
        holding: the part of its node that it holds; None if it is not bound, or has ended.
        starts: the parts of devices that it holds, in one tuple for each main container with devices, since these
            start independently. A single tuple has all parts if at most one main container, or an init container, has
            devices.
        fault: the reason why its allocation does not count; empty for a sound allocation or none.
        waits: the pod with its request, if kube-scheduler may place it, has tried to, and found no node. None
            otherwise, and for an invalid request.
        ended: whether it holds nothing and never will: it has ended, or was deleted before it was bound.
        done: whether it has ended with success.
        gang: its gang's name and number of pods; None if it has none.
        member: the pod with its request, if it belongs to a gang and kube-scheduler may place it. None otherwise, and
            for an invalid request.
        placeable: the message of its condition fairgpu.io/Placeable; empty if it has none or is bound.
        earmark: the value of its annotation fairgpu.io/earmark; empty if it has none or is bound.
        reclaim_at: when the scheduler will evict it, as its annotation says (RFC 3339); empty if it has no notice.
        leaving: whether it was deleted, and is ending.
        since: when it was bound, in seconds since 1970; 0 if no condition states it.
        high_priority: whether its author chose a high task priority.
        priority: the number of its priority class.
        labelled: whether it has FairGPU's label, without which it is not evicted.
        others: pairs of another resource of its node, such as `rdma/hca`, and the amount that it holds; empty if it is
            not bound.
    """

    uid: str
    namespace: str
    name: str
    holding: Holding | None
    starts: tuple[tuple[Piece, ...], ...] = ()
    fault: str = ""
    waits: WaitingPod | None = None
    ended: bool = False
    done: bool = False
    gang: Gang | None = None
    member: WaitingPod | None = None
    placeable: str = ""
    earmark: str = ""
    reclaim_at: str = ""
    leaving: bool = False
    since: float = 0.0
    high_priority: bool = False
    priority: int = 0
    labelled: bool = False
    others: tuple[tuple[str, int], ...] = ()


def read_waiting(pod: Json) -> WaitingPod:
    """Returns the facts about a pod that are needed to place it, read from the pod's JSON object.

    Raises:
        PodError: the pod requests no GPU by FairGPU's resources, or its request is impossible.
    """
    metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    reading = read_pod(pod, CANONICAL, dialects=registry.NATIVE)
    if reading.faults:
        raise PodError(explain(reading.faults))
    if not reading.requests_gpu:
        raise PodError(
            "the pod asks for no fairgpu.io/gpu: leave schedulerName out, so that default-scheduler places it"
        )
    choices = read_choices(mapping(metadata.get("annotations"))).choices
    containers, init = _asking(reading)
    rules = rules_of(spec)
    cpu_milli, host_mib = host_demand(spec)
    placement = choices.placement or Placement.PACK
    request = Request(
        containers=tuple(need for _, need in containers),
        init=tuple((need, keeps) for _, need, keeps in init),
        wanted=Wanted(choices.use_models, choices.avoid_models, choices.use_uuids, choices.avoid_uuids, placement),
        cpu_milli=cpu_milli,
        host_mib=host_mib,
    )
    return WaitingPod(
        uid=str(metadata.get("uid", "")),
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        request=request,
        containers=(*(name for name, _, _ in init), *(name for name, _ in containers)),
        prefers=placement is Placement.SPREAD or _prefers(spec),
        priority=_priority(spec),
        created=str(metadata.get("creationTimestamp", "")),
        gang=choices.gang,
        high_priority=choices.task_priority == HIGH_PRIORITY,
        rules=rules,
        waits_for_others=rules.only_where_named and _lacks_nothing(mapping(pod.get("status"))),
    )


def read_note(pod: Json) -> PodNote:
    """Returns the facts about a pod that the scheduler keeps, read from the pod's JSON object.

    A bound pod holds the devices of its allocation if the allocation is valid. FairGPU's annotations count on pods with
    FairGPU's label. They also count on pods that ask for FairGPU's resources, since the extender places such pods even
    without the label. On all other pods they do not count, since the policies let a pod's author write them there.
    """
    metadata, spec, status = mapping(pod.get("metadata")), mapping(pod.get("spec")), mapping(pod.get("status"))
    written, deleted = mapping(metadata.get("annotations")), bool(metadata.get("deletionTimestamp"))
    node = intern(spec["nodeName"]) if isinstance(spec.get("nodeName"), str) else ""
    labelled = mapping(metadata.get("labels")).get(names.POD_LABEL) == names.POD_LABEL_VALUE
    counts = labelled or _asks_for_gpu(spec)
    annotations = written if counts else {}
    gang = _gang(annotations)
    note = partial(
        PodNote,
        uid=str(metadata["uid"]),
        namespace=intern(str(metadata.get("namespace", ""))),
        name=str(metadata["name"]),
        gang=gang,
        reclaim_at=str(annotations.get(names.RECLAIM_AT) or ""),
        leaving=deleted,
        high_priority=annotations.get(names.TASK_PRIORITY) == str(HIGH_PRIORITY),
        priority=_priority(spec),
        labelled=labelled,
    )
    # The API server binds no pod that was deleted, though a finalizer may keep it for long
    # (https://github.com/kubernetes/kubernetes/blob/v1.34.2/pkg/registry/core/pod/storage/storage.go).
    if status.get("phase") in names.TERMINAL_PHASES or (deleted and not node):
        return note(holding=None, ended=True, done=status.get("phase") == "Succeeded")
    if node:
        holding, starts, fault = _holding(node, annotations, spec)
        if names.ALLOCATION in written and not counts:
            fault = UNLABELLED
        since, others = _bound_at(status), others_asked(spec)
        return note(holding=holding, starts=starts, fault=fault, since=since, others=others)
    unplaced = _is_unschedulable(status)
    asked = _asked(pod) if _may_be_placed(spec) and (gang or unplaced) else None
    return note(
        holding=None,
        waits=asked if unplaced else None,
        member=asked if gang else None,
        placeable=_placeable(status),
        earmark=str(annotations.get(names.EARMARK) or ""),
    )


def _holding(node: str, annotations: Json, spec: Json) -> tuple[Holding, tuple[tuple[Piece, ...], ...], str]:
    """Returns the part of its node that a bound pod holds, and the fault of the pod's allocation.

    Returns:
        The part of the node; the parts of devices in it, one tuple for each container that starts by itself (see
        `_starts`); and the fault, which is empty if the allocation is valid or absent. With a fault, the pod counts
        as holding no devices.
    """
    cpu_milli, host_mib = host_demand(spec)
    text = annotations.get(names.ALLOCATION)
    if not isinstance(text, str):
        return Holding(node, (), cpu_milli, host_mib), (), ""
    try:
        containers, init = _held(text, node, spec)
    except allocation.AllocationError as error:
        return Holding(node, (), cpu_milli, host_mib), (), str(error)
    pieces = pieces_of(containers, init)
    return Holding(node, pieces, cpu_milli, host_mib), _starts(containers, pieces, has_init=bool(init)), ""


def _starts(
    containers: Sequence[Sequence[Share]], pieces: tuple[Piece, ...], *, has_init: bool
) -> tuple[tuple[Piece, ...], ...]:
    """Returns the parts of devices that a pod holds, one tuple for each container that starts by itself.

    The node agent gives a container all its devices or refuses its start, and main containers do not wait for each
    other. They wait for init containers: if one of these has devices, a single tuple has all parts.

    Args:
        containers: the shares of each main container that has devices.
        pieces: the parts of devices that the pod holds in all.
        has_init: whether an init container has devices.
    """
    if has_init or len(containers) < 2:
        return (pieces,)
    return tuple(pieces_of([shares]) for shares in containers)


def read_node(item: Json) -> Node | None:
    """Returns a node with the devices that it offers, read from the node's JSON object; None without an inventory.

    Raises:
        InventoryError: the inventory in the node's annotation is invalid.
    """
    metadata = mapping(item.get("metadata"))
    text = mapping(metadata.get("annotations")).get(names.INVENTORY)
    if not isinstance(text, str):
        return None
    offered = inventory.decode(text)
    free = mapping(mapping(item.get("status")).get("allocatable"))
    return Node(str(metadata["name"]), offered, _milli(free.get("cpu")), _mib(free.get("memory")))


def allocation_of(pod: WaitingPod, placed: Placed, node: Node) -> allocation.Allocation:
    """Returns the allocation that the Binding of a placed pod carries.

    Args:
        placed: the chosen node and the devices of each container.
        node: that node with its inventory, which has the models and memory of the devices.
    """
    devices = {device.uuid: device for device in node.inventory.devices}
    return allocation.Allocation(
        node=placed.node,
        containers=tuple(
            allocation.ContainerAllocation(name, tuple(_device_share(devices[share.uuid], share) for share in shares))
            for name, shares in zip(pod.containers, placed.shares, strict=True)
        ),
    )


def read_site(item: Json) -> Site:
    """Returns a node's labels, taints, limit of pods and other resources, read from the node's JSON object."""
    metadata, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
    free = mapping(mapping(item.get("status")).get("allocatable"))
    return Site(
        str(metadata["name"]),
        mapping(metadata.get("labels")),
        tuple(mappings(spec.get("taints"))),
        bool(spec.get("unschedulable")),
        _counted(_quantity(free.get("pods"))),
        others_of(free),
    )


def host_demand(spec: Json) -> tuple[int, int]:
    """Returns the processor time (thousandths of a core) and memory (MiB) that a pod requests of its node.

    Both are counted as kube-scheduler counts them
    (https://github.com/kubernetes/kubernetes/blob/v1.34.2/staging/src/k8s.io/component-helpers/resource/helpers.go):
    requests of the pod as a whole (`spec.resources`) replace those of its containers. Each figure is at most MOST.
    """
    main = [_requests(container) for container in mappings(spec.get("containers"))]
    if not (spec.get("initContainers") or spec.get("overhead") or spec.get("resources")):
        return min(sum(cpu for cpu, _ in main), MOST), min(sum(memory for _, memory in main), MOST)
    init = [(_requests(item), is_native_sidecar(item)) for item in mappings(spec.get("initContainers"))]
    overhead, whole = mapping(spec.get("overhead")), mapping(mapping(spec.get("resources")).get("requests"))
    cpu = peak([amount for amount, _ in main], [(amount, keeps) for (amount, _), keeps in init])
    memory = peak([amount for _, amount in main], [(amount, keeps) for (_, amount), keeps in init])
    cpu = _milli(whole["cpu"]) if "cpu" in whole else cpu
    memory = _mib(whole["memory"]) if "memory" in whole else memory
    return min(cpu + _milli(overhead.get("cpu")), MOST), min(memory + _mib(overhead.get("memory")), MOST)


def _bound_at(status: Json) -> float:
    """Returns when the pod was bound, in seconds since 1970; 0 for a pod without the condition PodScheduled.

    The API server sets that condition with the Binding. The result is also 0 if the condition's time is unreadable.
    """
    conditions = mappings(status.get("conditions"))
    text = next((str(one.get("lastTransitionTime")) for one in conditions if one.get("type") == "PodScheduled"), "")
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _priority(spec: Json) -> int:
    priority = spec.get("priority")
    return priority if isinstance(priority, int) else 0


def _gang(annotations: Json) -> Gang | None:
    text = annotations.get(names.GANG)
    try:
        return parse_gang(text.strip()) if isinstance(text, str) else None
    except ValueError:
        return None


def _asks_for_gpu(spec: Json) -> bool:
    """Returns whether a container or init container of a pod asks for one of FairGPU's resources.

    A request or limit of `0` does not count.

    The policy fairgpu-spec demands the label of GPU pods on such a pod.

    Args:
        spec: the pod's spec.
    """
    containers = (*mappings(spec.get("containers")), *mappings(spec.get("initContainers")))
    return any(
        resource in names.CANONICAL_RESOURCES and str(amount) != "0"
        for container in containers
        for kind in ("limits", "requests")
        for resource, amount in mapping(mapping(container.get("resources")).get(kind)).items()
    )


def _may_be_placed(spec: Json) -> bool:
    """Returns whether the pod names FairGPU's kube-scheduler, and no scheduling gate holds the pod."""
    return spec.get("schedulerName") == names.SCHEDULER_NAME and not spec.get("schedulingGates")


def _is_unschedulable(status: Json) -> bool:
    return _unschedulable(status) is not None


def _lacks_nothing(status: Json) -> bool:
    """Whether kube-scheduler has found no node for a pod, and its reason names nothing that is short on a node."""
    reason = _unschedulable(status)
    return bool(reason) and _SHORT.search(reason or "") is None


def _unschedulable(status: Json) -> str | None:
    """Returns kube-scheduler's reason why it has found no node for a pod; None if it has not said that."""
    for one in mappings(status.get("conditions")):
        if one.get("type") == "PodScheduled" and one.get("reason") == "Unschedulable":
            return str(one.get("message") or "")
    return None


def _placeable(status: Json) -> str:
    return next(
        (str(one.get("message")) for one in mappings(status.get("conditions")) if one.get("type") == PLACEABLE), ""
    )


def _asked(pod: Json) -> WaitingPod | None:
    try:
        return read_waiting(pod)
    except PodError:
        return None


def _asking(reading: PodReading) -> tuple[list[tuple[str, Any]], list[tuple[str, Any, bool]]]:
    """Returns the main containers and the init containers of a pod that request GPUs.

    A main container is a pair of name and need. An init container has a third value: whether it is a native sidecar.
    """
    main = [(one.name, need_of(one.request)) for one in reading.containers if one.request is not None]
    init = [(one.name, need_of(one.request), one.native_sidecar) for one in reading.init if one.request is not None]
    return main, init


def _shares_of(text: str) -> tuple[str, dict[str, list[Share]]]:
    """Returns the name of an allocation's node, and each container's shares of devices, keyed by the container's name.

    This function reads a valid allocation in a tenth of the time that `allocation.decode` takes. It calls
    `allocation.decode` only for an invalid allocation, to raise the error that names the fault.

    Raises:
        AllocationError: the text is not an allocation.
    """
    try:
        sound = _ALLOCATION.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        sound = None
    if sound is not None and len(text) <= allocation.MAX_ENCODED_BYTES:
        shares = {
            one.name: [Share(intern(device.uuid), device.core, device.memory_mib) for device in one.devices]
            for one in sound.containers
        }
        fits = all(device.memory_mib <= device.total_mib for one in sound.containers for device in one.devices)
        if fits and len(shares) == len(sound.containers):
            return sound.node, shares
    decoded = allocation.decode(text)
    return decoded.node, {
        one.name: [Share(device.uuid, device.core_percent, device.memory_mib) for device in one.devices]
        for one in decoded.containers
    }


def _held(text: str, node: str, spec: Json) -> tuple[list[list[Share]], list[tuple[list[Share], bool]]]:
    """Returns the shares in an allocation's text: a list for each main container, and a pair for each init container.

    Containers without shares are left out. The pair's second value is whether the init container keeps running beside
    the main containers.

    Raises:
        AllocationError: the text is no allocation, or names another node or a container that the pod does not have.
    """
    of_node, shares = _shares_of(text)
    if of_node != node:
        raise allocation.AllocationError(f"the allocation is of node {of_node}, and the pod is bound to {node}")
    main = [str(item.get("name")) for item in mappings(spec.get("containers"))]
    init = [(str(item.get("name")), is_native_sidecar(item)) for item in mappings(spec.get("initContainers"))]
    unknown = shares.keys() - main - {name for name, _ in init}
    if unknown:
        raise allocation.AllocationError(
            f"the allocation is of the container {min(unknown)}, which the pod does not have"
        )
    return (
        [shares[name] for name in main if name in shares],
        [(shares[name], keeps) for name, keeps in init if name in shares],
    )


def _device_share(device: inventory.Device, share: Share) -> allocation.DeviceShare:
    return allocation.DeviceShare(device.uuid, device.model, device.memory_mib, share.core_percent, share.memory_mib)


def _prefers(spec: Json) -> bool:
    """Whether the pod prefers nodes without requiring them, by an affinity or a topology spread constraint."""
    affinity = mapping(spec.get("affinity"))
    soft = "preferredDuringSchedulingIgnoredDuringExecution"
    return any(
        mapping(affinity.get(kind)).get(soft) for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity")
    ) or any(
        constraint.get("whenUnsatisfiable") == "ScheduleAnyway"
        for constraint in mappings(spec.get("topologySpreadConstraints"))
    )


def _requests(container: Json) -> tuple[int, int]:
    amounts = mapping(mapping(container.get("resources")).get("requests"))
    return _milli(amounts.get("cpu")), _mib(amounts.get("memory"))


def _milli(value: Any) -> int:
    return _milli_of(value) if isinstance(value, str | None) else _counted(_quantity(value) * 1000)


def _mib(value: Any) -> int:
    return _mib_of(value) if isinstance(value, str | None) else _counted(_quantity(value) / MIB)


@lru_cache(maxsize=4096)
def _milli_of(text: str | None) -> int:
    return _counted(_quantity(text) * 1000)


@lru_cache(maxsize=4096)
def _mib_of(text: str | None) -> int:
    return _counted(_quantity(text) / MIB)


def _counted(amount: Fraction) -> int:
    return min(max(math.ceil(amount), 0), MOST)


def _quantity(value: Any) -> Fraction:
    try:
        return parse_quantity(value)
    except QuantityError:
        return Fraction(0)
