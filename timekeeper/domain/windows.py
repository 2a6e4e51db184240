"""Parses the windows and time steps of usage queries, and states for how long use and ledgers are kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import (
    DAY,
    HOUR,
    MINUTE,
    Instant,
    TimeError,
    from_datetime,
    parse_instant,
    to_datetime,
)


@dataclass(frozen=True, slots=True)
class Retention:
    """The time for which use and ledgers are kept, as the admin sets it.

    Attributes:
        hourly_days: the number of whole days before today whose use is kept by the hour; older use is kept by the day.
        months: the number of whole months before the present one that are kept.
        exported: whether a month is kept beyond `months` until it has been exported.
    """

    hourly_days: int = 8
    months: int = 13
    exported: bool = False


WEEK: Final = 7 * DAY
MAX_STEPS: Final = 10_000
WINDOWS: Final = (
    "today, yesterday, week, month, lastweek, lastmonth, a span up to now such as 90m, 36h, 7d or 2w, one that ended "
    'before such as "7d offset 1d", or a start and an end joined by a comma: two RFC 3339 timestamps such as '
    "2026-01-01T00:00:00Z,2026-02-01T00:00:00Z, or two Unix times in seconds"
)
FORECAST_ENDS: Final = (
    "today, week or month for the end of the present one in UTC, or an RFC 3339 timestamp from now to a year later, "
    "such as 2026-12-01T00:00:00Z; with a window that the present is in, and without a step"
)
MOST_AHEAD: Final = 366 * DAY
STEPS: Final = "hour, day, week, month, or a number of hours, days or weeks such as 6h or 2d"

_SPAN = re.compile(r"([1-9][0-9]{0,5})([mhdw])(?: offset ([1-9][0-9]{0,5})([mhdw]))?", re.ASCII)
_UNIX_PAIR = re.compile(r"([0-9]{1,12})[,-]([0-9]{1,12})", re.ASCII)
_STEP = re.compile(r"([1-9][0-9]{0,4})([hdw])", re.ASCII)
_UNITS = {"m": MINUTE, "h": HOUR, "d": DAY, "w": WEEK}
_EARLIEST = 0
_LATEST = parse_instant("2200-01-01T00:00:00Z")


class WindowError(ValueError):
    """An invalid window or step of a usage query; the message says what is allowed."""


@dataclass(frozen=True, slots=True)
class Window:
    """The span of time from `start` up to `end`, in nanoseconds since 1970; both are at whole hours."""

    start: int
    end: int


def parse_window(text: str, now: Instant) -> Window:
    """Parses the window of a usage query, widened to whole hours.

    Args:
        text: the window as WINDOWS describes it, such as `today`, `7d` or two timestamps.

    Raises:
        WindowError: the text is not a window, or it does not end after its start, or is not within 1970 to 2200.
    """
    start, end = _named(text, now) or _span(text, now) or _pair(text)
    if not are_bounds(start, end):
        raise WindowError(f"{WINDOWS}; the end after the start, both from 1970 to 2200")
    return Window(start // HOUR * HOUR, -(-end // HOUR) * HOUR)


def are_bounds(start: Instant, end: Instant) -> bool:
    """Returns whether a window may reach from `start` to `end`: `end` must be later, and both lie in 1970 to 2200."""
    return _EARLIEST <= start < end <= _LATEST


def parse_step(text: str) -> str:
    """Parses the time step by which a usage query groups, and returns the shortest way to write it: `1d` for `day`.

    Raises:
        WindowError: the text is not a step.
    """
    named = {"hour": "1h", "day": "1d", "week": "1w", "month": "month"}.get(text, text)
    if named != "month" and not _STEP.fullmatch(named):
        raise WindowError(STEPS)
    return named


def steps(window: Window, step: str | None) -> Iterator[Window]:
    """Yields the time steps of a window in order; the first begins with the window, months begin on their first day.

    Args:
        step: the length of a step, as `parse_step` returns it; None for the whole window as one step.

    Raises:
        WindowError: there are more than MAX_STEPS; it is raised after these were yielded.
    """
    if step is None:
        yield window
        return
    following = _following(step)
    start, count = window.start, 0
    while start < window.end:
        count += 1
        if count > MAX_STEPS:
            raise WindowError(f"a step that cuts the window into at most {MAX_STEPS} pieces")
        end = min(following(start), window.end)
        yield Window(start, end)
        start = end


def parse_forecast_end(text: str, now: Instant) -> Instant:
    """Parses the instant up to which a forecast goes.

    The present week ends with Saturday.

    Args:
        text: `today`, `week` or `month` for the end of the present one in UTC, or an RFC 3339 timestamp.

    Raises:
        WindowError: the text is none of these, or the instant is not after now, or more than MOST_AHEAD after it.
    """
    named = {"today": now // DAY * DAY + DAY, "week": _sunday(now) + WEEK, "month": month_start(now, 1)}
    try:
        end = named[text] if text in named else parse_instant(text)
    except TimeError as error:
        raise WindowError(FORECAST_ENDS) from error
    if not now < end <= now + MOST_AHEAD:
        raise WindowError(FORECAST_ENDS)
    return end


def _following(step: str) -> Callable[[int], int]:
    match = _STEP.fullmatch(step)
    if match is None:
        return lambda start: month_start(start, 1)
    length = int(match[1]) * _UNITS[match[2]]
    return lambda start: start + length


def _named(text: str, now: Instant) -> tuple[int, int] | None:
    today = now // DAY * DAY
    sunday = _sunday(now)
    first = month_start(now, 0)
    named = {
        "today": (today, today + DAY),
        "yesterday": (today - DAY, today),
        "week": (sunday, now + 1),
        "month": (first, now + 1),
        "lastweek": (sunday - WEEK, sunday),
        "lastmonth": (month_start(first, -1), first),
    }
    return named.get(text)


def _sunday(now: Instant) -> int:
    """Returns the start of the present week in UTC (ns since 1970); weeks begin on Sunday, as in OpenCost."""
    today = now // DAY * DAY
    return today - (to_datetime(today).isoweekday() % 7) * DAY


def _span(text: str, now: Instant) -> tuple[int, int] | None:
    """Returns start and end (ns since 1970) of a window such as `7d` or `1h offset 2h`; None for any other text.

    A window of days or weeks ends with the present day, one of hours or minutes with the present hour or minute. A
    window with an offset ends by that offset before now, and is not rounded.
    """
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    length, unit = int(match[1]) * _UNITS[match[2]], match[2]
    if match[3]:
        end = now - int(match[3]) * _UNITS[match[4]]
    else:
        whole = DAY if unit == "w" else _UNITS[unit]
        end = now // whole * whole + whole
    return max(end - length, 0), end


def _pair(text: str) -> tuple[int, int]:
    unix = _UNIX_PAIR.fullmatch(text)
    if unix is not None:
        return int(unix[1]) * SECOND, int(unix[2]) * SECOND
    start, comma, end = text.partition(",")
    if not comma:
        raise WindowError(WINDOWS)
    try:
        return parse_instant(start), parse_instant(end)
    except TimeError as error:
        raise WindowError(WINDOWS) from error


def parse_month(month: str) -> Instant:
    """Returns the start of a month in UTC; the month is written as 2026-11.

    Raises:
        TimeError: the text is not a month.
    """
    return parse_instant(f"{month}-01T00:00:00Z")


def month_start(instant: Instant, later: int) -> Instant:
    """Returns the start of a month in UTC.

    Args:
        instant: an instant in some month.
        later: the number of months after that one; below 0 for months before it.
    """
    first = to_datetime(instant).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    months = first.year * 12 + first.month - 1 + later
    return from_datetime(first.replace(year=months // 12, month=months % 12 + 1))
