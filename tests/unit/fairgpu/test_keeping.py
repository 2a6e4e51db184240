"""A part of a service that fails runs again, ever more rarely."""

from __future__ import annotations

import itertools
import threading

from fairgpu.keeping import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, keep_running, pause_after
from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.options import Address, ServerOptions
from tests.support.waiting import LIMIT_S


class Failing:
    """A part that fails some times before it returns, with the pauses in between."""

    def __init__(self, failures: int, *, ends_after: int = 100) -> None:
        self.failures = failures
        self.ends_after = ends_after
        self.runs = 0
        self.pauses: list[float] = []

    def run(self) -> None:
        """Fails while failures are left."""
        self.runs += 1
        if self.runs <= self.failures:
            raise RuntimeError("an error that the part does not know")

    def wait(self, seconds: float) -> bool:
        """Notes the pause; the service ends after some of them."""
        self.pauses.append(seconds)
        return len(self.pauses) >= self.ends_after


def test_the_pause_after_failures_doubles_up_to_the_longest() -> None:
    pauses = list(itertools.accumulate(range(10), lambda last, _: pause_after(last, 0.0), initial=0.0))[1:]
    assert pauses[:3] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS


def test_the_pause_is_the_first_again_after_a_long_run() -> None:
    assert pause_after(LONGEST_PAUSE_SECONDS, 2 * LONGEST_PAUSE_SECONDS) == FIRST_PAUSE_SECONDS


def test_a_part_that_fails_runs_again_until_it_returns() -> None:
    part, failed = Failing(2), list[str]()
    keep_running("part", part.run, part.wait, lambda: failed.append("once more"))
    assert (part.runs, part.pauses, len(failed)) == (3, [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS], 2)


def test_a_part_that_fails_does_not_run_again_once_the_service_ends() -> None:
    part = Failing(100, ends_after=2)
    keep_running("part", part.run, part.wait)
    assert part.runs == 2


def test_a_thread_of_a_service_outlives_an_error_that_it_does_not_know() -> None:
    lifecycle, goes_on = Lifecycle(ServerOptions("test", Address("127.0.0.1", 0))), threading.Event()
    part, failed = Failing(1), list[str]()

    def run() -> None:
        part.run()
        goes_on.set()

    lifecycle.run_thread("part", run, lambda: failed.append("once"))
    lifecycle.start()
    try:
        assert goes_on.wait(LIMIT_S)
        assert failed == ["once"]
    finally:
        lifecycle.stop()
