"""Ends the processes that a test has started, whatever the test or the process does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import AnyStr

from tests.support.waiting import LIMIT_S

TREE = Path(__file__).resolve().parents[2]
"""The root folder of the tree to which these tests and the code under test belong."""
PROGRAM = Path(sys.executable).with_name("fairgpu")
"""The installed command. It runs the tree that was installed, unless PYTHONPATH names another."""
FAIRGPU = ("/usr/bin/env", f"PYTHONPATH={TREE}", str(PROGRAM))
"""The command `fairgpu` of this tree, whichever tree is installed; the rest of the environment stays."""


@contextmanager
def ending(
    process: subprocess.Popen[AnyStr], stop_signal: signal.Signals = signal.SIGTERM
) -> Iterator[subprocess.Popen[AnyStr]]:
    """Gives the process to a block; ends the process at the end of the block, as `end` does."""
    try:
        yield process
    finally:
        end(process, stop_signal)


def end(
    process: subprocess.Popen[AnyStr], stop_signal: signal.Signals = signal.SIGTERM, limit_s: float = LIMIT_S
) -> int:
    """Sends `stop_signal`, and returns the exit status once the process has ended.

    Raises:
        AssertionError: the process did not end within `limit_s`, so that SIGKILL ended it.
    """
    process.send_signal(stop_signal)
    return wait_for_end(process, limit_s)


def wait_for_end(process: subprocess.Popen[AnyStr], limit_s: float = LIMIT_S) -> int:
    """Returns the exit status of a process that ends by itself, or was asked to end; raises as `end` does."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{process.args!r} was asked to end and had not within {limit_s} s") from None
    finally:
        kill(process)


def kill(process: subprocess.Popen[AnyStr]) -> None:
    """Sends SIGKILL to a process, or to its whole group if it leads one; returns once the process has ended."""
    if process.poll() is None:
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait(LIMIT_S)
