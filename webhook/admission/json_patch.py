"""JSON Patch operations (RFC 6902) for what admission changes: keys of maps, elements of lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

Operation = dict[str, Any]


@lru_cache(maxsize=256)
def escape(key: str) -> str:
    """A key as one step of a JSON Pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def add(path: str, value: Any) -> Operation:
    """Sets a key, or puts an element into a list."""
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> Operation:
    """Takes a key or an element out."""
    return {"op": "remove", "path": path}


def set_field(parent: Mapping[str, Any], path: str, key: str, value: Any) -> list[Operation]:
    """Makes a key hold a value; nothing to do where it does. `add` on a key that exists replaces it."""
    present = parent.get(key)
    if present == value and type(present) is type(value):
        return []
    return [add(f"{path}/{escape(key)}", value)]


def change_map(parent: Any, path: str, key: str, values: Mapping[str, Any], without: Iterable[str]) -> list[Operation]:
    """Sets keys of a map within a parent, and takes others out; makes the map where there is none.

    Args:
        parent: the object that holds the map.
        path: the parent's pointer.
        key: the map's name in it.
        values: what the map is to hold.
        without: keys that it is not to hold.
    """
    inner = parent.get(key)
    here = f"{path}/{escape(key)}"
    if not isinstance(inner, dict):
        return [add(here, dict(values))] if values else []
    operations = [add(f"{here}/{escape(name)}", value) for name, value in values.items() if inner.get(name) != value]
    operations += [remove(f"{here}/{escape(name)}") for name in without if name in inner and name not in values]
    return operations


def remove_elements(path: str, indexes: Iterable[int]) -> list[Operation]:
    """Takes elements out of a list, the last one first, so that the indexes hold."""
    return [remove(f"{path}/{index}") for index in sorted(indexes, reverse=True)]
