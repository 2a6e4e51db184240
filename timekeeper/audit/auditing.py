"""One audit: every account's period is read, recomputed and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import redis

from timekeeper.audit.charging import Changes
from timekeeper.audit.difference import Difference
from timekeeper.audit.periods import check_period
from timekeeper.audit.sessions import Moment, check_sessions
from timekeeper.audit.snapshot import Snapshot, read_session
from timekeeper.audit.sums import check_sums
from timekeeper.audit.taking import payers_of, present_periods, take
from timekeeper.store import reading

ACCOUNTS_PER_STEP = 50
"""Accounts that are held in memory at once."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be audited.

    Attributes:
        accounts: the accounts; empty for all of them.
        period: the start of a period, in nanoseconds since 1970; None for each account's latest one.
        reserved: whether reservations are billed.
    """

    accounts: tuple[str, ...] = ()
    period: int | None = None
    reserved: bool = True


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found.

    Attributes:
        at: when it began, in nanoseconds since 1970.
        accounts: how many accounts it looked at.
        sessions: how many sessions.
        entries: how many ledger entries.
        differences: every figure that is not what it must be.
        missing: accounts that were asked for and that have no such period.
    """

    at: int
    accounts: int
    sessions: int
    entries: int
    differences: tuple[Difference, ...]
    missing: tuple[str, ...] = ()


def audit(client: redis.Redis, question: Question, now: Callable[[], int]) -> Audit:
    """Audits the store. Reads alone: nothing is changed, and nothing waits for it.

    Args:
        client: the store; its answers are bytes.
        question: what to look at.
        now: nanoseconds since 1970.

    Raises:
        redis.RedisError, StoreError: the store does not answer.
    """
    began = now()
    names = question.accounts or tuple(reading.account_names(client))
    wanted = present_periods(client, names)
    if question.period is not None:
        wanted = dict.fromkeys(wanted, question.period)
    differences: list[Difference] = []
    looked: set[str] = set()
    sessions = entries = 0
    for chunk in _chunks(list(wanted)):
        found = _look(client, {name: wanted[name] for name in chunk}, question, now)
        doubtful = {difference.account: wanted[difference.account] for _, each in found for difference in each}
        if doubtful:
            again = _look(client, doubtful, question, now, whole_ledger=True)
            found = [item for item in found if item[0].account not in doubtful] + again
        for snapshot, each in found:
            differences += each
            looked.add(snapshot.account)
            sessions += len(snapshot.amounts)
            entries += len(snapshot.entries)
    missing = tuple(sorted(set(question.accounts) - looked))
    return Audit(began, len(looked), sessions, entries, tuple(differences), missing)


def _look(
    client: redis.Redis, wanted: Mapping[str, int], question: Question, now: Callable[[], int], **options: bool
) -> list[tuple[Snapshot, list[Difference]]]:
    settled = reading.watched(client)
    snapshots = [found for found in take(client, wanted, **options) if found.exists]
    payers = payers_of(client, sorted({name for snapshot in snapshots for name in _namespaces(snapshot)}))
    moment = Moment(settled, now(), question.reserved)
    return [(snapshot, check(snapshot, payers, moment)) for snapshot in snapshots]


def check(snapshot: Snapshot, payers: Mapping[str, Changes], moment: Moment) -> list[Difference]:
    """What differs in one period."""
    periods = list(check_period(snapshot))
    # Without its bounds nothing can be said of what a session cost in a period.
    sessions = [] if periods else check_sessions(snapshot, payers, moment)
    return [*periods, *check_sums(snapshot), *sessions]


def _chunks(names: list[str]) -> Iterator[list[str]]:
    return (names[first : first + ACCOUNTS_PER_STEP] for first in range(0, len(names), ACCOUNTS_PER_STEP))


def _namespaces(snapshot: Snapshot) -> Iterator[str]:
    records = (read_session(text) for text in (*snapshot.sessions.values(), *snapshot.ended.values()))
    return (record.namespace for record in records if record is not None)
