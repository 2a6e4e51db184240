"""What of budgets was told outside the cluster, and the messages that are still to be delivered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from timekeeper.rules.milestones import Milestone, Told
from timekeeper.store import keys
from timekeeper.store.calls import Call, run_one

CHANGES_PER_CALL = 500


@dataclass(frozen=True, slots=True)
class Change:
    """A budget by its uid, what counts as told of it from now on (None: it is gone), and a message, or none."""

    uid: str
    told: Told | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message in the outbox. Its id never changes, and begins with the milliseconds in which it was written."""

    id: str
    message: str

    @property
    def written_at(self) -> float:
        """Seconds since 1970, by the store's clock."""
        return int(self.id.partition("-")[0]) / 1000


def write(client: redis.Redis, epoch: int, most: int, changes: Sequence[Change]) -> int:
    """Notes what was told and puts the messages into the outbox, each budget's both or neither.

    Args:
        client: the store.
        epoch: the leader's.
        most: the most messages that may wait.
        changes: what is new.

    Returns:
        How many of the oldest messages were given up, since too many wait.

    Raises:
        StoreError: it was refused, or Redis does not answer.
    """
    dropped = 0
    touched = (keys.NOTICES_HEAD, keys.NOTICES_TOLD, keys.NOTICES_OUTBOX)
    for start in range(0, len(changes), CHANGES_PER_CALL):
        arguments: list[str | int] = [epoch, most]
        for change in changes[start : start + CHANGES_PER_CALL]:
            arguments += (change.uid, "" if change.told is None else _encode(change.told), change.message)
        dropped += int(run_one(client, Call("notify", touched, tuple(arguments))))
    return dropped


def told(client: redis.Redis) -> dict[str, Told]:
    """What was told of each budget, by its uid. May raise redis.RedisError."""
    found: Any = client.hgetall(keys.NOTICES_TOLD)
    return {uid.decode(): _decode(text) for uid, text in found.items()}


def first(client: redis.Redis) -> Waiting | None:
    """The message that has waited longest. May raise redis.RedisError."""
    found: Any = client.xrange(keys.NOTICES_OUTBOX, "-", "+", 1)
    return Waiting(found[0][0].decode(), found[0][1][b"m"].decode()) if found else None


def remove(client: redis.Redis, waiting: Waiting) -> None:
    """Takes a message out, delivered or given up. May raise redis.RedisError."""
    client.xdel(keys.NOTICES_OUTBOX, waiting.id)


def length(client: redis.Redis) -> int:
    """How many messages wait. May raise redis.RedisError."""
    return int(client.xlen(keys.NOTICES_OUTBOX))


def _encode(record: Told) -> str:
    available = None if record.available is None else str(record.available)
    return json.dumps([record.period, available, sorted(record.milestones)], separators=(",", ":"))


def _decode(text: bytes) -> Told:
    period, available, milestones = json.loads(text)
    known = {milestone.value: milestone for milestone in Milestone}
    return Told(
        int(period),
        None if available is None else int(available),
        frozenset(known[name] for name in milestones if name in known),
    )
