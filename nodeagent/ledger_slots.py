"""Reads the processes that a container's shim has registered from the container's ledger (vcuda/src/ledger/ledger.h).

The container can write anything into its ledger. A process that the ledger lists may still bypass the shim; a process
that it does not list does bypass it.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nodeagent.schedule_page import LEDGER_HEAD, LEDGER_MAGIC, LEDGER_VERSION

SLOTS_USED_AT = 4248
SLOTS_AT = 6528
SLOT_BYTES = 832
MOST_SLOTS = 1024
"""Offsets in the ledger file and sizes there, in bytes, and the number of slots, as vcuda/src/ledger/ledger.h gives
them."""
FREE, LIVE = 0, 1
"""The states of a slot of the ledger; any other number is the state of a process that has just ended."""
_COUNT = struct.Struct("<Q")
_SLOT = struct.Struct("<QQQ")


class Slot(NamedTuple):
    """A process that a container's shim has registered in its ledger file.

    Attributes:
        state: FREE, LIVE, or another number for a process that has just ended.
        own_pid: the process id in the process's own PID namespace.
        start_time: when the process started, in clock ticks since the host booted.
    """

    state: int
    own_pid: int
    start_time: int


def read_slots(ledger: str | Path) -> list[Slot]:
    """Returns the processes that a container's shim has registered in its ledger file; none if it is no ledger yet.

    Raises:
        OSError: the file cannot be read, or is a link.
    """
    descriptor = os.open(ledger, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        beginning = os.pread(descriptor, SLOTS_AT, 0)
        if len(beginning) < SLOTS_AT or LEDGER_HEAD.unpack_from(beginning) != (LEDGER_MAGIC, LEDGER_VERSION):
            return []
        used = min(_COUNT.unpack_from(beginning, SLOTS_USED_AT)[0], MOST_SLOTS)
        slots = os.pread(descriptor, used * SLOT_BYTES, SLOTS_AT)
    finally:
        os.close(descriptor)
    every = (Slot(*_SLOT.unpack_from(slots, at)) for at in range(0, len(slots) - _SLOT.size + 1, SLOT_BYTES))
    return [slot for slot in every if slot.state != FREE]


@dataclass(frozen=True)
class Registered:
    """The processes that a container's shim has registered.

    Attributes:
        processes: the id in its own PID namespace and the start time, in clock ticks since the host booted, of each
            living process.
        is_full: whether the shim's ledger file has no room for another process.
    """

    processes: frozenset[tuple[int, int]] = frozenset()
    is_full: bool = False


def registered(ledger: str | Path) -> Registered:
    """Returns the processes that a container's shim has registered in its ledger file; none if it cannot be read."""
    try:
        slots = read_slots(ledger)
    except OSError:
        return Registered()
    alive = frozenset((slot.own_pid, slot.start_time) for slot in slots if slot.state == LIVE)
    return Registered(alive, len(slots) >= MOST_SLOTS)


def living(ledger: str | Path) -> frozenset[tuple[int, int]]:
    """Returns the living processes that a container's shim has registered; none if the ledger file cannot be read.

    Returns:
        For each process, the id in its own PID namespace and the start time, in clock ticks since the host booted.
    """
    return registered(ledger).processes
