"""Decides what the agent writes on its Node: the inventory, and the capacity of FairGPU's resources.

It also decides when the agent removes FairGPU's startup taint from the Node.

The capacity is that of the resources beside the device plugin's slots. The kubelet computes `status.allocatable` from
`status.capacity` at each sync. A kubelet that restarts checks its running pods against `status.allocatable` again, and
fails the pods that no longer fit. So the capacity is never less than the amounts that the pods hold, even where a GPU
has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from fractions import Fraction
from typing import Any

from fairgpu import allocation, inventory, names
from fairgpu.demand import is_native_sidecar, peak
from fairgpu.inventory import Device, Health, Inventory
from fairgpu.quantity import QuantityError, parse_count

RESOURCES = (names.GPU_CORE, names.GPU_MEMORY, names.GPU_MEMORY_PERCENTAGE)


def metadata_patch(node: Mapping[str, Any], offered: Inventory) -> dict[str, Any] | None:
    """Returns a merge patch that writes the inventory into a Node's annotation; None if it is there already.

    Raises:
        InventoryError: the inventory's text is longer than `fairgpu.inventory.MAX_ENCODED_BYTES`.
    """
    text = inventory.encode(offered)
    if (node["metadata"].get("annotations") or {}).get(names.INVENTORY) == text:
        return None
    return {"metadata": {"annotations": {names.INVENTORY: text}}}


def status_patch(
    node: Mapping[str, Any], offered: Inventory, pods: Iterable[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Returns a merge patch that writes the capacity of FairGPU's resources to a Node; None if it is right already.

    Args:
        node: the Node as JSON.
        offered: the node's GPUs.
        pods: the node's pods as JSON, including those that hold no GPU.
    """
    wrong = changes(capacity(offered.devices, pods), node.get("status") or {})
    return {"status": {"capacity": wrong}} if wrong else None


def taint_patch(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a merge patch that removes FairGPU's startup taint from a Node.

    The patch replaces the whole list of taints, which other programs write as well. So it names the Node's version, and
    the API server refuses it if the Node has changed.

    Returns:
        The patch; None if the Node has no such taint, or offers no GPU yet.
    """
    taints = (node.get("spec") or {}).get("taints") or []
    left = [taint for taint in taints if taint.get("key") != names.STARTUP_TAINT]
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    if left == taints or any(str(allocatable.get(name, "0")) == "0" for name in (names.GPU, names.GPU_CORE)):
        return None
    return {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": left or None}}


def capacity(devices: Iterable[Device], pods: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Returns the capacity that a Node must state of each resource beside the device plugin's slots.

    The capacity has all of each healthy GPU, and the amounts that pods hold of other GPUs: kube-scheduler subtracts
    these amounts from it as well. It is never less than the node's pods hold. GPU time and the memory percentage are in
    percent of a GPU, and memory is in MiB.

    Args:
        devices: the node's GPUs.
        pods: the node's pods as JSON. Pods that have ended hold nothing.
    """
    healthy = [device for device in devices if device.health is Health.OK]
    uuids = {device.uuid for device in healthy}
    whole = 100 * len(healthy)
    offered = {
        names.GPU_CORE: whole,
        names.GPU_MEMORY: sum(device.memory_mib for device in healthy),
        names.GPU_MEMORY_PERCENTAGE: whole,
    }
    held = dict.fromkeys(RESOURCES, 0)
    for pod in pods:
        if pod.get("status", {}).get("phase") not in names.TERMINAL_PHASES:
            of_pod, of_others = held_by(pod), _held_of_others(pod, uuids)
            for resource in RESOURCES:
                held[resource] += of_pod[resource]
                offered[resource] += of_others[resource]
    return {resource: max(offered[resource], held[resource]) for resource in RESOURCES}


def shows_slots(node: Mapping[str, Any], slots: int) -> bool:
    """Returns whether a Node's `status.allocatable` has `slots` slots or more."""
    return (_count(((node.get("status") or {}).get("allocatable") or {}).get(names.GPU)) or 0) >= slots


def status_written(node: Mapping[str, Any]) -> str:
    """Returns the time at which the kubelet last wrote a Node's status, as the Node's own text; empty if it has none.

    The kubelet writes this time with each status, and others that write conditions leave it as it was.
    """
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((str(each.get("lastHeartbeatTime") or "") for each in conditions if each.get("type") == "Ready"), "")


def held_by(pod: Mapping[str, Any]) -> dict[str, int]:
    """Returns the most of each resource that a pod holds at any time of its life, as the kubelet counts it."""
    return _peaks(pod, _amount)


def _held_of_others(pod: Mapping[str, Any], uuids: AbstractSet[str]) -> dict[str, int]:
    """Returns the most of each resource that a pod holds of GPUs other than those with the given uuids.

    A pod without a valid allocation counts as holding nothing of them.
    """
    text = (pod.get("metadata", {}).get("annotations") or {}).get(names.ALLOCATION)
    try:
        allocated = allocation.decode(text) if isinstance(text, str) else None
    except allocation.AllocationError:
        allocated = None
    containers = () if allocated is None else allocated.containers
    parts = {
        one.name: Fraction(sum(device.uuid not in uuids for device in one.devices), max(len(one.devices), 1))
        for one in containers
    }
    # Each GPU of a container has the same part of its amounts.
    return _peaks(pod, lambda one, resource: int(_amount(one, resource) * parts.get(str(one.get("name")), 0)))


def _peaks(pod: Mapping[str, Any], amount: Callable[[Mapping[str, Any], str], int]) -> dict[str, int]:
    """Returns, keyed by resource, the most that a pod's containers hold at any one time of the pod's life.

    Args:
        pod: the pod as JSON.
        amount: returns the amount that a container (JSON) holds of a resource, given by its name.
    """
    spec = pod["spec"]
    return {
        resource: peak(
            [amount(container, resource) for container in spec["containers"]],
            [
                (amount(container, resource), is_native_sidecar(container))
                for container in spec.get("initContainers") or []
            ],
        )
        for resource in RESOURCES
    }


def changes(wanted: Mapping[str, int], status: Mapping[str, Any]) -> dict[str, str]:
    """Returns the amounts of `status.capacity` that must change, as text keyed by resource; empty if none must.

    Args:
        wanted: the wanted amount of each resource.
        status: the Node's status as JSON.
    """
    said = status.get("capacity") or {}
    return {resource: str(amount) for resource, amount in wanted.items() if _count(said.get(resource)) != amount}


def _amount(container: Mapping[str, Any], resource: str) -> int:
    limits = (container.get("resources") or {}).get("limits") or {}
    return _count(limits.get(resource, 0)) or 0


def _count(value: Any) -> int | None:
    if value is None:
        return None
    try:
        return parse_count(value)
    except QuantityError:
        return None
