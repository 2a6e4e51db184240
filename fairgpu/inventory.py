"""The inventory that the node agent writes on its Node: the devices that the node offers, and their links.

The annotation `fairgpu.io/inventory` has the inventory as compact JSON:

`{"v":1,"vendor":"nvidia","driver":"580.95.05","slots":64,"devices":[{"uuid":"GPU-...","model":"NVIDIA A100-SXM4-80GB",
"memoryMiB":81038,"numa":0,"pci":"00000000:07:00.0","health":"ok"}],"links":[[0]]}`.

A reader that cannot decode the inventory ignores the node: a device of unknown size or identity cannot be divided.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import lru_cache
from sys import intern
from typing import Any

from fairgpu.json_values import (
    JsonValueError,
    required_list,
    required_mapping,
    required_text,
    required_whole,
    shown,
    versioned,
)

VERSION = 1
MAX_ENCODED_BYTES = 64 * 1024
"""The largest inventory: a quarter of what the API server accepts as annotations; 64 devices need a third of it."""
MAX_SLOTS = 64
"""The most containers that may share one device."""


class InventoryError(ValueError):
    """A node's inventory cannot be encoded or decoded; the message states the fault."""


class Health(StrEnum):
    """The health of a device: an `ok` device gets new containers; a `fenced` one gets none, and keeps those it has."""

    OK = "ok"
    FENCED = "fenced"


class Link(IntEnum):
    """The kind of path between two devices, from the nearest to the farthest, as `nvidia-smi topo -m` shows it.

    https://docs.nvidia.com/deploy/nvidia-smi/index.html
    """

    SELF = 0
    NVLINK = 1
    ONE_SWITCH = 2
    """PIX: at most one PCIe bridge."""
    SWITCHES = 3
    """PXB: several PCIe bridges, no host bridge."""
    NODE = 4
    """PHB and NODE: a PCIe host bridge, or several within one NUMA node."""
    SYSTEM = 5
    """SYS: the interconnect between NUMA nodes."""


@dataclass(frozen=True, slots=True)
class Device:
    """One physical device that a node offers.

    Attributes:
        uuid: the vendor's identity of the device, unique in the cluster.
        model: the vendor's name of the device's model, as NVML reports it.
        memory_mib: the memory that containers may hold together, in MiB: the total less what the driver reserves.
        numa: the device's NUMA node; None if it is unknown.
        pci: the device's PCI address.
        health: whether new containers may be placed on the device.
        why: the reason why the device is fenced, for people; empty if it is not.
    """

    uuid: str
    model: str
    memory_mib: int
    numa: int | None
    pci: str
    health: Health = Health.OK
    why: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """All devices of a node, as the node agent writes them on the Node.

    Attributes:
        vendor: the vendor of the devices, in lower case.
        driver: the driver's version.
        slots: the number of containers that may share one device.
        devices: the node's devices, in the vendor's order.
        links: a matrix: `links[i][j]` is the path between `devices[i]` and `devices[j]`. It is symmetric, with SELF on
            the diagonal alone.
    """

    vendor: str
    driver: str
    slots: int
    devices: tuple[Device, ...]
    links: tuple[tuple[Link, ...], ...]


def encode(inventory: Inventory) -> str:
    """Encodes an inventory in JSON, as the value of a Node's annotation `fairgpu.io/inventory`.

    Raises:
        InventoryError: the text is longer than MAX_ENCODED_BYTES.
    """
    document = {
        "v": VERSION,
        "vendor": inventory.vendor,
        "driver": inventory.driver,
        "slots": inventory.slots,
        "devices": [_fields(device) for device in inventory.devices],
        "links": [list(row) for row in inventory.links],
    }
    text = json.dumps(document, separators=(",", ":"))
    if len(text) > MAX_ENCODED_BYTES:
        raise InventoryError(f"the inventory has {len(text)} bytes; at most {MAX_ENCODED_BYTES} are allowed")
    return text


