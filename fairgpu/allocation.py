"""The allocation that the bind call writes on a pod: the pieces of devices that each container holds.

The annotation `fairgpu.io/allocation` has the allocation as compact JSON. It alone decides which devices a pod holds:

`{"v":1,"node":"n1","containers":[{"name":"main","devices":[{"uuid":"GPU-...","model":"A100","totalMiB":81920,
"core":30,"memoryMiB":4096}]}]}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairgpu.json_values import (
    JsonValueError,
    required_list,
    required_mapping,
    required_text,
    required_whole,
    versioned,
)

VERSION = 1
MAX_ENCODED_BYTES = 256 * 1024
"""The largest total size of an object's annotations that the API server accepts."""


class AllocationError(ValueError):
    """The annotation `fairgpu.io/allocation` of a pod is no allocation; the message states the fault."""


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A container's piece of one device.

    Attributes:
        uuid: the device's uuid.
        model: the device's model, as the driver names it.
        total_mib: the memory of the whole device, in MiB.
        core_percent: the piece's share of the device's time, in percent; 0 is best effort.
        memory_mib: the piece's memory, in MiB.
    """

    uuid: str
    model: str
    total_mib: int
    core_percent: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class ContainerAllocation:
    """The pieces of devices that one container holds.

    Attributes:
        name: the container's name.
        devices: the pieces, each of another device.
    """

    name: str
    devices: tuple[DeviceShare, ...]


@dataclass(frozen=True, slots=True)
class Allocation:
    """The pieces of devices that a pod holds.

    Attributes:
        node: the name of the pod's node.
        containers: the containers that hold devices, each with its pieces.
    """

    node: str
    containers: tuple[ContainerAllocation, ...]


def encode(allocation: Allocation) -> str:
    """Encodes an allocation in JSON, as the value of a pod's annotation `fairgpu.io/allocation`."""
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
    """Decodes the value of a pod's annotation `fairgpu.io/allocation`; unknown fields are ignored.

    Raises:
        AllocationError: the value is longer than MAX_ENCODED_BYTES, or no JSON object of version 1; a field is missing,
            of another type or out of range; or a container's name appears twice.
    """
    if len(text) > MAX_ENCODED_BYTES:
        raise AllocationError(f"the allocation is longer than {MAX_ENCODED_BYTES} bytes")
    try:
        return _allocation(versioned(text, VERSION, "the allocation"))
    except JsonValueError as error:
        raise AllocationError(str(error)) from error


def _allocation(document: Mapping[str, Any]) -> Allocation:
    containers = tuple(
        _container(item, f"containers[{index}]") for index, item in enumerate(required_list(document, "containers"))
    )
    if len({container.name for container in containers}) != len(containers):
        raise AllocationError("containers: a name stands twice")
    return Allocation(node=required_text(document, "node"), containers=containers)


def _container(value: Any, path: str) -> ContainerAllocation:
    item = required_mapping(value, path)
    devices = tuple(
        _device(device, f"{path}.devices[{index}]") for index, device in enumerate(required_list(item, "devices", path))
    )
    return ContainerAllocation(name=required_text(item, "name", path), devices=devices)


def _device(value: Any, path: str) -> DeviceShare:
    item = required_mapping(value, path)
    share = DeviceShare(
        uuid=required_text(item, "uuid", path),
        model=required_text(item, "model", path),
        total_mib=required_whole(item, "totalMiB", 1, 2**53 - 1, path),
        core_percent=required_whole(item, "core", 0, 100, path),
        memory_mib=required_whole(item, "memoryMiB", 0, 2**53 - 1, path),
    )
    if share.memory_mib > share.total_mib:
        raise AllocationError(f"{path}.memoryMiB is {share.memory_mib}, over the device's {share.total_mib}")
    return share
