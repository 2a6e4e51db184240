"""Divides a session into segments by account and period, and computes their cost and the cost's hourly points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from timekeeper.domain.attribution import Attribution
from timekeeper.domain.money import SECOND
from timekeeper.domain.periods import Period
from timekeeper.domain.pricing import FOREVER
from timekeeper.domain.reservations import Tariff
from timekeeper.domain.timestamps import HOUR, Instant

Assignments = tuple[tuple[Instant, str], ...]
"""The payers of a namespace in order of time: pairs of an instant and the account that pays from then on.

The first one also pays for all time before."""


def payers_since(assignments: Assignments, instant: Instant) -> set[str]:
    """Returns the accounts that have paid for a namespace at an instant or later.

    Args:
        assignments: (from, account) pairs: the namespace's payers over time.
    """
    ends = [since for since, _ in assignments[1:]] + [FOREVER]
    return {account for (_, account), end in zip(assignments, ends, strict=True) if end > instant}


def cost(rate: int, nanoseconds: int) -> int:
    """Returns the cost of a rate (microGPU-seconds a second) over a duration, in microGPU-seconds, rounded down."""
    return rate * nanoseconds // SECOND


class Segment(NamedTuple):
    """A part of a session that one period of one account pays for. Instants are nanoseconds since 1970.

    Attributes:
        account: the account's name.
        period: the start of the period.
        start: the part's start, inclusive.
        end: its end, exclusive.
    """

    account: str
    period: int
    start: int
    end: int


def segments(
    assignments: Assignments, periods_of: Callable[[str], Sequence[Period]], start: int, end: int
) -> list[Segment]:
    """Returns the segments of a session between two instants, in order of time.

    Instants are nanoseconds since 1970. Time before an account's first period belongs to no segment: the account did
    not exist.

    Args:
        assignments: (from, account) pairs, in order of time: the payers of the session's namespace.
        periods_of: returns the periods of an account, by the account's name.
        start: the session's start.
        end: the instant up to which segments are returned.
    """
    spans = []
    for index, (since, account) in enumerate(assignments):
        first = start if index == 0 else max(start, since)
        until = min(end, assignments[index + 1][0] if index + 1 < len(assignments) else FOREVER)
        for period in periods_of(account):
            if first < period.end and period.start < until:
                low, high = max(first, period.start), min(until, period.end)
                if low < high:
                    spans.append(Segment(account, period.start, low, high))
    return spans


def segment_cost(tariff: Tariff, start: int, end: int) -> int:
    """Returns the cost of the time from `start` up to `end`, in microGPU-seconds. Instants are nanoseconds since 1970.

    Args:
        tariff: pairs of an instant and the rate from then on, in microGPU-seconds a second.
    """
    total = 0
    for index, (since, rate) in enumerate(tariff):
        low = start if index == 0 else max(start, since)
        high = min(end, tariff[index + 1][0]) if index + 1 < len(tariff) else end
        if low < high:
            total += cost(rate, high - low)
    return total


def rate_now(tariff: Tariff, now: Instant) -> int:
    """Returns the rate at an instant, in microGPU-seconds a second; 0 for a tariff without rates.

    Args:
        tariff: pairs of an instant and the rate from then on, in microGPU-seconds a second.
    """
    rate = tariff[0][1] if tariff else 0
    for since, later in tariff[1:]:
        if since <= now:
            rate = later
    return rate


def sum_of_rates(tariffs: Iterable[Tariff], now: Instant) -> int:
    """Returns the sum of the rates of tariffs at an instant, in microGPU-seconds a second.

    Args:
        tariffs: one for each session: pairs of an instant and the rate from then on, in microGPU-seconds a second.
    """
    return sum([rate_now(tariff, now) for tariff in tariffs])


def amounts(tariff: Tariff, settled: Sequence[Segment]) -> dict[tuple[str, int], int]:
    """Returns the cost of a session's segments in each period, in microGPU-seconds.

    The result is keyed by (account, start of the period).

    Args:
        tariff: pairs of an instant and the session's rate from then on, in microGPU-seconds a second.
        settled: the segments; each names its account and period.
    """
    totals: dict[tuple[str, int], int] = {}
    for segment in settled:
        key = (segment.account, segment.period)
        totals[key] = totals.get(key, 0) + segment_cost(tariff, segment.start, segment.end)
    return totals


def charged(
    tariff: Tariff, assignments: Assignments, periods_of: Callable[[str], Sequence[Period]], start: int, end: int
) -> tuple[list[Segment], dict[tuple[str, int], int]]:
    """Returns a session's segments from `start` up to `end`, and the cost of the segments in each period.

    Segments are in order of time. The cost is in microGPU-seconds, keyed by (account, start of the period). Instants
    are nanoseconds since 1970.

    Args:
        tariff: pairs of an instant and the session's rate from then on, in microGPU-seconds a second.
        assignments: (from, account) pairs, in order of time: the payers of the session's namespace.
        periods_of: returns the periods of an account, by the account's name.
    """
    spans = segments(assignments, periods_of, start, end)
    return spans, amounts(tariff, spans)


class HourlyPoint(NamedTuple):
    """A session's cumulative amounts in one period, from its start there up to an instant, in microGPU-seconds.

    Attributes:
        until: the instant up to which the amounts count.
        billed: the money that was charged.
        core: the GPU time that was reserved.
        memory: the device memory that was reserved: the whole memory of one device counts as one GPU.
        used: the GPU time that the session's reports state; None if it has sent no report.
    """

    until: Instant
    billed: int
    core: int
    memory: int
    used: int | None = None

    @property
    def hour(self) -> int:
        """The number of the hour that the point belongs to, counted from 1970.

        A point at a full hour belongs to the hour that ends then.
        """
        return (self.until - 1) // HOUR


def hours_of(points: Sequence[HourlyPoint]) -> list[int]:
    """Returns the hour of each hourly point, counted from 1970."""
    return [point.hour for point in points]


def hourly_points(
    settled: Sequence[Segment], tariff: Tariff, attribution: Attribution, stored: HourlyPoint | None, billed: int
) -> list[HourlyPoint]:
    """Returns a session's hourly points in one period that follow the stored point.

    There is one point at each full hour, and one at the end of the last segment. Each states the session's amounts from
    its start in the period up to the point's instant; `used` stays None.

    Args:
        settled: the segments that the period pays for, in order of time; at least one.
        tariff: pairs of an instant and the session's rate from then on, in microGPU-seconds a second.
        attribution: the session's attribution; its reserved rates, without any price, give `core` and `memory`.
        stored: the last point that the store holds; None for none.
        billed: the amount billed up to the last point, in microGPU-seconds. If it differs from the cost of the
            reservation, the amount after the stored point is spread evenly over the time since then.
    """
    first, last = settled[0].start, settled[-1].end
    begin = first if stored is None else min(max(stored.until, first), last)
    already = 0 if stored is None else stored.billed
    hours = range(_next_hour(begin), last, HOUR)
    by_rate = bool(hours) and billed == _reserved(settled, tariff, last)
    points = []
    for moment in (*hours, last):
        if moment == last:
            amount = billed
        elif by_rate:
            amount = _reserved(settled, tariff, moment)
        else:
            amount = _between(already, billed, moment - begin, last - begin)
        held = sum([max(min(segment.end, moment) - segment.start, 0) for segment in settled])
        core, memory = cost(attribution.core_rate, held), cost(attribution.memory_rate, held)
        points.append(HourlyPoint(moment, amount, core, memory))
    return points


def with_used(
    points: Sequence[HourlyPoint], stored: HourlyPoint | None, start: Instant, used: int
) -> list[HourlyPoint]:
    """Returns hourly points with the used GPU time set.

    The GPU time that was used after the stored point is spread evenly over the time since then.

    Args:
        points: the points in order of time; their `used` is replaced.
        stored: the last point that the store holds; None for none.
        start: the later of the session's and the period's start, in nanoseconds since 1970.
        used: the GPU time that the session used in the period up to the last point, in microGPU-seconds.
    """
    if not points:
        return []
    begin, already = (start, 0) if stored is None else (stored.until, stored.used or 0)
    length = points[-1].until - begin
    return [
        HourlyPoint(until, billed, core, memory, _between(already, used, until - begin, length))
        for until, billed, core, memory, _ in points
    ]


def _next_hour(instant: int) -> int:
    return (instant // HOUR + 1) * HOUR


def _reserved(settled: Sequence[Segment], tariff: Tariff, until: int) -> int:
    return sum(
        [segment_cost(tariff, segment.start, min(segment.end, until)) for segment in settled if segment.start < until]
    )


def _between(start: int, end: int, part: int, whole: int) -> int:
    """Returns the amount that lies `part / whole` of the way from `start` to `end`; `end` if `whole` is 0."""
    return start + (end - start) * part // whole if whole > 0 else end
