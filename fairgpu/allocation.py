"""The allocation that the bind call writes on a pod: the pieces of devices that each container holds.

The annotation `fairgpu.io/allocation` has it as compact JSON; it alone decides what a pod holds:
`{"v":1,"node":"n1","containers":[{"name":"main","devices":[{"uuid":"GPU-...","model":"A100","totalMiB":81920,
"core":30,"memoryMiB":4096}]}]}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VERSION = 1
MAX_ENCODED_BYTES = 256 * 1024
"""The largest total size of an object's annotations that the API server accepts."""


class AllocationError(ValueError):
    """The annotation is not an allocation; the message names the field."""


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A container's piece of one device: core in percent of it, memory and the device's total in MiB."""

    uuid: str
    model: str
    total_mib: int
    core_percent: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class ContainerAllocation:
    """The device shares of one container."""

    name: str
    devices: tuple[DeviceShare, ...]


@dataclass(frozen=True, slots=True)
class Allocation:
    """The device shares of a pod, and its node."""

    node: str
    containers: tuple[ContainerAllocation, ...]


def encode(allocation: Allocation) -> str:
    """Encodes an allocation as the annotation's value."""
    containers = [
        {
            "name": container.name,
            "devices": [
                {
                    "uuid": device.uuid,
                    "model": device.model,
                    "totalMiB": device.total_mib,
                    "core": device.core_percent,
                    "memoryMiB": device.memory_mib,
                }
                for device in container.devices
            ],
        }
        for container in allocation.containers
    ]
    return json.dumps({"v": VERSION, "node": allocation.node, "containers": containers}, separators=(",", ":"))


def decode(text: str) -> Allocation:
    """Decodes the annotation's value; fields of later writers are ignored.

    Raises:
        AllocationError: it is not a JSON object of version 1, or a field is missing, of another type or out of range.
    """
    if len(text) > MAX_ENCODED_BYTES:
        raise AllocationError(f"the allocation is longer than {MAX_ENCODED_BYTES} bytes")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AllocationError(f"the allocation is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("v") != VERSION:
        raise AllocationError(f"the allocation is no JSON object with v: {VERSION}")
    containers = tuple(
        _container(item, f"containers[{index}]") for index, item in enumerate(_list(document, "containers", ""))
    )
    if len({container.name for container in containers}) != len(containers):
        raise AllocationError("containers: a name stands twice")
    return Allocation(node=_text(document, "node", ""), containers=containers)


def _container(item: Any, path: str) -> ContainerAllocation:
    if not isinstance(item, dict):
        raise AllocationError(f"{path} is no object")
    devices = tuple(
        _device(device, f"{path}.devices[{index}]") for index, device in enumerate(_list(item, "devices", path))
    )
    return ContainerAllocation(name=_text(item, "name", path), devices=devices)


def _device(item: Any, path: str) -> DeviceShare:
    if not isinstance(item, dict):
        raise AllocationError(f"{path} is no object")
    share = DeviceShare(
        uuid=_text(item, "uuid", path),
        model=_text(item, "model", path),
        total_mib=_whole(item, "totalMiB", path),
        core_percent=_whole(item, "core", path),
        memory_mib=_whole(item, "memoryMiB", path),
    )
    if share.total_mib == 0:
        raise AllocationError(f"{path}.totalMiB is 0")
    if share.core_percent > 100:
        raise AllocationError(f"{path}.core is {share.core_percent}, over 100 percent of one device")
    if share.memory_mib > share.total_mib:
        raise AllocationError(f"{path}.memoryMiB is {share.memory_mib}, over the device's {share.total_mib}")
    return share


def _list(item: Mapping[str, Any], key: str, path: str) -> list[Any]:
    value = item.get(key)
    if not isinstance(value, list):
        raise AllocationError(f"{path}.{key} is no list".lstrip("."))
    return value


def _text(item: Mapping[str, Any], key: str, path: str) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not value:
        raise AllocationError(f"{path}.{key} is no text".lstrip("."))
    return value


def _whole(item: Mapping[str, Any], key: str, path: str) -> int:
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise AllocationError(f"{path}.{key} is no whole number from 0".lstrip("."))
    return value
