"""Measures the GPU use of containers that have GPUs whole, by NVML's figures, since no shim measures it.

The agent writes the usage file that a shim would write. The file is in the pod's volume `fairgpu-usage`, where the
sidecar reads it. The container can write there as well. So the agent opens the path folder by folder, and follows no
links.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from fairgpu import names
from nodeagent.containers.records import Record
from nodeagent.gpu_watch import Observation

_log = structlog.get_logger(__name__)

MIB = 1 << 20

# The record's layout, as vcuda/include/usage.h gives it.
MAGIC, VERSION, SIZE = b"FGUSAGE", 1, 2112
DEVICES = 16
MEASURED_BY_NODE = 1
"""The flag of a usage record that the agent wrote, and no shim."""
HEAD = struct.Struct("<8sIIQQQII")
DEVICE = struct.Struct("<48s8Q16x")
TRAILER = struct.Struct("<QI")

MOST_MEASURED_NS = 5 * 10**9
"""The longest time for which the driver's samples at a look stand. Time before it is not measured."""

Start = tuple[str, str, int]
"""A pod's uid, a container's name, and the number of the container's start."""


@dataclass(frozen=True)
class DeviceUse:
    """The use of one GPU by a container, counted since the agent first saw this start of the container.

    Attributes:
        uuid: the GPU's uuid.
        busy_ns: the time in which the container kept the GPU busy, in ns.
        span_ns: the sum of those intervals between two looks in which the container kept the GPU busy for any time, in
            ns.
        memory_peak_bytes: the most GPU memory that the container had in use at any look.
        memory_now_bytes: the GPU memory that the container had in use at the last look.
        memory_limit_bytes: the memory of the GPU.
    """

    uuid: str
    busy_ns: int = 0
    span_ns: int = 0
    memory_peak_bytes: int = 0
    memory_now_bytes: int = 0
    memory_limit_bytes: int = 0


def pack(sequence: int, epoch_ns: int, written_ns: int, processes: int, devices: Sequence[DeviceUse]) -> bytes:
    """Returns the bytes of a container's usage file, in the form that the shim writes for containers that share GPUs.

    Args:
        sequence: the number of this version of the file.
        epoch_ns: when the counters were zero, in ns since 1970.
        written_ns: the present time, in ns since 1970.
        processes: the number of the container's processes on its GPUs.
        devices: the container's use of each of its GPUs.

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


class Tally:
    """Counts the GPU use of one start of a container, from when the agent first saw it or an earlier one last did.

    A GPU whose busy time the driver has not measured yet is left out of the usage file. A count of 0 would say that the
    container has not used it, and a GPU without a count is billed as reserved. For the same reason, time of which the
    driver said nothing counts as time in which the container kept the GPU busy, once the driver has measured the GPU.
    """

    def __init__(self, record: Record, since_ns: int, wall_ns: int) -> None:
        """Begins to count at `since_ns` (of CLOCK_MONOTONIC); the present time is `wall_ns`, in ns since 1970."""
        self._epoch_ns = wall_ns
        self._sequence = 0
        self._uses = {
            device.uuid: DeviceUse(device.uuid, memory_limit_bytes=device.memory_mib * MIB) for device in record.devices
        }
        self._counted_ns = dict.fromkeys(self._uses, since_ns)
        """The time until which the use of each GPU is counted, in ns of CLOCK_MONOTONIC, keyed by the GPU's uuid."""
        self._measured: set[str] = set()
        """The uuids of the GPUs whose busy time the driver has measured at any look."""

    def next_since_ns(self, now_ns: int) -> int:
        """Returns from when the container's next start is counted, in ns of CLOCK_MONOTONIC.

        That is the present time, `now_ns`. If the driver has been silent for more than MOST_MEASURED_NS, it is the time
        until which this start was counted.
        """
        counted_ns = max(self._counted_ns.values())
        return counted_ns if now_ns - counted_ns > MOST_MEASURED_NS else now_ns

    def add(self, record: Record, seen: Observation, now_ns: int, wall_ns: int) -> bytes:
        """Counts the time since the driver last measured each GPU; returns the bytes of the container's usage file.

        Of time that the driver has not measured, the last MOST_MEASURED_NS stay uncounted: the driver may yet measure
        them.

        Args:
            record: the container's record.
            seen: the driver's figures.
            now_ns: the present time, in ns of CLOCK_MONOTONIC.
            wall_ns: the present time, in ns since 1970.
        """
        self._sequence += 1
        self._measured.update(seen.timed)
        for uuid, use in self._uses.items():
            key = (record.uid, record.container, uuid)
            figure = seen.figures.get(key)
            held = figure.driver_bytes if figure is not None else 0
            unmeasured_ns = max(now_ns - self._counted_ns[uuid] - MOST_MEASURED_NS, 0)
            self._counted_ns[uuid] += unmeasured_ns
            measured_ns = now_ns - self._counted_ns[uuid] if uuid in seen.timed else 0
            self._counted_ns[uuid] += measured_ns
            busy_ns = int(measured_ns * min(seen.busy_percent.get(key, 0.0), 100.0) / 100)
            self._uses[uuid] = replace(
                use,
                busy_ns=use.busy_ns + unmeasured_ns + busy_ns,
                span_ns=use.span_ns + unmeasured_ns + (measured_ns if busy_ns else 0),
                memory_now_bytes=held,
                memory_peak_bytes=max(use.memory_peak_bytes, held),
            )
        holders = seen.processes.get((record.uid, record.container), 0)
        measured = [use for uuid, use in self._uses.items() if uuid in self._measured]
        return pack(self._sequence, self._epoch_ns, wall_ns, holders, measured)


