"""Ends a service when the kernel asks it to."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable


def call_at_end(end: Callable[[], object]) -> None:
    """Calls `end` once in a thread of its own after SIGTERM or SIGINT. The main thread calls this.

    Python runs a signal's handler in the main thread, between two of its instructions: a handler that takes a lock, as
    `Event.set` does, waits for ever where the main thread has it. This one only puts into a queue, which may be done
    while the same thread does so (https://docs.python.org/3.11/library/queue.html#queue.SimpleQueue.put).
    """
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()

    def wait() -> None:
        asked.get()
        end()

    threading.Thread(target=wait, name="end", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.put(number))
