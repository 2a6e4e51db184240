"""Encodes `/etc/vcuda/config`, as vcuda/include/config.h defines it: one container's devices and limits."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.turns import Policy

MAGIC = b"FGCONFG\0"
VERSION = 1
SIZE = 4048
DEVICES = 16
MIB = 1 << 20
LEDGER_PATH = "/run/vcuda/ledger"
USAGE_PATH = "/run/fairgpu/usage"

HEAD = struct.Struct("<8sIIII64s40s96s96s")
DEVICE = struct.Struct("<48s96sQQQQIIII40x")


@dataclass(frozen=True)
class ConfigDevice:
    """One GPU in the configuration file of a container.

    Attributes:
        uuid: the GPU's uuid.
        memory_mib: the container's limit of GPU memory, in MiB.
        core_percent: the container's share of GPU time, in percent.
        policy: how the container may use GPU time beyond its share.
        task_priority: 0 if the container goes before other containers on the GPU, else 1.
        slot: the container's place on the GPU's schedule page.
        key: a random number that marks this start of the container in that place.
    """

    uuid: str
    memory_mib: int
    core_percent: int
    policy: Policy
    task_priority: int
    slot: int
    key: int


def schedule_path(index: int) -> str:
    """Returns the path in a container of the file that holds the schedule page of one of its GPUs.

    The schedule page says when the container may launch kernels on the GPU.

    Args:
        index: the GPU's index among the container's GPUs, from 0.
    """
    return "/etc/vcuda/schedule" if index == 0 else f"/etc/vcuda/schedule.{index}"


def pack(container: str, pod_uid: str, devices: Sequence[ConfigDevice]) -> bytes:
    """Returns the bytes of a container's configuration file.

    Args:
        container: the container's name.
        pod_uid: the uid of its pod.
        devices: the container's GPUs, in the order in which it sees them.

    Raises:
        ValueError: there is no device or more than 16, or a text or number does not fit its field.
    """
    if not 1 <= len(devices) <= DEVICES:
        raise ValueError(f"a configuration has 1 to {DEVICES} devices, not {len(devices)}")
    texts = (
        _text(container, 64, "the container's name"),
        _text(pod_uid, 40, "the pod's uid"),
        _text(LEDGER_PATH, 96, "the ledger's path"),
        _text(USAGE_PATH, 96, "the usage file's path"),
    )
    try:
        packed = HEAD.pack(MAGIC, VERSION, SIZE, len(devices), 0, *texts)
        packed += b"".join(_device(index, device) for index, device in enumerate(devices))
    except struct.error as error:
        raise ValueError(f"a number does not fit the configuration: {error}") from error
    body = packed.ljust(SIZE - 4, b"\0")
    return body + struct.pack("<I", zlib.crc32(body))


def _device(index: int, device: ConfigDevice) -> bytes:
    return DEVICE.pack(
        _text(device.uuid, 48, "a uuid"),
        schedule_path(index).encode(),
        device.memory_mib * MIB,
        0,
        0,
        device.key,
        device.slot,
        device.core_percent,
        device.policy,
        device.task_priority,
    )


def _text(text: str, size: int, what: str) -> bytes:
    """Encodes a text for a field of `size` bytes, of which at least one stays NUL; `what` names it in the error.

    Raises:
        ValueError: the text is too long.
    """
    encoded = text.encode()
    if len(encoded) >= size:
        raise ValueError(f"{what} has {len(encoded)} bytes; at most {size - 1} are allowed")
    return encoded
