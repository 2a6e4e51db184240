"""Writes the records that all accounts share: payers, prices, budgets, open sessions and published states.

Every function may raise StoreError or redis.RedisError: the store refuses, or does not answer. A function that takes a
fencing token raises FencedError if it has something to write and the store has given a token to a later leader;
`publish_states` raises it once a later leader has published states.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from timekeeper.domain.charges import Assignments
from timekeeper.domain.pricing import Prices
from timekeeper.domain.timestamps import Instant
from timekeeper.domain.usage import means_of_days
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import Call, FencingToken, Store, put, run_one
from timekeeper.ledger.codec import as_text, compact, encode_assignments, encode_prices
from timekeeper.ledger.usage import capacity, changes_by_model
from timekeeper.ledger.writing import HeldTerm

GONE_REPORT_SECONDS = 86400
"""The time, in seconds, for which the store keeps a deleted pod's last report; short, since every past pod has one."""
STATES_PER_CALL = 2000
POINTS_PER_CALL = 1000


@dataclass(frozen=True, slots=True)
class StatesVersion:
    """The version of the published states; versions of different store ids cannot be compared.

    Attributes:
        id: the store id.
        version: a number that grows with each change.
    """

    id: str
    version: int


@dataclass(frozen=True, slots=True)
class Terms:
    """The part of the published states that all namespaces share, as in GET /v1/states.

    Attributes:
        prices: keyed by model, the GPU-hours charged for an hour of a whole GPU.
        default: the state of each namespace that has no published state of its own.
        charge: the admin's settings for charging, keyed by their name in GET /v1/states, such as unknownDeviceMiB.
        unused: as JSON, for namespaces without a published state, if the default budget has safe admission: the state
            `default` with the amounts of a period in which nothing is spent yet. Empty otherwise.
    """

    prices: Mapping[str, float]
    default: str
    charge: Mapping[str, int] = field(default_factory=dict)
    unused: str = ""


def write_assignments(client: Store, fencing_token: FencingToken, changed: Mapping[str, Assignments]) -> None:
    """Writes the payers of namespaces, and adds the payers to the store's list of all accounts.

    Args:
        changed: the payers of each namespace over time, keyed by namespace.
    """
    if not changed:
        return
    namespaces = [part for name, payers in changed.items() for part in (name, encode_assignments(payers))]
    put(client, fencing_token, "HSET", keys.NAMESPACES, namespaces)
    put(
        client,
        fencing_token,
        "SADD",
        keys.ACCOUNTS,
        sorted({account for payers in changed.values() for _, account in payers}),
    )


def write_accounts(client: Store, fencing_token: FencingToken, names: Sequence[str]) -> None:
    """Adds names to the store's list of all accounts; names that it already holds stay."""
    put(client, fencing_token, "SADD", keys.ACCOUNTS, names)


def write_budgets(client: Store, fencing_token: FencingToken, budgets: Mapping[str, Any]) -> None:
    """Writes GPUBudget objects in their last valid version.

    Args:
        budgets: the objects, keyed by name.
    """
    put(
        client,
        fencing_token,
        "HSET",
        keys.BUDGETS,
        [part for name, item in budgets.items() for part in (name, json.dumps(item))],
    )


def write_prices(client: Store, fencing_token: FencingToken, prices: Prices) -> None:
    """Writes the prices of all models over time, as they are charged.

    Args:
        prices: the prices over time, keyed by a model's name or some of its words.
    """
    put(client, fencing_token, "SET", keys.PRICES, [encode_prices(prices)])


def write_since(client: Store, fencing_token: FencingToken, instant: Instant) -> None:
    """Writes the instant from which pods of other stacks are metered."""
    put(client, fencing_token, "SET", keys.SINCE, [str(instant)])


def write_fencing_token(client: Store, fencing_token: FencingToken, term: HeldTerm) -> None:
    """Writes a leader's fencing token and term again if the store lost them, or went back to an earlier leader's."""
    run_one(
        client,
        Call(
            "raise_fencing_token", (keys.BOOK_FENCING_TOKEN, keys.BOOK_TERM), (fencing_token, term.number, term.holder)
        ),
    )


def note_restored(client: Store, fencing_token: FencingToken, accounts: Sequence[str]) -> None:
    """Records that a part of these accounts' spending cannot be attributed to a pod."""
    put(client, fencing_token, "SADD", keys.RESTORED, accounts)