def decode(text: str) -> Inventory:
    """Decodes the value of a Node's annotation `fairgpu.io/inventory`; unknown fields are ignored.

    Raises:
        InventoryError: the value is longer than MAX_ENCODED_BYTES, or no JSON object of version 1; a field is missing,
            of another type or out of range; a uuid appears twice; or the links are not a symmetric matrix of the
            devices.
    """
    if len(text) > MAX_ENCODED_BYTES:
        raise InventoryError(f"the inventory has {len(text)} characters; at most {MAX_ENCODED_BYTES} are allowed")
    try:
        return _inventory(versioned(text, VERSION, "the inventory"))
    except JsonValueError as error:
        raise InventoryError(str(error)) from error


def _inventory(document: Mapping[str, Any]) -> Inventory:
    devices = tuple(_device(item, f"devices[{index}]") for index, item in enumerate(required_list(document, "devices")))
    uuids: set[str] = set()
    for index, device in enumerate(devices):
        if device.uuid in uuids:
            raise InventoryError(f"devices[{index}].uuid is {shown(device.uuid)}, as that of another device is")
        uuids.add(device.uuid)
    return Inventory(
        vendor=required_text(document, "vendor"),
        driver=required_text(document, "driver"),
        slots=required_whole(document, "slots", 1, MAX_SLOTS),
        devices=devices,
        links=_links(required_list(document, "links"), len(devices)),
    )


def _fields(device: Device) -> dict[str, Any]:
    fields: dict[str, Any] = {"uuid": device.uuid, "model": device.model, "memoryMiB": device.memory_mib}
    if device.numa is not None:
        fields["numa"] = device.numa
    fields |= {"pci": device.pci, "health": device.health.value}
    return fields | {"why": device.why} if device.why else fields


def _device(value: Any, path: str) -> Device:
    item = required_mapping(value, path)
    health = item.get("health")
    if not isinstance(health, str) or health not in set(Health):
        raise InventoryError(f'{path}.health is {shown(health)}; "ok" and "fenced" are allowed')
    why = item.get("why", "")
    if not isinstance(why, str):
        raise InventoryError(f"{path}.why is no text")
    # Nodes of one kind have the same models, addresses and links: their readers keep one copy of each.
    return Device(
        uuid=intern(required_text(item, "uuid", path)),
        model=intern(required_text(item, "model", path)),
        memory_mib=required_whole(item, "memoryMiB", 1, 2**53 - 1, path),
        numa=None if item.get("numa") is None else required_whole(item, "numa", 0, 2**31 - 1, path),
        pci=intern(required_text(item, "pci", path)),
        health=Health(health),
        why=why,
    )


def _links(rows: Sequence[Any], count: int) -> tuple[tuple[Link, ...], ...]:
    if len(rows) != count or any(not isinstance(row, list) or len(row) != count for row in rows):
        raise InventoryError(f"links is no matrix of {count} rows and columns, one for each device")
    for row, values in enumerate(rows):
        for column, value in enumerate(values):
            path = f"links[{row}][{column}]"
            if isinstance(value, bool) or not isinstance(value, int) or not Link.SELF <= value <= Link.SYSTEM:
                allowed = f"whole numbers from 0 to {Link.SYSTEM.value} are allowed"
                raise InventoryError(f"{path} is {shown(value)}; {allowed}")
            if (value == Link.SELF) != (row == column):
                raise InventoryError(f"{path} is {value}; a device is linked with 0 to itself alone")
            if value != rows[column][row]:
                raise InventoryError(f"{path} is {value}, and the way back is {shown(rows[column][row])}")
    return _matrix(tuple(tuple(row) for row in rows))


@lru_cache(maxsize=256)
def _matrix(rows: tuple[tuple[int, ...], ...]) -> tuple[tuple[Link, ...], ...]:
    return tuple(tuple(Link(value) for value in row) for row in rows)
