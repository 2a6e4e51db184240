"""Packs an account's older ledger entries in the store: a segment takes their place in one step, or nothing happens."""

from __future__ import annotations

from hashlib import sha1
from itertools import takewhile
from typing import Any

import redis

from timekeeper.store import keys
from timekeeper.store.calls import Call, run_one
from timekeeper.store.entries import LedgerEntry, entry_order, read_entry
from timekeeper.store.segments import SEGMENT_ENTRIES, pack_entries, unpack_entries


def pack_ledger(client: redis.Redis, epoch: int, account: str, before: int) -> bool:
    """Packs an account's entries that were written before an instant; whether nothing is left to pack.

    Args:
        client: the store; its answers are bytes.
        epoch: the leader's.
        account: whose entries.
        before: nanoseconds since 1970, by the clock of the leaders that wrote them.

    Raises:
        StoreError: it was refused, or Redis does not answer.
        SegmentError: what was packed before cannot be read.
        redis.RedisError: Redis does not answer.
    """
    names = keys.AccountKeys(account)
    due = _due(client, names, 1, before) and _due(client, names, SEGMENT_ENTRIES, before)
    if not due:
        return True
    known: Any = client.hkeys(names.segments)
    old_name = max(known, key=_last_of, default=b"")
    old: Any = client.hget(names.segments, old_name) if old_name else None
    grown = unpack_entries(old) if old is not None else []
    if len(grown) >= SEGMENT_ENTRIES:
        old_name, old, grown = b"", None, []
    taken = due[: SEGMENT_ENTRIES - len(grown)]
    entries = [*grown, *taken]
    replaced = (old_name.decode(), sha1(old, usedforsecurity=False).hexdigest()) if old is not None else ("", "")
    name = f"{taken[-1].id} {max(entry.period for entry in entries)}"
    arguments = (epoch, taken[0].id, taken[-1].id, name, pack_entries(entries), *replaced)
    done = run_one(
        client, Call("pack_ledger", (names.head, names.ledger, names.segments, names.segment_order), arguments)
    )
    return bool(done) and len(taken) == len(due) < SEGMENT_ENTRIES


def _due(client: redis.Redis, names: keys.AccountKeys, most: int, before: int) -> list[LedgerEntry]:
    """The first entries that are not packed yet, up to the first one that is not due."""
    found: Any = client.xrange(names.ledger, "-", "+", most)
    return list(takewhile(lambda entry: entry.at < before, (read_entry(name, fields) for name, fields in found)))


def _last_of(name: bytes) -> tuple[int, int]:
    return entry_order(name.decode().partition(" ")[0])