def write_not_settled(
    client: Store, fencing_token: FencingToken, before: AbstractSet[str] | None, names: AbstractSet[str]
) -> None:
    """Replaces the store's list of accounts whose last settlement failed.

    Args:
        before: the names that the store's list has; None if they are not known: the list is then deleted first.
        names: the names that the list has afterwards.
    """
    if before is None:
        run_one(client, Call("put", (keys.NOT_SETTLED, keys.BOOK_FENCING_TOKEN), (fencing_token, "DEL")))
    else:
        put(client, fencing_token, "SREM", keys.NOT_SETTLED, sorted(before - names))
    put(client, fencing_token, "SADD", keys.NOT_SETTLED, sorted(names - (before or frozenset())))


def write_capacity(client: Store, fencing_token: FencingToken, instant: Instant, rates: Mapping[str, int]) -> None:
    """Writes the capacity of the cluster from an instant on.

    Later capacities are deleted: a clock that was ahead has stamped them.

    Args:
        instant: nanoseconds since 1970.
        rates: keyed by model, the capacity in microGPU-seconds a second.
    """
    touched = (keys.BOOK_FENCING_TOKEN, keys.CAPACITY, keys.CAPACITY_OF_MODELS)
    run_one(
        client, Call("write_capacity", touched, (fencing_token, instant, sum(rates.values()), compact(dict(rates))))
    )


def _capacity_instants(client: Store, key: str) -> list[int]:
    """Returns, in order, the readable instants (ns since 1970) that are the fields of the hash under a key."""
    names: Any = client.hkeys(key)
    return sorted(instant for instant in map(reading.whole, names) if instant is not None)


def prune_capacity(client: Store, before: Instant) -> None:
    """Deletes the capacities that were replaced at or before an instant.

    The capacity that holds at that instant stays, under the earlier instant from which it holds. Entries whose instant
    cannot be read stay.
    """
    for key in (keys.CAPACITY, keys.CAPACITY_OF_MODELS):
        instants = [instant for instant in _capacity_instants(client, key) if instant <= before]
        for start in range(0, len(instants) - 1, POINTS_PER_CALL):
            client.hdel(key, *map(str, instants[start : min(start + POINTS_PER_CALL, len(instants) - 1)]))


def thin_capacity(client: Store, before: Instant) -> None:
    """Keeps at most MOST_CHANGES_A_DAY changes of the capacity within each day of UTC that ended by `before`.

    A day with more changes gets one capacity in their place: its mean. No command changes the mean of any day, so a
    leader may stop between two commands.
    """
    _thin(client, keys.CAPACITY_OF_MODELS, changes_by_model(client), before, lambda rates: compact(dict(rates)))
    of_all = {instant: {"": rate} for instant, rate in capacity(client).items()}
    _thin(client, keys.CAPACITY, of_all, before, lambda rates: str(rates[""]))


def _thin(
    client: Store,
    key: str,
    points: Mapping[int, Mapping[str, int]],
    before: int,
    encode: Callable[[Mapping[str, int]], str],
) -> None:
    days = means_of_days(points, before)
    ends = {str(day.end): encode(day.last) for day in days if day.end not in points}
    put(client, None, "HSET", key, [part for point in ends.items() for part in point])
    for day in days:
        put(
            client,
            None,
            "HSET",
            key,
            [part for at in (day.since, *day.replaced) for part in (str(at), encode(day.mean))],
        )
    replaced = [str(instant) for day in days for instant in day.replaced]
    for start in range(0, len(replaced), POINTS_PER_CALL):
        client.hdel(key, *replaced[start : start + POINTS_PER_CALL])


def write_watched(client: Store, fencing_token: FencingToken, pods: Instant, claims: Instant) -> None:
    """Writes the latest instants at which all open sessions were known to go on.

    Args:
        pods: when the pods of all open sessions were known to be alive.
        claims: when the ResourceClaims of all open sessions were known to exist.
    """
    put(client, fencing_token, "SET", keys.WATCHED, [str(pods)])
    put(client, fencing_token, "SET", keys.WATCHED_CLAIMS, [str(claims)])


def write_silent(client: Store, fencing_token: FencingToken, silent: Mapping[str, Instant]) -> None:
    """Replaces the store's list of silent nodes.

    Args:
        silent: keyed by node, its last sign of life.
    """
    put(client, fencing_token, "SET", keys.SILENT, [compact(dict(silent))])


