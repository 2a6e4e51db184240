"""Folds the amounts of sessions that are over for good into sums of their period.

A session is over for good in a period once all that it came to there is in the ledger, its pod is gone or the period
has ended, and no leader has known it for a day. The day begins with a note beside the amount, which a settlement
removes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import redis

from timekeeper.rules.money import SECOND
from timekeeper.rules.timestamps import DAY
from timekeeper.store import keys
from timekeeper.store.calls import Call, run_one

AT_ONCE = 500
_AMOUNT = re.compile(rb"\d+ \d+ (?P<amount>\d+) (?P=amount) (?P<flag>[ocg])( [0-9 -]+)?( @(?P<noted>\d+))?")
"""The row of a session whose amount is in the ledger."""
FOLDED_AFTER = DAY
"""How long nobody may have known a session: longer than a leader remembers who left."""


def fold_amounts(
    client: redis.Redis, epoch: int, now: int, place: tuple[str, int], known: Callable[[str], bool], *, over: bool
) -> int:
    """Folds what is due of a period, and notes what will be; how many sessions were folded.

    Args:
        client: the store; its answers are bytes.
        epoch: the leader's.
        now: nanoseconds since 1970.
        place: the account, and the period's start.
        known: whether the leader still knows the session of a uid.
        over: whether the period ended so long ago that no session that goes on is settled in it any more.

    Raises:
        StoreError: it was refused, or Redis does not answer.
        redis.RedisError: Redis does not answer.
    """
    account, start = place
    names = keys.AccountKeys(account)
    touched = (names.period(start), names.amounts(start), names.head)
    folded, cursor, begun = 0, 0, False
    while cursor or not begun:
        answer: Any = client.hscan(names.amounts(start), cursor, count=AT_ONCE)
        (cursor, rows), begun = answer, True
        changes = list(_changes(rows.items(), now, known, over=over))
        for first in range(0, len(changes), AT_ONCE):
            arguments = [part for change in changes[first : first + AT_ONCE] for part in change]
            folded += int(run_one(client, Call("fold_amounts", touched, (epoch, now // SECOND, *arguments))))
    return folded


def with_amounts(client: redis.Redis, account: str, starts: Sequence[int]) -> set[int]:
    """The periods, by their start, that hold the amount of any session.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    names = keys.AccountKeys(account)
    pipeline = client.pipeline(transaction=False)
    for start in starts:
        pipeline.exists(names.amounts(start))
    return {start for start, found in zip(starts, pipeline.execute(), strict=True) if found}


def _changes(
    rows: Iterable[tuple[bytes, bytes]], now: int, known: Callable[[str], bool], *, over: bool
) -> Iterator[tuple[str, bytes, bytes]]:
    """What is to be done with amounts: `note` or `fold`, the uid, and what stands of it."""
    for uid, text in rows:
        found = _AMOUNT.fullmatch(text)  # what cannot be read stays, for the auditor to name
        if found is None or not (over or found["flag"] == b"g") or known(uid.decode()):
            continue
        if found["noted"] is None:
            yield "note", uid, text
        elif now - int(found["noted"]) * SECOND >= FOLDED_AFTER:
            yield "fold", uid, text