class WholeGpus:
    """Counts the GPU use of containers that have GPUs whole, and writes their usage files.

    A restarted agent counts anew from where the last one ended, and the sidecar adds both counts.
    """

    def __init__(self, pods: Path) -> None:
        self._pods = pods
        self._tallies: dict[Start, Tally] = {}
        self._refused: dict[Start, str] = {}
        """Why the last usage file of a start could not be written, which its container may cause at every look."""

    def go_on(self, records: Iterable[Record], since_ns: int, now_ns: int, wall_ns: int) -> None:
        """Begins to count the use of containers that an earlier agent counted before.

        Args:
            records: the records that the earlier agent left on the host.
            since_ns: until when the earlier agent counted, in ns of CLOCK_MONOTONIC; a time that is not known (0), or
                later than `now_ns`, counts as `now_ns`.
            now_ns: the present time, in ns of CLOCK_MONOTONIC.
            wall_ns: the present time, in ns since 1970.
        """
        begun_ns = since_ns if 0 < since_ns <= now_ns else now_ns
        self._tallies = {_start(record): Tally(record, begun_ns, wall_ns) for record in records if record.whole}

    def write(self, records: Iterable[Record], seen: Observation, now_ns: int, wall_ns: int) -> None:
        """Writes the usage file of each container that has its GPUs whole, if its pod has the volume.

        A failure is logged once, until the file is written again or the failure is another.

        Args:
            records: the records of all containers that are alive or starting.
            seen: the driver's figures.
            now_ns: the present time, in ns of CLOCK_MONOTONIC.
            wall_ns: the present time, in ns since 1970.
        """
        whole = {_start(record): record for record in records if record.whole}
        refused: dict[Start, str] = {}
        before = {key[:2]: tally.next_since_ns(now_ns) for key, tally in self._tallies.items()}
        self._tallies = {
            key: self._tallies.get(key) or Tally(record, before.get(key[:2], now_ns), wall_ns)
            for key, record in whole.items()
        }
        for key, record in whole.items():
            content = self._tallies[key].add(record, seen, now_ns, wall_ns)
            try:
                put(self._pods, record, content)
            except FileNotFoundError:
                continue  # the pod is starting, or ending, or has no such volume: it was admitted by other means
            except OSError as error:
                refused[key] = str(error)
                if self._refused.get(key) != refused[key]:
                    _log.warning("use not written", uid=record.uid, container=record.container, error=str(error))
        self._refused = refused


def _start(record: Record) -> Start:
    return record.uid, record.container, record.start


def put(pods: Path, record: Record, content: bytes) -> None:
    """Writes a container's usage file into its pod's volume `fairgpu-usage`, with one write.

    Args:
        pods: the kubelet's folder of pods.
        content: all bytes of the file.

    Raises:
        OSError: there is no such volume, or something in it is a link, or no regular file, or the host refuses.
    """
    path = (record.uid, "volumes", "kubernetes.io~empty-dir", names.USAGE_VOLUME, record.container)
    descriptor = os.open(pods, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in path:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open("usage", flags, 0o644, dir_fd=descriptor)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise OSError("usage: no regular file of its own")
            os.pwrite(file, content, 0)
        finally:
            os.close(file)
    finally:
        os.close(descriptor)
