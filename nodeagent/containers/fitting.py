"""Checks that a container's GPUs are there and healthy, and that it fits beside the node's other containers. Pure.

The scheduler places pods by the allocations that it sees. Two allocations of the same part of a GPU may still be
written at once. So the node checks again, and only one of the two containers starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairgpu.allocation import DeviceShare
from fairgpu.inventory import MAX_SLOTS, Device, Health


@dataclass(frozen=True)
class Held:
    """A part of one GPU that a container of this node holds.

    Attributes:
        uuid: the GPU's uuid.
        core_percent: the container's share of GPU time, in percent.
        memory_mib: the container's part of GPU memory, in MiB.
        slot: the container's place on the GPU's schedule page, from 0 to 63.
    """

    uuid: str
    core_percent: int
    memory_mib: int
    slot: int


class UnusableDeviceError(ValueError):
    """Raised if an allocation names a GPU that this node cannot give; the message says which and why."""


class OverlapError(ValueError):
    """Raised if other containers hold what an allocation gives; the message has the GPU, and how much of it is free."""


def check_devices(shares: Iterable[DeviceShare], offered: Mapping[str, Device]) -> None:
    """Checks that each GPU of a container exists, is healthy, and offers as much memory as the allocation says.

    The memory must suffice for the container's part, and for the size of the whole GPU that the allocation states.

    Args:
        shares: the container's parts of GPUs, according to its allocation.
        offered: the node's GPUs, keyed by uuid.

    Raises:
        UnusableDeviceError: a GPU is missing, fenced, or too small.
    """
    for share in shares:
        device = offered.get(share.uuid)
        if device is None:
            raise UnusableDeviceError(f"GPU {share.uuid} is not offered by this node")
        if device.health is not Health.OK:
            raise UnusableDeviceError(f"GPU {share.uuid} is fenced: {device.why}")
        most = max(share.memory_mib, share.total_mib)  # a percentage is of the total
        if most > device.memory_mib:
            raise UnusableDeviceError(f"GPU {share.uuid} offers {device.memory_mib} MiB, not {most}")


def check_overlap(shares: Iterable[DeviceShare], held: Iterable[Held], offered: Mapping[str, Device]) -> None:
    """Checks that a container's parts of GPUs fit beside the parts that other containers hold.

    Args:
        shares: the container's parts of GPUs, according to its allocation.
        held: the parts that other containers of the node hold.
        offered: the node's GPUs, keyed by uuid; each GPU of `shares` is among them.

    Raises:
        OverlapError: the GPU time of all would be more than 100 percent, or the memory more than the GPU offers.
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
    """Returns the lowest place on a GPU's schedule page that no container holds, from 0 to 63.

    Args:
        held: the parts of GPUs that containers of the node hold.

    Raises:
        OverlapError: all 64 places are taken.
    """
    taken = {piece.slot for piece in held if piece.uuid == uuid}
    for slot in range(MAX_SLOTS):
        if slot not in taken:
            return slot
    raise OverlapError(f"GPU {uuid} has no place left: {MAX_SLOTS} containers share it")


def is_whole(shares: Iterable[DeviceShare], offered: Mapping[str, Device]) -> bool:
    """Returns whether a container's part of each of its GPUs is the whole GPU.

    The container is then alone on them, and no shim limits it.

    Args:
        shares: the container's parts of GPUs, according to its allocation.
        offered: the node's GPUs, keyed by uuid; each GPU of `shares` is among them.
    """
    return all(share.core_percent == 100 and share.memory_mib == offered[share.uuid].memory_mib for share in shares)
