"""Connections that have not shaken hands yet: a bounded number, of each address and in all."""

from __future__ import annotations

import asyncio

Handshake = asyncio.Task[None]
Pending = dict[Handshake, None]
"""In the order in which they began."""


class Handshakes:
    """Makes room for who comes by ending the oldest of the address that has the most.

    An honest client takes milliseconds, so that the oldest is one that does not hurry; and whoever holds many places,
    from one address or from many, loses their own first.
    """

    def __init__(self, limit: int, limit_of_address: int) -> None:
        """At most `limit` are kept in all, and `limit_of_address` of each address."""
        self._limit = limit
        self._limit_of_address = limit_of_address
        self._pending: dict[str, Pending] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, handshake: Handshake, address: str) -> None:
        """Keeps one until it is done, in the place of another where there is no room."""
        if len(self._pending.get(address, ())) >= self._limit_of_address:
            self._end_oldest(address)
        elif self._count >= self._limit:
            self.end_one()
        self._pending.setdefault(address, {})[handshake] = None
        self._count += 1
        handshake.add_done_callback(lambda done: self._forget(done, address))

    def end_one(self) -> bool:
        """Ends the oldest of the address that has the most; says whether there was any."""
        if not self._pending:
            return False
        self._end_oldest(max(self._pending, key=lambda address: len(self._pending[address])))
        return True

    def _end_oldest(self, address: str) -> None:
        oldest = next(iter(self._pending[address]))
        self._forget(oldest, address)
        # Not before its first step, by which the socket comes into its care: without that, nobody would close it.
        oldest.get_loop().call_soon(oldest.cancel)

    def _forget(self, handshake: Handshake, address: str) -> None:
        pending = self._pending.get(address, {})
        if handshake not in pending:
            return
        del pending[handshake]
        self._count -= 1
        if not pending:
            del self._pending[address]
