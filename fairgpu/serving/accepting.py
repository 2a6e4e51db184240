"""Takes connections from a listener that several processes share, so that each process gets its part of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import structlog

_log = structlog.get_logger(__name__)

STEP_SECONDS = 0.0005
MAX_STEPS = 10
PAUSE_SECONDS = 1.0

Serve = Callable[[socket.socket], Awaitable[object]]
"""Shakes hands with who called, and serves them from then on."""


class Acceptor:
    """Takes one connection at a time, and the later the more there are already.

    An event loop's own server takes all that wait in one go. Clients keep their connections: whichever process woke
    up first would have all of the work from then on, and the others none.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listener: socket.socket, serve: Serve, held: Callable[[], int]
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._serve = serve
        self._held = held
        self._timer: asyncio.TimerHandle | None = None
        self._handshakes: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Takes connections from now on."""
        self._loop.add_reader(self._listener.fileno(), self._let_others_go_first)

    def close(self) -> None:
        """Takes no more; those that were taken live on."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listener.fileno())

    def _let_others_go_first(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        under_way = len(self._handshakes)
        seconds = min(self._held() + under_way, MAX_STEPS) * STEP_SECONDS
        self._timer = self._loop.call_later(seconds, self._take)

    def _take(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            self.start()  # another process was faster, or the client left
            return
        except OSError as error:
            _log.error("no connection taken", error=str(error))
            self._timer = self._loop.call_later(PAUSE_SECONDS, self.start)
            return
        connection.setblocking(False)
        handshake = self._loop.create_task(self._shake_hands(connection))
        self._handshakes.add(handshake)
        handshake.add_done_callback(self._handshakes.discard)
        self.start()

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            await self._serve(connection)
        except OSError as error:  # a client that speaks no TLS, an old one, or none at all within its time
            _log.debug("no handshake", error=str(error))
