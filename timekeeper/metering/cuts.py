"""Cuts a session's use at whole hours, so that each hour gets what it held in it, to the last unit.

A cut tells what a session had amounted to by an instant, cumulative in one period of one account. The store keeps the
last cut that it took and puts the difference down to the hour, so that whatever is told twice counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from timekeeper.metering.attribution import Attribution
from timekeeper.metering.reservations import Tariff
from timekeeper.metering.segments import Span, span_cost
from timekeeper.rules.money import cost
from timekeeper.rules.timestamps import HOUR


class Cut(NamedTuple):
    """What a session had amounted to by an instant, in microGPU-seconds.

    `used` is the GPU time that its reports tell of; None where it has sent none.
    """

    until: int
    billed: int
    core: int
    memory: int
    used: int | None = None

    @property
    def hour(self) -> int:
        """The hour that ends at the cut, or in which the cut lies; hours count from 1970."""
        return (self.until - 1) // HOUR


def cuts(
    stretches: Sequence[Span], tariff: Tariff, attribution: Attribution, taken: Cut | None, billed: int
) -> list[Cut]:
    """The cuts of a session in one period of one account, the last one at the end of its last stretch.

    Args:
        stretches: what of it that period pays for, in order of time; at least one.
        tariff: its rates.
        attribution: what it holds.
        taken: the cut that the store is known to hold; None for none.
        billed: what is billed up to the last cut. Where that is not what its reservation costs, what is new of it is
            shared by time.
    """
    first, last = stretches[0].start, stretches[-1].end
    begin = first if taken is None else min(max(taken.until, first), last)
    already = 0 if taken is None else taken.billed
    by_rate = billed == _reserved(stretches, tariff, last)
    found = []
    for moment in (*range(_next_hour(begin), last, HOUR), last):
        held = sum(max(min(span.end, moment) - span.start, 0) for span in stretches)
        reserved = _reserved(stretches, tariff, moment)
        found.append(
            Cut(
                until=moment,
                billed=reserved if by_rate else _between(already, billed, moment - begin, last - begin),
                core=cost(attribution.core_rate, held),
                memory=cost(attribution.memory_rate, held),
            )
        )
    return found


def with_used(found: Sequence[Cut], taken: Cut | None, start: int, used: int) -> list[Cut]:
    """The cuts with GPU time used, up to the last of them; what is new of it is shared by time.

    Args:
        found: the cuts, in order.
        taken: the cut that the store is known to hold; None for none.
        start: when the session or, where that is later, the period began.
        used: microGPU-seconds, cumulative in the period.
    """
    if not found:
        return []
    begin, already = (start, 0) if taken is None else (taken.until, taken.used or 0)
    length = found[-1].until - begin
    return [cut._replace(used=_between(already, used, cut.until - begin, length)) for cut in found]


def _next_hour(instant: int) -> int:
    return (instant // HOUR + 1) * HOUR


def _reserved(stretches: Sequence[Span], tariff: Tariff, until: int) -> int:
    return sum(span_cost(tariff, span.start, min(span.end, until)) for span in stretches if span.start < until)


def _between(start: int, end: int, part: int, whole: int) -> int:
    """What lies as far between two amounts as a part of a whole; the latter where there is no way between."""
    return start + (end - start) * part // whole if whole > 0 else end
