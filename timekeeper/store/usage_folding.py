"""Folds an account's older hours in the store: months take the place of rows in one step, or nothing happens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha1
from itertools import groupby
from typing import Any

import redis

from timekeeper.rules.timestamps import DAY, HOUR
from timekeeper.store import keys
from timekeeper.store.calls import Call, run_one
from timekeeper.store.exports import note_late_changes
from timekeeper.store.usage_reading import read_rows
from timekeeper.usage.folding import fold, month_of, pack, unfold
from timekeeper.usage.rows import Row
from timekeeper.usage.windows import month_start, parse_month

MOST_ROWS = 2000
"""Rows that one step takes: Lua's stack holds some thousands of arguments."""


def fold_hours(client: redis.Redis, epoch: int, account: str, before: int, edges: Sequence[int]) -> bool:
    """Folds an account's hours that end before an instant; whether nothing is left to fold.

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
    stored: Any = client.hgetall(names.hours)
    old = sorted((int(field.split(b" ", 1)[0]), field) for field in stored)
    due = [field for hour, field in old if (hour + 1) * HOUR <= before]
    taken = due[:MOST_ROWS]
    if not taken:
        return True
    months = _by_month(read_rows(taken, [stored[field] for field in taken]))
    found: Any = client.hmget(names.folded, list(months))
    changes: list[Any] = []
    for (month, rows), blob in zip(months.items(), found, strict=True):
        before_rows = unfold(blob) if blob is not None else []
        changes += [month, sha1(blob or b"", usedforsecurity=False).hexdigest()]
        changes.append(pack(fold([*before_rows, *rows], edges)))
    note_late_changes(client, [month for month in months if month_start(parse_month(month), 1) + DAY <= before])
    expected = [part for field in taken for part in (field, stored[field])]
    call = Call("fold", (names.head, names.hours, names.folded), (epoch, len(months), *changes, *expected))
    return bool(run_one(client, call)) and len(taken) == len(due)


def _by_month(rows: Iterable[Row]) -> dict[str, list[Row]]:
    ordered = sorted(rows, key=lambda row: row.hour)
    return {month: list(found) for month, found in groupby(ordered, key=lambda row: month_of(row.hour))}
