"""Replaces keys that all accounts share, if they hold another Redis type than the timekeeper writes.

Such a key cannot be read and counts as lost. The leader writes it anew from its books, from other keys and from
checkpoints, as after a loss of the store.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Any

import structlog

from timekeeper.ledger import keys, reading, shared
from timekeeper.ledger.client import FencingToken, Store, of_another_type, put

_PROBES = {
    keys.BOOK_FORMAT: "get",
    keys.BOOK_CONVERTING: "get",
    keys.SINCE: "get",
    keys.ACCOUNTS: "srem",
    keys.NAMESPACES: "hlen",
    keys.BUDGETS: "hlen",
    keys.RESTORED: "srem",
    keys.NOT_SETTLED: "srem",
    keys.UNMETERED: "hlen",
    keys.CAPACITY: "hlen",
    keys.CAPACITY_OF_MODELS: "hlen",
    keys.EXPORTS: "hlen",
    keys.OPEN_SESSIONS: "zcard",
    keys.PRESENT_USE: "hlen",
    keys.NOTICES_HEAD: "hlen",
    keys.NOTICES_ANNOUNCED: "hlen",
    keys.NOTICES_OUTBOX: "xlen",
    keys.STATES_HEAD: "hlen",
    keys.STATES_VALUES: "hlen",
    keys.STATES_CHANGES: "zcard",
}
"""For each shared key, a command of its type that changes nothing. The timekeeper's user in Redis has no right to TYPE.

Keys that each write replaces whole are left out, and so is the count of late changes, which exports.py replaces.
"""
_TYPES = {"get": "string", "srem": "set", "hlen": "hash", "zcard": "sorted set", "xlen": "stream"}
_NO_MEMBER = {"srem": ("",)}
"""The arguments of a probe beside its key; no account has an empty name."""
_STATES = (keys.STATES_HEAD, keys.STATES_VALUES, keys.STATES_CHANGES)
_FORMAT = re.compile(rb"[1-9][0-9]{0,8}")

LOST_BUDGET = "the key of all kept budgets held another type"
"""The text in place of a lost last valid version of a budget. It is no JSON, so no reader takes it for a budget."""

_log = structlog.get_logger()


def broken_keys(client: Store) -> list[str]:
    """Returns the shared keys of the store that hold another Redis type than they should, or an unreadable format.

    Shared keys are those that belong to no single account.

    Raises:
        redis.RedisError: the store does not answer.
    """
    pipeline = client.pipeline(transaction=False)
    for key, probe in _PROBES.items():
        getattr(pipeline, probe)(key, *_NO_MEMBER.get(probe, ()))
    answers = dict(zip(_PROBES, pipeline.execute(raise_on_error=False), strict=True))
    broken = of_another_type(answers)
    stored_format: Any = answers[keys.BOOK_FORMAT]
    if isinstance(stored_format, bytes) and not _FORMAT.fullmatch(stored_format):
        broken.append(keys.BOOK_FORMAT)
    return broken


def replace_broken_keys(client: Store, fencing_token: int, accounts: Iterable[str]) -> bool:
    """Deletes the shared keys that `broken_keys` finds, and writes again the deleted keys that a new leader reads next.

    If one key of the published states is among them, all their keys are deleted. A new leader calls this function
    before it loads its state. It writes the other deleted keys when it next changes them.

    Args:
        accounts: the names of the accounts in the leader's memory.

    Returns:
        Whether the key with the last valid versions of budgets was among the deleted keys.

    Raises:
        StoreError: the store refused a change, or Redis does not answer.
        redis.RedisError: Redis does not answer.
    """
    broken = broken_keys(client)
    for key in broken:
        _log.error("shared key of another type: it is written anew", key=key, expected=_TYPES[_PROBES[key]])
    # States, versions and changes belong together: a reader must not get new versions of a store id with lost states.
    removed = {*broken, *_STATES} if {*broken} & {*_STATES} else {*broken}
    for key in removed:
        client.delete(key)
    if keys.BOOK_FORMAT in broken:
        put(client, fencing_token, "SET", keys.BOOK_FORMAT, [keys.FORMAT])
    if keys.BOOK_CONVERTING in broken:
        put(client, fencing_token, "SET", keys.BOOK_CONVERTING, [1])
    if keys.ACCOUNTS in broken:
        payers = {account for known in reading.assignments(client).values() for _, account in known}
        shared.write_accounts(client, fencing_token, sorted({*accounts, *payers, *reading.kept_budgets(client)}))
    return keys.BUDGETS in broken


def mark_lost(
    client: Store, fencing_token: FencingToken, accounts: Iterable[str], known: Container[str]
) -> dict[str, str]:
    """Writes the text LOST_BUDGET for each budget whose last valid version was lost.

    By this text, a later leader knows that the budget's valid version is unreadable.

    Args:
        accounts: the names of the accounts, each of which is its budget's name, too.
        known: the names of the budgets of which the leader has a usable version; nothing is written for them.

    Returns:
        Keyed by account, the text that the store now holds in place of each lost budget.

    Raises:
        StoreError: the store refused the write, or Redis does not answer.
    """
    lost = {name: LOST_BUDGET for name in accounts if name not in known}
    put(
        client,
        fencing_token,
        "HSET",
        keys.BUDGETS,
        [part for name, why in sorted(lost.items()) for part in (name, why)],
    )
    return lost
