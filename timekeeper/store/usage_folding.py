"""Packs an account's older hours in the store, and folds what is older still into days.

A packed value takes the place of rows in one step, or nothing happens. One step reads a bounded number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import redis

from timekeeper.rules.timestamps import DAY, HOUR
from timekeeper.store import keys
from timekeeper.store.calls import Call, run_one
from timekeeper.store.exports import note_late_changes
from timekeeper.store.usage_reading import read_rows
from timekeeper.usage.folding import added_up, fold, month_of, pack, unfold
from timekeeper.usage.parts import PackedPart, parse_part
from timekeeper.usage.rows import Row
from timekeeper.usage.windows import month_start, parse_month

MOST_ROWS = 4_000
"""Rows of hours after which a step takes no further hour."""
LARGE_PART = 256 * 1024
"""Bytes from which on nothing is added to a packed value."""


@dataclass(frozen=True, slots=True)
class _Held:
    """The hours, with their revisions, and the packed values that an account holds."""

    folds: bytes
    revisions: Mapping[int, bytes]
    parts: Sequence[PackedPart]


@dataclass(frozen=True, slots=True)
class _Change:
    """Hours and packed values that go, and the packed values that take their place."""

    hours: Sequence[int]
    taken: Sequence[PackedPart]
    new: Mapping[str, bytes]


def fold_hours(client: redis.Redis, epoch: int, account: str, before: int, edges: Sequence[int]) -> bool:
    """Folds an account's hours that end before an instant into days; whether nothing is left to fold.

    Args:
        client: the store; its answers are bytes.
        epoch: the leader's.
        account: whose hours.
        before: nanoseconds since 1970; a month that ended a day or longer before it is closed, and changes late.
        edges: where the account's periods begin, in order.

    Raises:
        StoreError: it was refused, or Redis does not answer.
        redis.RedisError: Redis does not answer.
    """
    names = keys.AccountKeys(account)
    held = _held(client, names)
    limit = before // HOUR
    hours, all_hours = _next_hours(client, names, held, limit)
    due = sorted(part for part in held.parts if part.hourly and part.first < limit)
    if not hours and not due:
        return True
    rows = _rows(client, names, hours)
    taken = due[:1]
    for blob in _blobs(client, names, taken):
        rows += unfold(blob)
    new = _packed([row for row in rows if row.hour >= limit], hourly=True)
    months = _by_month(row for row in rows if row.hour < limit)
    for month, found in months.items():
        target = _with_room(client, names, [part for part in held.parts if not part.hourly and part.month == month])
        before_rows = [row for blob in _blobs(client, names, target) for row in unfold(blob)]
        taken = [*taken, *target]
        new |= _packed(fold([*before_rows, *found], edges), hourly=False)
    note_late_changes(client, [month for month in months if month_start(parse_month(month), 1) + DAY <= before])
    return _replace(client, epoch, names, held, _Change(hours, taken, new)) and all_hours and len(due) <= 1


def pack_hours(client: redis.Redis, epoch: int, account: str, before: int) -> bool:
    """Packs an account's hours that end before an instant, as they are; whether nothing is left to pack.

    Args:
        client: the store; its answers are bytes.
        epoch: the leader's.
        account: whose hours.
        before: nanoseconds since 1970.

    Raises:
        StoreError: it was refused, or Redis does not answer.
        redis.RedisError: Redis does not answer.
    """
    names = keys.AccountKeys(account)
    held = _held(client, names)
    hours, all_hours = _next_hours(client, names, held, before // HOUR)
    if not hours:
        return True
    taken = _with_room(client, names, [part for part in held.parts if part.hourly])
    rows = _rows(client, names, hours)
    for blob in _blobs(client, names, taken):
        rows += unfold(blob)
    change = _Change(hours, taken, _packed(added_up(rows), hourly=True))
    return _replace(client, epoch, names, held, change) and all_hours


def _held(client: redis.Redis, names: keys.AccountKeys) -> _Held:
    pipeline = client.pipeline(transaction=False)
    pipeline.hget(names.head, "folds")
    pipeline.hgetall(names.hour_index)
    pipeline.hkeys(names.folded)
    folds, index, parts = pipeline.execute()
    known = [part for name in parts if (part := parse_part(name)) is not None]
    return _Held(folds or b"0", {int(hour): revision for hour, revision in index.items()}, known)


def _next_hours(client: redis.Redis, names: keys.AccountKeys, held: _Held, limit: int) -> tuple[list[int], bool]:
    """The earliest hours before one, as many as one step takes, and whether these are all of them."""
    due = sorted(hour for hour in held.revisions if hour < limit)
    pipeline = client.pipeline(transaction=False)
    for hour in due:
        pipeline.hlen(names.rows_of(hour))
    taken, count = list[int](), 0
    for hour, size in zip(due, pipeline.execute(), strict=True):
        if count >= MOST_ROWS:
            break
        taken.append(hour)
        count += size
    return taken, len(taken) == len(due)


def _rows(client: redis.Redis, names: keys.AccountKeys, hours: Sequence[int]) -> list[Row]:
    pipeline = client.pipeline(transaction=False)
    for hour in hours:
        pipeline.hgetall(names.rows_of(hour))
    answers = zip(hours, pipeline.execute(), strict=True)
    return read_rows([(hour, field, value) for hour, found in answers for field, value in found.items()])


def _blobs(client: redis.Redis, names: keys.AccountKeys, parts: Sequence[PackedPart]) -> list[bytes]:
    found: Any = client.hmget(names.folded, [part.name for part in parts]) if parts else []
    return [blob for blob in found if blob is not None]


def _with_room(client: redis.Redis, names: keys.AccountKeys, parts: Sequence[PackedPart]) -> list[PackedPart]:
    """One of these values to which rows may be added; none where there is no such one.

    Only two are looked at: the last one, which grows, and the shortest one, which late changes began.
    """
    if not parts:
        return []
    likely = [max(parts, key=lambda part: part.end), min(parts, key=lambda part: part.end - part.first)]
    found: Any = client.hmget(names.folded, [part.name for part in likely])
    sizes = [(len(blob), part) for blob, part in zip(found, likely, strict=True) if blob is not None]
    return [part for size, part in sorted(sizes)[:1] if size < LARGE_PART]


def _packed(rows: Sequence[Row], *, hourly: bool) -> dict[str, bytes]:
    """Rows as one packed value under its name; nothing where there are none."""
    if not rows:
        return {}
    part = PackedPart(hourly, min(row.hour for row in rows), max(row.hour + row.hours for row in rows))
    return {part.name: pack(rows)}


def _replace(client: redis.Redis, epoch: int, names: keys.AccountKeys, held: _Held, change: _Change) -> bool:
    """Whether it was done; nothing was where something has changed since it was read."""
    expected = [part for hour in change.hours for part in (hour, held.revisions[hour])]
    old = [part.name for part in change.taken]
    new = [part for packed in change.new.items() for part in packed]
    arguments: tuple[Any, ...] = (epoch, held.folds, len(change.hours), *expected, len(old), *old, *new)
    return bool(run_one(client, Call("pack_hours", (names.head, names.hours, names.folded), arguments)))


def _by_month(rows: Iterable[Row]) -> dict[str, list[Row]]:
    ordered = sorted(rows, key=lambda row: row.hour)
    return {month: list(found) for month, found in groupby(ordered, key=lambda row: month_of(row.hour))}
