"""The processes that a container's shim has taken up, from the container's ledger (vcuda/src/ledger/ledger.h).

The container can write what it likes there: a process that is listed may still go round the shim, one that is not
listed does.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from nodeagent.schedule_page import LEDGER_HEAD, LEDGER_MAGIC, LEDGER_VERSION
from nodeagent.strangers import MOST_SLOTS, SLOT_BYTES, SLOTS_AT, SLOTS_USED_AT

LIVE = 1
_COUNT = struct.Struct("<Q")
_SLOT = struct.Struct("<QQQ")
"""State, pid in the process's own namespace, start time in clock ticks."""


def taken_up(ledger: Path) -> frozenset[tuple[int, int]]:
    """(own pid, start time) of each process with a slot; none where the file is absent or no ledger yet."""
    try:
        descriptor = os.open(ledger, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return frozenset()
    try:
        beginning = os.pread(descriptor, SLOTS_AT, 0)
        if len(beginning) < SLOTS_AT or LEDGER_HEAD.unpack_from(beginning) != (LEDGER_MAGIC, LEDGER_VERSION):
            return frozenset()
        used = min(_COUNT.unpack_from(beginning, SLOTS_USED_AT)[0], MOST_SLOTS)
        slots = os.pread(descriptor, used * SLOT_BYTES, SLOTS_AT)
    except OSError:
        return frozenset()
    finally:
        os.close(descriptor)
    found = (_SLOT.unpack_from(slots, at) for at in range(0, len(slots) - _SLOT.size + 1, SLOT_BYTES))
    return frozenset((pid, began) for state, pid, began in found if state == LIVE)
