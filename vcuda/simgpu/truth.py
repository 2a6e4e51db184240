"""Reads a simulated node's truth: who really occupied its GPUs, and held their memory, and when.

The file is what tests compare a pacer's or a ledger's claims with. Nothing that runs on the node may read it.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

DEVICES = 8
CONTEXTS = 65536
GROUPS = 64
SLICES = 1 << 18
LABEL = 64

HEADER = struct.Struct("<IIQQII")
GROUP = struct.Struct(f"<{LABEL}s{DEVICES}Q{DEVICES}Q")
CONTEXT = struct.Struct("<IIIIQQQQQQ")
SLICE = struct.Struct("<QQQII")
CONTEXTS_AT = HEADER.size + GROUPS * GROUP.size
DEVICES_AT = CONTEXTS_AT + CONTEXTS * CONTEXT.size
DEVICE_SIZE = 8 + SLICES * SLICE.size


@dataclass(frozen=True)
class Context:
    """One context of one process. Times in ns of CLOCK_MONOTONIC, memory in bytes; end_ns is 0 while it lives."""

    pid: int
    group: int
    device: int
    kernels: int
    begin_ns: int
    end_ns: int
    occupied_ns: int
    solo_ns: int
    bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class Container:
    """The processes of one SIMGPU_LABEL together: device memory in bytes, per device."""

    label: str
    bytes: tuple[int, ...]
    peak_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Slice:
    """A stretch of time in which one context had a device's compute engine; solo_ns is the work that it got done."""

    begin_ns: int
    end_ns: int
    solo_ns: int
    context: int


class Truth:
    """The truth of the node in a directory (SIMGPU_DIR), as it was when this was made."""

    def __init__(self, directory: Path) -> None:
        with (directory / "truth").open("rb") as file:
            head = file.read(HEADER.size)
            _, _, self.size, self._contexts, self._groups, _ = HEADER.unpack(head)
            self._head = head + file.read(DEVICES_AT - HEADER.size)
            self._slices = [self._read_slices(file.fileno(), device) for device in range(DEVICES)]

    @staticmethod
    def _read_slices(descriptor: int, device: int) -> bytes:
        """The newest slices, oldest first, as packed records."""
        at = DEVICES_AT + device * DEVICE_SIZE
        (count,) = struct.unpack("<Q", _pread(descriptor, 8, at))
        packed = _pread(descriptor, min(count, SLICES) * SLICE.size, at + 8)
        oldest = count % SLICES * SLICE.size if count > SLICES else 0
        return packed[oldest:] + packed[:oldest]

    def contexts(self) -> list[Context]:
        """Every context, in the order of creation."""
        count = min(self._contexts, CONTEXTS)
        records = CONTEXT.iter_unpack(self._head[CONTEXTS_AT : CONTEXTS_AT + count * CONTEXT.size])
        return [Context(*fields) for fields in records]

    def containers(self) -> list[Container]:
        """Every label that a process ran under; a context's group is an index into it."""
        found = []
        for index in range(self._groups):
            label, *figures = GROUP.unpack_from(self._head, HEADER.size + index * GROUP.size)
            text = label.split(b"\0", 1)[0].decode()
            found.append(Container(text, tuple(figures[:DEVICES]), tuple(figures[DEVICES:])))
        return found

    def slices(self, device: int = 0) -> Iterator[Slice]:
        """The newest slices of a device, oldest first."""
        return (Slice(*fields[:4]) for fields in SLICE.iter_unpack(self._slices[device]))

    def busy(self, begin_ns: int, end_ns: int, device: int = 0) -> Mapping[str, int]:
        """Nanoseconds in which each container's contexts had the device, within a window; absent is 0."""
        contexts = self.contexts()
        labels = [container.label for container in self.containers()]
        totals: dict[str, int] = {}
        for part in self.slices(device):
            shared = min(part.end_ns, end_ns) - max(part.begin_ns, begin_ns)
            if shared > 0:
                label = labels[contexts[part.context].group]
                totals[label] = totals.get(label, 0) + shared
        return totals


def _pread(descriptor: int, length: int, at: int) -> bytes:
    """Reads exactly so many bytes; raises EOFError when the file ends before."""
    parts = []
    while length > 0:
        part = os.pread(descriptor, length, at)
        if not part:
            raise EOFError("the truth file is shorter than its layout")
        parts.append(part)
        at += len(part)
        length -= len(part)
    return b"".join(parts)
