from __future__ import annotations

from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.periods import Every, Period, PeriodRule, first_period, following_period, periods_until
from timekeeper.domain.timestamps import HOUR, parse_instant, to_datetime

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/St_Johns",
]
rules = st.builds(
    PeriodRule,
    every=st.sampled_from(Every),
    zone=st.sampled_from(ZONES),
    day_of_month=st.integers(1, 28),
    weekday=st.integers(0, 6),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
)
instants = st.integers(parse_instant("2005-01-01T00:00:00Z"), parse_instant("2040-01-01T00:00:00Z"))


@given(rules, instants)
def test_every_instant_lies_in_exactly_one_period_and_periods_follow_without_gap(rule: PeriodRule, now: int) -> None:
    period = first_period(rule, now)
    assert period.holds(now)
    assert first_period(rule, period.start) == period
    assert first_period(rule, period.end - 1) == period
    following = following_period(rule, period)
    assert following.start == period.end
    assert following == first_period(rule, period.end)


@given(rules, rules, instants, st.integers(0, 40 * HOUR))
def test_a_changed_rule_applies_from_the_next_period(old: PeriodRule, new: PeriodRule, now: int, later: int) -> None:
    running = first_period(old, now)
    opened = list(periods_until(new, running, now + later))
    edges = [running, *opened]
    assert all(before.end == after.start for before, after in pairwise(edges))
    assert edges[-1].holds(now + later)
    assert all(first_period(new, period.end - 1).end == period.end for period in opened)
    assert all(first_period(new, period.start) == period for period in opened[1:])


def test_a_month_in_berlin_starts_at_local_midnight_in_winter_and_in_summer() -> None:
    rule = PeriodRule(Every.MONTH, "Europe/Berlin")
    march = first_period(rule, parse_instant("2026-03-15T00:00:00Z"))
    assert march == Period(parse_instant("2026-02-28T23:00:00Z"), parse_instant("2026-03-31T22:00:00Z"))


def test_a_day_that_starts_in_the_hour_that_clocks_skip_starts_after_the_skip() -> None:
    rule = PeriodRule(Every.DAY, "Europe/Berlin", hour=2, minute=30)
    day = first_period(rule, parse_instant("2026-03-29T12:00:00Z"))
    assert to_datetime(day.start).astimezone(ZoneInfo("Europe/Berlin")).isoformat() == "2026-03-29T03:30:00+02:00"
    assert day.end - day.start == 23 * HOUR


def test_a_day_that_starts_in_the_hour_that_clocks_repeat_starts_once_at_the_first() -> None:
    rule = PeriodRule(Every.DAY, "Europe/Berlin", hour=2, minute=30)
    day = first_period(rule, parse_instant("2026-10-25T12:00:00Z"))
    assert day.start == parse_instant("2026-10-25T00:30:00Z")
    assert day.end - day.start == 25 * HOUR


def test_hours_last_an_hour_when_clocks_go_back() -> None:
    rule = PeriodRule(Every.HOUR, "Europe/Berlin", minute=15)
    period = first_period(rule, parse_instant("2026-10-24T22:00:00Z"))
    for _ in range(8):
        assert period.end - period.start == HOUR
        period = following_period(rule, period)


@pytest.mark.parametrize("minute", [0, 15, 30, 45])
@pytest.mark.parametrize("zone", ["Australia/Lord_Howe", "Africa/Cairo", "America/Havana", "Antarctica/Troll"])
def test_no_hour_is_shorter_than_an_hour_wherever_clocks_change(zone: str, minute: int) -> None:
    """Each period has all of its allowance. Clocks change by half an hour on Lord Howe Island, and by two in Troll."""
    rule = PeriodRule(Every.HOUR, zone, minute=minute)
    clocks = ZoneInfo(zone)
    days = [parse_instant("2026-01-01T00:00:00Z") + 24 * HOUR * day for day in range(366)]
    offsets = [to_datetime(day).astimezone(clocks).utcoffset() for day in days]
    changes = [day for day, before, after in zip(days, offsets, offsets[1:], strict=False) if before != after]
    assert len(changes) == 2
    for day in changes:
        period = first_period(rule, day)
        for _ in range(26):
            assert HOUR <= period.end - period.start < 2 * HOUR
            period = following_period(rule, period)


@pytest.mark.parametrize(
    ("old", "new", "ends"),
    [
        (PeriodRule(), PeriodRule(zone="America/New_York"), "2026-03-01T05:00:00Z"),
        (PeriodRule(), PeriodRule(zone="Europe/Berlin"), "2026-02-28T23:00:00Z"),
        (PeriodRule(), PeriodRule(day_of_month=3), "2026-03-03T00:00:00Z"),
        (PeriodRule(), PeriodRule(day_of_month=20), "2026-02-20T00:00:00Z"),
        (PeriodRule(), PeriodRule(Every.HOUR, minute=15), "2026-02-01T01:15:00Z"),
        (PeriodRule(), PeriodRule(Every.HOUR, minute=45), "2026-02-01T00:45:00Z"),
        (PeriodRule(), PeriodRule(cron="0 6 1 1,4,7,10 *"), "2026-04-01T06:00:00Z"),
    ],
)
def test_the_first_period_of_a_changed_rule_is_no_shorter_than_half_a_period(
    old: PeriodRule, new: PeriodRule, ends: str
) -> None:
    """It has the whole allowance: a time zone that is set right would else give a month's money for some hours."""
    january = first_period(old, parse_instant("2026-01-15T00:00:00Z"))
    first = following_period(new, january)

    assert first == Period(january.end, parse_instant(ends))
    assert following_period(new, first) == first_period(new, first.end)


@pytest.mark.parametrize("day", [0, 29, 31])
def test_a_day_that_some_month_lacks_is_refused(day: int) -> None:
    with pytest.raises(ValueError, match="not in every month"):
        PeriodRule(Every.MONTH, day_of_month=day)
