"""Reads values of raw JSON whose type is not certain: a value of another type counts as empty."""

from __future__ import annotations

from typing import Any


def mapping(value: Any) -> dict[str, Any]:
    """Returns the value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Returns the value if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def mappings(value: Any) -> list[dict[str, Any]]:
    """Returns the objects in a JSON array; none for a value of another type."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
