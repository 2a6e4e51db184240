"""What docs/bad-input.md says of odd input to the scheduler is what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.scheduler.odd_input import ODD_INPUT

DOCUMENT = Path(__file__).parents[3] / "docs" / "bad-input.md"


def documented() -> dict[str, tuple[str, str]]:
    """The rows of the table headed `reaches the scheduler`."""
    rows: dict[str, tuple[str, str]] = {}
    in_table = False
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        in_table = line.startswith("|") and (in_table or cells[0] == "reaches the scheduler")
        if in_table and cells[0] != "reaches the scheduler" and not set(cells[0]) <= {"-"}:
            rows[cells[0]] = (cells[1], cells[2])
    return rows


@pytest.mark.parametrize("words", ODD_INPUT)
def test_odd_input_has_the_outcome_that_stands_beside_it(words: str) -> None:
    assert documented()[words] == ODD_INPUT[words]()


def test_no_input_in_the_document_goes_untried() -> None:
    assert set(documented()) == set(ODD_INPUT)
