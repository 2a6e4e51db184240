"""Runs a part of a service in its thread, and again after an error that the part does not handle itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

Wait = Callable[[float], bool]
"""A function that sleeps for a number of seconds, or until the process ends; like `Event.wait`, it returns true at the
end."""

_log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
"""The longest pause before a part that failed runs again."""


def keep_running(name: str, part: Callable[[], None], wait: Wait, failed: Callable[[], object] = lambda: None) -> None:
    """Runs a part of a service until it returns, and again after each exception that it raises.

    An exception would otherwise end the part's thread, and the rest of the service would go on without the part.

    Args:
        name: the part's name in the log.
        part: the part; it returns soon once the service ends.
        wait: sleeps for the given seconds after an exception, and returns whether the service ends. If the service
            ends, the part is not run again.
        failed: called after each exception of the part.
    """
    pause = 0.0
    while True:
        began = time.monotonic()
        try:
            part()
        except Exception:  # noqa: BLE001 - see above
            failed()
            _log.exception("part failed", part=name)
            pause = pause_after(pause, time.monotonic() - began)
            if wait(pause):
                return
        else:
            return


def start_thread(name: str, part: Callable[[], None], wait: Wait) -> threading.Thread:
    """Starts a daemon thread in which `keep_running` runs a part of a service; returns the thread.

    Args:
        name: the name of the thread, and of the part in the log.
        part: the part; it returns soon once the service ends.
        wait: as for `keep_running`.
    """
    thread = threading.Thread(target=keep_running, args=(name, part, wait), name=name, daemon=True)
    thread.start()
    return thread


def pause_after(last_seconds: float, ran_seconds: float) -> float:
    """Returns the pause before a part of a service that failed runs again, in seconds.

    The pause doubles with each failure, from FIRST_PAUSE_SECONDS to LONGEST_PAUSE_SECONDS. After a run longer than
    LONGEST_PAUSE_SECONDS, the pause is FIRST_PAUSE_SECONDS again.

    Args:
        last_seconds: the pause before the run that failed; 0 if it was the first.
        ran_seconds: the length of the run that failed.
    """
    if ran_seconds > LONGEST_PAUSE_SECONDS:
        return FIRST_PAUSE_SECONDS
    return min(max(2 * last_seconds, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
