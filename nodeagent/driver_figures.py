"""Computes each container's memory and GPU time from the driver's figures of processes. Pure.

The shim frees the memory that it has charged for a container's ended processes, but never more than the driver's figure
of the container allows. If a figure were too low, the shim would free memory that is still in use: memory may outlive
its process, as long as a file descriptor holds it, and perhaps the driver does not name the process. So memory in
use on the GPU that belongs to no known process counts for each container to which the shim has charged more than its
processes have.

Managed memory may be in no process's figure. It would then count as memory of no known process, and keep the memory of
ended processes charged for ever. So a figure also has the time of the last sample in which the driver named no ended
process of the container: the shim frees memory by this time as well. A container keeps its last figure while the driver
gives no memory for one of its processes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

TRIM_STEP_PERMILLE = 5
"""The part of its turns, in thousandths, that a container loses or regains with one sample. It is small, so that no
figure that people watch changes fast."""
LEAST_TRIM_PERMILLE = 700
"""The least part of its turns that a container keeps, in thousandths, since samples of utilisation are coarse."""
TRIM_EVERY_NS = 400_000_000
"""The least time between two trimmings: less than the interval of samples that no process has asked for."""
TOLERANCE_PERCENT = 2.0
SMOOTHING = 0.1
"""The weight of a new second in the running mean of use; the seconds before it have the rest."""


@dataclass(frozen=True)
class DriverSample:
    """The driver's figures of one GPU and of the processes on it, at one time.

    Times are ns of CLOCK_MONOTONIC, and process ids are the host's.

    Attributes:
        at_ns: the time right before the driver was asked.
        used_bytes: the memory in use on the whole GPU, in bytes.
        bytes_by_pid: the GPU memory of each process, in bytes, keyed by the process id.
        percent_by_pid: the percent of the last second or more in which each process kept the GPU busy; None if the
            driver does not measure it.
        unmeasured: the processes on the GPU whose memory the driver does not give; none of them is in `bytes_by_pid`.
    """

    at_ns: int
    used_bytes: int
    bytes_by_pid: Mapping[int, int]
    percent_by_pid: Mapping[int, float] | None = field(default_factory=dict)
    unmeasured: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Figure:
    """The agent's figures of one container on one GPU, from the driver's last sample. Times are ns of CLOCK_MONOTONIC.

    Attributes:
        driver_bytes: the GPU memory that the container holds, in bytes.
        sampled_ns: when the driver was asked; 0 for never.
        busy_percent: the part of the last seconds in which the container kept the GPU busy, in percent.
        trim_permille: the part of each of its turns that the container may use, in thousandths.
        dead_gone_ns: the time of the last sample that named no process which has ended according to the container's
            ledger; 0 if there was none.
        trimmed_ns: the time of the sample from which `trim_permille` was last computed; 0 for never.
    """

    driver_bytes: int = 0
    sampled_ns: int = 0
    busy_percent: float = 0.0
    trim_permille: int = 1000
    dead_gone_ns: int = 0
    trimmed_ns: int = 0


@dataclass(frozen=True)
class Placed:
    """The container of each process that the driver names on a GPU in one sample.

    A process that ended before its container was known is left out: after a fault, a driver goes on naming ended
    processes for hours.

    Attributes:
        slots: for each process, the slot of its container on the GPU's schedule page, keyed by the host's process id;
            None for a process of no container on the page.
        unclaimed_bytes: the least memory that the GPU ever held beyond that of its processes, which is the driver's
            own; None before the first sample that gave the memory of all processes.
    """

    slots: Mapping[int, int | None] = field(default_factory=dict)
    unclaimed_bytes: int | None = None


def place(sample: DriverSample, members: Mapping[int, int], alive: frozenset[int], before: Placed) -> Placed:
    """Returns the container of each process in a sample of the driver's.

    Args:
        sample: the driver's figures of one GPU.
        members: for each process that was in a container's cgroup at the time of the sample, the slot of that
            container, keyed by the host's process id.
        alive: the process ids in the sample that exist now.
        before: the previous answer for this GPU; a process that has ended since keeps its container.
    """
    slots: dict[int, int | None] = {}
    for pid in sample.bytes_by_pid.keys() | sample.unmeasured:
        if pid in members:
            slots[pid] = members[pid]
        elif pid in alive:
            slots[pid] = None
        elif pid in before.slots:
            slots[pid] = before.slots[pid]
    if sample.unmeasured:
        return Placed(slots, before.unclaimed_bytes)
    unclaimed = max(0, sample.used_bytes - sum(sample.bytes_by_pid.values()))
    least = unclaimed if before.unclaimed_bytes is None else min(unclaimed, before.unclaimed_bytes)
    return Placed(slots, least)


def figures(
    sample: DriverSample,
    placed: Placed,
    charged: Mapping[int, int],
    shares: Mapping[int, float],
    before: Mapping[int, Figure],
    living: Collection[int] = (),
) -> dict[int, Figure]:
    """Returns the figures of each container on one GPU, keyed by the container's slot on the GPU's schedule page.

    Args:
        placed: the container of each process in the sample.
        charged: the bytes of GPU memory that the shim has charged to each slot; the answer has these slots.
        shares: the percent of GPU time that was granted to each slot whose share is a hard limit.
        before: the previous figures of each slot. A slot keeps them if the sample lacks the memory of one of its
            processes.
        living: the host's ids of the processes in the sample that their container's shim lists as living.
    """
    seen = sum(held for pid, held in sample.bytes_by_pid.items() if pid in placed.slots)
    beyond = sample.used_bytes - seen - (placed.unclaimed_bytes or 0)
    named = sample.bytes_by_pid.keys() | sample.unmeasured
    all_placed = named <= placed.slots.keys()
    percents = sample.percent_by_pid or {}
    made = {}
    for slot, charged_bytes in charged.items():
        last = before.get(slot, Figure())
        pids = [pid for pid, owner in placed.slots.items() if owner == slot]
        if not sample.unmeasured.isdisjoint(pids):
            made[slot] = last
            continue
        own = sum(sample.bytes_by_pid[pid] for pid in pids)
        held_on = min(max(0, charged_bytes - own), max(0, beyond))
        busy = sum(percents.get(pid, 0.0) for pid in pids)
        smooth = last.busy_percent + _weight(last.sampled_ns, sample.at_ns) * (busy - last.busy_percent)
        gone_ns = sample.at_ns if all_placed and all(pid in living for pid in pids) else last.dead_gone_ns
        is_due = not last.trimmed_ns or sample.at_ns - last.trimmed_ns >= TRIM_EVERY_NS
        trim = trimmed(last.trim_permille, smooth, shares.get(slot)) if is_due else last.trim_permille
        trimmed_ns = sample.at_ns if is_due else last.trimmed_ns
        made[slot] = Figure(own + held_on, sample.at_ns, smooth, trim, gone_ns, trimmed_ns)
    return made


def _weight(last_ns: int, now_ns: int) -> float:
    """Returns a sample's weight in the running mean of use: SMOOTHING times the seconds that it covers (at most 1).

    A sample without an earlier one (`last_ns` 0) covers one second.
    """
    seconds = min(1.0, (now_ns - last_ns) / 1_000_000_000) if last_ns else 1.0
    return SMOOTHING * seconds


def trimmed(permille: int, busy_percent: float, share_percent: float | None) -> int:
    """Returns the part of each of its turns that a container may use from now on, in thousandths.

    If the container exceeds its share by more than TOLERANCE_PERCENT, the part falls by TRIM_STEP_PERMILLE, down to
    LEAST_TRIM_PERMILLE. Otherwise it rises by TRIM_STEP_PERMILLE, up to 1000.

    Args:
        permille: the part until now, in thousandths.
        busy_percent: the part of the last seconds in which the container kept the GPU busy, in percent.
        share_percent: the container's share of GPU time; None if the share is no hard limit.
    """
    if share_percent is not None and busy_percent > share_percent + TOLERANCE_PERCENT:
        return max(LEAST_TRIM_PERMILLE, permille - TRIM_STEP_PERMILLE)
    return min(1000, permille + TRIM_STEP_PERMILLE)
