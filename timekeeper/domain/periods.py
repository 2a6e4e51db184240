"""Accounting periods: their rules, their boundaries, and cron expressions that set these.

A cron expression has five fields, as in crontab(5) of Debian's cron, on the wall clock. Days count from Sunday = 0 (7
is Sunday, too), and names are allowed. Where day of month and day of week are both restricted, either is enough. A day
that a month does not have is skipped; L is the last day.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from timekeeper.domain.timestamps import HOUR, Instant, from_datetime, to_datetime

if TYPE_CHECKING:
    from collections.abc import Iterator

FIELDS = 5
AROUND = timedelta(hours=26)
"""A time that is longer than any jump of a wall clock: a zone that crosses the date line skips a day."""
ALLOWED = "minute hour day-of-month month day-of-week, as in crontab(5), with one number for the minute"


class CronError(ValueError):
    """An invalid cron expression, or one that begins periods too often or never; the message says what is allowed."""


@lru_cache(maxsize=1024)
def check_cron(expression: str) -> str:
    """Returns a cron expression unchanged if the times that it names are at least an hour apart.

    Raises:
        CronError: two of these times may be less than an hour apart, or the expression is invalid or names no time.
    """
    try:
        if len(expression.split()) != FIELDS or not expression.isascii():
            raise CronError(ALLOWED)
        schedule = CronSim(expression, datetime(2000, 1, 1))  # noqa: DTZ001 - wall-clock time
        if len(schedule.minutes) != 1:
            raise CronError(f"{ALLOWED}: a period lasts an hour at least")
        next(schedule)
    except CronSimError as error:
        raise CronError(f"{ALLOWED} ({error})") from error
    except (StopIteration, ValueError, AssertionError) as error:
        raise error if isinstance(error, CronError) else CronError(f"{ALLOWED}, on a day that there is") from error
    return expression


def moments_around(expression: str, local: datetime) -> list[datetime]:
    """Returns the times that a cron expression names within AROUND before and after a time, in order.

    The list also begins with the last time before this span, and ends with the first time after it.

    Args:
        local: a time of the wall clock, without a time zone; the returned times are of the same kind.
    """
    before = next(CronSim(expression, local - AROUND, reverse=True))
    coming = CronSim(expression, before)
    inside = list(takewhile(lambda moment: moment <= local + AROUND, coming))
    return [before, *inside, coming.dt]


LAST_DAY_OF_EVERY_MONTH = 28


class Every(StrEnum):
    """The length of an accounting period: an hour, a day, a week or a month."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class PeriodRule:
    """A rule that sets when accounting periods start.

    Attributes:
        every: the length of a period.
        zone: the time zone of the wall clock, a name of the IANA database.
        day_of_month: the day on which a month's period starts.
        weekday: the day on which a week's period starts; Monday is 0.
        hour: the hour of the wall clock at which a period starts; periods of an hour do not use it.
        minute: the minute of that hour.
        cron: a cron expression that overrides all other fields but the zone; empty for none.
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
    """An accounting period from `start` up to `end`, in nanoseconds since 1970; its start identifies it."""

    start: int
    end: int

    def holds(self, instant: Instant) -> bool:
        """Returns whether an instant lies in the period."""
        return self.start <= instant < self.end


def boundary_before(rule: PeriodRule, instant: int) -> int:
    """Returns the last start of a period at or before an instant; both are nanoseconds since 1970."""
    return max(boundary for boundary in _boundaries_near(rule, instant) if boundary <= instant)


def boundary_after(rule: PeriodRule, instant: int) -> int:
    """Returns the first start of a period after an instant; both are nanoseconds since 1970."""
    return min(boundary for boundary in _boundaries_near(rule, instant) if boundary > instant)


def first_period(rule: PeriodRule, instant: Instant) -> Period:
    """Returns the period that holds an instant, for an account that has no period yet."""
    return Period(boundary_before(rule, instant), boundary_after(rule, instant))


def following_period(rule: PeriodRule, last: Period) -> Period:
    """Returns the period after `last` according to a rule; it starts at the end of `last`.

    If an earlier rule set the end of `last`, perhaps this rule starts no period at that instant. The returned period
    then ends at the first start by this rule. It ends at the second start if it would otherwise be shorter than half a
    regular period, since a period has its whole allowance, however short it is.
    """
    end = boundary_after(rule, last.end)
    if boundary_before(rule, last.end) != last.end:
        following = boundary_after(rule, end)
        if 2 * (end - last.end) < following - end:
            end = following
    return Period(last.end, end)


def periods_until(rule: PeriodRule, last: Period, instant: Instant) -> Iterator[Period]:
    """Yields the periods after `last`, up to and including the one that holds an instant."""
    while last.end <= instant:
        last = following_period(rule, last)
        yield last


def _boundaries_near(rule: PeriodRule, instant: int) -> set[int]:
    """Returns the starts of the periods around an instant, at least one before and one after it; ns since 1970.

    A start less than an hour after another one is left out, so that no period is shorter than an hour. That happens if
    clocks change by half an hour, as on Lord Howe Island.
    """
    zone = ZoneInfo(rule.zone)
    local = to_datetime(instant).astimezone(zone).replace(tzinfo=None)
    moments = _wall_clock_moments(rule, local)
    if rule.every is Every.HOUR and not rule.cron:
        starts = {instant for moment in moments for instant in _instants(moment, zone)}
    else:
        starts = {from_datetime(moment.replace(tzinfo=zone, fold=0).astimezone(UTC)) for moment in moments}
    return {start for start in starts if not any(start - HOUR < other < start for other in starts)}


def _instants(moment: datetime, zone: ZoneInfo) -> tuple[int, ...]:
    """Returns the instants (ns since 1970) at which a zone's clocks show a time.

    There is none if the clocks skip the time. The result is a pair otherwise; its two instants differ if the clocks
    repeat the time.
    """
    first, second = (from_datetime(moment.replace(tzinfo=zone, fold=fold).astimezone(UTC)) for fold in (0, 1))
    return () if first > second else (first, second)


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
