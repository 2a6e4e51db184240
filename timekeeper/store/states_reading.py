"""Reads the published states of all namespaces, or what changed among them since a cursor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import redis

from timekeeper.store import keys

CHUNK = 5000
"""Values in one read."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader has heard: versions grow within an epoch, and mean nothing outside it."""

    epoch: str
    version: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.version}"


@dataclass(frozen=True, slots=True)
class Changes:
    """What a reader learns.

    Attributes:
        cursor: how far the store is.
        full: whether `states` are all there are; otherwise those that changed.
        states: each namespace once, with its state as JSON.
        prices: GPU-hours charged for an hour of a whole GPU, by model.
        default: the state of a namespace that is not named.
        charge: what the admin decides about charging.
    """

    cursor: Cursor
    full: bool
    states: tuple[tuple[str, bytes], ...]
    prices: Mapping[str, float]
    default: str
    charge: Mapping[str, int] = field(default_factory=dict)


def read_changes(client: redis.Redis, since: Cursor | None) -> Changes | None:
    """What changed since a cursor, everything where there is none or it is of another epoch; None where nothing did.

    Args:
        client: gives bytes, not texts.
        since: how far the reader has heard.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    head: Any = client.hmget(keys.STATES_HEAD, ["id", "version", "prices", "default", "charge"])
    if head[0] is None:
        return None
    cursor = Cursor(head[0].decode(), int(head[1] or 0))
    if since == cursor:
        return None
    full = since is None or since.epoch != cursor.epoch or since.version > cursor.version
    # What is published between these reads is told now and, as it is of a later version, once more.
    states = _all(client) if full or since is None else _since(client, since.version)
    default = orjson.loads(head[3]) if head[3].startswith(b'"') else head[3].decode()
    return Changes(cursor, full, states, orjson.loads(head[2]), default, orjson.loads(head[4] or b"{}"))


def _all(client: redis.Redis) -> tuple[tuple[str, bytes], ...]:
    # A scan may tell a field twice; the later time counts.
    found: dict[bytes, bytes] = dict(client.hscan_iter(keys.STATES_VALUES, count=CHUNK))
    return tuple((name.decode(), state) for name, state in found.items())


def _since(client: redis.Redis, version: int) -> tuple[tuple[str, bytes], ...]:
    names: Any = client.zrangebyscore(keys.STATES_CHANGES, f"({version}", "+inf")
    states: list[tuple[str, bytes]] = []
    for start in range(0, len(names), CHUNK):
        chunk = names[start : start + CHUNK]
        values: Any = client.hmget(keys.STATES_VALUES, chunk)
        states += [(name.decode(), value) for name, value in zip(chunk, values, strict=True) if value is not None]
    return tuple(states)
