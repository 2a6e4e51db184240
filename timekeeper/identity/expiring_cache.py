"""A bounded map whose entries end: what is in it longest goes first when it is full."""

from __future__ import annotations

from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class ExpiringCache(Generic[Key, Value]):
    """Safe to use from several threads. Reading takes no lock: a dict's own operations are atomic."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._entries: dict[Key, tuple[float, Value]] = {}
        self._writing = Lock()
        """Guards against two threads dropping the same oldest entry."""

    def get(self, key: Key, now: float) -> Value | None:
        """What was kept under the key, if it has not ended; `now` is of the clock that `put` was told of."""
        entry = self._entries.get(key)
        return entry[1] if entry is not None and now < entry[0] else None

    def put(self, key: Key, value: Value, ends_at: float) -> None:
        """Keeps a value until a time."""
        with self._writing:
            self._entries.pop(key, None)
            while len(self._entries) >= self._max_entries:
                self._entries.pop(next(iter(self._entries)))
            self._entries[key] = (ends_at, value)

    def __len__(self) -> int:
        return len(self._entries)
