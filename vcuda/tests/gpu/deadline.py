"""What a command prints before a deadline. Its programs end by then, whatever they wait for."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

END_SECONDS = 5.0
"""The most for which the end of a killed command, and then that of its output, is waited for. A process that the kernel
keeps in a driver's call ends later."""


def lines_until(deadline: float | None, command: list[str]) -> Iterator[str]:
    """Yields the whole lines that the command prints until the deadline, by time.monotonic(); all of them where it is
    None.

    Then the command and all programs that it began are killed: they are a session of their own. Nothing here waits for
    its pipe to close, which a program that cannot be killed holds open.
    """
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    printed: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=read, args=(running, printed), daemon=True)
    reader.start()
    try:
        with suppress(queue.Empty):
            while (line := printed.get(timeout=seconds_left(deadline))).endswith("\n"):
                yield line
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            running.wait(END_SECONDS)
        reader.join(END_SECONDS)


def seconds_left(deadline: float | None) -> float | None:
    """Returns the time until the deadline, never below 0; None where there is none."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def read(running: subprocess.Popen[str], printed: queue.SimpleQueue[str]) -> None:
    """Puts each line of the command's output into the queue; at the end an empty one."""
    assert running.stdout is not None
    with running.stdout:
        for line in running.stdout:
            printed.put(line)
    printed.put("")
