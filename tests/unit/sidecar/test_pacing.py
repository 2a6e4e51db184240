from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.pacing import Pace, after_failure, after_success, clamp, delay, delay_after_early, first_delay

fractions = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(("named", "kept"), [(0.2, 1), (1, 1), (60, 60), (300, 300), (1e9, 300)])
def test_an_interval_is_kept_between_1_and_300_seconds(named: float, kept: float) -> None:
    assert clamp(named) == kept
    assert after_success(Pace(60), named).interval_seconds == kept


def test_an_answer_that_names_no_interval_leaves_the_one_in_force() -> None:
    assert after_success(Pace(42, failures=3), None) == Pace(42)


@given(st.floats(1, 300), fractions)
def test_reports_come_at_the_interval_give_or_take_a_tenth(interval: float, fraction: float) -> None:
    assert 0.9 * interval <= delay(Pace(interval), lambda: fraction) <= 1.1 * interval


@given(st.floats(1, 300), fractions)
def test_the_first_report_comes_within_ten_seconds(interval: float, fraction: float) -> None:
    assert 0 <= first_delay(Pace(interval), lambda: fraction) <= min(interval, 10)


@given(st.floats(1, 300), fractions, st.integers(1, 2000))
def test_while_the_timekeeper_is_away_the_wait_grows_to_300_seconds_and_no_further(
    interval: float, fraction: float, failures: int
) -> None:
    pace = Pace(interval)
    for _ in range(min(failures, 40)):
        pace = after_failure(pace)
    wait = delay(pace, lambda: fraction)
    assert min(interval, 150) <= wait <= 300
    if pace.failures > 9:
        assert wait >= 150


@pytest.mark.parametrize(("named", "least"), [(0.0, 1.0), (120.0, 120.0), (86400.0, 300.0)])
def test_a_retry_after_is_kept_as_far_as_300_seconds(named: float, least: float) -> None:
    assert least <= delay(Pace(1, failures=1), lambda: 0.0, named) <= 300


@given(interval=st.floats(1, 300), chance=st.floats(0, 1, exclude_max=True), asked=st.none() | st.floats(0, 300))
def test_after_a_report_that_came_too_early_it_waits_an_interval_and_as_long_as_it_was_asked(
    interval: float, chance: float, asked: float | None
) -> None:
    wait = delay_after_early(Pace(interval), lambda: chance, asked)
    assert max(interval, asked or 0) <= wait <= max(interval * 1.1, asked or 0) + 1e-9
