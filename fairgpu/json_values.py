"""Reads values of raw JSON whose type is not certain.

`mapping`, `list_of` and `mappings` return an empty value in the place of one of another type. `versioned` and the
functions that begin with `required_` raise JsonValueError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MOST_SHOWN = 64
"""The most characters of a refused value that a message shows: logs, statuses and metrics keep messages."""


class JsonValueError(ValueError):
    """A JSON document lacks a value, or has one of another type or out of range; the message names the path."""


def shown(value: Any) -> str:
    """Returns a value as text for a message: as Python writes the value, cut at MOST_SHOWN characters."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def mapping(value: Any) -> dict[str, Any]:
    """Returns a value if it is a JSON object, else an empty object."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Returns a value if it is a JSON array, else an empty array."""
    return value if isinstance(value, list) else []


def mappings(value: Any) -> list[dict[str, Any]]:
    """Returns the objects among the items of a JSON array; an empty list for a value of another type."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def versioned(text: str, version: int, noun: str) -> dict[str, Any]:
    """Parses a JSON object whose field `v` must be `version`.

    Args:
        text: the document, as JSON.
        version: the version that the caller can read.
        noun: the name of the document in the error's message.

    Raises:
        JsonValueError: the text is not JSON, not an object, or of another version.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JsonValueError(f"{noun} is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("v") != version:
        raise JsonValueError(f"{noun} is no JSON object with v: {version}")
    return document


def required_mapping(value: Any, path: str) -> dict[str, Any]:
    """Returns a value, which must be a JSON object.

    Args:
        value: a value of a JSON document, of any type.
        path: the value's path in its document, for the error's message.

    Raises:
        JsonValueError: the value is of another type.
    """
    if not isinstance(value, dict):
        raise JsonValueError(f"{path} is no object")
    return value


def required_list(item: Mapping[str, Any], key: str, path: str = "") -> list[Any]:
    """Returns the array that a JSON object has under a key.

    Args:
        item: the object.
        key: the key of the array in the object.
        path: the object's path in its document, for the error's message.

    Raises:
        JsonValueError: the value is missing or of another type.
    """
    value = item.get(key)
    if not isinstance(value, list):
        raise JsonValueError(f"{path}.{key} is no list".lstrip("."))
    return value


def required_text(item: Mapping[str, Any], key: str, path: str = "") -> str:
    """Returns the text that a JSON object has under a key.

    Args:
        item: the object.
        key: the key of the text in the object.
        path: the object's path in its document, for the error's message.

    Raises:
        JsonValueError: the value is missing, empty or of another type.
    """
    value = item.get(key)
    if not isinstance(value, str) or not value:
        raise JsonValueError(f"{path}.{key} is no text".lstrip("."))
    return value


def required_whole(item: Mapping[str, Any], key: str, least: int, most: int, path: str = "") -> int:
    """Returns the whole number that a JSON object has under a key.

    Args:
        item: the object.
        key: the key of the number in the object.
        least: the least number that is allowed.
        most: the largest number that is allowed.
        path: the object's path in its document, for the error's message.

    Raises:
        JsonValueError: the value is missing, of another type, below `least` or above `most`.
    """
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        allowed = f"whole numbers from {least} to {most} are allowed"
        raise JsonValueError(f"{path}.{key} is {shown(value)}; {allowed}".lstrip("."))
    return value
