"""GPUNodes and GPUPods: the annotations and conditions of Nodes and Pods about GPUs, as objects of their own.

Every figure here comes from one of three places: `fairgpu.io/inventory` states what a node offers,
`fairgpu.io/allocation` what a bound pod holds, and two conditions why a pod waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Any, NamedTuple

import orjson

from fairgpu import allocation, inventory, names
from fairgpu.demand import is_native_sidecar, peak
from fairgpu.json_values import mapping, mappings

Json = Mapping[str, Any]

GPU_NODES = "gpunodes"
GPU_PODS = "gpupods"
KINDS = {GPU_NODES: "GPUNode", GPU_PODS: "GPUPod"}
API_VERSION = "fairgpu.io/v1"
PLACEABLE = "fairgpu.io/Placeable"


class Held(NamedTuple):
    """A pod's part of one GPU.

    Attributes:
        core_percent: its part of the GPU's time, in percent.
        memory_mib: its memory, in MiB.
        containers: the most of its containers that run on the GPU at a time.
    """

    core_percent: int
    memory_mib: int
    containers: int


@dataclass(frozen=True, slots=True)
class GPUPod:
    """A pod that asks for a part of a GPU.

    Attributes:
        uid, namespace, name: identify the pod.
        node: the node on which it holds GPUs; empty where it holds none.
        held: by the GPU's uuid, the pod's part of it.
        body: its JSON document without the API version, the kind and the resourceVersion.
    """

    uid: str
    namespace: str
    name: str
    node: str
    held: Mapping[str, Held]
    body: bytes


@dataclass(frozen=True, slots=True)
class GPUNode:
    """A node that offers GPUs.

    Attributes:
        name: its name.
        inventory: its GPUs by the annotation that the node agent writes; None where the annotation is invalid.
        fault: why the annotation is invalid; empty where it is valid.
    """

    name: str
    inventory: inventory.Inventory | None
    fault: str = ""


@dataclass(slots=True)
class _Shares:
    main: list[Held] = field(default_factory=list)
    init: list[tuple[Held, bool]] = field(default_factory=list)


def read_pod(item: Json) -> GPUPod:
    """Parses a Pod that has the label of GPU pods; `item` is the Pod as JSON."""
    metadata, spec, status = mapping(item.get("metadata")), mapping(item.get("spec")), mapping(item.get("status"))
    annotations = mapping(metadata.get("annotations"))
    node = str(spec.get("nodeName") or "")
    ended = status.get("phase") in names.TERMINAL_PHASES
    allocated, fault = _allocation(annotations, node) if node and not ended else (None, "")
    document = {
        "metadata": {
            key: metadata[key] for key in ("name", "namespace", "uid", "creationTimestamp") if key in metadata
        },
        "status": {
            "stage": _stage(spec, status, node),
            "node": node or None,
            "containers": [] if allocated is None else [_container(one) for one in allocated.containers],
            "fault": fault or None,
            "waits": [] if node or ended else _waits(spec, status),
            "priorityClass": spec.get("priorityClassName"),
            "gang": annotations.get(names.GANG),
            "reclaimAt": annotations.get(names.RECLAIM_AT),
            "evictionAt": annotations.get(names.EVICTION_AT),
            "earmark": None if node else annotations.get(names.EARMARK),
        },
    }
    return GPUPod(
        uid=str(metadata.get("uid", "")),
        namespace=intern(str(metadata.get("namespace", ""))),
        name=str(metadata.get("name", "")),
        node=intern(node) if allocated is not None else "",
        held={} if allocated is None else _held(allocated, spec),
        body=_encoded(document),
    )


def read_node(item: Json) -> GPUNode | None:
    """Parses a Node; returns None where no node agent has written which GPUs the node offers."""
    metadata = mapping(item.get("metadata"))
    text = mapping(metadata.get("annotations")).get(names.INVENTORY)
    if not isinstance(text, str):
        return None
    try:
        return GPUNode(str(metadata.get("name", "")), inventory.decode(text))
    except inventory.InventoryError as error:
        return GPUNode(str(metadata.get("name", "")), None, str(error))


def node_body(node: GPUNode, pods: Iterable[GPUPod]) -> bytes:
    """Returns the JSON document of a GPUNode without the API version, the kind and the resourceVersion.

    Args:
        pods: the pods that hold GPUs of it.
    """
    offered = node.inventory
    holders = sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.uid))
    status: dict[str, Any] = {"fault": node.fault or None, "devices": []}
    if offered is not None:
        status |= {"vendor": offered.vendor, "driver": offered.driver, "slots": offered.slots}
        status["devices"] = [_device(device, holders) for device in offered.devices]
    return _encoded({"metadata": {"name": node.name}, "status": status})


def document(kind: str, body: bytes, version: str) -> bytes:
    """Returns the whole JSON document of a GPUNode or a GPUPod.

    Args:
        kind: gpunodes or gpupods.
        body: the document without the API version, the kind and the resourceVersion; it begins with the metadata.
    """
    head = b'{"apiVersion":"%b","kind":"%b",' % (API_VERSION.encode(), KINDS[kind].encode())
    return head + b'"metadata":{"resourceVersion":"%b",' % version.encode() + body.removeprefix(b'{"metadata":{')


def _encoded(document: Json) -> bytes:
    """Returns the document as JSON in no more memory than it needs; orjson's bytes keep the whole buffer of 4 KiB."""
    return bytes(memoryview(orjson.dumps(document)))