def note_unmetered(client: Store, fencing_token: FencingToken, ends: Mapping[str, Instant]) -> None:
    """Writes, under the key UNMETERED, the ends of sessions whose pods are not observed any more.

    Args:
        ends: the end of each session, keyed by its uid. A key that ends with `keys.SEEN` has the instant that
            `reading.unmetered` describes.
    """
    put(client, fencing_token, "HSET", keys.UNMETERED, [part for uid, end in ends.items() for part in (uid, str(end))])


def forget_unmetered(client: Store, fencing_token: FencingToken, uids: Iterable[str]) -> None:
    """Removes what `note_unmetered` wrote under these keys, which are uids or end with `keys.SEEN`."""
    put(client, fencing_token, "HDEL", keys.UNMETERED, sorted(uids))


def write_past(client: Store, fencing_token: FencingToken, until: Instant) -> None:
    """Writes the instant of a reconciliation before the reconciliation settles any session.

    A later leader whose clock is behind takes back no charge up to this instant.

    Args:
        until: the leader's time or, if earlier, the store's.

    Raises:
        FencedError: the store has given a fencing token to a later leader.
        StoreError: the store refused the write, or Redis does not answer.
    """
    put(client, fencing_token, "SET", keys.PAST, [str(until)])


def index_sessions(
    client: Store, fencing_token: FencingToken, opened: Sequence[tuple[str, str]], closed: Sequence[tuple[str, str]]
) -> None:
    """Adds sessions to the store's index of open sessions, and removes other sessions from the index.

    Sessions are added first, so that a session that moves to another account never leaves the index: reports of
    sessions outside the index are refused.

    Args:
        opened: (uid, account) of each session to add.
        closed: (uid, account) of each session to remove.
    """
    put(
        client,
        fencing_token,
        "ZADD",
        keys.OPEN_SESSIONS,
        [part for uid, account in opened for part in ("0", f"{uid} {account}")],
    )
    put(client, fencing_token, "ZREM", keys.OPEN_SESSIONS, [f"{uid} {account}" for uid, account in closed])


def expire_reports(client: Store, uids: Sequence[str]) -> None:
    """Lets the stored reports of deleted pods expire after GONE_REPORT_SECONDS."""
    if not uids:
        return
    pipeline = client.pipeline(transaction=False)
    for uid in uids:
        pipeline.expire(keys.report(uid), GONE_REPORT_SECONDS)
    pipeline.execute()


def renew_index(
    client: Store, fencing_token: FencingToken, sessions: Iterable[tuple[str, str]], spared: Container[str] = ()
) -> None:
    """Makes the store's index of open sessions hold exactly these sessions; entries of spared accounts stay.

    The index lacks a session if a leader ended after it wrote the session and before it wrote the index.

    Args:
        sessions: (uid, account) of each open session.
        spared: the accounts whose entries in the index stay.
    """
    members: Any = client.zrange(keys.OPEN_SESSIONS, 0, -1)
    parts = (member.decode().partition(" ") for member in members)
    indexed, wanted = {(uid, account) for uid, _, account in parts if account not in spared}, set(sessions)
    index_sessions(client, fencing_token, sorted(wanted - indexed), sorted(indexed - wanted))


def publish_states(
    client: Store,
    fencing_token: FencingToken,
    new_id: str,
    states: Mapping[str, str],
    terms: Terms,
    servers: str = "",
) -> StatesVersion:
    """Publishes changed states of namespaces, each as JSON, and wakes the readers that wait for them.

    Without states, and with terms and servers as published before, the version stays and no reader is woken.

    Args:
        new_id: the store id to use if the store has none, or if other servers hold the store than at the last
            publication.
        states: keyed by namespace, its changed state as JSON.
        terms: the part that all namespaces share.
        servers: the run ids of the Redis servers that hold the store.

    Returns:
        The version of the states after the change.
    """
    touched = (keys.STATES_HEAD, keys.STATES_VALUES, keys.STATES_CHANGES)
    prices, charge = (json.dumps(dict(values), sort_keys=True) for values in (terms.prices, terms.charge))
    head = (fencing_token, new_id, keys.STATES_CHANNEL, prices, terms.default, charge, terms.unused, servers)
    changes = list(states.items())
    version = StatesVersion(new_id, 0)
    for start in range(0, max(len(changes), 1), STATES_PER_CALL):
        pairs = [part for change in changes[start : start + STATES_PER_CALL] for part in change]
        store_id, number = run_one(client, Call("publish_states", touched, (*head, *pairs)))
        version = StatesVersion(as_text(store_id), int(number or 0))
    return version
