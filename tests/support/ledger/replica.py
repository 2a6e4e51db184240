"""A replica of the store that lacks the last writes."""

from __future__ import annotations

import redis


class Replica:
    """A copy of the store as it was when the replica received its last write."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._held = {key: client.dump(key) for key in client.scan_iter()}

    def promote(self) -> None:
        """The copy becomes the store, with another history of the server."""
        self._client.flushall()
        for key, dumped in self._held.items():
            self._client.restore(key, 0, dumped)
        self._client.replicaof("127.0.0.1", "1")
        self._client.replicaof("NO", "ONE")
