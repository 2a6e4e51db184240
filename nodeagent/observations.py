"""Clamps the counters that containers report about themselves, so that no false report gains GPU time."""

from dataclasses import dataclass

from nodeagent.schedule_page import Activity
from nodeagent.turns import PERIOD_NS

ACTIVE_FOR_NS = 2 * PERIOD_NS
"""The time for which a container counts as active after it last had or wanted work."""


@dataclass(frozen=True)
class Seen:
    """A container's counters at the last look, in ns of GPU time, and the time of that look."""

    busy_ns: int
    overrun_ns: int
    at_ns: int


def is_active(activity: Activity, now_ns: int) -> bool:
    """Whether the container has or wants work; a time in the future counts as now."""
    return activity.activity_ns != 0 and now_ns - min(activity.activity_ns, now_ns) < ACTIVE_FOR_NS


def wants_more(activity: Activity, now_ns: int) -> bool:
    """Whether a launch of the container was held lately, so that it would have used more time."""
    return activity.waiting_ns != 0 and now_ns - min(activity.waiting_ns, now_ns) < ACTIVE_FOR_NS


def growth(before: int, now: int, elapsed_ns: int) -> int:
    """Returns the growth of a counter of GPU time.

    A counter that runs backwards (of a new ledger) has not grown; none runs faster than the clock.
    """
    return min(max(now - before, 0), elapsed_ns)
