"""Runs a function in a thread for as long as a block lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.waiting import LIMIT_S


@contextmanager
def in_background(run: Callable[[], object], end: Callable[[], object]) -> Iterator[threading.Thread]:
    """Calls `run` in a thread; the end of the block calls `end`, which makes `run` return, and waits up to LIMIT_S."""
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        end()
        thread.join(LIMIT_S)
