"""When a budget's periods begin and end.

A rule names wall-clock moments in a time zone (the first of every month at 00:00 in Europe/Berlin); each of them is
one instant, and a period is the time from one to the next: start inclusive, end exclusive. Where the clocks skip the
moment, the period starts as late after the skip as the moment lies after its beginning; where they repeat it, a day,
week or month starts at the first of the two, and an hour at both (PEP 495 names the two folds). A cron expression names
wall-clock moments as the rule of a day does.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from timekeeper.rules.cron import check_cron, moments_around
from timekeeper.rules.timestamps import from_datetime, to_datetime

if TYPE_CHECKING:
    from collections.abc import Iterator

LAST_DAY_OF_EVERY_MONTH = 28


class Every(StrEnum):
    """How long a period lasts."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class PeriodRule:
    """When periods start. `weekday` counts from Monday = 0; for hours only the minute counts.

    Where there is a `cron` expression, it alone says when.
    """

    every: Every = Every.MONTH
    zone: str = "UTC"
    day_of_month: int = 1
    weekday: int = 0
    hour: int = 0
    minute: int = 0
    cron: str = ""

    def __post_init__(self) -> None:
        if self.cron:
            check_cron(self.cron)
        if not 1 <= self.day_of_month <= LAST_DAY_OF_EVERY_MONTH:
            raise ValueError(f"day of month {self.day_of_month} is not in every month")
        ZoneInfo(self.zone)


@dataclass(frozen=True, slots=True)
class Period:
    """[start, end) in nanoseconds since 1970; the start is its name."""

    start: int
    end: int

    def holds(self, instant: int) -> bool:
        """Whether the instant lies in it."""
        return self.start <= instant < self.end


def boundary_before(rule: PeriodRule, instant: int) -> int:
    """The last start of a period at or before the instant."""
    return max(boundary for boundary in _boundaries_near(rule, instant) if boundary <= instant)


def boundary_after(rule: PeriodRule, instant: int) -> int:
    """The first start of a period after the instant."""
    return min(boundary for boundary in _boundaries_near(rule, instant) if boundary > instant)


def first_period(rule: PeriodRule, instant: int) -> Period:
    """The period that holds the instant where no period was ever opened."""
    return Period(boundary_before(rule, instant), boundary_after(rule, instant))


def following_period(rule: PeriodRule, last: Period) -> Period:
    """The period after `last`: it starts where that one ends, whatever rule that one followed."""
    return Period(last.end, boundary_after(rule, last.end))


def periods_until(rule: PeriodRule, last: Period, instant: int) -> Iterator[Period]:
    """The periods after `last`, up to and with the one that holds the instant."""
    while last.end <= instant:
        last = following_period(rule, last)
        yield last


def _boundaries_near(rule: PeriodRule, instant: int) -> set[int]:
    """Starts around an instant: some before and some after it, wherever the clocks jump."""
    zone = ZoneInfo(rule.zone)
    local = to_datetime(instant).astimezone(zone).replace(tzinfo=None)
    folds = (0, 1) if rule.every is Every.HOUR and not rule.cron else (0,)
    return {
        from_datetime(moment.replace(tzinfo=zone, fold=fold).astimezone(UTC))
        for moment in _wall_clock_moments(rule, local)
        for fold in folds
    }


def _wall_clock_moments(rule: PeriodRule, local: datetime) -> list[datetime]:
    if rule.cron:
        return moments_around(rule.cron, local)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    clock = timedelta(hours=rule.hour, minutes=rule.minute)
    if rule.every is Every.HOUR:
        hour = local.replace(minute=rule.minute, second=0, microsecond=0)
        # A zone that crosses the date line skips a whole day of hours.
        return [hour + timedelta(hours=offset) for offset in (-26, -25, -24, *range(-3, 4), 24, 25, 26)]
    if rule.every is Every.DAY:
        return [midnight + clock + timedelta(days=offset) for offset in range(-3, 4)]
    if rule.every is Every.WEEK:
        monday = midnight - timedelta(days=midnight.weekday())
        return [monday + clock + timedelta(days=rule.weekday + 7 * offset) for offset in range(-2, 3)]
    months = [local.year * 12 + local.month - 1 + offset for offset in range(-2, 3)]
    return [datetime(month // 12, month % 12 + 1, rule.day_of_month) + clock for month in months]  # noqa: DTZ001 - wall-clock time
