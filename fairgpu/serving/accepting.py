"""Accepts connections from a listener that several processes share, so that each process serves some of them."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Awaitable, Callable

import structlog

from fairgpu.serving.addresses import limited_address
from fairgpu.serving.handshakes import Handshakes

_log = structlog.get_logger(__name__)

STEP_SECONDS = 0.0005
MAX_STEPS = 10
PATIENT_TURNS = 16
MAX_BATCH = 256
PAUSE_SECONDS = 1.0

Serve = Callable[[socket.socket], Awaitable[object]]
"""A coroutine function that completes the TLS handshake of a connection, and serves the connection."""


class Acceptor:
    """Accepts the connections of one listener in one of the processes that share it, so that each gets a part of them.

    An event loop's own server accepts all waiting connections at once. Clients keep their connections: the process that
    wakes up first would get all of the work from then on, and the other processes none. So this process accepts one
    connection in a turn, and before each turn waits the longer, the more connections it has: up to 5 milliseconds.

    If connections still wait after PATIENT_TURNS turns in a row, each turn accepts twice as many as the turn before, up
    to MAX_BATCH.
    Many silent connections then do not keep a client waiting.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        serve: Serve,
        held: Callable[[], int],
        handshakes: Handshakes,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._serve = serve
        self._held = held
        self._handshakes = handshakes
        self._timer: asyncio.TimerHandle | None = None
        self._turns = 0
        self._waiting = select.poll()
        self._waiting.register(listener.fileno(), select.POLLIN)

    def start(self) -> None:
        """Starts accepting connections."""
        self._loop.add_reader(self._listener.fileno(), self._wait_for_turn)

    def close(self) -> None:
        """Stops accepting connections; those that were accepted stay open."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listener.fileno())

    def _wait_for_turn(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        seconds = min(self._held() + len(self._handshakes), MAX_STEPS) * STEP_SECONDS
        self._timer = self._loop.call_later(seconds, self._take_turn)

    def _take_turn(self) -> None:
        for _ in range(batch(self._turns)):
            try:
                connection, peer = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                break  # another process was faster, or the client left
            except OSError as error:
                self._pause(error)
                return
            connection.setblocking(False)
            self._handshakes.add(self._loop.create_task(self._shake_hands(connection)), address_of(peer))
        self._turns = self._turns + 1 if self._waiting.poll(0) else 0
        self.start()

    def _pause(self, error: OSError) -> None:
        """Frees a file descriptor, since none is free for a new connection, and then accepts connections again.

        It ends one unfinished TLS handshake, as `Handshakes.end_one` chooses it. The event loop accepts connections
        again after STEP_SECONDS; if no handshake was ended, after PAUSE_SECONDS.

        Args:
            error: the error with which the operating system refused the connection.
        """
        _log.error("no connection taken", error=str(error))
        freed = self._handshakes.end_one()
        self._timer = self._loop.call_later(STEP_SECONDS if freed else PAUSE_SECONDS, self.start)

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            await self._serve(connection)
        except OSError as error:  # a client that speaks no TLS, an old one, or none at all within its time
            _log.debug("no handshake", error=str(error))


async def first_bytes(loop: asyncio.AbstractEventLoop, connection: socket.socket, seconds: float) -> bool:
    """Waits until a client has sent its first bytes, which stay unread; returns False if they do not come in time.

    The result is also True if the client closes the connection in time.

    In a TLS handshake the client sends first. A server that waits for these bytes keeps no TLS state for silent
    clients.

    Args:
        loop: the event loop that watches the connection.
        connection: the client's connection.
        seconds: the longest wait.
    """
    spoken = asyncio.Event()
    loop.add_reader(connection.fileno(), spoken.set)
    try:
        async with asyncio.timeout(seconds):
            await spoken.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(connection.fileno())
    return True


def batch(turns: int) -> int:
    """Returns the number of connections that `Acceptor` accepts in its next turn: 1 up to PATIENT_TURNS, then more.

    Args:
        turns: the number of turns, up to now and in a row, after which connections still waited in the queue.
    """
    return min(1 << max(turns - PATIENT_TURNS, 0), MAX_BATCH)


def address_of(peer: object) -> str:
    """Returns the text under which limits count a client: its IPv4 address without the port, or its IPv6 network.

    Args:
        peer: the client's address as a socket gives it. All clients of a Unix socket count as one, the empty text.
    """
    return limited_address(str(peer[0])) if isinstance(peer, tuple) else ""
