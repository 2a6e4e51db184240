"""Writes usage records in place of the shim, by vcuda/include/usage.h and without the sidecar's code."""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

RECORD_BYTES = 2112
_MAX_DEVICES = 16


@dataclass(frozen=True)
class Device:
    uuid: str
    busy_ns: int = 0
    span_ns: int = 0
    throttled_ns: int = 0
    memory_peak_bytes: int = 0
    launches: int = 0
    oom: int = 0


def usage_record(
    *devices: Device, sequence: int = 1, epoch_ns: int = 1, device_count: int | None = None, flags: int = 0
) -> bytes:
    count = len(devices) if device_count is None else device_count
    header = struct.pack("<8sIIQQQII", b"FGUSAGE", 1, RECORD_BYTES, sequence, epoch_ns, epoch_ns, count, 1)
    body = b"".join(map(_device, devices)).ljust(_MAX_DEVICES * 128, b"\0")
    return sealed(header + body + flags.to_bytes(8, "little") + bytes(8))


def _device(device: Device) -> bytes:
    counters = (device.busy_ns, device.span_ns, device.throttled_ns, device.memory_peak_bytes, 0, 0)
    return struct.pack("<48s8Q16x", device.uuid.encode(), *counters, device.launches, device.oom)


def sealed(record: bytes) -> bytes:
    """Returns the record with the checksum over its other bytes."""
    return record[:-4] + zlib.crc32(record[:-4]).to_bytes(4, "little")


def write_usage(path: Path, record: bytes) -> None:
    """Writes the whole record by one pwrite, as the shim does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(file, record, 0)
    finally:
        os.close(file)
