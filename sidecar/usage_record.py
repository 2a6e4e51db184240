"""Reads and decodes the usage records of a pod's containers, which the shim writes, or the node agent for whole GPUs.

A container can replace its file by anything. So a link is not followed, a FIFO is not waited for, and no file is
mapped: each of these, or a truncated file, gives an error for that container alone. The layout is `struct vcuda_usage`
of vcuda/include/usage.h, version 1; a test compares the tables here with the compiler's offsets. Every field is checked
before it is used.
"""

from __future__ import annotations

import os
import stat
import struct
import time
import zlib
from collections.abc import Callable
from typing import NamedTuple

MAGIC = b"FGUSAGE\0"
VERSION = 1
MAX_DEVICES = 16
MEASURED_BY_NODE = 1
"""The flag of a record that the node agent wrote, for a container that has its GPUs whole."""
MAX_COUNT = 2**63 - 1
"""The largest counter that is accepted: a signed 64-bit integer, 292 years in nanoseconds."""

HEADER_FIELDS = (
    ("magic", "8s"),
    ("version", "I"),
    ("size", "I"),
    ("sequence", "Q"),
    ("epoch_ns", "Q"),
    ("written_ns", "Q"),
    ("device_count", "I"),
    ("processes", "I"),
)
DEVICE_FIELDS = (
    ("uuid", "48s"),
    ("busy_ns", "Q"),
    ("span_ns", "Q"),
    ("throttled_ns", "Q"),
    ("memory_peak_bytes", "Q"),
    ("memory_now_bytes", "Q"),
    ("memory_limit_bytes", "Q"),
    ("launches", "Q"),
    ("oom", "Q"),
    ("reserved", "16s"),
)
TRAILER_FIELDS = (("flags", "Q"), ("padding", "I"), ("checksum", "I"))


def _struct(fields: tuple[tuple[str, str], ...]) -> struct.Struct:
    return struct.Struct("<" + "".join(code for _, code in fields))


HEADER = _struct(HEADER_FIELDS)
DEVICE = _struct(DEVICE_FIELDS)
TRAILER = _struct(TRAILER_FIELDS)
SIZE = HEADER.size + MAX_DEVICES * DEVICE.size + TRAILER.size
"""The size of every record, in bytes."""

_UUID_PREFIXES = ("GPU-", "MIG-")


class UsageError(ValueError):
    """The content of a usage file is no usage record; the message says why."""


class TornRecordError(UsageError):
    """The checksum of a usage record does not match: it was read during a write, or another program wrote the file."""


class DeviceUsage(NamedTuple):
    """A container's use of one device in one run of the counters, which begins anew when the container restarts.

    Attributes:
        uuid: the device's uuid.
        busy_ns: GPU time, in nanoseconds.
        span_ns: wall time in which the container had work on the device, in nanoseconds.
        throttled_ns: the time for which launches were held back, in nanoseconds.
        memory_peak_bytes: the most memory that the container had at one time, in bytes.
        launches: the number of kernel launches.
        oom: the number of refused allocations of memory.
    """

    uuid: str
    busy_ns: int
    span_ns: int
    throttled_ns: int
    memory_peak_bytes: int
    launches: int
    oom: int


class UsageRecord(NamedTuple):
    """The usage record of one container, as its file has it.

    Attributes:
        epoch_ns: the time at which the counters were zero, in nanoseconds since 1970. The time identifies one run of
            the counters: a new run begins when the container restarts.
        sequence: the number of the record within its run of the counters; it grows with each record.
        devices: the container's use of each device.
        measured_by_node: whether the node agent wrote the record, from counts of the driver. The times for which
            launches were held back, the launches and the refused allocations are then unknown.
    """

    epoch_ns: int
    sequence: int
    devices: tuple[DeviceUsage, ...]
    measured_by_node: bool = False


