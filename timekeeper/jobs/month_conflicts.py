"""Settles by an admin's word what a month's file and the store say differently: one or the other holds.

Both go by the tag of the file that they saw, so that nothing is lost that a leader writes at the same time.

Every function may raise redis.RedisError, ExportError and StoreError.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import redis

from timekeeper.export import document
from timekeeper.export.destination import Destination, ExportError, Stored
from timekeeper.export.document import Document, DocumentError
from timekeeper.export.months import closed_months, file_name, window_of
from timekeeper.store import exports, reading
from timekeeper.store.exports import Export


class UndecidableError(ExportError):
    """What is asked for cannot be done with this month; the words say what can."""


class State(StrEnum):
    """What becomes of a closed month."""

    WRITTEN = "written"
    """The file is the one that was written, and holds all that the store knows."""
    KEPT = "kept"
    """The file holds something else than the store, and is left as it is."""
    WAITING = "waiting"
    """There is no file, or one that is another, or more is known by now: the leader sees to it, or somebody must."""


@dataclass(frozen=True, slots=True)
class Month:
    """A closed month; `rows` are those of its file as it was last written, None where it never was."""

    month: str
    state: State
    rows: int | None = None


def look(client: redis.Redis, place: Destination, now: int, hourly_days: int) -> list[Month]:
    """All closed months, in order."""
    known = exports.load(client)
    folded = exports.folded_months(client, reading.account_names(client))
    there = set(place.names())
    found = []
    for month in closed_months(now, hourly_days, {*folded, *known.written, *known.changes}):
        last, name = known.written.get(month), file_name(month)
        if last is None or name not in there or not known.is_confirmed(month) or place.tag(name) != last.tag:
            found.append(Month(month, State.WAITING, None if last is None else last.rows))
        else:
            found.append(Month(month, State.KEPT if last.adopted else State.WRITTEN, last.rows))
    return found


def keep(client: redis.Redis, place: Destination, month: str) -> Export:
    """Takes the file as it is for what is known of a month; once more is learned of it, somebody must decide anew.

    Raises:
        UndecidableError: there is no file, or it is no month of use.
    """
    name = file_name(month)
    change = exports.load(client).changes.get(month, 0)
    stored = place.read(name)
    if stored is None:
        raise UndecidableError(f"there is no {name}: put it back, or write what the store holds (rewrite)")
    try:
        rows = sum(1 for _ in document.read(stored.body))
        kept = Export(change, document.content_sha256(stored.body), rows, stored.tag, adopted=True)
    except DocumentError as error:
        raise UndecidableError(f"{name} is no month of use: {error}; put the right one there, or rewrite it") from error
    exports.note_written(client, month, kept)
    return kept


def rewrite(client: redis.Redis, place: Destination, month: str) -> tuple[Export, str | None]:
    """Writes what the store holds of each budget in place of what the file says of it.

    What the file says of budgets of which the store holds nothing stays, where it can be read.

    Returns:
        What was written, and the name under which the old file is kept; None where there was none.

    Raises:
        UndecidableError: the store holds nothing of that month.
    """
    name = file_name(month)
    change = exports.load(client).changes.get(month, 0)
    rows = [(account, found) for account, found in exports.month_rows(client, window_of(month)) if found]
    if not rows:
        raise UndecidableError(f"the store holds nothing of {month}: keep the file, or put the right one in its place")
    stored = place.read(name)
    made = _in_place_of(stored, rows)
    aside = None
    if stored is not None:
        aside = f"{name}.{hashlib.sha256(stored.body).hexdigest()[:12]}"
        if place.tag(aside) is None:
            place.write(aside, stored.body, None, lambda: True)
    tag = place.write(name, made.body, None if stored is None else stored.tag, lambda: True)
    written = Export(change, made.sha256, made.rows, tag)
    exports.note_written(client, month, written)
    return written, aside


def _in_place_of(stored: Stored | None, rows: Sequence[document.Account]) -> Document:
    try:
        if stored is not None:
            return document.write(document.merge(document.read(stored.body), rows, allow_loss=True))
    except DocumentError:
        pass  # nothing of it can be told
    return document.write(rows)
