"""The tables in the documentation say what the code does."""

from __future__ import annotations

import pytest

from fairgpu.dialects.registry import DIALECTS
from tests.unit.fairgpu.documents import DOCUMENTS, Row, outcome, read_row, reasons, rows

DIALECT_ROWS = list(rows("dialects.md"))
BAD_INPUT_ROWS = list(rows("bad-input.md"))


@pytest.mark.parametrize("row", DIALECT_ROWS + BAD_INPUT_ROWS, ids=lambda row: row.written)
def test_a_pod_in_a_table_becomes_what_stands_beside_it(row: Row) -> None:
    reading = read_row(row.written)
    assert outcome(reading) == row.becomes
    if row.because is not None:
        assert reasons(reading) == row.because


@pytest.mark.parametrize("dialect", [dialect.name for dialect in DIALECTS.dialects])
def test_every_dialect_has_a_table_of_its_own(dialect: str) -> None:
    spoken = [row for row in DIALECT_ROWS if row.heading.split(":")[0] == dialect]
    assert len(spoken) >= 4
    assert any(read_row(row.written).dialects == (dialect,) for row in spoken)


def test_every_key_that_a_dialect_reads_is_in_the_document() -> None:
    text = (DOCUMENTS / "dialects.md").read_text()
    assert [key for key in sorted(DIALECTS.resources | DIALECTS.annotations) if f"`{key}" not in text] == []
