"""Finds the processes on a GPU that have no slot in their container's ledger: those that go past the shim. Pure.

A container can write to its ledger what it likes, so that only those are found who do not hide.
"""

from __future__ import annotations

from collections.abc import Mapping

SLOTS_USED_AT = 4248
SLOTS_AT = 6528
SLOT_BYTES = 832
MOST_SLOTS = 1024
"""Places in the ledger, as vcuda/include/schedule.h gives them."""
LEDGER_BYTES = SLOTS_AT + MOST_SLOTS * SLOT_BYTES
FREE = 0


def pids_with_slots(ledger: bytes) -> frozenset[int]:
    """Returns the processes that have a slot, living or just ended, by their pids in their own namespaces."""
    used = min(_word(ledger, SLOTS_USED_AT), MOST_SLOTS)
    slots = [SLOTS_AT + number * SLOT_BYTES for number in range(used)]
    return frozenset(_word(ledger, at + 8) for at in slots if _word(ledger, at) != FREE)


def innermost_pid(status: str) -> int | None:
    """Returns a process's pid in its own namespace, from /proc/PID/status (proc(5), NSpid); None without that line."""
    for line in status.splitlines():
        name, _, pids = line.partition(":")
        if name == "NSpid" and pids.split():
            return int(pids.split()[-1])
    return None


def strangers(
    slots: Mapping[int, int | None], innermost: Mapping[int, int], known: Mapping[int, frozenset[int]]
) -> frozenset[int]:
    """Returns the host's pids of those processes on the GPU that belong to a container and have no slot in its ledger.

    Slots are the containers of the processes; innermost their pids in their own namespaces, of those that still live;
    known the pids in each container's ledger. A process or container that is missing in these is no stranger.
    """
    return frozenset(
        pid
        for pid, slot in slots.items()
        if slot is not None and slot in known and pid in innermost and innermost[pid] not in known[slot]
    )


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")
