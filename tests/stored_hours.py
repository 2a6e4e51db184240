"""The rows of hours that an account has in Redis, as tests look at them and change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis

from timekeeper.store import keys
from timekeeper.usage.parts import PackedPart, parse_part

Place = tuple[int, str]
"""An hour, counted from 1970, and what its use is put down to."""


def rows_of(client: redis.Redis, account: str) -> dict[Place, str]:
    """The rows that are not packed."""
    names = keys.AccountKeys(account)
    hours: Any = client.hkeys(names.hour_index)
    found: dict[int, Any] = {int(hour): client.hgetall(names.rows_of(int(hour))) for hour in sorted(hours, key=int)}
    return {(hour, to.decode()): row.decode() for hour, rows in found.items() for to, row in rows.items()}


def write_rows(client: redis.Redis, account: str, rows: Mapping[Place, str]) -> None:
    """Writes rows as a settlement does."""
    names = keys.AccountKeys(account)
    for (hour, to), row in rows.items():
        client.hset(names.rows_of(hour), to, row)
        client.hincrby(names.hour_index, str(hour))


def delete_row(client: redis.Redis, account: str, place: Place) -> None:
    """Deletes a row, and with the last one of an hour that hour."""
    names = keys.AccountKeys(account)
    client.hdel(names.rows_of(place[0]), place[1])
    if not client.exists(names.rows_of(place[0])):
        client.hdel(names.hour_index, str(place[0]))


def delete_rows(client: redis.Redis, account: str) -> None:
    """Deletes all of them."""
    for place in rows_of(client, account):
        delete_row(client, account, place)


def parts_of(client: redis.Redis, account: str, *, hourly: bool) -> list[PackedPart]:
    """The packed values, of hours or of days, in order."""
    names: Any = client.hkeys(keys.AccountKeys(account).folded)
    return sorted(part for name in names if (part := parse_part(name)) is not None and part.hourly == hourly)
