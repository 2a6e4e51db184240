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
    assert all(first_period(new, period.start).end == period.end for period in opened)


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


@pytest.mark.parametrize("day", [0, 29, 31])
def test_a_day_that_some_month_lacks_is_refused(day: int) -> None:
    with pytest.raises(ValueError, match="not in every month"):
        PeriodRule(Every.MONTH, day_of_month=day)
