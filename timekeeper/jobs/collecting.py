"""Keeps Python's collector of cycles out of long rounds.

What the leader remembers is millions of objects that live for as long as their pods. Nearly none of them are parts of
cycles, and what is dropped is freed by its reference count: a full collection walks through all of them for nothing.
With 50,000 pods it takes half a second, and a round that makes as many new objects sets off several.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

THOROUGH_SECONDS = 3600.0
"""How often all of it is walked through after all, between two rounds: for cycles that nothing else would free."""


class Collector:
    """Collects between rounds, and in them not at all. What is alive after a round is no longer walked through."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._thorough_at = clock() + THOROUGH_SECONDS

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Collects nothing until the block ends, in any thread."""
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
            if self._clock() >= self._thorough_at:
                gc.unfreeze()
                gc.collect()
                self._thorough_at = self._clock() + THOROUGH_SECONDS
            gc.freeze()