def decode(raw: bytes) -> UsageRecord | None:
    """Decodes a usage record; returns None for no bytes or SIZE bytes of zero, as before the first GPU work.

    Args:
        raw: the content of a container's usage file.

    Raises:
        TornRecordError: the checksum does not match; reading again may help.
        UsageError: the record has another size, magic or version, a field is invalid, or a device appears twice.
    """
    if not raw or (len(raw) == SIZE and not any(raw)):
        return None
    if len(raw) != SIZE:
        raise UsageError(f"{len(raw)} bytes, a record has {SIZE}")
    magic, version, size, sequence, epoch_ns, _, device_count, _ = HEADER.unpack_from(raw)
    if magic != MAGIC:
        raise UsageError("it does not begin with FGUSAGE")
    if version != VERSION or size != SIZE:
        raise UsageError(f"version {version} of {size} bytes, this sidecar reads version {VERSION} of {SIZE}")
    if zlib.crc32(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise TornRecordError("the checksum does not match")
    if device_count > MAX_DEVICES:
        raise UsageError(f"device_count is {device_count}, at most {MAX_DEVICES}")
    _bounded("sequence", sequence)
    _bounded("epoch_ns", epoch_ns)
    devices = tuple(_device(raw, index) for index in range(device_count))
    if len({device.uuid for device in devices}) != device_count:
        raise UsageError("a device stands in it twice")
    flags, _, _ = TRAILER.unpack_from(raw, SIZE - TRAILER.size)
    measured_by_node = bool(flags & MEASURED_BY_NODE)
    return UsageRecord(epoch_ns, sequence, devices, measured_by_node)


def _device(raw: bytes, index: int) -> DeviceUsage:
    uuid, busy, span, throttled, peak, _, _, launches, oom, _ = DEVICE.unpack_from(
        raw, HEADER.size + index * DEVICE.size
    )
    counts = {
        "busy_ns": busy,
        "span_ns": span,
        "throttled_ns": throttled,
        "memory_peak_bytes": peak,
        "launches": launches,
        "oom": oom,
    }
    for name, value in counts.items():
        _bounded(f"devices[{index}].{name}", value)
    return DeviceUsage(uuid=_uuid(uuid, index), **counts)


def _uuid(field: bytes, index: int) -> str:
    text, terminator, padding = field.partition(b"\0")
    uuid = text.decode("ascii", errors="replace")
    plain = uuid[4:].replace("-", "").isalnum() and uuid.isascii()
    if not (terminator and not any(padding) and uuid.startswith(_UUID_PREFIXES) and plain):
        raise UsageError(f"devices[{index}].uuid is no GPU-... or MIG-... padded with NUL")
    return uuid


def _bounded(name: str, value: int) -> None:
    if value > MAX_COUNT:
        raise UsageError(f"{name} is {value}, over {MAX_COUNT}")


FILE_NAME = "usage"
MAX_CONTAINERS = 64
"""The most containers of one pod that are read, which bounds the size of a report."""
MAX_FOLDER_ENTRIES = 1024
ATTEMPTS = 3
PAUSE_SECONDS = 0.003

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_NAME_LENGTH = 63  # a container's name is an RFC 1123 label
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


def container_names(root: str) -> tuple[str, ...]:
    """Returns the names of the containers that have a folder in the usage volume, sorted, at most MAX_CONTAINERS.

    Of the volume's entries, at most MAX_FOLDER_ENTRIES are looked at, in the order in which the system lists them.

    Args:
        root: the folder of the pod's usage volume.

    Raises:
        OSError: the volume does not exist or cannot be listed.
    """
    names: list[str] = []
    with os.scandir(root) as entries:
        for _, entry in zip(range(MAX_FOLDER_ENTRIES), entries, strict=False):
            if _is_container_name(entry.name) and entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
    return tuple(sorted(names)[:MAX_CONTAINERS])


def read_usage(root: str, container: str, pause: Callable[[float], None] = time.sleep) -> UsageRecord | None:
    """Reads a container's usage record; returns None if the container has used no GPU yet.

    A record that was read during a write is read again, at most ATTEMPTS times in all.

    Args:
        root: the folder of the pod's usage volume.
        container: the container's name.
        pause: sleeps the given seconds.

    Raises:
        UsageError: the file is not a usage record, or its checksum never matches.
        OSError: the file cannot be opened or read (a symbolic link is not followed: ELOOP).
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return decode(_read(root, container))
        except TornRecordError:
            pause(PAUSE_SECONDS)
    return decode(_read(root, container))


def _read(root: str, container: str) -> bytes:
    folder = os.open(f"{root}/{container}", _FOLDER_FLAGS)
    try:
        file = os.open(FILE_NAME, _FILE_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        return b""
    finally:
        os.close(folder)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError("it is no regular file")
        if status.st_size not in (0, SIZE):
            raise UsageError(f"{status.st_size} bytes, a record has {SIZE}")
        return os.pread(file, SIZE, 0)
    finally:
        os.close(file)


def _is_container_name(name: str) -> bool:
    return 0 < len(name) <= _MAX_NAME_LENGTH and _NAME_CHARACTERS.issuperset(name) and name.strip("-") == name
