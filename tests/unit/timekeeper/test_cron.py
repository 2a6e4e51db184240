from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.budgets import BudgetError, parse_budget
from timekeeper.domain.periods import CronError, PeriodRule, check_cron, first_period, following_period, moments_around
from timekeeper.domain.timestamps import HOUR, format_instant, parse_instant, to_datetime

instants = st.integers(parse_instant("2005-01-01T00:00:00Z"), parse_instant("2040-01-01T00:00:00Z"))
zones = st.sampled_from(
    [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Asia/Kolkata",
        "Asia/Kathmandu",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Pacific/Chatham",
    ]
)
expressions = st.builds(
    "{} {} {} {} {}".format,
    st.integers(0, 59),
    st.sampled_from(["*", "0", "2", "*/6", "8-17", "0,12"]),
    st.sampled_from(["*", "1", "15", "31", "L", "1,15"]),
    st.sampled_from(["*", "1", "2,8", "*/3"]),
    st.sampled_from(["*", "0", "7", "1-5", "SUN", "1#1"]),
).filter(lambda text: "31 2,8" not in text)


def rule(cron: str, zone: str = "UTC") -> PeriodRule:
    return PeriodRule(zone=zone, cron=cron)


@given(expressions, zones, instants)
def test_every_instant_lies_in_exactly_one_period_and_periods_follow_without_gap(
    cron: str, zone: str, now: int
) -> None:
    period = first_period(rule(cron, zone), now)
    assert period.holds(now)
    assert period.end - period.start >= HOUR
    assert first_period(rule(cron, zone), period.start) == period
    assert first_period(rule(cron, zone), period.end - 1) == period
    assert following_period(rule(cron, zone), period) == first_period(rule(cron, zone), period.end)


@given(expressions, st.datetimes(datetime(2005, 1, 1), datetime(2040, 1, 1)))  # noqa: DTZ001 - wall-clock time
def test_no_moment_is_left_out_and_those_given_are_an_hour_apart_at_least(cron: str, local: datetime) -> None:
    moments = moments_around(cron, local)
    assert moments[0] < local - timedelta(hours=26) < local + timedelta(hours=26) < moments[-1]
    assert all(later - earlier >= timedelta(hours=1) for earlier, later in pairwise(moments))
    for earlier, later in pairwise(moments):
        assert moments_around(cron, earlier + (later - earlier) / 2).count(earlier) == 1


def starts(cron: str, zone: str, since: str, count: int) -> list[str]:
    period = first_period(rule(cron, zone), parse_instant(since))
    found = []
    for _ in range(count):
        period = following_period(rule(cron, zone), period)
        found.append(to_datetime(period.start).astimezone(ZoneInfo(zone)).isoformat())
    return found


def test_weekdays_count_from_sunday() -> None:
    monday = ["2026-03-02T00:00:00+00:00", "2026-03-09T00:00:00+00:00"]
    sunday = ["2026-03-01T00:00:00+00:00", "2026-03-08T00:00:00+00:00"]
    assert starts("0 0 * * 1", "UTC", "2026-02-28T00:00:00Z", 2) == monday
    assert starts("0 0 * * MON", "UTC", "2026-02-28T00:00:00Z", 2) == monday
    for weekday in ("0", "7", "SUN"):
        assert starts(f"0 0 * * {weekday}", "UTC", "2026-02-28T00:00:00Z", 2) == sunday


def test_half_past_two_begins_one_period_on_the_night_when_clocks_go_back() -> None:
    assert starts("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 3) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
        "2026-10-27T02:30:00+01:00",
    ]


