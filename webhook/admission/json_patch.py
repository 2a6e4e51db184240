"""JSON Patch operations (RFC 6902) on maps and lists."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

Operation = dict[str, Any]


def escape(key: str) -> str:
    """Returns a key of a JSON object as one step of a JSON Pointer (RFC 6901)."""
    return _escaped(key) if "/" in key or "~" in key else key


@lru_cache(maxsize=256)
def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def add(path: str, value: Any) -> Operation:
    """Returns the JSON Patch operation that sets a key of a map, or inserts an element into a list.

    Args:
        path: the JSON Pointer of the key or the element.
        value: the new value, as JSON.
    """
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> Operation:
    """Returns the JSON Patch operation that removes the key of a map or the element of a list at a JSON Pointer."""
    return {"op": "remove", "path": path}


def set_field(parent: dict[str, Any], path: str, key: str, value: Any) -> list[Operation]:
    """Returns the JSON Patch operations that set a field of an object to a value; none if the field has it already.

    Args:
        parent: the object as it is.
        path: the JSON Pointer of the object.
        key: the field's name.
        value: the wanted value, as JSON.
    """
    present = parent.get(key)
    if present == value and type(present) is type(value):
        return []
    return [add(f"{path}/{escape(key)}", value)]


def change_map(
    parent: dict[str, Any], path: str, key: str, values: dict[str, Any], without: tuple[str, ...]
) -> list[Operation]:
    """Returns the JSON Patch operations that set and remove keys of an inner map.

    An inner map that is missing, or is no map, is replaced by one with the wanted values, if there are any.

    Args:
        parent: the object that holds the inner map.
        path: the JSON Pointer of the object.
        key: the key of the object that holds the inner map, such as `annotations`.
        values: the wanted values, keyed by the keys of the inner map.
        without: the keys of the inner map to remove; a key that is also in `values` stays.
    """
    inner = parent.get(key)
    here = f"{path}/{escape(key)}"
    if not isinstance(inner, dict):
        return [add(here, dict(values))] if values else []
    operations = [add(f"{here}/{escape(name)}", value) for name, value in values.items() if inner.get(name) != value]
    operations += [remove(f"{here}/{escape(name)}") for name in without if name in inner and name not in values]
    return operations


def remove_elements(path: str, indexes: Iterable[int]) -> list[Operation]:
    """Returns the JSON Patch operations that remove elements of a list, the last one first, so that indexes stay valid.

    Args:
        path: the JSON Pointer of the list.
        indexes: the positions of the elements in the list as it is, counted from 0.
    """
    return [remove(f"{path}/{index}") for index in sorted(indexes, reverse=True)]
