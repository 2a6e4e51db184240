"""The times of reports: at the interval that the timekeeper sets, varied at random, and less often after failures."""

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
    """Returns the seconds until a sidecar's first report: at random, at most the present interval and at most 10.

    So the pods of a Job, which start together, do not all report at once.

    Args:
        pace: the present pace.
        random: returns a number in [0, 1).
    """
    return min(pace.interval_seconds, MAX_FIRST_DELAY_SECONDS) * random()


def after_success(pace: Pace, interval_seconds: float | None) -> Pace:
    """Returns the pace after the timekeeper took a report: without failures, at the interval that the timekeeper sets.

    Args:
        pace: the pace before.
        interval_seconds: the interval that the timekeeper's answer sets; None if it sets none, which changes nothing.
    """
    return Pace(pace.interval_seconds if interval_seconds is None else clamp(interval_seconds))


def after_failure(pace: Pace) -> Pace:
    """Returns the pace after the timekeeper did not take a report: with one more failure."""
    return pace._replace(failures=pace.failures + 1)


def delay_after_early(pace: Pace, random: Random, retry_after_seconds: float | None) -> float:
    """Returns the seconds until the next report, after a report that the timekeeper refused as too early.

    They are the present interval and up to a tenth more. The wait does not grow with each refusal, as it does after
    other failures.

    Args:
        pace: the present pace.
        random: returns a number in [0, 1).
        retry_after_seconds: the least wait that the timekeeper's answer demands, of which at most 300 s count; None if
            it demands none.
    """
    wait = pace.interval_seconds * (1 + _JITTER * random())
    return wait if retry_after_seconds is None else max(wait, clamp(retry_after_seconds))


def delay(pace: Pace, random: Random, retry_after_seconds: float | None = None) -> float:
    """Returns the seconds until a sidecar's next report.

    Without a failure they are the present interval, up to a tenth more or less. With each failure in a row the wait
    doubles, up to 300 s, and a random part of up to half of it is left out: a timekeeper that answers again then does
    not get all reports at once. A lost report costs nothing, since the next report includes its figures.

    Args:
        pace: the present pace.
        random: returns a number in [0, 1).
        retry_after_seconds: the least wait after a failure, as the timekeeper's answer demands it, of which at most
            300 s count; None if it demands none.
    """
    if pace.failures == 0:
        return pace.interval_seconds * (1 + _JITTER * (2 * random() - 1))
    longest = clamp(pace.interval_seconds * 2.0 ** min(pace.failures, _MAX_DOUBLINGS))
    wait = longest * (1 + random()) / 2
    return wait if retry_after_seconds is None else max(wait, clamp(retry_after_seconds))
