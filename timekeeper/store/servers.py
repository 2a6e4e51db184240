"""Which servers hold the store at the moment, and which run and history of each of them answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import redis

from timekeeper.store import keys
from timekeeper.store.cluster import ClusterStore

MOST_MARKS = 100_000
"""Marks that are tried for one node: one that still takes writes has slots, and so one of far fewer."""

Answer = TypeVar("Answer")


def servers_of(client: redis.Redis, accounts: Sequence[str] | None = None) -> list[tuple[redis.Redis, str]]:
    """The servers that take writes, each with the key of its mark; those of some accounts, or all.

    Raises:
        redis.RedisError: the store does not answer.
    """
    cluster: Any = client
    if not isinstance(cluster, ClusterStore):
        return [(client, keys.MARK)]
    wanted = None if accounts is None else {cluster.address_of(keys.AccountKeys(name).head) for name in accounts}
    primaries = [found for found in cluster.primaries() if wanted is None or found[0] in wanted]
    return [(server, _mark_at(cluster, address)) for address, server in primaries]


def ask_each(client: redis.Redis, question: Callable[[redis.Redis], Answer]) -> list[Answer]:
    """What each server that takes writes answers; where one is away, whoever has taken its place is asked.

    Raises:
        redis.RedisError: the store does not answer.
    """
    cluster: Any = client
    try:
        return [question(server) for server, _ in servers_of(client)]
    except (redis.ConnectionError, redis.TimeoutError):
        if not isinstance(cluster, ClusterStore):
            raise
        cluster.look_again()
        return [question(server) for server, _ in servers_of(client)]


def identity(client: redis.Redis) -> tuple[str, bool]:
    """Which run and history of each server answers, and whether the store was ever led.

    Both change where something was lost: a server that was restarted has another run_id, a replica that was promoted
    another one and another replication id (https://redis.io/docs/latest/commands/info/).
    """
    return " ".join(ask_each(client, _run_of)), bool(client.exists(keys.BOOK_EPOCH))


def store_clock(client: redis.Redis) -> int:
    """What time it is by the servers' clocks, in nanoseconds since 1970: the earliest, where there are several.

    Raises:
        redis.RedisError: the store does not answer.
    """
    return min(ask_each(client, _clock_of))


def _clock_of(server: redis.Redis) -> int:
    seconds, microseconds = server.time()
    return (int(seconds) * 1_000_000 + int(microseconds)) * 1000


def _run_of(server: redis.Redis) -> str:
    pipeline = server.pipeline(transaction=False)
    pipeline.info("server")
    pipeline.info("replication")
    of_server, of_replication = pipeline.execute()
    return f"{of_server['run_id']}/{of_replication['master_replid']}"


def _mark_at(cluster: ClusterStore, address: str) -> str:
    """The first of the marks that lies on a node."""
    for key in map(keys.mark, range(MOST_MARKS)):
        if cluster.address_of(key) == address:
            return key
    raise redis.ConnectionError(f"{address} has no slots any more: the cluster has changed meanwhile")
