from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.timestamps import (
    DAY,
    HOUR,
    MINUTE,
    TimeError,
    format_exact,
    format_instant,
    parse_duration,
    parse_instant,
)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-01-31T09:00:00Z", 1_769_850_000 * 10**9),
        ("2026-01-31T10:00:00+01:00", 1_769_850_000 * 10**9),
        ("2026-01-31T09:00:00.000001Z", 1_769_850_000 * 10**9 + 1000),
        ("2026-01-31T09:00:00.123456789Z", 1_769_850_000 * 10**9 + 123_456_789),
    ],
)
def test_timestamps_of_the_api_server_are_read_to_the_nanosecond(text: str, instant: int) -> None:
    assert parse_instant(text) == instant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-02-30T00:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T09:60:00Z",
        "2026-01-31T23:59:60z",
        "2026-01-31",
        "2026-01-31T09:00:00",
        None,
        5,
        "now",
    ],
)
def test_a_value_that_is_no_moment_is_refused(text: object) -> None:
    with pytest.raises(TimeError):
        parse_instant(text)


@given(st.integers(0, 250_000_000_000 * 10**9))
def test_an_instant_survives_its_exact_text(instant: int) -> None:
    assert parse_instant(format_exact(instant)) == instant
    assert parse_instant(format_instant(instant)) == instant // 10**9 * 10**9


@pytest.mark.parametrize(
    ("text", "nanoseconds"), [("2d", 2 * DAY), ("36h", 36 * HOUR), ("1h30m", 90 * MINUTE), ("0s", 0), ("5s", 5 * 10**9)]
)
def test_durations_are_whole_units_in_order(text: str, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize("text", ["", "30m1h", "1.5h", "-1h", "1w", "h", 60, None, "999999h"])
def test_other_durations_are_refused_with_examples(text: object) -> None:
    with pytest.raises(TimeError, match="1h30m"):
        parse_duration(text)
