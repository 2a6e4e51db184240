"""Which faults take a GPU out, and for how long. Pure.

A fenced GPU takes no new container. Those on it go on: whether they still work is theirs to find out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairgpu.inventory import Device, Health

OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
"""Xid errors that a program's own fault causes, and that leave the GPU sound
(https://docs.nvidia.com/deploy/xid-errors/index.html)."""


@dataclass(frozen=True)
class Fault:
    """What was wrong with a GPU, and when that was last seen, in seconds of a clock that is never set."""

    why: str
    at_seconds: float


def xid_fault(number: int, now_seconds: float) -> Fault | None:
    """The fault that an Xid error tells of; None for one that a program causes itself."""
    return None if number in OF_PROGRAMS else Fault(f"Xid {number}", now_seconds)


def fenced(device: Device, faults: Mapping[str, Fault], now_seconds: float, recover_seconds: float) -> Device:
    """The device as it is offered: fenced until so long after its last fault."""
    fault = faults.get(device.uuid)
    if fault is None or now_seconds - fault.at_seconds >= recover_seconds:
        return device
    return replace(device, health=Health.FENCED, why=fault.why)
