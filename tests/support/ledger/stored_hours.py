"""The rows of hours that an account has in Redis, for tests that read and change them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import redis

from timekeeper.domain.usage import Dimensions, UsageFigures, values_of
from timekeeper.domain.usage_folding import PackedPart, parse_part
from timekeeper.ledger import keys
from timekeeper.ledger.usage import read_rows

Place = tuple[int, str]
"""An hour, counted from 1970, and the dimensions of its use as stored text."""


def rows_of(client: redis.Redis, account: str) -> dict[Place, str]:
    """Returns the rows of an account that are not packed."""
    return _of_each_hour(client, account, keys.AccountKeys(account).rows_of)


def sums_of(client: redis.Redis, account: str) -> dict[Place, str]:
    """Returns the sums of an account's rows by namespace and model."""
    return _of_each_hour(client, account, keys.AccountKeys(account).sums_of)


def _of_each_hour(client: redis.Redis, account: str, key_of: Any) -> dict[Place, str]:
    hours: Any = client.hkeys(keys.AccountKeys(account).hour_index)
    found: dict[int, Any] = {int(hour): client.hgetall(key_of(int(hour))) for hour in sorted(hours, key=int)}
    return {(hour, to.decode()): row.decode() for hour, rows in found.items() for to, row in rows.items()}


def write_rows(client: redis.Redis, account: str, rows: Mapping[Place, str]) -> None:
    """Writes rows as a settlement does."""
    names = keys.AccountKeys(account)
    for (hour, to), row in rows.items():
        client.hset(names.rows_of(hour), to, row)
        client.hincrby(names.hour_index, str(hour))
    for hour in {hour for hour, _ in rows}:
        _sum_up(client, account, hour)


def delete_row(client: redis.Redis, account: str, place: Place) -> None:
    """Deletes a row; if it was the last one of its hour, deletes the hour from the index."""
    names = keys.AccountKeys(account)
    client.hdel(names.rows_of(place[0]), place[1])
    if not client.exists(names.rows_of(place[0])):
        client.hdel(names.hour_index, str(place[0]))
    _sum_up(client, account, place[0])


def delete_rows(client: redis.Redis, account: str) -> None:
    """Deletes all rows of an account that are not packed."""
    for place in rows_of(client, account):
        delete_row(client, account, place)


def _sum_up(client: redis.Redis, account: str, hour: int) -> None:
    """Sets the sums of an hour to those of its rows; a row that cannot be read counts as none."""
    names, sums = keys.AccountKeys(account), dict[str, UsageFigures]()
    found: Any = client.hgetall(names.rows_of(hour))
    for to, row in found.items():
        if len(row.split()) == len(UsageFigures._fields):
            (read,) = read_rows([(hour, to, row)])
            alone = Dimensions(read.dimensions.namespace, model=read.dimensions.model)
            place = json.dumps(values_of(alone), separators=(",", ":"), ensure_ascii=False)
            sums[place] = sums.get(place, UsageFigures()).plus(read.figures)
    client.delete(names.sums_of(hour))
    for place, figures in sums.items():
        client.hset(names.sums_of(hour), place, " ".join("-" if each is None else str(each) for each in figures))


def parts_of(client: redis.Redis, account: str, *, hourly: bool) -> list[PackedPart]:
    """Returns the packed values of an account in order: those of hours if `hourly`, else those of days."""
    names: Any = client.hkeys(keys.AccountKeys(account).folded)
    return sorted(part for name in names if (part := parse_part(name)) is not None and part.hourly == hourly)
