"""When to report next: at the interval that the timekeeper names, spread out, and more seldom while it is away."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

MIN_INTERVAL_SECONDS = 1.0
MAX_INTERVAL_SECONDS = 300.0
MAX_FIRST_DELAY_SECONDS = 10.0
_JITTER = 0.1
_MAX_DOUBLINGS = 9  # 1 s doubled nine times is past the longest interval

Random = Callable[[], float]
"""Uniform in [0, 1), as random.random."""


class Pace(NamedTuple):
    """The interval in force, in seconds, and how many reports in a row have failed."""

    interval_seconds: float
    failures: int = 0


def clamp(seconds: float) -> float:
    """An interval that a sidecar keeps: 1 to 300 seconds."""
    return min(max(seconds, MIN_INTERVAL_SECONDS), MAX_INTERVAL_SECONDS)


def first_delay(pace: Pace, random: Random) -> float:
    """Seconds until the first report: soon, but not with all the other pods of a large Job at once."""
    return min(pace.interval_seconds, MAX_FIRST_DELAY_SECONDS) * random()


def after_success(pace: Pace, interval_seconds: float | None) -> Pace:
    """The pace after a report was taken; the answer may name another interval."""
    return Pace(pace.interval_seconds if interval_seconds is None else clamp(interval_seconds))


def after_failure(pace: Pace) -> Pace:
    """The pace after a report was not taken."""
    return pace._replace(failures=pace.failures + 1)


def delay_after_early(pace: Pace, random: Random, retry_after_seconds: float | None) -> float:
    """Seconds until the next report after one that came too early: the timekeeper is there, so nothing backs off."""
    wait = pace.interval_seconds * (1 + _JITTER * random())
    return wait if retry_after_seconds is None else max(wait, clamp(retry_after_seconds))


def delay(pace: Pace, random: Random, retry_after_seconds: float | None = None) -> float:
    """Seconds until the next report.

    A report that was lost costs nothing, for the next one carries the same totals; so a timekeeper that comes back
    meets its usual load and no storm: the wait doubles with each failure up to 300 s, half of it random.
    """
    if pace.failures == 0:
        return pace.interval_seconds * (1 + _JITTER * (2 * random() - 1))
    longest = clamp(pace.interval_seconds * 2.0 ** min(pace.failures, _MAX_DOUBLINGS))
    wait = longest * (1 + random()) / 2
    return wait if retry_after_seconds is None else max(wait, clamp(retry_after_seconds))
