"""The times of reports: at the interval that the timekeeper sets, varied at random, and less often while it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

MIN_INTERVAL_SECONDS = 1.0
MAX_INTERVAL_SECONDS = 300.0
MAX_FIRST_DELAY_SECONDS = 10.0
_JITTER = 0.1
_MAX_DOUBLINGS = 9  # 1 s doubled nine times is past the longest interval

Random = Callable[[], float]
"""Returns a number in [0, 1), uniformly, as random.random does."""


class Pace(NamedTuple):
    """The present interval in seconds, and the number of reports in a row that have failed."""

    interval_seconds: float
    failures: int = 0


def clamp(seconds: float) -> float:
    """Limits an interval to 1 to 300 seconds."""
    return min(max(seconds, MIN_INTERVAL_SECONDS), MAX_INTERVAL_SECONDS)


def first_delay(pace: Pace, random: Random) -> float:
    """Returns the seconds until the first report: few, but different for the pods of a large Job."""
    return min(pace.interval_seconds, MAX_FIRST_DELAY_SECONDS) * random()


def after_success(pace: Pace, interval_seconds: float | None) -> Pace:
    """Returns the pace after a report was taken; the answer may set another interval."""
    return Pace(pace.interval_seconds if interval_seconds is None else clamp(interval_seconds))


def after_failure(pace: Pace) -> Pace:
    """Returns the pace after a report was not taken."""
    return pace._replace(failures=pace.failures + 1)


def delay_after_early(pace: Pace, random: Random, retry_after_seconds: float | None) -> float:
    """Returns the seconds until the next report after one that came too early; the wait does not double."""
    wait = pace.interval_seconds * (1 + _JITTER * random())
    return wait if retry_after_seconds is None else max(wait, clamp(retry_after_seconds))


def delay(pace: Pace, random: Random, retry_after_seconds: float | None = None) -> float:
    """Returns the seconds until the next report.

    A lost report costs nothing, since the next one has the same totals. The wait doubles with each failure up to 300 s,
    half of it random, so that a timekeeper that returns meets its usual load and no storm.
    """
    if pace.failures == 0:
        return pace.interval_seconds * (1 + _JITTER * (2 * random() - 1))
    longest = clamp(pace.interval_seconds * 2.0 ** min(pace.failures, _MAX_DOUBLINGS))
    wait = longest * (1 + random()) / 2
    return wait if retry_after_seconds is None else max(wait, clamp(retry_after_seconds))
