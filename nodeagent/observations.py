"""From what containers say of themselves to what the turn-maker believes: clamped, so that no lie gains anything."""

from dataclasses import dataclass

from nodeagent.schedule_page import Activity
from nodeagent.turns import PERIOD_NS

ACTIVE_FOR_NS = 2 * PERIOD_NS
"""A container counts as active for so long after it last had or wanted work."""


@dataclass(frozen=True)
class Seen:
    """What is kept of a container between two looks: its overrun counter, ns, and when it was read."""

    overrun_ns: int
    at_ns: int


def is_active(activity: Activity, now_ns: int) -> bool:
    """True while the container has or wants work; a time in the future counts as now."""
    return activity.activity_ns != 0 and now_ns - min(activity.activity_ns, now_ns) < ACTIVE_FOR_NS


def new_overrun_ns(activity: Activity, before: Seen | None, now_ns: int) -> int:
    """GPU time that ran past the container's turns since the last look.

    A counter that runs backwards (a ledger made anew) counts nothing; none runs faster than the clock.
    """
    if before is None or activity.overrun_ns < before.overrun_ns:
        return 0
    return min(activity.overrun_ns - before.overrun_ns, now_ns - before.at_ns)
