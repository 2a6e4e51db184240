from __future__ import annotations

import pytest

from fairgpu.client.figures import gpu_hours, span, utc_moment
from fairgpu.client.tables import table


def test_columns_are_aligned_and_numbers_stand_at_the_right() -> None:
    assert table(("name", "spent"), [("a", "5.00"), ("research", "1,234.00")]).splitlines() == [
        "NAME          SPENT",
        "a              5.00",
        "research   1,234.00",
    ]


def test_the_days_of_use_are_shown_in_utc_wherever_somebody_reads_them() -> None:
    assert utc_moment("2026-01-15T01:30:00+01:00") == "2026-01-15 00:30"


def test_an_absent_value_is_a_dash_so_that_columns_can_be_counted() -> None:
    assert table(("name", "state", "x"), [("a", "", "b")]).splitlines()[1].split() == ["a", "-", "b"]


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0, "0.00"), (3_600_000_000, "1.00"), (1_800_000_000, "0.5"), (18_000_000, "0.005"), (36_000, "0.000010"),
     (-36_000_000_000, "-10.00"), (3_600_000_000 * 1_234_567, "1,234,567.00")],
)  # fmt: skip
def test_gpu_hours_are_shown_as_precisely_as_they_matter(amount: int, shown: str) -> None:
    assert gpu_hours({"microGPUSeconds": str(amount)}) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (59, "59s"), (60, "1m0s"), (3 * 3600 + 720, "3h12m"), (86400 * 2 + 1, "2d0h")]
)
def test_a_span_is_shown_in_its_two_largest_units(seconds: int, shown: str) -> None:
    start = "2030-01-01T00:00:00+00:00"
    end = f"2030-01-{1 + seconds // 86400:02}T{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"
    assert span(start, end) == shown
