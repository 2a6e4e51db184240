"""A term of leadership, and how long a process may believe in it without asking."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Term:
    """Written by the thread that campaigns, read by those that work, which end it when the store shuts it out.

    Times are seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        """Guards the two below, which are read together."""
        self._number: int | None = None
        self._until = 0.0
        self._lost_at = float("-inf")
        self._changed = threading.Condition(self._lock)

    def number(self) -> int | None:
        """The number of the present term, if this process leads now and may still believe so."""
        with self._lock:
            return self._number if self._clock() < self._until else None

    def hold(self, number: int, until: float, looked_at: float = float("inf")) -> None:
        """Leads, in this term, until that time at most.

        Of a look at the Lease that began before the term was last lost, at `looked_at`, no notice is taken.
        """
        with self._changed:
            if looked_at < self._lost_at:
                return
            self._number, self._until = number, until
            self._changed.notify_all()

    def lose(self) -> None:
        """Leads no more."""
        with self._changed:
            self._number, self._until, self._lost_at = None, 0.0, self._clock()
            self._changed.notify_all()

    def wait(self, seconds: float) -> int | None:
        """Waits until this process leads, at most that long; the term's number."""
        with self._changed:
            self._changed.wait_for(lambda: self._number is not None and self._clock() < self._until, seconds)
        return self.number()
