"""Reads accounts as a new leader takes them over: with their sessions, and the sums of their latest periods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from timekeeper.metering.sessions import Session
from timekeeper.rules.burn import BurnRecord
from timekeeper.rules.orders import Taken
from timekeeper.rules.periods import Period
from timekeeper.rules.pots import Pot
from timekeeper.store import keys
from timekeeper.store.reading import BATCH, SUMS, orders_by_name, pots_by_name, standing_of
from timekeeper.store.records import decode_burn, decode_session
from timekeeper.store.standing import Standing


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """An account as a new leader finds it; periods in order, standings and pots by their start."""

    name: str
    periods: tuple[Period, ...]
    standings: Mapping[int, Standing]
    sessions: tuple[Session, ...]
    ended: tuple[Session, ...]
    grants: Mapping[str, Taken]
    corrections: Mapping[str, Taken]
    pots: Mapping[int, Mapping[str, Pot]]
    burn: BurnRecord | None = None


def load_accounts(client: redis.Redis, names: Sequence[str], latest_periods: int = 2) -> list[StoredAccount]:
    """Accounts with their sessions and the sums of their latest periods; those not in the store are left out."""
    accounts = []
    for start in range(0, len(names), BATCH):
        chunk = names[start : start + BATCH]
        pipeline = client.pipeline(transaction=False)
        for name in chunk:
            account = keys.AccountKeys(name)
            for key in (account.periods, account.sessions, account.ended):
                pipeline.hgetall(key)
            pipeline.hgetall(account.grants)
            pipeline.hgetall(account.corrections)
            pipeline.hmget(account.head, ["burn", "version"])
        answers = pipeline.execute()
        found = [_Found(name, *answers[6 * index : 6 * index + 6]) for index, name in enumerate(chunk)]
        accounts.extend(_with_standings(client, [item for item in found if item.periods], latest_periods))
    return accounts


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    periods: Mapping[Any, Any]
    sessions: Mapping[Any, Any]
    ended: Mapping[Any, Any]
    grants: Mapping[Any, Any]
    corrections: Mapping[Any, Any]
    head: Sequence[Any]


def _with_standings(client: redis.Redis, found: Sequence[_Found], latest_periods: int) -> list[StoredAccount]:
    pipeline = client.pipeline(transaction=False)
    periods_of = []
    for item in found:
        periods = sorted((int(start), int(end)) for start, end in item.periods.items())
        periods_of.append([Period(start, end) for start, end in periods])
        for start, _ in periods[-latest_periods:]:
            sums = keys.AccountKeys(item.name).period(start)
            pipeline.hmget(sums, SUMS)
            pipeline.hgetall(keys.AccountKeys(item.name).pots(start))
    answers = iter(pipeline.execute())
    accounts = []
    for item, periods_found in zip(found, periods_of, strict=True):
        latest = [(period.start, next(answers), next(answers)) for period in periods_found[-latest_periods:]]
        burn, version = item.head
        standings = {start: standing_of(sums, version) for start, sums, _ in latest}
        accounts.append(
            StoredAccount(
                item.name,
                tuple(periods_found),
                {start: sums for start, sums in standings.items() if sums is not None},
                tuple(decode_session(text) for text in item.sessions.values()),
                tuple(decode_session(text) for text in item.ended.values()),
                orders_by_name(item.grants),
                orders_by_name(item.corrections),
                {start: pots_by_name(found) for start, _, found in latest if found},
                decode_burn(burn) if burn else None,
            )
        )
    return accounts
