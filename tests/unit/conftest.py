"""A rule that all unit tests keep."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.waiting import wait_until


@pytest.fixture(scope="module", autouse=True)
def no_thread_outlives_its_tests() -> Iterator[None]:
    """Fails the last test of a module whose tests leave threads behind: these would slow all tests that come later."""
    before = set(threading.enumerate())
    yield
    wait_until(lambda: {*threading.enumerate()} <= before, "each thread that a test has started has ended")
