"""Whether a container fits beside those that live or are starting, by what the node itself has given. Pure.

The scheduler places by the allocations that it sees. This is the last line behind it: two allocations of one piece can
both be written, and only one of them becomes true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairgpu.allocation import DeviceShare
from fairgpu.inventory import MAX_SLOTS, Device, Health


@dataclass(frozen=True)
class Held:
    """A piece of one device that a container of this node holds: core in percent, memory in MiB, its slot."""

    uuid: str
    core_percent: int
    memory_mib: int
    slot: int


class UnusableDeviceError(ValueError):
    """The allocation names a device that this node cannot give; the message says which and why."""


class OverlapError(ValueError):
    """Others hold what the allocation gives; the message says on which device and how much is left."""


def check_devices(shares: Iterable[DeviceShare], offered: Mapping[str, Device]) -> None:
    """Whether each device is there, healthy, and as large as the piece of it.

    Raises:
        UnusableDeviceError: one is not.
    """
    for share in shares:
        device = offered.get(share.uuid)
        if device is None:
            raise UnusableDeviceError(f"GPU {share.uuid} is not offered by this node")
        if device.health is not Health.OK:
            raise UnusableDeviceError(f"GPU {share.uuid} is fenced: {device.why}")
        if share.memory_mib > device.memory_mib:
            raise UnusableDeviceError(f"GPU {share.uuid} offers {device.memory_mib} MiB, not {share.memory_mib}")


def check_overlap(shares: Iterable[DeviceShare], held: Iterable[Held], offered: Mapping[str, Device]) -> None:
    """Whether the pieces fit beside those that are held.

    Raises:
        OverlapError: core would pass 100 percent, or memory what the device offers.
    """
    taken = tuple(held)
    for share in shares:
        here = [piece for piece in taken if piece.uuid == share.uuid]
        core = 100 - sum(piece.core_percent for piece in here)
        memory = offered[share.uuid].memory_mib - sum(piece.memory_mib for piece in here)
        if share.core_percent > core:
            raise OverlapError(
                f"GPU {share.uuid} has {max(core, 0)} percent of its time left, not {share.core_percent}"
            )
        if share.memory_mib > memory:
            raise OverlapError(f"GPU {share.uuid} has {max(memory, 0)} MiB left, not {share.memory_mib}")


def free_slot(uuid: str, held: Iterable[Held]) -> int:
    """The lowest place on the device's schedule page that no container has.

    Raises:
        OverlapError: all 64 are taken.
    """
    taken = {piece.slot for piece in held if piece.uuid == uuid}
    for slot in range(MAX_SLOTS):
        if slot not in taken:
            return slot
    raise OverlapError(f"GPU {uuid} has no place left: {MAX_SLOTS} containers share it")


def is_whole(shares: Iterable[DeviceShare], offered: Mapping[str, Device]) -> bool:
    """Whether the pieces are all of their devices: such a container is alone on them and is not held to anything."""
    return all(share.core_percent == 100 and share.memory_mib == offered[share.uuid].memory_mib for share in shares)
