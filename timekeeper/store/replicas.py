"""Waits until a replica holds what was written, so that it outlives the loss of the server that took it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from timekeeper.store.servers import servers_of

MARK_SECONDS = 10 * 365 * 86400
"""For how long a mark is kept."""


def replicated(client: redis.Redis, epoch: int, seconds: float, accounts: Sequence[str] | None = None) -> bool:
    """Whether a replica holds all that each server took before this call; True of a server that has none.

    WAIT speaks of what its own connection wrote (https://redis.io/commands/wait), and what is to be waited for may have
    gone over another one, or be there since an earlier attempt. So a mark is written first: replicas take writes in the
    server's order, and whoever holds the mark holds all that came before it.

    Args:
        client: the store.
        epoch: the leader's, which the mark tells.
        seconds: how long to wait for one server; 0 for not at all. Less than the client waits for an answer.
        accounts: those that were written to, as other servers of a cluster need not be waited for; None for all.

    Raises:
        redis.RedisError: the store does not answer.
    """
    milliseconds = int(seconds * 1000)
    if milliseconds == 0:
        return True
    return all(_holds(server, mark, epoch, milliseconds) for server, mark in servers_of(client, accounts))


def _holds(server: redis.Redis, mark: str, epoch: int, milliseconds: int) -> bool:
    if not _has_replica(server):
        return True
    pipeline = server.pipeline(transaction=False)
    pipeline.set(mark, str(epoch))
    pipeline.expire(mark, MARK_SECONDS)
    pipeline.wait(1, milliseconds)
    *written, holders = pipeline.execute(raise_on_error=False)
    for answer in (*written, holders):
        # Where no memory is left, the mark stays as it was: that it is kept for longer is a write, too.
        if isinstance(answer, Exception) and not isinstance(answer, redis.exceptions.OutOfMemoryError):
            raise answer
    return int(holders) >= 1


def _has_replica(server: redis.Redis) -> bool:
    found: Any = server.info("replication")
    return int(found.get("connected_slaves", 0)) > 0
