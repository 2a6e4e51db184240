"""Cuts a session where its account, its period or its rate changes, and adds up what each piece costs.

A piece costs its rate times its nanoseconds, rounded down; the amount of a session in a period is the sum of its pieces
there. It depends on nothing but the instants, so that anybody can compute it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from timekeeper.metering.reservations import Tariff
from timekeeper.rules.money import cost
from timekeeper.rules.periods import Period
from timekeeper.rules.pricing import FOREVER

Assignments = tuple[tuple[int, str], ...]
"""(from, account): who pays for a namespace from when on; the first holds for all time before, too."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch [start, end) of a session that one period of one account pays for."""

    account: str
    period: int
    start: int
    end: int


def spans(
    assignments: Assignments, periods_of: Callable[[str], Sequence[Period]], start: int, end: int
) -> Iterator[Span]:
    """The stretches of [start, end), in order of time within each account.

    Time before an account's first period is nobody's: the account did not exist.
    """
    for index, (since, account) in enumerate(assignments):
        first = start if index == 0 else max(start, since)
        until = min(end, assignments[index + 1][0] if index + 1 < len(assignments) else FOREVER)
        for period in periods_of(account):
            if first < period.end and period.start < until:
                low, high = max(first, period.start), min(until, period.end)
                if low < high:
                    yield Span(account, period.start, low, high)


def span_cost(tariff: Tariff, start: int, end: int) -> int:
    """What [start, end) costs in microGPU-seconds."""
    total = 0
    for index, (since, rate) in enumerate(tariff):
        low = start if index == 0 else max(start, since)
        high = min(end, tariff[index + 1][0]) if index + 1 < len(tariff) else end
        if low < high:
            total += cost(rate, high - low)
    return total


def rate_now(tariff: Tariff, now: int) -> int:
    """The rate at an instant."""
    rate = tariff[0][1] if tariff else 0
    for since, later in tariff[1:]:
        if since <= now:
            rate = later
    return rate


def amounts(tariff: Tariff, stretches: Sequence[Span]) -> dict[tuple[str, int], int]:
    """The cumulative amount in each period of each account that the stretches touch."""
    totals: dict[tuple[str, int], int] = {}
    for span in stretches:
        key = (span.account, span.period)
        totals[key] = totals.get(key, 0) + span_cost(tariff, span.start, span.end)
    return totals
