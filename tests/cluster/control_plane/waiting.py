"""Wait for a condition, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.05


def wait_until(probe: Callable[[], T | None], what: str, limit_s: float = 60.0) -> T:
    """Call `probe` until it answers something true, and return that.

    Raises TimeoutError with `what` and the last answer once `limit_s` has passed.
    """
    deadline = time.monotonic() + limit_s
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {limit_s} s; the last answer was {answer!r}")
        time.sleep(_POLL_S)
