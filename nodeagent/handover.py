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
"""The name, in the agent's folder, of the file whose lock the agent that acts holds. Its content is the time until
which that agent has counted the use of whole GPUs."""
PAGES = "pages.lock"
"""The name of the file whose lock the process that writes the schedule pages holds. Its content is the time at which
that process was last at work."""
_TIME = struct.Struct("<Q")


def lock(path: Path) -> int | None:
    """Returns a file descriptor that holds the lock of a file until it is closed; None while another process holds it.

    The file is created if it is missing.

    Raises:
        OSError: the file cannot be opened or created.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def wait_for(path: Path, stopped: Callable[[], bool]) -> int | None:
    """Waits until no other process holds the lock of a file; returns a descriptor that then holds it.

    Args:
        stopped: waits a little, and returns true if this process is to end.

    Returns:
        The file descriptor, which holds the lock until it is closed; None if `stopped` returned true before.

    Raises:
        OSError: the file cannot be opened or created.
    """
    while (descriptor := lock(path)) is None:
        if stopped():
            return None
    return descriptor


@contextmanager
def turn_of(folder: Path) -> Iterator[None]:
    """Runs a with block while no other process is in such a block for the same folder; waits for that.

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
    """Writes the present time into a locked file, to show until when the holder of its lock has worked.

    If the host refuses the write, nothing is written, and no error is raised.

    Args:
        descriptor: the file descriptor that holds the lock.
        now_ns: the present time, in ns of CLOCK_MONOTONIC.
    """
    with suppress(OSError):
        os.pwrite(descriptor, _TIME.pack(now_ns), 0)


def noted_ns(path: Path) -> int:
    """Returns the time that `note` last wrote into a file, in ns of CLOCK_MONOTONIC; 0 if there is none to be read."""
    try:
        content = path.read_bytes()
    except OSError:
        return 0
    return int(_TIME.unpack(content)[0]) if len(content) == _TIME.size else 0


LOCKS = Path("/proc/locks")
"""The kernel's list of the locks whose holders this process sees (proc(5))."""


def held_by_another(path: Path, pid: int) -> bool:
    """Returns whether a process other than the given one holds the lock of a file; false if no process holds it.

    Args:
        pid: the id of the given process, which must not hold the lock of any other file.

    Raises:
        OSError: the file cannot be opened or created, or LOCKS cannot be read.
    """
    descriptor = lock(path)
    if descriptor is not None:
        os.close(descriptor)
        return False
    # The holder may be in another container, whose processes the kernel does not list here.
    return str(pid) not in {line.split()[4] for line in LOCKS.read_text().splitlines() if " FLOCK " in line}
