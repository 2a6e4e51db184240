from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.timestamps import DAY, HOUR, format_instant, parse_instant
from timekeeper.domain.windows import MAX_STEPS, Window, WindowError, parse_step, parse_window, steps

WEDNESDAY = parse_instant("2026-11-18T10:20:30Z")


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("today", "2026-11-18T00", "2026-11-19T00"),
        ("yesterday", "2026-11-17T00", "2026-11-18T00"),
        ("week", "2026-11-15T00", "2026-11-18T11"),
        ("lastweek", "2026-11-08T00", "2026-11-15T00"),
        ("month", "2026-11-01T00", "2026-11-18T11"),
        ("lastmonth", "2026-10-01T00", "2026-11-01T00"),
        ("15m", "2026-11-18T10", "2026-11-18T11"),
        ("90m", "2026-11-18T08", "2026-11-18T11"),
        ("1h", "2026-11-18T10", "2026-11-18T11"),
        ("36h", "2026-11-16T23", "2026-11-18T11"),
        ("7d", "2026-11-12T00", "2026-11-19T00"),
        ("1w", "2026-11-12T00", "2026-11-19T00"),
        ("7d offset 1d", "2026-11-10T10", "2026-11-17T11"),
        ("45m offset 2h", "2026-11-18T07", "2026-11-18T09"),
        ("1w offset 1w", "2026-11-04T10", "2026-11-11T11"),
        ("2026-11-01T00:00:00Z,2026-11-02T00:00:00+01:00", "2026-11-01T00", "2026-11-01T23"),
        ("2026-11-01T00:30:00Z,2026-11-01T01:00:01Z", "2026-11-01T00", "2026-11-01T02"),
        ("1763424000,1763427600", "2025-11-18T00", "2025-11-18T01"),
        ("1763424000-1763427600", "2025-11-18T00", "2025-11-18T01"),
    ],
)
def test_a_window_is_read_as_opencost_reads_it_and_widened_to_whole_hours(text: str, start: str, end: str) -> None:
    window = parse_window(text, WEDNESDAY)
    assert (format_instant(window.start), format_instant(window.end)) == (f"{start}:00:00Z", f"{end}:00:00Z")


@pytest.mark.parametrize(
    "text",
    [
        *("", "0d", "-1d", "7", "7y", "tomorrow", "TODAY", "7d ", "1,", ",1", "2,1", "1,1", "1,2,3", "x,y", "9" * 20),
        *("2026-11-02T00:00:00Z,2026-11-01T00:00:00Z", "2026-11-01,2026-11-02", "1,99999999999", "1e3,2e3"),
        *("\u0661,\u0662", "7d offset 0d", "7d offset", "7doffset1d", "today offset 1d", "2-1", "1-"),
    ],
)
def test_a_text_that_is_no_window_is_refused_with_what_is_one(text: str) -> None:
    with pytest.raises(WindowError, match="today, yesterday"):
        parse_window(text, WEDNESDAY)


@pytest.mark.parametrize(
    ("text", "shown"), [("hour", "1h"), ("day", "1d"), ("week", "1w"), ("month", "month"), ("6h", "6h"), ("2d", "2d")]
)
def test_a_step_is_shown_in_its_shortest_form(text: str, shown: str) -> None:
    assert parse_step(text) == shown


@pytest.mark.parametrize("text", ["", "0d", "30m", "1month", "day,hour", "1.5h", "999999h"])
def test_a_value_that_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(WindowError, match="hour, day, week, month"):
        parse_step(text)


def test_months_begin_on_their_first_day_and_the_window_cuts_the_outer_ones() -> None:
    window = Window(parse_instant("2025-12-15T00:00:00Z"), parse_instant("2026-02-02T00:00:00Z"))
    assert [format_instant(step.start)[:10] for step in steps(window, "month")] == [
        "2025-12-15",
        "2026-01-01",
        "2026-02-01",
    ]


hours = st.integers(0, 24 * 400)


@given(hours, st.integers(1, 24 * 40), st.sampled_from([None, "1h", "1d", "1w", "month", "7h", "3d"]))
def test_steps_follow_each_other_and_fill_the_window(start: int, length: int, step: str | None) -> None:
    window = Window(start * HOUR, (start + length) * HOUR)
    found = list(steps(window, step))
    assert found[0].start == window.start
    assert found[-1].end == window.end
    assert all(one.end == two.start for one, two in pairwise(found))


def test_a_window_is_not_cut_into_more_pieces_than_anybody_can_read() -> None:
    with pytest.raises(WindowError, match=str(MAX_STEPS)):
        list(steps(Window(0, 2 * MAX_STEPS * DAY), "1d"))
