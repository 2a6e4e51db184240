"""How much room is left in the store for what pods cause: the rest of its memory is for closing what is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from timekeeper.store.servers import ask_each

PODS_SHARE = 0.8
"""The part of maxmemory up to which reports and new sessions are written."""
ASK_SECONDS = 1.0


def is_full_for_pods(client: redis.Redis) -> bool:
    """Whether any server uses more of its maxmemory than pods may have it use; never where it has none.

    Raises:
        redis.RedisError: the store does not answer.
    """
    return any(ask_each(client, lambda server: _is_full(server.info("memory"))))


class MemoryWatch:
    """Asks for it once a second at most. Used by one thread."""

    def __init__(self, client: redis.Redis, clock: Callable[[], float]) -> None:
        """`clock` is a monotonic one, in seconds."""
        self._client = client
        self._clock = clock
        self._asked_at = float("-inf")
        self._full = False

    def is_full(self) -> bool:
        """Whether it was, at most a second ago.

        Raises:
            redis.RedisError: the store does not answer.
        """
        now = self._clock()
        if now - self._asked_at >= ASK_SECONDS:
            self._full, self._asked_at = is_full_for_pods(self._client), now
        return self._full


def _is_full(info: Any) -> bool:
    """By what Redis itself compares with maxmemory: not the buffers of replicas and of its append-only file."""
    limit = int(info.get("maxmemory", 0))
    used = int(info["used_memory"]) - int(info.get("mem_not_counted_for_evict", 0))
    return limit > 0 and used >= PODS_SHARE * limit
