"""Wait for a condition, with a limit that a machine meets which is four times slower, and busy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = "FAIRGPU_PATIENCE"
"""How many times slower still this machine is, as a kernel without the processor's help."""
LIMIT_S = 120.0 * int(os.environ.get(PATIENCE, "1"))
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.5
OFTEN_S, SHARE = 0.1, 0.05
"""Pauses grow to OFTEN_S at once, and beyond it to this SHARE of the wait so far: to ask costs processor time."""

T = TypeVar("T")


def wait_until(probe: Callable[[], T | None], what: str, limit_s: float = LIMIT_S) -> T:
    """Call `probe` until it answers something true, and return that; the pauses between grow.

    Raises TimeoutError with `what` and the last answer once `limit_s` has passed.
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
