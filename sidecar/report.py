"""Encodes a report: the GPU usage of the pod's containers since this sidecar started, as JSON of version 1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sidecar.tally import Tally
from sidecar.usage_record import DeviceUsage

VERSION = 1
MAX_DEVICES = 256
"""The most devices in one report, over all containers, which keeps it under 128 KiB."""
_MIB = 2**20


def encode(boot: str, sequence: int, tallies: Mapping[str, Tally], *, last: bool = False) -> bytes:
    """Encodes the report of one start of the sidecar (`boot`), with a number that grows with each report.

    The timekeeper takes the `last` one at once, however soon after the one before.
    """
    containers: list[dict[str, Any]] = []
    room = MAX_DEVICES
    for name in sorted(tallies):
        devices = tallies[name].devices()[:room]
        room -= len(devices)
        containers.append({"name": name, "devices": [_device(device) for device in devices]})
    document: dict[str, Any] = {"v": VERSION, "boot": boot, "seq": sequence, "containers": containers}
    if last:
        document["last"] = True
    return json.dumps(document, separators=(",", ":")).encode()


def _device(device: DeviceUsage) -> dict[str, Any]:
    return {
        "uuid": device.uuid,
        "busyNs": device.busy_ns,
        "spanNs": device.span_ns,
        "throttledNs": device.throttled_ns,
        "memoryPeakMiB": -(-device.memory_peak_bytes // _MIB),  # rounded up: a peak is never understated
        "launches": device.launches,
        "oom": device.oom,
    }
