"""Formats tables as kubectl does: aligned columns without rules, for people, grep and awk."""

from __future__ import annotations

import sys
from collections.abc import Sequence

GAP = "   "
NOTHING = "-"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats rows of text under their headings, in aligned columns. Columns of numbers are aligned to the right.

    Args:
        headings: the headings, which are printed in capitals.
        rows: the rows, each with a cell for each heading. An empty cell is printed as `-`.
    """
    cells = [[heading.upper() for heading in headings], *[[cell or NOTHING for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    right = [bool(rows) and all(_numeric(row[column]) for row in cells[1:]) for column in range(len(headings))]
    return "\n".join(
        GAP.join(
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    )


def print_text(text: str) -> int:
    """Prints the whole output of a command, and a line break; returns the exit status 0."""
    sys.stdout.write(text + "\n")
    return 0


def _numeric(cell: str) -> bool:
    return cell == NOTHING or cell.replace(",", "").replace(".", "").replace("%", "").lstrip("-").isdigit()
