"""Which servers hold the store at the moment, and which run and history of each of them answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import redis

from timekeeper.store import keys
from timekeeper.store.cluster import ClusterStore


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


def identity(client: redis.Redis) -> tuple[str, bool]:
    """Which run and history of each server answers, and whether the store was ever led.

    Both change where something was lost: a server that was restarted has another run_id, a replica that was promoted
    another one and another replication id (https://redis.io/docs/latest/commands/info/).
    """
    found = []
    for server, _ in servers_of(client):
        pipeline = server.pipeline(transaction=False)
        pipeline.info("server")
        pipeline.info("replication")
        of_server, of_replication = pipeline.execute()
        found.append(f"{of_server['run_id']}/{of_replication['master_replid']}")
    return " ".join(found), bool(client.exists(keys.BOOK_EPOCH))


def _mark_at(cluster: ClusterStore, address: str) -> str:
    """The first of the marks that lies on a node."""
    return next(key for key in map(keys.mark, count()) if cluster.address_of(key) == address)
