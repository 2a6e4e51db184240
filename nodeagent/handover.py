"""Lets the next agent of a node start before the last one ends: one of them acts, and the other waits.

A lock belongs to a file, whatever container its holder is in, and the kernel drops it when the holder ends (flock(2)).
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

AGENT = "agent.lock"
"""The file, in the agent's folder, of the agent that acts."""
PAGES = "pages.lock"
"""The file of the process that writes the schedule pages. It holds when that process was last at work."""
_TIME = struct.Struct("<Q")


def lock(path: Path) -> int | None:
    """Returns a descriptor that holds the lock of a file until it is closed; None while another process holds it.

    Raises:
        OSError: the file cannot be created.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def wait_for(path: Path, stopped: Callable[[], bool]) -> int | None:
    """Returns the lock's descriptor once no other process holds it; None where `stopped` returns true before.

    Args:
        path: the file.
        stopped: waits a little; whether this process is to end.
    """
    while (descriptor := lock(path)) is None:
        if stopped():
            return None
    return descriptor


@contextmanager
def turn_of(folder: Path) -> Iterator[None]:
    """Waits until no other process is in such a block for the same folder, and keeps others waiting until its end.

    Raises:
        OSError: the folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def note(descriptor: int, now_ns: int) -> None:
    """Writes into a locked file when its holder was at work, in ns of CLOCK_MONOTONIC; not where the host is full."""
    with suppress(OSError):
        os.pwrite(descriptor, _TIME.pack(now_ns), 0)


def noted_ns(path: Path) -> int:
    """Returns when a lock's last holder was at work, in ns of CLOCK_MONOTONIC; 0 where none has noted it."""
    try:
        content = path.read_bytes()
    except OSError:
        return 0
    return int(_TIME.unpack(content)[0]) if len(content) == _TIME.size else 0


LOCKS = Path("/proc/locks")
"""The kernel's list of the locks whose holders this process sees (proc(5))."""


def held_by_another(path: Path, pid: int) -> bool:
    """Returns whether another process than this one holds a file's lock: not where none does.

    Args:
        path: the file.
        pid: the process, which locks no other file.

    Raises:
        OSError: the file cannot be created.
    """
    descriptor = lock(path)
    if descriptor is not None:
        os.close(descriptor)
        return False
    # The holder may be in another container, whose processes the kernel does not list here.
    return str(pid) not in {line.split()[4] for line in LOCKS.read_text().splitlines() if " FLOCK " in line}
