"""Limits the concurrent queries about all namespaces of one caller, so that others are answered, too."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from timekeeper.auth.access_control import TooManyRequestsError

MOST_AT_ONCE = 2
"""The most queries of one caller that a worker answers at a time, of its four threads."""
RETRY_AFTER_SECONDS = 2


class Asking:
    """Limits the queries about all namespaces that a caller may have under way at once. Thread-safe."""

    def __init__(self, most_at_once: int = MOST_AT_ONCE) -> None:
        self._most_at_once = most_at_once
        self._of_callers: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def one_more(self, caller: str) -> Iterator[None]:
        """Counts a query of a caller as under way until the block ends.

        Raises:
            TooManyRequestsError: the caller has as many queries under way as allowed.
        """
        with self._lock:
            if self._of_callers[caller] >= self._most_at_once:
                detail = (
                    f"{self._most_at_once} questions of {caller!r} about the usage of all namespaces are being "
                    "answered: ask again once one of them is, or ask about one namespace, GET /v1/namespaces/NAME/usage"
                )
                raise TooManyRequestsError(detail, RETRY_AFTER_SECONDS)
            self._of_callers[caller] += 1
        try:
            yield
        finally:
            with self._lock:
                self._of_callers[caller] -= 1
                if not self._of_callers[caller]:
                    del self._of_callers[caller]
