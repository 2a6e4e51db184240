"""From what containers say of themselves to what the turn-maker believes: clamped, so that no lie gains anything."""

from dataclasses import dataclass

from nodeagent.schedule_page import Activity
from nodeagent.turns import PERIOD_NS

ACTIVE_FOR_NS = 2 * PERIOD_NS
"""A container counts as active for so long after it last had or wanted work."""


@dataclass(frozen=True)
class Seen:
    """What is kept of a container between two looks: its counters, in ns of GPU time, and when they were read."""

    busy_ns: int
    overrun_ns: int
    at_ns: int


def is_active(activity: Activity, now_ns: int) -> bool:
    """True while the container has or wants work; a time in the future counts as now."""
    return activity.activity_ns != 0 and now_ns - min(activity.activity_ns, now_ns) < ACTIVE_FOR_NS


def wants_more(activity: Activity, now_ns: int) -> bool:
    """True when a launch of the container was held lately: whatever time it had, it would have used more."""
    return activity.waiting_ns != 0 and now_ns - min(activity.waiting_ns, now_ns) < ACTIVE_FOR_NS


def growth(before: int, now: int, elapsed_ns: int) -> int:
    """What a counter of GPU time grew by.

    One that runs backwards (a ledger made anew) has not grown; none runs faster than the clock.
    """
    return min(max(now - before, 0), elapsed_ns)
