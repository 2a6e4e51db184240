"""What of a reservation is billed: all of it, what was used of it, or whichever is more.

Use comes from the pod's own reports, which prove no more than what the pod says; so it is clamped by what the pod
could have used: its reservation, or the whole of its devices where it may borrow what others leave idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from fairgpu.allocation import DeviceShare
from timekeeper.rules.money import GPU_SECOND, SECOND


class Bill(StrEnum):
    """What is billed."""

    RESERVED = "reserved"
    USED = "used"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Cumulative counters of one device as a container reported them.

    Attributes:
        busy_ns: GPU time used.
        span_ns: time over which it was counted.
        memory_peak_mib: the most memory held at once.
    """

    busy_ns: int
    span_ns: int
    memory_peak_mib: int


Use = Mapping[tuple[str, str], DeviceUse]
"""By container name and device uuid."""


def use_cost(use: Use, devices: Mapping[str, DeviceShare], price: Mapping[str, Fraction]) -> int:
    """What the counters amount to in microGPU-seconds: per device, the larger of GPU time and memory over time.

    Args:
        use: the counters. Devices that the pod does not hold are ignored.
        devices: what the pod holds, by uuid.
        price: the price of each model among them.
    """
    total = Fraction(0)
    for (_, uuid), counters in use.items():
        device = devices.get(uuid)
        if device is None:
            continue
        memory_share = min(Fraction(counters.memory_peak_mib, device.total_mib), Fraction(1))
        occupied = max(Fraction(counters.busy_ns), counters.span_ns * memory_share)
        total += occupied * price[device.model] * Fraction(GPU_SECOND, SECOND)
    return int(total)


def billed(bill: Bill, reserved: int, used: int, ceiling: int) -> int:
    """The amount of a span.

    Args:
        bill: what is billed.
        reserved: what its reservation costs.
        used: what its reports amount to.
        ceiling: the most that it can have used: `reserved`, or its whole devices where it may borrow.
    """
    if bill is Bill.RESERVED:
        return reserved
    believed = min(max(used, 0), max(ceiling, reserved))
    return believed if bill is Bill.USED else max(reserved, believed)
