"""Plays the GPUs: writes the usage files that the shim would write, as vcuda/include/usage.h describes them."""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

RECORD_BYTES = 2112
DEVICE_BYTES = 128
MAX_DEVICES = 16
WRITE_SECONDS = 0.2


@dataclass(frozen=True)
class Load:
    """A container's use of one played device.

    Attributes:
        file: the container's usage file.
        uuid: the device's uuid.
        busy_share: the share of the time in which the device works for the container, from 0 to 1.
        memory_mib: the memory that the container has allocated, in MiB.
        memory_limit_mib: the memory that the container may allocate, in MiB.
    """

    file: Path
    uuid: str
    busy_share: float
    memory_mib: int
    memory_limit_mib: int


class Gpus:
    """A thread that plays GPUs: it writes the usage files of containers several times a second until it is stopped."""

    def __init__(self) -> None:
        self._loads: dict[Load, int] = {}
        self._lock = threading.Lock()
        """Guards `_loads`, which the demonstration adds to while the thread writes."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread."""
        self._stop.set()
        self._thread.join()

    def run_on(self, load: Load) -> None:
        """Starts a load: the container uses the device from now on, until the thread is stopped."""
        load.file.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._loads[load] = time.time_ns()

    def _run(self) -> None:
        sequence = 0
        while not self._stop.wait(WRITE_SECONDS):
            sequence += 1
            with self._lock:
                loads = dict(self._loads)
            for load, since_ns in loads.items():
                _write(load.file, record(load, sequence, since_ns, time.time_ns()))


def record(load: Load, sequence: int, since_ns: int, now_ns: int) -> bytes:
    """Returns the usage record of a container that uses one device, as the container's file has it.

    Args:
        load: the container's use of the device.
        sequence: the number of the record.
        since_ns: the time from which the device has been used, in nanoseconds since 1970.
        now_ns: the present time, in nanoseconds since 1970.
    """
    busy_ns = int((now_ns - since_ns) * load.busy_share)
    memory, limit = load.memory_mib << 20, load.memory_limit_mib << 20
    counters = (busy_ns, busy_ns, 0, memory, memory, limit, busy_ns // 1_000_000, 0)
    device = struct.pack("<48s8Q16x", load.uuid.encode(), *counters)
    header = struct.pack("<8sIIQQQII", b"FGUSAGE", 1, RECORD_BYTES, sequence, since_ns, now_ns, 1, 1)
    body = header + device.ljust(MAX_DEVICES * DEVICE_BYTES, b"\0") + bytes(12)
    return body + zlib.crc32(body).to_bytes(4, "little")


def _write(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(file, data, 0)
    finally:
        os.close(file)
