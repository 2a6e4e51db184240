"""Computes the node's capacity of FairGPU's resources beside the device plugin's slots. Pure.

The kubelet makes `allocatable` of `status.capacity` at each sync. A kubelet that restarts admits its running pods again
against it and fails those that no longer fit: so the capacity is never less than what the pods hold, even where a GPU
has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairgpu import names
from fairgpu.demand import is_native_sidecar, peak
from fairgpu.inventory import Device, Health
from fairgpu.quantity import QuantityError, parse_count

RESOURCES = (names.GPU_CORE, names.GPU_MEMORY, names.GPU_MEMORY_PERCENTAGE)
ENDED = ("Succeeded", "Failed")


def capacity(devices: Iterable[Device], pods: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Returns the wanted `status.capacity`: all of each healthy GPU, and never less than the node's pods hold."""
    healthy = [device for device in devices if device.health is Health.OK]
    whole = 100 * len(healthy)
    offered = {
        names.GPU_CORE: whole,
        names.GPU_MEMORY: sum(device.memory_mib for device in healthy),
        names.GPU_MEMORY_PERCENTAGE: whole,
    }
    held = dict.fromkeys(RESOURCES, 0)
    for pod in pods:
        if pod.get("status", {}).get("phase") not in ENDED:
            for resource, amount in held_by(pod).items():
                held[resource] += amount
    return {resource: max(offered[resource], held[resource]) for resource in RESOURCES}


def held_by(pod: Mapping[str, Any]) -> dict[str, int]:
    """Returns the most that a pod holds of each resource at any time of its life, as the kubelet counts it."""
    spec = pod["spec"]
    return {
        resource: peak(
            [_amount(container, resource) for container in spec["containers"]],
            [
                (_amount(container, resource), is_native_sidecar(container))
                for container in spec.get("initContainers") or []
            ],
        )
        for resource in RESOURCES
    }


def changes(wanted: Mapping[str, int], status: Mapping[str, Any]) -> dict[str, str]:
    """Returns the changes to `status.capacity` that make it as wanted; empty where it is so already."""
    said = status.get("capacity") or {}
    return {resource: str(amount) for resource, amount in wanted.items() if _count(said.get(resource)) != amount}


def _amount(container: Mapping[str, Any], resource: str) -> int:
    limits = (container.get("resources") or {}).get("limits") or {}
    return _count(limits.get(resource, 0)) or 0


def _count(value: Any) -> int | None:
    """Returns a quantity as a whole number; None where it is missing or not one."""
    if value is None:
        return None
    try:
        return parse_count(value)
    except QuantityError:
        return None
