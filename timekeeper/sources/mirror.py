"""A collection as it is now, who left it, and how recently that was known to be true."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import structlog

from fairgpu.cluster.api import ApiError, Json

_log = structlog.get_logger()


class DepartureProof(StrEnum):
    """How it is known that an object left."""

    DELETED = "deleted"
    """Its deletion was received: it left at that moment."""
    MISSED = "missed"
    """It was there at the last proof of life and is not in a later list: it left in between, nobody saw when."""


@dataclass(frozen=True, slots=True)
class Departure:
    """An object that is gone.

    Attributes:
        item: the object as it last was.
        proof: how that is known.
        at: when its deletion was received, or the last time it was known to be there; nanoseconds since 1970.
    """

    item: Json
    proof: DepartureProof
    at: int


class Mirror:
    """Keeps one collection; written by one thread as a reflector's view, read by any other.

    Objects are replaced whole and never changed in place, so that what was read stays as it was.
    """

    def __init__(self, name: str, now: Callable[[], int], keep: Callable[[Json], bool] = lambda _item: True) -> None:
        """Names the collection.

        Args:
            name: the collection's name in logs.
            now: nanoseconds since 1970.
            keep: which objects matter; others are not held.
        """
        self.name = name
        self._now = now
        self._keep = keep
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._items: dict[str, Json] = {}
        self._departures: list[Departure] = []
        self._confirmed_at: int | None = None
        self._changed = threading.Event()

    @property
    def confirmed_at(self) -> int | None:
        """When the collection was last known to be as it is here (ns since 1970); None before the first list."""
        with self._lock:
            return self._confirmed_at

    def items(self) -> list[Json]:
        """All objects that matter."""
        with self._lock:
            return list(self._items.values())

    def get(self, uid: str) -> Json | None:
        """The object of that uid."""
        with self._lock:
            return self._items.get(uid)

    def take_departures(self) -> list[Departure]:
        """Who left since the last call; the caller now answers for them."""
        with self._lock:
            taken, self._departures = self._departures, []
            return taken

    def return_departures(self, departures: list[Departure]) -> None:
        """Gives back what could not be dealt with, so that the next call to take finds it first."""
        with self._lock:
            self._departures = [*departures, *self._departures]

    def wait_for_change(self, seconds: float) -> bool:
        """Waits until something changed since the last wait; says whether it did."""
        changed = self._changed.wait(seconds)
        self._changed.clear()
        return changed

    def replaced(self, items: list[Json]) -> None:
        """Takes over a whole list. What was here and is not in it was missed leaving."""
        present = {uid_of(item): item for item in items if self._keep(item)}
        with self._lock:
            last_seen = self._confirmed_at if self._confirmed_at is not None else self._now()
            for uid, item in self._items.items():
                if uid not in present:
                    self._departures.append(Departure(item, DepartureProof.MISSED, last_seen))
            self._items = present
        self._changed.set()

    def changed(self, kind: str, item: Json) -> None:
        """Takes over one event of a watch."""
        uid = uid_of(item)
        with self._lock:
            known = self._items.pop(uid, None)
            if kind != "DELETED":
                if self._keep(item):
                    self._items[uid] = item
            elif known is not None or self._keep(item):
                self._departures.append(Departure(item, DepartureProof.DELETED, self._now()))
        self._changed.set()

    def confirmed(self) -> None:
        """Notes that the collection is as it is here."""
        with self._lock:
            self._confirmed_at = self._now()

    def failed(self, error: ApiError) -> None:
        """Notes that the API server could not be asked; what is here stays."""
        _log.warning("collection not refreshed", collection=self.name, status=error.status, reason=error.reason)


def uid_of(item: Json) -> str:
    """What tells an object from all others, also from a later one of the same name."""
    metadata = item.get("metadata") or {}
    return str(metadata.get("uid") or f"{metadata.get('namespace', '')}/{metadata.get('name', '')}")
