"""gunicorn's HTTP/1.1 connection with the bounds that it leaves open."""

from __future__ import annotations

import asyncio
from typing import Any

from gunicorn.asgi.protocol import ASGIProtocol


class BoundedConnection(ASGIProtocol):  # type: ignore[misc] # gunicorn ships no types
    """A connection that has to speak in time, is one of a bounded number, and can be found when the server ends."""

    def __init__(self, worker: Any, application: Any, connections: set[BoundedConnection]) -> None:
        super().__init__(worker)
        self.app = application
        self._connections = connections
        self._heard = False

    @classmethod
    def _check_h1c_protocol_available(cls) -> bool:
        """Asks the base class, which keeps the answer with the class that it is called on, and reads it from itself."""
        return bool(ASGIProtocol._check_h1c_protocol_available())  # noqa: SLF001 - see above

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Starts the clock for the first request; gunicorn itself starts it only between requests."""
        super().connection_made(transport)
        self._connections.add(self)
        if len(self._connections) > self.worker.options.max_connections:
            transport.abort()
            return
        self._keepalive_handle = self.worker.loop.call_later(
            self.worker.options.header_seconds, self._keepalive_timeout
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._connections.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes note that the client speaks."""
        self._heard = True
        super().data_received(data)

    def close_if_silent(self) -> None:
        """Closes a connection on which no request is under way and nothing came since this was last asked."""
        heard, self._heard = self._heard, False
        if self._awaiting_request and not heard and not self._finishing_calls:
            self._keepalive_timeout()
