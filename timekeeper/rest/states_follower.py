"""Follows the states in the store from a thread, and hands what changed to the event loop."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from timekeeper.store.states_reading import Changes, Cursor

POLL_SECONDS = 0.2
"""How often the store is asked for its version, which is one small read: a change is out within a second."""

_log = structlog.get_logger()

ReadChanges = Callable[[Cursor | None], Changes | None]
"""What changed in the store since a cursor, everything where there is none; None where nothing changed.

May raise redis.RedisError.
"""


def follow(read: ReadChanges, deliver: Callable[[Changes], None], wait: Callable[[float], bool]) -> None:
    """Follows until `wait` (as threading.Event.wait) says that everything is to end.

    Args:
        read: asks the store.
        deliver: takes over what changed; called in this thread.
        wait: waits that many seconds, and says whether to end.
    """
    cursor: Cursor | None = None
    answering = True
    while not wait(POLL_SECONDS):
        try:
            changes = read(cursor)
        except Exception as error:  # noqa: BLE001 - a thread that ended here would leave the states as they are for good
            if answering:
                _log.warning("states not read", kind=type(error).__name__, error=str(error))
            answering = False
            continue
        if not answering:
            _log.info("states read again")
        answering = True
        if changes is not None:
            deliver(changes)
            cursor = changes.cursor
