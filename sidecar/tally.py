"""Adds up a container's usage across the container's restarts.

A restart of the container begins a new run of its counters, in which the shim counts from zero again. The totals here
go on growing. A sidecar that itself starts again finds the counters of the present run above zero. Its reports then
state separately the usage that it found. All values are frozen, so that no total is ever changed in part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sidecar.usage_record import MAX_COUNT, DeviceUsage, UsageRecord

MAX_DEVICES_PER_CONTAINER = 32
"""The most devices that are remembered over all runs, so that a container that keeps naming new ones fills no
memory."""


class Tally(NamedTuple):
    """A container's GPU usage; each restart of the container begins a new run of counters.

    Devices beyond MAX_DEVICES_PER_CONTAINER are left out.

    Attributes:
        ended: for each device, the sum of its usage in the earlier runs that this sidecar has seen end.
        running: the usage in the present run: of each counter, the highest value so far. None before the first record.
        found: for each device, the part of `running` or `ended` that was in the container's file when the sidecar
            started. Perhaps an earlier start of the sidecar has reported it already.
    """

    ended: tuple[DeviceUsage, ...] = ()
    running: UsageRecord | None = None
    found: tuple[DeviceUsage, ...] = ()

    def devices(self) -> tuple[DeviceUsage, ...]:
        """Returns the container's total usage of each device, with the usage that the sidecar found at its start."""
        return self.ended if self.running is None else _merge(self.ended, self.running.devices, _added)


def begin(record: UsageRecord | None) -> Tally:
    """Returns the tally of a container whose file was there when the sidecar started, and is read for the first time.

    Args:
        record: the record in the file; None if the container has used no GPU yet.
    """
    return Tally() if record is None else Tally(running=record, found=record.devices)


def advance(tally: Tally, record: UsageRecord | None) -> Tally:
    """Returns a container's tally after its usage record was read.

    Within one run of the counters no counter goes back: the larger value counts, whatever the container writes. A
    record whose number is not higher than the last one's changes nothing. The first record of another run adds the
    usage of the run before to `ended`.

    Args:
        tally: the tally before the record was read.
        record: the record; None if the container has used no GPU yet.
    """
    running = tally.running
    if record is None:
        return tally
    if running is None:
        return tally._replace(running=record)
    if record.epoch_ns != running.epoch_ns:
        return tally._replace(ended=_merge(tally.ended, running.devices, _added), running=record)
    if record.sequence <= running.sequence:
        return tally
    devices = _merge(running.devices, record.devices, _highest)
    return tally._replace(running=record._replace(devices=devices))


def _merge(
    left: tuple[DeviceUsage, ...],
    right: tuple[DeviceUsage, ...],
    combine: Callable[[DeviceUsage, DeviceUsage], DeviceUsage],
) -> tuple[DeviceUsage, ...]:
    by_uuid = {device.uuid: device for device in left}
    for device in right:
        known = by_uuid.get(device.uuid)
        if known is not None:
            by_uuid[device.uuid] = combine(known, device)
        elif len(by_uuid) < MAX_DEVICES_PER_CONTAINER:
            by_uuid[device.uuid] = device
    return tuple(by_uuid.values())


def _added(left: DeviceUsage, right: DeviceUsage) -> DeviceUsage:
    return DeviceUsage(
        uuid=left.uuid,
        busy_ns=min(left.busy_ns + right.busy_ns, MAX_COUNT),
        span_ns=min(left.span_ns + right.span_ns, MAX_COUNT),
        throttled_ns=min(left.throttled_ns + right.throttled_ns, MAX_COUNT),
        memory_peak_bytes=max(left.memory_peak_bytes, right.memory_peak_bytes),
        launches=min(left.launches + right.launches, MAX_COUNT),
        oom=min(left.oom + right.oom, MAX_COUNT),
    )


def _highest(left: DeviceUsage, right: DeviceUsage) -> DeviceUsage:
    return DeviceUsage(
        uuid=left.uuid,
        busy_ns=max(left.busy_ns, right.busy_ns),
        span_ns=max(left.span_ns, right.span_ns),
        throttled_ns=max(left.throttled_ns, right.throttled_ns),
        memory_peak_bytes=max(left.memory_peak_bytes, right.memory_peak_bytes),
        launches=max(left.launches, right.launches),
        oom=max(left.oom, right.oom),
    )
