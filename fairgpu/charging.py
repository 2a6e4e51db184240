"""The rate of a GPU request whose devices are not chosen yet: the timekeeper charges it, and warnings state it.

A rate is in microGPU-seconds a second: a whole GPU at price 1 costs 1,000,000 of them. The rate of each vGPU is rounded
up, so that even the smallest share costs something.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

GPU_SECOND: Final = 1_000_000
"""MicroGPU-seconds of one whole GPU for one second at price 1."""


@dataclass(frozen=True, slots=True)
class ChargeRules:
    """The admin's rules for charging.

    Attributes:
        best_effort_floor_percent: the least cost of a best-effort share, in percent of a whole GPU's cost.
        unknown_device_mib: the memory, in MiB, that a device is assumed to have while no device is chosen for a pod.
            The pod's request for memory counts as a share of it.
    """

    best_effort_floor_percent: int = 10
    unknown_device_mib: int = 16384


@dataclass(frozen=True, slots=True)
class UnplacedShare:
    """A container's GPU request while no allocation names its devices; all figures are sums over its vGPUs.

    Attributes:
        gpus: the number of vGPUs.
        core_percent: GPU time, in percent of one GPU; 0 is best effort.
        memory_mib: memory in MiB; 0 if none is given.
        memory_percentage: memory in percent of one GPU; 0 if none is given.
    """

    gpus: int
    core_percent: int
    memory_mib: int = 0
    memory_percentage: int = 0


def unplaced_rate(request: UnplacedShare, price: Fraction, rules: ChargeRules) -> int:
    """Returns the rate of a GPU request without an allocation, in microGPU-seconds a second.

    For each vGPU, it is the price times the larger of the vGPU's shares of time and memory, rounded up.

    Args:
        request: the request, as sums over its vGPUs.
        price: GPU-hours charged for an hour of a whole GPU; 1 without prices.
        rules: the admin's rules for charging.
    """
    gpus = max(request.gpus, 1)
    core = Fraction(request.core_percent or rules.best_effort_floor_percent * gpus, 100 * gpus)
    memory = max(
        Fraction(request.memory_mib, rules.unknown_device_mib * gpus), Fraction(request.memory_percentage, 100 * gpus)
    )
    return gpus * math.ceil(GPU_SECOND * price * max(core, min(memory, Fraction(1))))
