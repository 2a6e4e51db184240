"""The processes that a container's shim has registered, from the container's ledger (vcuda/src/ledger/ledger.h).

The container can write anything there. A listed process may still bypass the shim; a process that is not listed does.
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
"""Places in the ledger, as vcuda/src/ledger/ledger.h gives them."""
FREE, LIVE = 0, 1
"""States of a slot; others are those of a process that has just ended."""
_COUNT = struct.Struct("<Q")
_SLOT = struct.Struct("<QQQ")


class Slot(NamedTuple):
    """A process in a ledger: its slot's state, its pid in its own namespace, its start time in clock ticks."""

    state: int
    own_pid: int
    start_time: int


def read_slots(ledger: Path) -> list[Slot]:
    """Returns the slots of a ledger that are in use; none where the file is no ledger yet.

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
    """A container's processes as its shim has registered them.

    Attributes:
        processes: (own pid, start time) of each living process with a slot.
        is_full: whether the ledger has no slot left for another process.
    """

    processes: frozenset[tuple[int, int]] = frozenset()
    is_full: bool = False


def registered(ledger: Path) -> Registered:
    """Returns what a ledger says of its container's processes; nothing where there is no ledger to read."""
    try:
        slots = read_slots(ledger)
    except OSError:
        return Registered()
    alive = frozenset((slot.own_pid, slot.start_time) for slot in slots if slot.state == LIVE)
    return Registered(alive, len(slots) >= MOST_SLOTS)


def living(ledger: Path) -> frozenset[tuple[int, int]]:
    """Returns (own pid, start time) of each living process with a slot; none where there is no ledger to read."""
    return registered(ledger).processes
