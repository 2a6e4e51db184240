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


MAX_COUNTERS = 256
"""Counters of one pod that are tallied, as many as a report of its sidecar has: more are of containers that it has not,
named by somebody else who reports in its name, and every one of them stays in the session's record."""

Use = Mapping[tuple[str, str], DeviceUse]
"""By container name and device uuid."""


@dataclass(frozen=True, slots=True)
class UseTally:
    """What a pod has used, over counters that began anew.

    Attributes:
        before: microGPU-seconds that counters amounted to which have begun anew since.
        counters: (container, device uuid, busy ns, span ns, peak MiB) of those that run, in order.
    """

    before: int = 0
    counters: tuple[tuple[str, str, int, int, int], ...] = ()

    @property
    def use(self) -> Use:
        """The counters that run."""
        return {(name, uuid): DeviceUse(*found) for name, uuid, *found in self.counters}


def tallied(
    known: UseTally, reported: Use, devices: Mapping[str, DeviceShare], price: Mapping[str, Fraction]
) -> UseTally:
    """The tally once a report has come. A counter that fell has begun anew: what it had been before stays used.

    Counters of devices that the pod does not hold are passed over, as are those beyond MAX_COUNTERS.
    """
    running, before = dict(known.use), known.before
    for key, found in reported.items():
        if key[1] not in devices or (key not in running and len(running) >= MAX_COUNTERS):
            continue
        last = running.get(key, found)
        if found.busy_ns < last.busy_ns or found.span_ns < last.span_ns or found.memory_peak_mib < last.memory_peak_mib:
            before += use_cost({key: last}, devices, price)
        running[key] = found
    rows = ((*key, use.busy_ns, use.span_ns, use.memory_peak_mib) for key, use in running.items())
    return UseTally(before, tuple(sorted(rows)))


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
