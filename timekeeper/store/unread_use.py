"""Reads in pieces what an account's use was too large for: each piece is one short command.

Every function may raise redis.RedisError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import redis

from timekeeper.store import keys

SESSIONS_AT_ONCE = 500


class Bounds(NamedTuple):
    """The bounds of one script's reading: rows of hours, bytes of packed rows, and sessions."""

    rows: int
    packed: int
    sessions: int


ATTEMPTS = (
    Bounds(2_000, 1 << 20, 500),
    Bounds(2_000, 1 << 20, 500),
    Bounds(10_000, 1 << 20, 2_000),
    Bounds(50_000, 1 << 22, 20_000),
    Bounds(1 << 40, 1 << 40, 1 << 40),
)
"""What may be read at one moment, by attempt: where the rest changes while it is read, more has to be of one moment."""


@dataclass(frozen=True, slots=True)
class Unread:
    """What a script named instead of reading it, and the moment that it is to be of.

    Attributes:
        version: the account's.
        folds: how often its rows have been packed.
        hours: each hour with its revision.
        parts: the names of packed values.
        sessions: whether the open sessions were not read.
    """

    version: bytes
    folds: bytes
    hours: Sequence[tuple[bytes, bytes]] = ()
    parts: Sequence[bytes] = ()
    sessions: bool = False

    @property
    def nothing(self) -> bool:
        """Whether everything was read."""
        return not (self.hours or self.parts or self.sessions)


@dataclass(frozen=True, slots=True)
class Rest:
    """The same, read; `open` is each session's record and its amounts in two periods, one after the other."""

    rows: Sequence[tuple[bytes, Mapping[bytes, bytes]]] = ()
    packed: Sequence[bytes] = ()
    open: list[Any] = field(default_factory=list)


def read_rest(client: redis.Redis, account: str, unread: Unread, periods: Sequence[bytes | None]) -> Rest | None:
    """Reads the rest; None where some of it has changed since.

    Args:
        client: the store; its answers are bytes.
        account: whose.
        unread: what to read.
        periods: the starts of the latest periods, in which the sessions' amounts are asked for.
    """
    names = keys.AccountKeys(account)
    rows = [(hour, _hash(client.hgetall(names.rows_of(hour.decode())))) for hour, _ in unread.hours]
    packed: list[Any] = [client.hget(names.folded, name) for name in unread.parts]
    found = _sessions(client, names, periods) if unread.sessions else []
    pipeline = client.pipeline(transaction=False)
    pipeline.hmget(names.head, ["version", "folds"])
    pipeline.hmget(names.hour_index, [hour for hour, _ in unread.hours] or ["-"])
    (version, folds), revisions = pipeline.execute()
    same = (folds or b"0") == unread.folds and not any(blob is None for blob in packed)
    same = same and (not unread.sessions or (version or b"0") == unread.version)
    if not same or any(now != then for now, (_, then) in zip(revisions, unread.hours, strict=False)):
        return None
    return Rest(rows, packed, found)


def _sessions(client: redis.Redis, names: keys.AccountKeys, periods: Sequence[bytes | None]) -> list[Any]:
    records: dict[bytes, bytes] = dict(client.hscan_iter(names.sessions, count=SESSIONS_AT_ONCE))
    uids, found = list(records), list[Any]()
    for start in range(0, len(uids), SESSIONS_AT_ONCE):
        chunk: list[Any] = uids[start : start + SESSIONS_AT_ONCE]
        columns = [
            client.hmget(names.amounts(int(period)), chunk) if period else [None] * len(chunk) for period in periods
        ]
        for uid, *amounts in zip(chunk, *columns, strict=True):
            found += [records[uid], *amounts]
    return found


def _hash(found: Any) -> Mapping[bytes, bytes]:
    result: Mapping[bytes, bytes] = found
    return result
