"""What clients have sent of requests that are not whole yet: bounded over all connections of a worker."""

from __future__ import annotations

from typing import Protocol


class Sender(Protocol):
    """A connection on which a request arrives."""

    def cut_off(self) -> None:
        """Ends it at once."""


class Arrivals:
    """Ends the connection whose request has been arriving for longest, as often as there is too much.

    A body may be long, and there may be many connections: both together are more memory than there is. An honest client
    sends what it has within milliseconds, so that it is never the one that began first.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes: dict[Sender, int] = {}
        """In the order in which the requests began."""
        self._total = 0

    def add(self, sender: Sender, count: int) -> bool:
        """Notes that so many bytes have come; whether the connection may go on."""
        self._bytes[sender] = self._bytes.get(sender, 0) + count
        self._total += count
        while self._total > self._most_bytes:
            oldest = next(iter(self._bytes))
            self.forget(oldest)
            oldest.cut_off()
            if oldest is sender:
                return False
        return True

    def forget(self, sender: Sender) -> None:
        """Notes that its request is whole, or will never be."""
        self._total -= self._bytes.pop(sender, 0)
