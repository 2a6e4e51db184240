"""Decides which faults fence a GPU, and for how long. Pure.

A fenced GPU takes no new container. Those on it continue: they find out themselves whether they still work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairgpu.inventory import Device, Health

OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
"""Xid errors that a program's own fault causes, and that leave the GPU intact."""


@dataclass(frozen=True)
class Fault:
    """A GPU's fault, and when it was last observed, in seconds of a monotonic clock."""

    why: str
    at_seconds: float


def xid_fault(number: int, now_seconds: float) -> Fault | None:
    """Returns the fault of an Xid error; None for one that a program causes itself."""
    return None if number in OF_PROGRAMS else Fault(f"Xid {number}", now_seconds)


def fenced(device: Device, faults: Mapping[str, Fault], now_seconds: float, recover_seconds: float) -> Device:
    """Returns the device as it is offered: fenced until so long after its last fault."""
    fault = faults.get(device.uuid)
    if fault is None or now_seconds - fault.at_seconds >= recover_seconds:
        return device
    return replace(device, health=Health.FENCED, why=fault.why)
