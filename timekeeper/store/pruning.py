"""Forgets what is too old to be kept, and accounts that hold nothing any more; each account in one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import redis

from timekeeper.metering.segments import Assignments
from timekeeper.rules.timestamps import HOUR
from timekeeper.store import book, keys
from timekeeper.store.calls import Call, run_one
from timekeeper.usage.folding import month_of
from timekeeper.usage.parts import parse_part


def prune(client: redis.Redis, epoch: int, account: str, before: int, periods: Sequence[int], earliest: int) -> None:
    """Forgets an account's folded months from before an instant, and whole periods with their entries.

    A month in which a period that stays has begun stays, too: a correction of that period may still change it.

    Args:
        client: the store; its answers are bytes.
        epoch: the leader's.
        account: whose.
        before: nanoseconds since 1970, the first of a month.
        periods: the starts of the periods to forget.
        earliest: the start of the first period that stays.

    Raises:
        StoreError: it was refused, or Redis does not answer.
        redis.RedisError: Redis does not answer.
    """
    names = keys.AccountKeys(account)
    folded: Any = client.hkeys(names.folded)
    kept_from = month_of(min(before, earliest) // HOUR)
    parts = [name for name in folded if (part := parse_part(name)) is not None and part.month < kept_from]
    ledger = (names.ledger, names.segments, names.segment_order)
    kept = (names.head, names.periods, names.folded, *ledger, names.grants, names.corrections)
    touched = (*kept, *_of_periods(names, periods))
    arguments: tuple[Any, ...] = (epoch, earliest, len(periods), *periods, *parts)
    run_one(client, Call("prune", touched, arguments))


def drop_account(client: redis.Redis, epoch: int, account: str, periods: Sequence[int]) -> bool:
    """Forgets an account that holds neither sessions nor use nor entries; whether it was so.

    Raises:
        StoreError: it was refused, or Redis does not answer.
        redis.RedisError: Redis does not answer.
    """
    names = keys.AccountKeys(account)
    holding = (names.head, names.sessions, names.ended, names.hour_index, names.folded, names.segments, names.ledger)
    further = (names.segment_order, names.periods, names.grants, names.corrections, *_of_periods(names, periods))
    if not run_one(client, Call("drop_account", (*holding, *further), (epoch,))):
        return False
    client.srem(keys.ACCOUNTS, account)
    client.srem(keys.RESTORED, account)
    client.hdel(keys.BUDGETS, account)
    return True


def forget_payer(client: redis.Redis, changed: dict[str, Assignments], gone: Sequence[str]) -> None:
    """Writes down who pays for namespaces now that an account is forgotten; some of them are gone with it."""
    book.write_assignments(client, changed)
    if gone:
        client.hdel(keys.NAMESPACES, *gone)


def _of_periods(names: keys.AccountKeys, periods: Sequence[int]) -> Iterator[str]:
    for start in periods:
        yield from (names.period(start), names.amounts(start), names.pots(start))
