"""A replica of the store that lacks the last writes."""

from __future__ import annotations

import redis


class Replica:
    """A copy of the store as it is when the object is made; the store's later writes are not in it."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._held = {key: client.dump(key) for key in client.scan_iter()}

    def promote(self) -> None:
        """Makes the copy the store, and gives the server another replication history."""
        self._client.flushall()
        for key, dumped in self._held.items():
            self._client.restore(key, 0, dumped)
        self._client.replicaof("127.0.0.1", "1")
        self._client.replicaof("NO", "ONE")
