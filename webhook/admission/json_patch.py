"""JSON Patch operations (RFC 6902) on maps and lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

Operation = dict[str, Any]


@lru_cache(maxsize=256)
def escape(key: str) -> str:
    """Returns a key as one step of a JSON Pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def add(path: str, value: Any) -> Operation:
    """Returns the operation that sets a key, or inserts an element into a list."""
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> Operation:
    """Returns the operation that removes a key or an element."""
    return {"op": "remove", "path": path}


def set_field(parent: Mapping[str, Any], path: str, key: str, value: Any) -> list[Operation]:
    """Returns the operations that set a key to a value; none where it has it already."""
    present = parent.get(key)
    if present == value and type(present) is type(value):
        return []
    return [add(f"{path}/{escape(key)}", value)]


def change_map(parent: Any, path: str, key: str, values: Mapping[str, Any], without: Iterable[str]) -> list[Operation]:
    """Returns the operations that set and remove keys of a map in a parent; they create a missing map.

    Args:
        parent: the object that holds the map.
        path: the parent's pointer.
        key: the map's name in it.
        values: the keys to set, with their values.
        without: the keys to remove.
    """
    inner = parent.get(key)
    here = f"{path}/{escape(key)}"
    if not isinstance(inner, dict):
        return [add(here, dict(values))] if values else []
    operations = [add(f"{here}/{escape(name)}", value) for name, value in values.items() if inner.get(name) != value]
    operations += [remove(f"{here}/{escape(name)}") for name in without if name in inner and name not in values]
    return operations


def remove_elements(path: str, indexes: Iterable[int]) -> list[Operation]:
    """Returns the operations that remove elements of a list, the last one first, so that the indexes stay valid."""
    return [remove(f"{path}/{index}") for index in sorted(indexes, reverse=True)]
