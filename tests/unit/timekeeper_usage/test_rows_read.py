"""Rows are read from an account's hours as they stand there, figures of any size to the last unit."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timekeeper.domain.usage import Dimensions, Row, UsageFigures, values_of
from timekeeper.ledger.usage import read_rows

amounts = st.one_of(st.integers(-(10**6), 10**6), st.integers(-(10**24), 10**24))
figures = st.builds(UsageFigures, amounts, amounts, amounts, st.one_of(st.none(), amounts))
labels = st.dictionaries(st.text(), st.text(), max_size=2).map(lambda found: tuple(sorted(found.items())))
dimensions = st.builds(Dimensions, st.text(), st.text(), st.just("A 100 -"), labels=labels)
rows = st.builds(Row, st.integers(0, 10**6), st.just(1), dimensions, figures)


def stored(row: Row) -> tuple[int, bytes, bytes]:
    """A row as the store's scripts write it."""
    billed, core, memory, used = row.figures
    field = json.dumps(values_of(row.dimensions), separators=(",", ":"), ensure_ascii=False)
    return row.hour, field.encode(), f"{billed} {core} {memory} {'-' if used is None else used}".encode()


@given(st.lists(rows, max_size=8))
@example(
    [Row(1, 1, Dimensions("a"), UsageFigures(-5, 2**63, -(2**64), -1)), Row(1, 1, Dimensions("a"), UsageFigures())]
)
def test_rows_are_read_as_they_were_written(found: list[Row]) -> None:
    assert read_rows([stored(row) for row in found]) == found


def test_a_row_of_too_few_figures_takes_none_of_the_next_one() -> None:
    with pytest.raises(ValueError, match="unpack"):
        read_rows([(1, b'["a"]', b"1 2 3"), (2, b'["a"]', b"4 5 6 7 -")])
