"""Which months are due to be written, and what their files are called; pure functions. A month is text: 2026-10."""

from __future__ import annotations

import re
from collections.abc import Iterable

from timekeeper.rules.timestamps import DAY, HOUR
from timekeeper.usage.folding import month_of
from timekeeper.usage.windows import Window, month_start, parse_month

_NAME = re.compile(r"usage-([0-9]{4}-(?:0[1-9]|1[0-2]))\.csv\.gz", re.ASCII)


def window_of(month: str) -> Window:
    """The time of a month, in UTC."""
    start = parse_month(month)
    return Window(start, month_start(start, 1))


def month_at(instant: int) -> str:
    """The month of an instant, in UTC."""
    return month_of(instant // HOUR)


def file_name(month: str) -> str:
    """What a month's file is called."""
    return f"usage-{month}.csv.gz"


def month_named(name: str) -> str | None:
    """The month of a file of that name; None where it is none of ours."""
    match = _NAME.fullmatch(name)
    return match[1] if match else None


def closed_until(now: int, hourly_days: int) -> int:
    """Until when months are closed: all hours before were folded into days at least once, a day ago.

    What is folded into such a month later came late, and changes its file.
    """
    return now // DAY * DAY - (hourly_days + 1) * DAY


def closed_months(now: int, hourly_days: int, known: Iterable[str]) -> list[str]:
    """Every closed month from the first known one on, in order; none where none is known."""
    last = month_at(month_start(closed_until(now, hourly_days), -1))
    return months_between(min(known, default="9999-12"), last)


def months_between(first: str, last: str) -> list[str]:
    """The months from one to another, both included; none where the last comes before the first."""
    found = []
    while first <= last:
        found.append(first)
        first = month_at(window_of(first).end)
    return found
