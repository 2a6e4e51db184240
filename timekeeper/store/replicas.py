"""Waits until a replica holds what was written, so that it outlives the loss of the server that took it."""

from __future__ import annotations

from typing import Any

import redis

from timekeeper.store import keys


def replicated(client: redis.Redis, epoch: int, seconds: float) -> bool:
    """Whether a replica holds all that the server took before this call; True where the server has none.

    WAIT speaks of what its own connection wrote (https://redis.io/commands/wait), and what is to be waited for may have
    gone over another one, or be there since an earlier attempt. So a mark is written first: replicas take writes in the
    server's order, and whoever holds the mark holds all that came before it.

    Args:
        client: the store.
        epoch: the leader's, which the mark tells.
        seconds: how long to wait; 0 for not at all. Less than the client waits for an answer.

    Raises:
        redis.RedisError: the store does not answer.
    """
    milliseconds = int(seconds * 1000)
    if milliseconds == 0 or not _has_replica(client):
        return True
    pipeline = client.pipeline(transaction=False)
    pipeline.set(keys.MARK, str(epoch))
    pipeline.wait(1, milliseconds)
    _, holders = pipeline.execute()
    return int(holders) >= 1


def _has_replica(client: redis.Redis) -> bool:
    found: Any = client.info("replication")
    return int(found.get("connected_slaves", 0)) > 0
