"""Compares the tables of docs/reference/json.md with documents that a command has printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
KINDS = {
    "text": lambda value: isinstance(value, str),
    "digits": lambda value: isinstance(value, str) and value.isdigit(),
    "texts": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "number": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "true, false": lambda value: isinstance(value, bool),
    "text, null": lambda value: value is None or isinstance(value, str),
    "object, null": lambda value: value is None or isinstance(value, dict),
    "any": lambda _value: True,
}
"""The check of a value for each kind that the second column of a table names."""


def described(command: str) -> dict[str, str]:
    """Returns the rows of a command's table: the kind of each field's value, keyed by field."""
    section = PAGE.read_text().partition(f"\n## {command}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| [^|]", section, re.MULTILINE)
    assert len(rows) == len(dict(rows)) > 0
    return dict(rows)


def differences(command: str, *documents: Any) -> list[str]:
    """Returns the faults of a command's table beside its documents.

    They are values of other kinds than the table states, fields that the table lacks, and fields that no document has.
    """
    rows = described(command)
    names = {name for document in documents for name, _ in fields(document, "", rows)}
    wrong = [line for document in documents for line in undescribed(command, document)]
    return [*wrong, *sorted(f"{name} is never there" for name in rows.keys() - names)]


def undescribed(command: str, document: Any) -> list[str]:
    """Returns the faults of a command's table beside one document: wrong kinds, and fields that it lacks."""
    rows = described(command)
    found = list(fields(document, "", rows))
    wrong = [f"{name} is no {rows[name]}" for name, value in found if name in rows and not KINDS[rows[name]](value)]
    return [*wrong, *sorted(f"{name} is not described" for name in {name for name, _ in found} - rows.keys())]


def fields(value: Any, name: str, rows: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Yields each field that the table must describe, with its value.

    If rows of the table describe parts of a field, the parts are yielded in its place.
    """
    has_parts = any(row.startswith((f"{name}.", f"{name}[]")) for row in rows) or not name
    if name in rows or not has_parts:
        yield name, value
    if not has_parts:
        return
    if isinstance(value, list):
        for item in value:
            yield from fields(item, f"{name}[]", rows)
    elif isinstance(value, dict):
        below = f"{name}." if name else ""
        free = next((row[len(below) :] for row in rows if re.fullmatch(rf"{re.escape(below)}[A-Z]+", row)), "")
        for key, item in value.items():
            yield from fields(item, below + (free or key), rows)
