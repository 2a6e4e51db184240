"""What docs/bad-input.md says of odd pods is what comes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.webhook.odd_pods import ODD_PODS, outcome, said

DOCUMENT = Path(__file__).parents[3] / "docs" / "bad-input.md"


def documented() -> dict[str, tuple[str, str]]:
    """The rows of the table headed `pod`: what comes of it and what is said, by the pod."""
    rows: dict[str, tuple[str, str]] = {}
    in_table = False
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        in_table = line.startswith("|") and (in_table or cells[0] == "pod")
        if in_table and cells[0] != "pod" and not set(cells[0]) <= {"-"}:
            rows[cells[0]] = (cells[1], cells[2])
    return rows


@pytest.mark.parametrize("words", ODD_PODS)
def test_an_odd_pod_becomes_what_stands_beside_it(words: str) -> None:
    answer = ODD_PODS[words]()
    assert documented()[words] == (outcome(answer), said(answer))


def test_no_pod_in_the_document_goes_untried() -> None:
    assert set(documented()) == set(ODD_PODS)