def test_half_past_two_begins_a_period_after_the_skip_on_the_night_when_clocks_go_forward() -> None:
    assert starts("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 2) == [
        "2026-03-29T03:30:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


def test_the_hour_that_clocks_repeat_is_one_period_of_two_hours() -> None:
    period = first_period(rule("0 * * * *", "Europe/Berlin"), parse_instant("2026-10-25T00:30:00Z"))
    assert (format_instant(period.start), period.end - period.start) == ("2026-10-25T00:00:00Z", 2 * HOUR)


def test_no_period_is_shorter_than_an_hour_where_clocks_go_forward_by_half_of_one() -> None:
    before = first_period(rule("0 * * * *", "Australia/Lord_Howe"), parse_instant("2026-10-03T14:30:00Z"))
    assert before.end - before.start == HOUR
    across = following_period(rule("0 * * * *", "Australia/Lord_Howe"), before)
    assert (format_instant(across.start), across.end - across.start) == ("2026-10-03T15:30:00Z", 3 * HOUR // 2)


@pytest.mark.parametrize(
    ("zone", "starts_at"), [("Asia/Kolkata", "2026-02-28T18:30:00Z"), ("Asia/Kathmandu", "2026-02-28T18:15:00Z")]
)
def test_a_month_starts_at_midnight_where_clocks_differ_by_a_part_of_an_hour(zone: str, starts_at: str) -> None:
    found = first_period(rule("0 0 1 * *", zone), parse_instant("2026-03-15T00:00:00Z"))
    assert format_instant(found.start) == starts_at


def test_the_29th_of_february_begins_a_period_of_four_years() -> None:
    assert starts("0 0 29 2 *", "Asia/Kathmandu", "2026-01-01T00:00:00Z", 2) == [
        "2028-02-29T00:00:00+05:45",
        "2032-02-29T00:00:00+05:45",
    ]


def test_a_month_without_the_day_is_passed_over_and_l_is_the_last_one() -> None:
    assert starts("0 0 31 * *", "UTC", "2026-01-31T00:00:00Z", 2) == [
        "2026-03-31T00:00:00+00:00",
        "2026-05-31T00:00:00+00:00",
    ]
    assert starts("0 0 L * *", "UTC", "2026-01-31T00:00:00Z", 2) == [
        "2026-02-28T00:00:00+00:00",
        "2026-03-31T00:00:00+00:00",
    ]


def test_where_both_days_are_restricted_either_is_enough() -> None:
    assert starts("0 0 13 * 5", "UTC", "2026-02-06T00:00:00Z", 3) == [
        "2026-02-13T00:00:00+00:00",
        "2026-02-20T00:00:00+00:00",
        "2026-02-27T00:00:00+00:00",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@daily",
        "* * * * *",
        "*/5 * * * *",
        "0,30 * * * *",
        "0 0 30 2 *",
        "0 24 * * *",
        "60 0 * * *",
        "0 0 0 * *",
        "0 0 * * 8",
        "0 0 * 13 *",
        "0 0 * * * *",
        "0 0 * *",
        "0 0 * * -1",
        "0 0 */0 * *",
        "0 0 L/2-3 * *",
        "\u0660 0 * * *",
    ],
)
def test_a_rule_that_begins_no_periods_or_too_many_is_refused(text: str) -> None:
    with pytest.raises(CronError, match="one number for the minute"):
        check_cron(text)


@given(st.text(max_size=40))
def test_any_text_is_a_schedule_or_refused(text: str) -> None:
    with suppress(CronError):
        assert check_cron(text) == text


def budget(**period: Any) -> dict[str, Any]:
    spec = {"namespaces": ["team-a"], "allowance": {"gpuHours": 1}, "period": period}
    return {"metadata": {"name": "a"}, "spec": spec}


def test_a_budget_may_name_a_schedule_instead_of_a_length() -> None:
    found = parse_budget(budget(cron="0 6 1 1,4,7,10 *", timeZone="Europe/Berlin", start={"time": "00:00"})).period
    assert (found.cron, found.zone) == ("0 6 1 1,4,7,10 *", "Europe/Berlin")
    quarter = first_period(found, parse_instant("2026-05-15T00:00:00Z"))
    assert (format_instant(quarter.start), format_instant(quarter.end)) == (
        "2026-04-01T04:00:00Z",
        "2026-07-01T04:00:00Z",
    )


@pytest.mark.parametrize(
    ("period", "path"),
    [
        ({"cron": "hourly"}, "spec.period.cron"),
        ({"cron": 5}, "spec.period.cron"),
        ({"cron": None}, "spec.period.cron"),
        ({"cron": "0 0 1 * *", "every": "month"}, "spec.period.every"),
        ({"cron": "0 0 1 * *", "start": {"time": "09:00"}}, "spec.period.start"),
        ({"cron": "0 0 1 * *", "timeZone": "Mars"}, "spec.period.timeZone"),
    ],
)
def test_a_schedule_that_cannot_be_is_named_by_its_field(period: dict[str, Any], path: str) -> None:
    with pytest.raises(BudgetError) as caught:
        parse_budget(budget(**period))
    assert [fault.path for fault in caught.value.faults] == [path]
