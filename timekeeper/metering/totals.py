"""From totals that only grow to what each period of a session added to them.

A session's time falls into stretches, each paid for by one period of one account. The total at which a stretch began is
its base: a period's part is what the total grew by over its stretches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from timekeeper.metering.segments import Span

Key = tuple[str, int]
Base = tuple[str, int, int]
"""An account, the start of one of its periods, and the total when a stretch in that period began."""
Bases = tuple[Base, ...]
"""In order of time."""


@dataclass(frozen=True, slots=True)
class Course:
    """The stretches of a session that are not final.

    Attributes:
        start: when the session began, in nanoseconds since 1970.
        stretches: in order of time; the last one is the one that goes on, or in which the session ended.
        shortened: whether the session ended before an instant that it had been settled up to.
    """

    start: int
    stretches: Sequence[Span]
    shortened: bool = False


def extended(known: Bases, course: Course, total_at: Callable[[int], int]) -> Bases:
    """The bases, with those of stretches that have begun since.

    Args:
        known: the bases that are known. Those of stretches after the session's end are dropped.
        course: the stretches that are not final.
        total_at: the total of all that was received before an instant.
    """
    keys = {(span.account, span.period) for span in course.stretches}
    wanted = [index for index, (account, period, _) in enumerate(known) if (account, period) in keys]
    position, new = 0, 0
    for number, span in enumerate(course.stretches):
        if position < len(wanted) and known[wanted[position]][:2] == (span.account, span.period):
            position, new = position + 1, number + 1
    kept = known[: wanted[position - 1] + 1] if course.shortened and position else known
    added = [
        (span.account, span.period, total_at(span.start) if span.start > course.start else 0)
        for span in course.stretches[new:]
    ]
    return _without_past((*kept, *added), keys)


def parts(bases: Bases, total: int) -> dict[Key, int]:
    """The part of a total that each period with a base added.

    Args:
        bases: the totals at which stretches began.
        total: the total by now.
    """
    found: dict[Key, int] = {}
    for (account, period, base), following in zip(bases, [*(base for *_, base in bases[1:]), total], strict=True):
        found[account, period] = found.get((account, period), 0) + max(following - base, 0)
    return found


def _without_past(bases: Bases, keys: Collection[Key]) -> Bases:
    """The bases of the periods that may still change, and those up to which these grew."""
    held = [(account, period) in keys for account, period, _ in bases]
    return tuple(base for index, base in enumerate(bases) if held[index] or (index and held[index - 1]))
