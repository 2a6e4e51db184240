"""The tables of docs/bad-input.md, each row with an odd input, its outcome, and the message about it."""

from __future__ import annotations

from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "bad-input.md"


def documented(heading: str) -> dict[str, tuple[str, str]]:
    """Returns the table whose first column has this heading: each row's second and third cell, keyed by the first."""
    rows: dict[str, tuple[str, str]] = {}
    in_table = False
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        in_table = line.startswith("|") and (in_table or cells[0] == heading)
        if in_table and cells[0] != heading and not cells[0].startswith("--"):
            rows[cells[0]] = (cells[1], cells[2])
    return rows
