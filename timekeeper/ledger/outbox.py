"""The outbox of notifications in the store, and the milestones of budgets that were announced.

Every function may raise redis.RedisError.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from timekeeper.domain.state import Announced, Milestone
from timekeeper.ledger import keys
from timekeeper.ledger.client import Call, FencingToken, Store, run_one
from timekeeper.ledger.codec import UNREADABLE

CHANGES_PER_CALL = 500

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Change:
    """A budget's milestones that count as announced from now on, and the notification about them to deliver.

    Attributes:
        uid: the budget's uid.
        announced: the milestones that count as announced; None if the budget was deleted, and its stored milestones are
            to be removed.
        message: the notification as JSON; empty for none.
    """

    uid: str
    announced: Announced | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A notification in the outbox that is still to be delivered.

    Attributes:
        id: an id that never changes, and begins with the milliseconds at which the notification was written.
        message: the notification as JSON.
    """

    id: str
    message: str

    @property
    def written_at(self) -> float:
        """The time at which the notification was written, in seconds since 1970, by the store's clock."""
        return int(self.id.partition("-")[0]) / 1000


def write(client: Store, fencing_token: FencingToken, most: int, changes: Sequence[Change]) -> int:
    """Records announced milestones and puts their notifications into the outbox; each budget gets both or neither.

    Args:
        most: the most notifications that may wait in the outbox.

    Returns:
        The number of notifications dropped, the oldest first, because more than `most` would wait.

    Raises:
        StoreError: the store refused the change, or Redis does not answer.
    """
    dropped = 0
    touched = (keys.NOTICES_HEAD, keys.NOTICES_ANNOUNCED, keys.NOTICES_OUTBOX)
    for start in range(0, len(changes), CHANGES_PER_CALL):
        arguments: list[str | int] = [fencing_token, most]
        for change in changes[start : start + CHANGES_PER_CALL]:
            arguments += (change.uid, "" if change.announced is None else _encode(change.announced), change.message)
        dropped += int(run_one(client, Call("notify", touched, tuple(arguments))))
    return dropped


def announced(client: Store) -> dict[str, Announced]:
    """Returns the announced milestones of budgets, keyed by the budget's uid.

    Unreadable entries are left out, so that the milestones of these budgets are announced again.
    """
    stored: Any = client.hgetall(keys.NOTICES_ANNOUNCED)
    by_uid = {}
    for uid, text in stored.items():
        try:
            by_uid[uid.decode()] = _decode(text)
        except UNREADABLE as error:
            _log.error("announcement record unreadable", uid=repr(uid), error=repr(error))
    return by_uid


def first(client: Store) -> Waiting | None:
    """Returns the notification that has waited longest in the outbox; None for an empty outbox."""
    waiting: Any = client.xrange(keys.NOTICES_OUTBOX, "-", "+", 1)
    return Waiting(waiting[0][0].decode(), waiting[0][1][b"m"].decode()) if waiting else None


def remove(client: Store, waiting: Waiting) -> None:
    """Removes a notification from the outbox, after it was delivered or its delivery was given up."""
    client.xdel(keys.NOTICES_OUTBOX, waiting.id)


def length(client: Store) -> int:
    """Returns the number of notifications that wait in the outbox."""
    return int(client.xlen(keys.NOTICES_OUTBOX))


def _encode(record: Announced) -> str:
    available = None if record.available is None else str(record.available)
    return json.dumps([record.period, available, sorted(record.milestones)], separators=(",", ":"))


def _decode(text: bytes) -> Announced:
    period, available, milestones = json.loads(text)
    by_value = {milestone.value: milestone for milestone in Milestone}
    return Announced(
        int(period),
        None if available is None else int(available),
        frozenset(by_value[name] for name in milestones if name in by_value),
    )
