"""What of a reservation is billed: all of it, what was used of it, or whichever is more.

Use comes from the pod's own reports, which prove no more than what the pod says; so it is clamped by what the pod
could have used: its reservation, or the whole of its devices where it may borrow what others leave idle.
"""

from __future__ import annotations

from enum import StrEnum


class Bill(StrEnum):
    """What is billed."""

    RESERVED = "reserved"
    USED = "used"
    MAX = "max"


def billed(bill: Bill, reserved: int, used: int, ceiling: int) -> int:
    """The amount of a span.

    Args:
        bill: what is billed.
        reserved: what its reservation costs.
        used: what its reports amount to.
        ceiling: the most that it can have used: `reserved`, or its whole devices where it may borrow.
    """
    if bill is Bill.RESERVED:
        return reserved
    believed = min(max(used, 0), max(ceiling, reserved))
    return believed if bill is Bill.USED else max(reserved, believed)
