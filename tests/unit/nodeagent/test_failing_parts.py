"""A part of the agent that fails runs again, ever more rarely."""

from __future__ import annotations

import itertools

from nodeagent.service import LONGEST_PAUSE_SECONDS, ROUND_SECONDS, pause_after


def test_the_pause_after_failures_doubles_up_to_the_longest() -> None:
    pauses = list(itertools.accumulate(range(10), lambda last, _: pause_after(last, 0.0), initial=0.0))[1:]
    assert pauses[:3] == [ROUND_SECONDS, 2 * ROUND_SECONDS, 4 * ROUND_SECONDS]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS


def test_the_pause_is_the_first_again_after_a_long_run() -> None:
    assert pause_after(LONGEST_PAUSE_SECONDS, 2 * LONGEST_PAUSE_SECONDS) == ROUND_SECONDS
