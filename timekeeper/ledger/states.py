"""Reads the published states of all namespaces, or those that changed since a cursor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import redis

from timekeeper.ledger import keys

CHUNK = 5000
"""The number of values in one read."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A reader's position in the published states.

    Attributes:
        store_id: the store id; versions of another store id cannot be compared.
        version: the version of the states that the reader has received.
    """

    store_id: str
    version: int

    def __str__(self) -> str:
        return f"{self.store_id}.{self.version}"


@dataclass(frozen=True, slots=True)
class Changes:
    """The published states of namespaces that a reader does not have yet.

    Attributes:
        cursor: the store's present version.
        full: whether `states` holds all namespaces; otherwise those that changed.
        states: each namespace once, with its state as JSON.
        prices: GPU-hours charged for an hour of a whole GPU, by model.
        default: the state of each namespace that `states` does not name.
        charge: the admin's settings for charging.
    """

    cursor: Cursor
    full: bool
    states: tuple[tuple[str, bytes], ...]
    prices: Mapping[str, float]
    default: str
    charge: Mapping[str, int] = field(default_factory=dict)


def read_changes(client: redis.Redis, since: Cursor | None) -> Changes | None:
    """Reads the published states that changed since a reader's cursor; None where none changed.

    All states are read without a cursor, or with one of another store id. It returns None, too, where no state was ever
    published.

    Args:
        client: the store; its answers are bytes.
        since: the version that the reader has received; None for none.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    head: Any = client.hmget(keys.STATES_HEAD, ["id", "version", "prices", "default", "charge"])
    if head[0] is None:
        return None
    cursor = Cursor(head[0].decode(), int(head[1] or 0))
    if since == cursor:
        return None
    full = since is None or since.store_id != cursor.store_id or since.version > cursor.version
    # A state that is published between these reads is sent now and, under its later version, once more.
    states = _all(client) if full or since is None else _since(client, since.version)
    default = orjson.loads(head[3]) if head[3].startswith(b'"') else head[3].decode()
    return Changes(cursor, full, states, orjson.loads(head[2]), default, orjson.loads(head[4] or b"{}"))


def _all(client: redis.Redis) -> tuple[tuple[str, bytes], ...]:
    # A scan may return a field twice; the later value counts.
    states: dict[bytes, bytes] = dict(client.hscan_iter(keys.STATES_VALUES, count=CHUNK))
    return tuple((name.decode(), state) for name, state in states.items())


def _since(client: redis.Redis, version: int) -> tuple[tuple[str, bytes], ...]:
    names: Any = client.zrangebyscore(keys.STATES_CHANGES, f"({version}", "+inf")
    states: list[tuple[str, bytes]] = []
    for start in range(0, len(names), CHUNK):
        chunk = names[start : start + CHUNK]
        values: Any = client.hmget(keys.STATES_VALUES, chunk)
        states += [(name.decode(), value) for name, value in zip(chunk, values, strict=True) if value is not None]
    return tuple(states)
