"""The record of vcuda/include/usage.h, as the agent writes it for containers that have no shim. Pure."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

MAGIC, VERSION, SIZE = b"FGUSAGE", 1, 2112
DEVICES = 16
MEASURED_BY_NODE = 1
"""The flag of every record of the agent's."""
HEAD = struct.Struct("<8sIIQQQII")
DEVICE = struct.Struct("<48s8Q16x")
TRAILER = struct.Struct("<QI")


@dataclass(frozen=True)
class DeviceUse:
    """The use of one device: time in ns, memory in bytes. `span_ns` is the time in which it was looked at."""

    uuid: str
    busy_ns: int = 0
    span_ns: int = 0
    memory_peak_bytes: int = 0
    memory_now_bytes: int = 0
    memory_limit_bytes: int = 0


def pack(sequence: int, epoch_ns: int, written_ns: int, processes: int, devices: Sequence[DeviceUse]) -> bytes:
    """Returns the record's bytes; both times are ns of the wall clock, `epoch_ns` when the counters were zero.

    Raises:
        struct.error: a number does not fit its field.
    """
    head = HEAD.pack(MAGIC, VERSION, SIZE, sequence, epoch_ns, written_ns, len(devices), processes)
    listed = b"".join(
        DEVICE.pack(
            device.uuid.encode(),
            device.busy_ns,
            device.span_ns,
            0,
            device.memory_peak_bytes,
            device.memory_now_bytes,
            device.memory_limit_bytes,
            0,
            0,
        )
        for device in devices
    )
    body = (head + listed).ljust(HEAD.size + DEVICES * DEVICE.size, b"\0")
    record = body + TRAILER.pack(MEASURED_BY_NODE, 0)
    return record + zlib.crc32(record).to_bytes(4, "little")
