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
    stretches: Sequence[Span],
    tariff: Tariff,
    attribution: Attribution,
    since: int | None,
    billed: int,
    used: int | None = None,
) -> list[Cut]:
    """The cuts of a session in one period of one account, the last one at the end of its last stretch.

    Args:
        stretches: what of it that period pays for, in order of time; at least one.
        tariff: its rates.
        attribution: what it holds.
        since: the cut that the store is known to hold; None for none.
        billed: what is billed up to the last cut. Where that is not what its reservation costs, the hours share it as
            they share the reservation.
        used: GPU time used up to the last cut; the hours share it by time.
    """
    first, last = stretches[0].start, stretches[-1].end
    begin = first if since is None else min(max(since, first), last)
    reserved = _reserved(stretches, tariff, last)
    found = []
    for moment in (*range(_next_hour(begin), last, HOUR), last):
        held = sum(max(min(span.end, moment) - span.start, 0) for span in stretches)
        found.append(
            Cut(
                until=moment,
                billed=_share(billed, _reserved(stretches, tariff, moment), reserved),
                core=cost(attribution.core_rate, held),
                memory=cost(attribution.memory_rate, held),
                used=None if used is None else _share(used, moment - first, last - first),
            )
        )
    found[-1] = found[-1]._replace(billed=billed)
    return found


def _next_hour(instant: int) -> int:
    return (instant // HOUR + 1) * HOUR


def _reserved(stretches: Sequence[Span], tariff: Tariff, until: int) -> int:
    return sum(span_cost(tariff, span.start, min(span.end, until)) for span in stretches if span.start < until)


def _share(amount: int, part: int, whole: int) -> int:
    return amount * part // whole if whole else 0
