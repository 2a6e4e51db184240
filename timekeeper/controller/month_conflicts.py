"""Resolves a month whose exported file and store differ: the admin decides which of the two counts.

To write the month anew requires that the file still has the tag with which it was read, so a concurrent write of the
leader is not lost.

`look`, `keep` and `rewrite` may raise redis.RedisError, ExportError and StoreError.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import redis

from fairgpu.client.tables import print_text
from fairgpu.commands import CommandError
from timekeeper.domain.timestamps import DAY, Instant, TimeError, format_instant
from timekeeper.export import document
from timekeeper.export.destination import Destination, ExportError, Stored, destination
from timekeeper.export.document import Document, DocumentError, closed_months, closed_until, file_name, window_of
from timekeeper.ledger import exports, reading
from timekeeper.ledger.client import Store, StoreError
from timekeeper.ledger.connection import store_clock, unreachable_message
from timekeeper.ledger.exports import Export
from timekeeper.settings import TimekeeperSettings


class UndecidableError(ExportError):
    """A month has no readable exported file that `keep` could keep, or no stored use that `rewrite` could write.

    The message says what the admin can do instead.
    """


class State(StrEnum):
    """The state of a closed month's file: as exported, kept by the admin as it is, or in need of an action."""

    WRITTEN = "written"
    """The file is the one that the leader or `rewrite` wrote, and holds all of the store's use of the month."""
    KEPT = "kept"
    """The admin decided to keep the file as it is, though it may hold something else than the store."""
    WAITING = "waiting"
    """The file is missing, is not the one that the store's record describes, or is out of date: the leader exports it,
    or the admin decides.
    """


@dataclass(frozen=True, slots=True)
class Month:
    """A closed month and the state of its exported file.

    Attributes:
        month: the month, such as 2026-10.
        state: the state of its file.
        rows: the number of rows in the file by the store's record of it; None without a record.
    """

    month: str
    state: State
    rows: int | None = None


def look(client: Store, place: Destination, now: Instant, hourly_days: int) -> list[Month]:
    """Returns all closed months with the states of their exported files, in order of time.

    Args:
        place: the destination of exported months.
        now: nanoseconds since 1970.
        hourly_days: the number of whole days before today whose usage is kept by the hour. A month with such a day is
            not closed yet.

    Raises:
        redis.RedisError: the store does not answer.
        ExportError: the destination cannot be read.
    """
    records = exports.load(client)
    folded = exports.folded_months(client, reading.account_names(client))
    there = set(place.names())
    months = []
    for month in closed_months(now, hourly_days, {*folded, *records.written, *records.changes}):
        last, name = records.written.get(month), file_name(month)
        if last is None or name not in there or not records.is_confirmed(month) or place.tag(name) != last.tag:
            months.append(Month(month, State.WAITING, None if last is None else last.rows))
        else:
            months.append(Month(month, State.KEPT if last.adopted else State.WRITTEN, last.rows))
    return months


def keep(client: Store, place: Destination, month: str) -> Export:
    """Records a month's present file as its export, so that the file counts and not the store; returns the record.

    The admin must decide again once the store gets another change of that month's usage.

    Args:
        place: the destination of exported months.
        month: the month, such as 2026-10.

    Raises:
        UndecidableError: there is no file, or it holds no month of usage.
        ExportError: the destination cannot be read.
        redis.RedisError, StoreError: the store does not answer, or refuses the record.
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


def rewrite(client: Store, place: Destination, month: str) -> tuple[Export, str | None]:
    """Writes a month's file anew, with the store's usage of each account that has any.

    The file's usage of other accounts stays if it is readable. The old file is kept under another name.

    Args:
        place: the destination of exported months.
        month: the month, such as 2026-10.

    Returns:
        The store's record of the new file, and the name under which the old file is kept; None if there was none.

    Raises:
        UndecidableError: the store holds nothing of that month.
        ExportError: the destination cannot be read or written, or the file has changed meanwhile.
        UnreadableUseError: the use of some accounts cannot be read.
        redis.RedisError, StoreError: the store does not answer, or refuses.
    """
    name = file_name(month)
    change = exports.load(client).changes.get(month, 0)
    rows = [(account, own) for account, own in exports.month_rows(client, window_of(month)) if own]
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
        pass  # nothing of the file can be read
    return document.write(rows)


def run(client: Store, settings: TimekeeperSettings, arguments: argparse.Namespace) -> int:
    """Carries out an action of `fairgpu timekeeper months` and prints its result; returns the exit status.

    Args:
        settings: the settings, which name the destination of months.
        arguments: `action` (list, keep or rewrite) and `month`.

    Raises:
        CommandError: no destination is set, the month is missing, wrong or not closed yet, the action is impossible, or
            the store or the destination does not answer; the message says what to do.
    """
    place = destination(settings.export)
    if place is None:
        raise CommandError(
            "timekeeper.export names no place, so that no month is written: set timekeeper.export.folder or "
            "timekeeper.export.bucket.name"
        )
    try:
        now = min(time.time_ns(), store_clock(client))
        if arguments.action == "list":
            return _list(client, place, now, settings.usage.hourly_days)
        month = _month(arguments.month, arguments.action, now, settings.usage.hourly_days)
        if arguments.action == "keep":
            kept = keep(client, place, month)
            return print_text(f"{month}: the file stays as it is ({kept.rows} rows)")
        written, aside = rewrite(client, place, month)
        was = "" if aside is None else f"; what was there is {aside} now"
        return print_text(f"{month}: written from what the store holds ({written.rows} rows){was}")
    except (ExportError, exports.UnreadableUseError) as error:
        raise CommandError(str(error)) from error
    except (redis.RedisError, StoreError) as error:
        raise CommandError(unreachable_message(error)) from error


def _list(client: Store, place: Destination, now: Instant, hourly_days: int) -> int:
    months = look(client, place, now, hourly_days)
    if not months:
        return print_text("No month is closed yet of which anything was used.")
    lines = [f"{each.month}   {each.state:<8}{'' if each.rows is None else f'   {each.rows} rows'}" for each in months]
    return print_text("\n".join(lines))


def _month(text: str | None, action: str, now: Instant, hourly_days: int) -> str:
    if text is None:
        raise CommandError(f"MONTH: {action} needs one, such as 2026-10")
    try:
        window = window_of(text)
    except TimeError as error:
        raise CommandError(f"MONTH: {text!r} is no month: write it as 2026-10") from error
    if window.end > closed_until(now, hourly_days):
        closes = format_instant(window.end + (hourly_days + 1) * DAY)
        raise CommandError(f"MONTH: {text} is not closed before {closes}, and nothing of it is written until then")
    return text
