"""Limits on unfinished requests and TLS handshakes, over all connections of a worker."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Sender(Protocol):
    """The server's object for one client's connection, whose bytes `Arrivals` counts."""

    def cut_off(self) -> None:
        """Closes the connection at once, without an answer."""


class Arrivals:
    """Limits the bytes that a worker has received of unfinished requests, over all its connections.

    Beyond the limit, the connection whose unfinished request began first is closed. An honest client sends its request
    within milliseconds, so that its request is never the oldest. The limits on one body and on the number of
    connections do not suffice: their product exceeds the memory.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes: dict[Sender, int] = {}
        """The bytes received so far, keyed by connection, in the order in which the requests began."""
        self._total = 0

    def add(self, sender: Sender, count: int) -> bool:
        """Counts received bytes of an unfinished request.

        Beyond the limit, closes the connections with the oldest unfinished requests, until the bytes are within it.

        Args:
            sender: the connection on which the bytes came.
            count: the number of bytes.

        Returns:
            False if `sender` itself was closed, else True.
        """
        self._bytes[sender] = self._bytes.get(sender, 0) + count
        self._total += count
        while self._total > self._most_bytes:
            oldest = next(iter(self._bytes))
            self.forget(oldest)
            oldest.cut_off()
            if oldest is sender:
                return False
        return True

    def __contains__(self, sender: Sender) -> bool:
        return sender in self._bytes

    def forget(self, sender: Sender) -> None:
        """Ends the count of a connection's bytes, once its request is complete or the connection is closed."""
        self._total -= self._bytes.pop(sender, 0)


Handshake = asyncio.Task[None]
Pending = dict[Handshake, None]
"""Handshakes in the order in which they began."""


class Handshakes:
    """Limits the unfinished TLS handshakes of a server, in all and for each client address.

    At the limit for an address, a new handshake ends the oldest one of the same address. At the limit in all, it ends
    the oldest one of the address that has the most handshakes. An honest client takes milliseconds, so that the oldest
    handshake is a slow client's.
    """

    def __init__(self, limit: int, limit_of_address: int) -> None:
        """Allows at most `limit` unfinished handshakes in all, and `limit_of_address` from each client address."""
        self._limit = limit
        self._limit_of_address = limit_of_address
        self._pending: dict[str, Pending] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, handshake: Handshake, address: str) -> None:
        """Counts a new handshake until it is done; if a limit is reached already, ends an older handshake.

        Args:
            handshake: the task of the handshake.
            address: the text under which limits count the client, as `address_of` returns it.
        """
        if len(self._pending.get(address, ())) >= self._limit_of_address:
            self._end_oldest(address)
        elif self._count >= self._limit:
            self.end_one()
        self._pending.setdefault(address, {})[handshake] = None
        self._count += 1
        handshake.add_done_callback(lambda done: self._forget(done, address))

    def end_one(self) -> bool:
        """Ends the oldest handshake of the client address that has the most; returns False if there is no handshake."""
        if not self._pending:
            return False
        self._end_oldest(max(self._pending, key=lambda address: len(self._pending[address])))
        return True

    def _end_oldest(self, address: str) -> None:
        oldest = next(iter(self._pending[address]))
        self._forget(oldest, address)
        # Not before its first step, with which it takes over the socket: else the socket would stay open.
        oldest.get_loop().call_soon(oldest.cancel)

    def _forget(self, handshake: Handshake, address: str) -> None:
        pending = self._pending.get(address, {})
        if handshake not in pending:
            return
        del pending[handshake]
        self._count -= 1
        if not pending:
            del self._pending[address]
