"""Waits for a condition, with a limit that even a busy machine at a quarter of the speed meets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = "FAIRGPU_PATIENCE"
"""The factor by which this machine is slower still, such as under a kernel that runs as a process."""
LIMIT_S = 120.0 * int(os.environ.get(PATIENCE, "1"))
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.5
OFTEN_S, SHARE = 0.1, 0.05
"""Pauses grow quickly to OFTEN_S, and beyond it only to this share of the wait so far, since each call of the probe
costs processor time."""

T = TypeVar("T")


def wait_until(probe: Callable[[], T | None], what: str, limit_s: float = LIMIT_S) -> T:
    """Calls `probe` until it returns a true value, and returns that value; the pauses between calls grow.

    Args:
        probe: returns the value, or a false one while the condition does not hold.
        what: the condition, for the error.
        limit_s: the longest wait, in seconds.

    Raises:
        TimeoutError: the limit has passed; the message has `what` and the probe's last answer.
    """
    began = time.monotonic()
    pause = FIRST_PAUSE_S
    while True:
        answer = probe()
        if answer:
            return answer
        waited = time.monotonic() - began
        if waited > limit_s:
            raise TimeoutError(f"{what}: not within {limit_s} s; the last answer was {answer!r}")
        time.sleep(pause)
        pause = min(pause * 1.5, max(OFTEN_S, SHARE * waited), LONGEST_PAUSE_S)