def _device(device: inventory.Device, holders: Iterable[GPUPod]) -> dict[str, Any]:
    parts = [(pod, pod.held[device.uuid]) for pod in holders if device.uuid in pod.held]
    return {
        "uuid": device.uuid,
        "model": device.model,
        "memoryMiB": device.memory_mib,
        "numa": device.numa,
        "pci": device.pci,
        "health": device.health.value,
        "why": device.why or None,
        "held": _figures(Held(*(sum(held[at] for _, held in parts) for at in range(len(Held._fields))))),
        "pods": [
            {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, **_figures(held)} for pod, held in parts
        ],
    }


def _figures(held: Held) -> dict[str, int]:
    return {"corePercent": held.core_percent, "memoryMiB": held.memory_mib, "containers": held.containers}


def _allocation(annotations: Json, node: str) -> tuple[allocation.Allocation | None, str]:
    """Returns the allocation of a bound pod, and why it counts for nothing; empty where it is sound or absent."""
    text = annotations.get(names.ALLOCATION)
    if not isinstance(text, str):
        return None, ""
    try:
        allocated = allocation.decode(text)
    except allocation.AllocationError as error:
        return None, str(error)
    if allocated.node != node:
        return None, f"the allocation is of node {allocated.node}, and the pod is bound to {node}"
    return allocated, ""


def _container(container_allocation: allocation.ContainerAllocation) -> dict[str, Any]:
    return {
        "name": container_allocation.name,
        "devices": [
            {
                "uuid": device.uuid,
                "model": device.model,
                "corePercent": device.core_percent,
                "memoryMiB": device.memory_mib,
            }
            for device in container_allocation.devices
        ],
    }


def _held(pod_allocation: allocation.Allocation, spec: Json) -> dict[str, Held]:
    """Returns what the pod holds of each device: the larger of what runs together and of each init step."""
    init = {str(one.get("name")): is_native_sidecar(one) for one in mappings(spec.get("initContainers"))}
    shares: dict[str, _Shares] = {}
    for container in pod_allocation.containers:
        for device in container.devices:
            one = Held(device.core_percent, device.memory_mib, 1)
            of_device = shares.setdefault(intern(device.uuid), _Shares())
            if container.name in init:
                of_device.init.append((one, init[container.name]))
            else:
                of_device.main.append(one)
    return {
        uuid: Held(
            *(
                peak([one[at] for one in each.main], [(one[at], keeps) for one, keeps in each.init])
                for at in range(len(Held._fields))
            )
        )
        for uuid, each in shares.items()
    }


def _stage(spec: Json, status: Json, node: str) -> str:
    """Returns the stage of a pod's life: `ended`, `placed`, `gated`, or `waits` for a node."""
    if status.get("phase") in names.TERMINAL_PHASES:
        return "ended"
    if node:
        return "placed"
    return "gated" if spec.get("schedulingGates") else "waits"


def _waits(spec: Json, status: Json) -> list[dict[str, str]]:
    """Returns why a pod waits: each scheduling gate, and the words of kube-scheduler and of its extender."""
    gates = [str(gate.get("name")) for gate in mappings(spec.get("schedulingGates"))]
    if gates:
        return [{"by": "gate", "why": gate} for gate in gates]
    conditions = {str(one.get("type")): one for one in mappings(status.get("conditions"))}
    said = (("kube-scheduler", conditions.get("PodScheduled")), ("fairgpu", conditions.get(PLACEABLE)))
    return [{"by": who, "why": str(one["message"])} for who, one in said if one is not None and one.get("message")]
