"""Writes what concerns all accounts: who pays for which namespace, the prices, who is open, and the states."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from timekeeper.metering.segments import Assignments
from timekeeper.rules.pricing import Prices
from timekeeper.store import keys
from timekeeper.store.calls import Call, StoreError, run, run_one
from timekeeper.store.records import encode_assignments, encode_prices
from timekeeper.store.reports import REPORT_SECONDS

GONE_REPORT_SECONDS = 86400
"""How long a pod's last report is kept once the pod is gone: every pod that ever ran has one."""
STATES_PER_CALL = 2000
PUT_AT_ONCE = 1000
"""Arguments of one call, in pairs; Lua's stack holds some thousands."""


@dataclass(frozen=True, slots=True)
class StatesVersion:
    """How far the published states are; a version means nothing beside another id."""

    id: str
    version: int


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for all namespaces, as in GET /v1/states.

    Attributes:
        prices: GPU-hours charged for an hour of a whole GPU, by model.
        default: the state of namespaces that were never named.
        charge: what the admin decides about charging.
    """

    prices: Mapping[str, float]
    default: str
    charge: Mapping[str, int] = field(default_factory=dict)


def write_assignments(client: redis.Redis, changed: Mapping[str, Assignments]) -> None:
    """Writes down who pays for namespaces, and the accounts' names."""
    if not changed:
        return
    namespaces = [part for name, found in changed.items() for part in (name, encode_assignments(found))]
    _put(client, "HSET", keys.NAMESPACES, namespaces)
    _put(client, "SADD", keys.ACCOUNTS, sorted({account for found in changed.values() for _, account in found}))


def write_accounts(client: redis.Redis, names: Sequence[str]) -> None:
    """Writes down the names of accounts."""
    _put(client, "SADD", keys.ACCOUNTS, names)


def write_budgets(client: redis.Redis, budgets: Mapping[str, Any]) -> None:
    """Writes down budgets as they last could be used."""
    _put(client, "HSET", keys.BUDGETS, [part for name, item in budgets.items() for part in (name, json.dumps(item))])


def write_prices(client: redis.Redis, prices: Prices) -> None:
    """Writes down the prices as they are charged."""
    _put(client, "SET", keys.PRICES, [encode_prices(prices)])


def highest_epoch(client: redis.Redis) -> int:
    """The highest epoch that the store has given out: the floor for the number of a new term."""
    return int(client.get(keys.BOOK_EPOCH) or 0)


def write_epoch(client: redis.Redis, epoch: int) -> None:
    """Writes down the epoch of the leader again where the store has lost it, or went back to an earlier one."""
    run_one(client, Call("raise_epoch", (keys.BOOK_EPOCH,), (epoch,)))


def note_restored(client: redis.Redis, accounts: Sequence[str]) -> None:
    """Writes down that nobody can be named for some of what these accounts have spent."""
    _put(client, "SADD", keys.RESTORED, accounts)


def write_capacity(client: redis.Redis, instant: int, rate: int) -> None:
    """Writes down what all nodes have from an instant on, in microGPU-seconds a second."""
    _put(client, "HSET", keys.CAPACITY, [str(instant), str(rate)])


def write_watched(client: redis.Redis, until: int) -> None:
    """Writes down until when all open sessions are known to live."""
    _put(client, "SET", keys.WATCHED, [str(until)])


def index_sessions(client: redis.Redis, opened: Sequence[tuple[str, str]], closed: Sequence[tuple[str, str]]) -> None:
    """Adds and removes (uid, account) in the index of open sessions."""
    if closed:
        client.zrem(keys.OPEN_SESSIONS, *(f"{uid} {account}" for uid, account in closed))
    _put(client, "ZADD", keys.OPEN_SESSIONS, [part for uid, account in opened for part in ("0", f"{uid} {account}")])


def end_reports(client: redis.Redis, uids: Sequence[str]) -> None:
    """Keeps no more of what these pods reported than what is told of ended ones.

    Raises:
        StoreError: it was refused, or Redis does not answer.
    """
    for answer in run(client, [Call("end_report", (keys.report(uid),), (REPORT_SECONDS,)) for uid in uids]):
        if isinstance(answer, Exception):
            raise answer


def let_reports_go(client: redis.Redis, uids: Sequence[str]) -> None:
    """Keeps what these pods reported for a short while only."""
    if not uids:
        return
    pipeline = client.pipeline(transaction=False)
    for uid in uids:
        pipeline.expire(keys.report(uid), GONE_REPORT_SECONDS)
    pipeline.execute()


def renew_index(client: redis.Redis, sessions: Iterable[tuple[str, str]], spared: Container[str] = ()) -> None:
    """Makes the index hold these (uid, account) and no others: a leader may end between a session and its entry.

    The entries of accounts that are `spared` stay.
    """
    members: Any = client.zrange(keys.OPEN_SESSIONS, 0, -1)
    parts = (member.decode().partition(" ") for member in members)
    known, wanted = {(uid, account) for uid, _, account in parts if account not in spared}, set(sessions)
    index_sessions(client, sorted(wanted - known), sorted(known - wanted))


def publish_states(
    client: redis.Redis,
    epoch: int,
    new_id: str,
    states: Mapping[str, str],
    terms: Terms,
    servers: str = "",
) -> StatesVersion:
    """Publishes changed states of namespaces, each as JSON, and wakes whoever waits for them.

    Args:
        client: the store.
        epoch: the leader's.
        new_id: the id of the states where the store has none, or other servers hold it than when they were published.
        states: namespace to its state as JSON.
        terms: what holds for all of them.
        servers: which runs of which servers hold the store.

    Raises:
        StoreError: it was refused, or Redis does not answer.
    """
    touched = (keys.STATES_HEAD, keys.STATES_VALUES, keys.STATES_CHANGES)
    prices, charge = (json.dumps(dict(found), sort_keys=True) for found in (terms.prices, terms.charge))
    head = (epoch, new_id, keys.STATES_CHANNEL, prices, terms.default, charge, servers)
    changes = list(states.items())
    version = StatesVersion(new_id, 0)
    for start in range(0, max(len(changes), 1), STATES_PER_CALL):
        pairs = [part for change in changes[start : start + STATES_PER_CALL] for part in change]
        found, number = run_one(client, Call("publish_states", touched, (*head, *pairs)))
        version = StatesVersion(found.decode() if isinstance(found, bytes) else found, int(number or 0))
    return version


def _put(client: redis.Redis, command: str, key: str, arguments: Sequence[str]) -> None:
    """Runs a command that writes to one key, in several calls where it has many arguments, and in none without any.

    Raises:
        StoreError: it was refused, or Redis does not answer; a full one refuses nothing of this.
    """
    parts = [arguments[start : start + PUT_AT_ONCE] for start in range(0, len(arguments), PUT_AT_ONCE)]
    for answer in run(client, [Call("put", (key,), (command, *part)) for part in parts]):
        if isinstance(answer, StoreError):
            raise answer
