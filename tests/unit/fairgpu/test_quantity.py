"""Quantities as Kubernetes reads them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu.quantity import MAX_QUANTITY, QuantityError, parse_count, parse_quantity
from tests.unit.fairgpu.json_values import JSON

NUMBERS = [
    ("30", 30),
    (30, 30),
    (0.5, Fraction(1, 2)),
    ("0.5", Fraction(1, 2)),
    (".5", Fraction(1, 2)),
    ("5.", 5),
    ("+5", 5),
    ("-1", -1),
    ("500m", Fraction(1, 2)),
    ("1n", Fraction(1, 10**9)),
    ("2u", Fraction(2, 10**6)),
    ("1k", 1000),
    ("1e3", 1000),
    ("1E3", 1000),
    ("1e-3", Fraction(1, 1000)),
    ("1E", 10**18),
    ("1Ki", 1024),
    ("2Gi", 2 * 1024**3),
    ("1.5Gi", 3 * 1024**3 // 2),
    ("1e30", 10**30),
    (10**30, 10**30),
    (None, 0),
]


@pytest.mark.parametrize(("given_value", "number"), NUMBERS)
def test_a_quantity_is_the_exact_number_that_it_says(given_value: Any, number: Fraction) -> None:
    assert parse_quantity(given_value) == number


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            " 1",
            "1 ",
            "1\n",
            "one",
            "1GB",
            "1gi",
            "1K",
            "0x10",
            "1_000",
            "1e",
            "1e+",
            "--1",
            "1e31",
            "1e-31",
            "\u0661",
        ),
        *(True, [], {}, [1], float("nan"), float("inf"), "9" * 65, 10**70),
    ],
)
def test_a_text_that_is_no_quantity_is_said_to_be_none(value: Any) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(value)


def test_a_number_of_thousands_of_digits_is_none() -> None:
    with pytest.raises(QuantityError):
        parse_quantity(10**5000)


@pytest.mark.parametrize(
    ("value", "count"), [("30", 30), (30, 30), ("1e3", 1000), ("2k", 2000), (2.0, 2), ("1000m", 1), ("007", 7)]
)
def test_a_count_may_be_written_in_any_way_that_comes_out_whole(value: Any, count: int) -> None:
    assert parse_count(value) == count


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("-1", "it is negative"),
        (-1, "it is negative"),
        ("0.5", "it is not a whole number"),
        ("500m", "it is not a whole number"),
        ("2Gi", "it has a suffix of bytes, and the unit is already in the resource's name"),
        ("1e30", f"it passes {MAX_QUANTITY}"),
        (10**30, f"it passes {MAX_QUANTITY}"),
        ("9" * 30, f"it passes {MAX_QUANTITY}"),
        (True, "it is no quantity"),
        ("", "it is no quantity"),
    ],
)
def test_a_count_says_why_it_is_none(value: Any, reason: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_count(value)
    assert str(refused.value) == reason


@given(st.integers(0, MAX_QUANTITY))
def test_every_count_of_64_bits_is_read_back_as_itself(number: int) -> None:
    assert parse_count(number) == parse_count(str(number)) == number


@given(
    JSON | st.integers() | st.from_regex(r"[+-]?[0-9]{1,70}(\.[0-9]{0,9})?([KMGTPE]i|[numkMGTPE]|[eE]-?[0-9]{1,6})?")
)
def test_any_json_is_a_count_or_a_quantity_error(value: Any) -> None:
    try:
        count = parse_count(value)
    except QuantityError:
        return
    assert 0 <= count <= MAX_QUANTITY
