"""Instants, as whole nanoseconds so that no duration is ever rounded; reads and writes them as text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from timekeeper.domain.money import SECOND

Instant = int
"""A point in time: nanoseconds since 1970-01-01T00:00:00Z."""

MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
SKEW: Final = MINUTE
"""The most by which a timestamp of the API server may be ahead of the local clock and still be trusted."""

LAST_INSTANT: Final = 253_402_300_800 * SECOND - 1
"""The last instant that a date can express: the year 9999 ends."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,12}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_DURATION = re.compile(r"(?:(\d{1,5})d)?(?:(\d{1,5})h)?(?:(\d{1,5})m)?(?:(\d{1,5})s)?", re.ASCII)


class TimeError(ValueError):
    """A value that is not an instant or not a duration."""


def parse_instant(value: Any) -> Instant:
    """Parses an RFC 3339 timestamp, as Kubernetes writes `Time` and `MicroTime`; drops digits beyond nanoseconds.

    Raises:
        TimeError: the value is not such a timestamp, has more than 12 decimal places, or names a moment that does not
            exist.
    """
    match = _RFC3339.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise TimeError(f"{value!r} is no RFC 3339 timestamp such as 2026-01-31T09:00:00Z")
    date, hour, minute, second, fraction, zone = match.groups()
    try:
        nanoseconds = 0 if fraction is None else int(fraction.ljust(9, "0")[:9])
        if zone in "Zz" and hour < "24" and minute < "60" and second < "60":
            return (_midnight(date) + int(hour) * 3600 + int(minute) * 60 + int(second)) * SECOND + nanoseconds
        moment = datetime.fromisoformat(f"{date}T{hour}:{minute}:{second}{'+00:00' if zone in 'Zz' else zone}")
        return from_datetime(moment) + nanoseconds
    except (ValueError, OverflowError) as error:
        raise TimeError(f"{value!r} is no moment: {error}") from error


def instant_or_none(value: Any) -> Instant | None:
    """Parses an RFC 3339 timestamp; returns None if the value is None or no such timestamp."""
    if value is None:
        return None
    try:
        return parse_instant(value)
    except TimeError:
        return None


def from_datetime(moment: datetime) -> int:
    """Converts a datetime with a time zone to nanoseconds since 1970, exact to its microsecond."""
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def to_datetime(instant: int) -> datetime:
    """Converts nanoseconds since 1970 to a datetime in UTC, truncated to microseconds."""
    return _EPOCH + timedelta(microseconds=instant // 1000)


def format_instant(instant: int) -> str:
    """Formats nanoseconds since 1970 as RFC 3339 in UTC, rounded down to the second, like Kubernetes' `Time`."""
    return f"{_date_and_time(instant // SECOND)}Z"


def format_exact(instant: int) -> str:
    """Formats nanoseconds since 1970 as RFC 3339 in UTC with as many decimal places as they need."""
    seconds, fraction = divmod(instant, SECOND)
    text = _date_and_time(seconds)
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else f"{text}Z"


_DAYS = 1024
"""The number of days whose dates are cached: a leader and a page of usage format the same few dates many times."""


def _date_and_time(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{_date(days)}T{hours:02d}:{minutes:02d}:{rest:02d}"


@lru_cache(maxsize=_DAYS)
def _date(days: int) -> str:
    return (_EPOCH + timedelta(days=days)).strftime("%Y-%m-%d")


@lru_cache(maxsize=_DAYS)
def _midnight(date: str) -> int:
    return from_datetime(datetime.fromisoformat(f"{date}T00:00:00+00:00")) // SECOND


def parse_duration(value: Any) -> int:
    """Parses whole days, hours, minutes and seconds in this order (`2d`, `36h`, `1h30m`) to nanoseconds.

    Raises:
        TimeError: the value is anything else.
    """
    match = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
    if match is None:
        raise TimeError('whole days, hours, minutes and seconds in this order, such as "2d", "36h" or "1h30m"')
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * DAY + hours * HOUR + minutes * MINUTE + seconds * SECOND
