from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.charges import cost
from timekeeper.domain.money import GPU_HOUR, MoneyError, display, from_gpu_hours, gpu_hours


@pytest.mark.parametrize(
    ("written", "amount"),
    [(1, 3_600_000_000), ("2.5", 9_000_000_000), ("0.000001", 3600), (0, 0), (999_999_999, 999_999_999 * GPU_HOUR)],
)
def test_gpu_hours_of_a_manifest_are_exact(written: object, amount: int) -> None:
    assert from_gpu_hours(written) == amount


@pytest.mark.parametrize(
    "written",
    [-1, "-1", "1e3", "01", "1.0000001", 0.1, True, None, "", "NaN", 1_000_000_000, "\u0661", [1], float("inf")],
)
def test_a_value_that_is_no_amount_is_refused_with_what_is_allowed(written: object) -> None:
    with pytest.raises(MoneyError, match="quoted decimal"):
        from_gpu_hours(written)


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**15), max_size=8))
def test_metering_in_pieces_never_costs_more_and_loses_less_than_one_unit_a_piece(rate: int, pieces: list[int]) -> None:
    whole = cost(rate, sum(pieces))
    split = sum(cost(rate, piece) for piece in pieces)
    assert 0 <= whole - split <= max(0, len(pieces) - 1)


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0, "0.00"), (GPU_HOUR, "1.00"), (GPU_HOUR * 5 // 2, "2.50"), (-GPU_HOUR, "-1.00"), (3600, "0.000001")],
)
def test_people_see_gpu_hours(amount: int, shown: str) -> None:
    assert display(amount) == shown
    assert gpu_hours(amount) == pytest.approx(float(shown))
