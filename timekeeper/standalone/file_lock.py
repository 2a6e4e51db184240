"""Leadership on one machine: the process that holds the lock on a file leads; the file counts the terms."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from fairgpu.cluster.reflector import Wait
from fairgpu.leadership import Term

FOREVER = float("inf")


def campaign(file: Path, term: Term, floor: Callable[[], int], wait: Wait, retry_seconds: float = 0.2) -> None:
    """Leads as soon as no other process holds the lock, until `wait` returns true because the process ends.

    The kernel releases the lock with the process, however it ends.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _locked(descriptor):
            if wait(retry_seconds):
                return
        number = max(int(os.pread(descriptor, 32, 0) or b"0"), floor()) + 1
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(number).encode(), 0)
        term.hold(number, FOREVER)
        while not wait(retry_seconds):
            if term.number() is None:  # the store refused this term, and the lock is still held
                term.hold(number, FOREVER)
    finally:
        term.lose()
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
