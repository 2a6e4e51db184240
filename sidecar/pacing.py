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
"""A function that returns a number in [0, 1), uniformly distributed, as random.random does."""


class Pace(NamedTuple):
    """The pace at which a sidecar reports.

    Attributes:
        interval_seconds: the present interval between reports.
        failures: the number of reports in a row that the timekeeper did not take.
    """

    interval_seconds: float
    failures: int = 0


def clamp(seconds: float) -> float:
    """Returns an interval between reports, in seconds, clamped to the range from 1 to 300."""
    return min(max(seconds, MIN_INTERVAL_SECONDS), MAX_INTERVAL_SECONDS)


def first_delay(pace: Pace, random: Random) -> float:
    """Returns the seconds until a sidecar's first report: at most 10, at random, so that a Job's pods do not coincide.

    Args:
        random: returns a number in [0, 1).
    """
    return min(pace.interval_seconds, MAX_FIRST_DELAY_SECONDS) * random()


def after_success(pace: Pace, interval_seconds: float | None) -> Pace:
    """Returns the pace of reports after the timekeeper took one.

    Args:
        interval_seconds: the interval that the timekeeper's answer sets; None if it sets none.
    """
    return Pace(pace.interval_seconds if interval_seconds is None else clamp(interval_seconds))


def after_failure(pace: Pace) -> Pace:
    """Returns the pace of reports after the timekeeper did not take one."""
    return pace._replace(failures=pace.failures + 1)


def delay_after_early(pace: Pace, random: Random, retry_after_seconds: float | None) -> float:
    """Returns the seconds until the next report, after one that the timekeeper refused as too early.

    The wait does not double, as it does after other failures.

    Args:
        random: returns a number in [0, 1).
        retry_after_seconds: the least wait, as the timekeeper's answer asks for it; None if it asks for none.
    """
    wait = pace.interval_seconds * (1 + _JITTER * random())
    return wait if retry_after_seconds is None else max(wait, clamp(retry_after_seconds))


def delay(pace: Pace, random: Random, retry_after_seconds: float | None = None) -> float:
    """Returns the seconds until a sidecar's next report.

    A lost report costs nothing, since the next one has the same totals. The wait doubles with each failure up to 300 s.
    Half of it is random, so that a timekeeper that answers again does not get all reports at once.

    Args:
        pace: the present pace.
        random: returns a number in [0, 1).
        retry_after_seconds: the least wait after a failure, as the timekeeper's answer demands it; None if it demands
            none.
    """
    if pace.failures == 0:
        return pace.interval_seconds * (1 + _JITTER * (2 * random() - 1))
    longest = clamp(pace.interval_seconds * 2.0 ** min(pace.failures, _MAX_DOUBLINGS))
    wait = longest * (1 + random()) / 2
    return wait if retry_after_seconds is None else max(wait, clamp(retry_after_seconds))
