"""A term of leadership, and how long a process may believe in it without asking."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Term:
    """Written by the thread that campaigns, read by those that work. Times are seconds of a monotonic clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        """Guards the two below, which are read together."""
        self._number: int | None = None
        self._until = 0.0
        self._changed = threading.Condition(self._lock)

    def number(self) -> int | None:
        """The number of the present term, if this process leads now and may still believe so."""
        with self._lock:
            return self._number if self._clock() < self._until else None

    def hold(self, number: int, until: float) -> None:
        """Leads, in this term, until that time at most."""
        with self._changed:
            self._number, self._until = number, until
            self._changed.notify_all()

    def lose(self) -> None:
        """Leads no more."""
        with self._changed:
            self._number, self._until = None, 0.0
            self._changed.notify_all()

    def wait(self, seconds: float) -> int | None:
        """Waits until this process leads, at most that long; the term's number."""
        with self._changed:
            self._changed.wait_for(lambda: self._number is not None and self._clock() < self._until, seconds)
        return self.number()
