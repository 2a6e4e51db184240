"""gunicorn's HTTP/1.1 connection, with limits on silent clients, unread answers, idle time and open connections."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from gunicorn.asgi.protocol import ASGIProtocol

from fairgpu.serving.framing import refuse_overflow

TCP_INFO = struct.Struct("=24xI92xQ16xI")
"""Fields of struct tcp_info (include/uapi/linux/tcp.h): tcpi_unacked, tcpi_bytes_acked and tcpi_notsent_bytes."""

NOTHING_WAITS = -1


class BoundedConnection(ASGIProtocol):  # type: ignore[misc] # gunicorn ships no types
    """A client's HTTP/1.1 connection in gunicorn, with the limits that ServerOptions sets.

    The limits are on the times in which the client must send and read, and on the number of a worker's connections.
    """

    def __init__(self, worker: Any, application: Any, connections: set[BoundedConnection]) -> None:
        super().__init__(worker)
        self.app = application
        self._connections = connections
        self._received = False
        self._received_at = 0.0
        self._idle_since = 0.0
        self._idle_limit = worker.options.header_seconds
        self._unread_since = NOTHING_WAITS  # bytes acknowledged while answers waited

    @classmethod
    def _check_h1c_protocol_available(cls) -> bool:
        """Returns whether gunicorn's parser in C is available.

        The base class is asked, since gunicorn stores the answer on the class that it is called on.
        """
        return bool(ASGIProtocol._check_h1c_protocol_available())  # noqa: SLF001 - see above

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Starts the time limit of a new connection's first request.

        If the worker has max_connections already, it first closes another connection: of those without a request that
        is being answered, the one that has been silent for longest. Without such a connection, it closes the new one.
        """
        super().connection_made(transport)
        self._received_at = self._idle_since = self.worker.loop.time()
        if len(self._connections) >= self.worker.options.max_connections and not self._free_a_place():
            self._connections.add(self)
            transport.abort()
            return
        self._connections.add(self)
        self._wait_idle(self._idle_limit)

    def connection_lost(self, exc: Exception | None) -> None:
        """Removes a closed connection, and its bytes, from the counts that the worker limits."""
        self._connections.discard(self)
        self.worker.arrivals.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts and parses received bytes of a request.

        If the worker's limit on unfinished requests then closes this connection, the bytes are not parsed.
        """
        self._received = True
        self._received_at = self.worker.loop.time()
        if self.worker.arrivals.add(self, len(data)):
            super().data_received(data)

    def cut_off_if_unread(self) -> None:
        """Closes the connection if answers waited at this method's last call and the client has read nothing since.

        A connection on which no answer waits now stays open.

        The kernel's TCP_USER_TIMEOUT does not close the connection of a client that sends but never reads: each
        acknowledgement restarts the timer of its window probes. asyncio's flow control does not close it either: for
        asyncio, an answer is written once the kernel has all of it.
        """
        connection = self.transport.get_extra_info("socket")
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
        except OSError:  # closed, but asyncio has not called connection_lost yet
            return
        segments_under_way, acknowledged, bytes_not_sent = TCP_INFO.unpack(info)
        waits = bool(segments_under_way or bytes_not_sent)
        if waits and acknowledged == self._unread_since:
            self.cut_off()
        self._unread_since = acknowledged if waits else NOTHING_WAITS

    def cut_off(self) -> None:
        """Closes the connection at once, without an answer, and frees its place among the worker's connections."""
        self._connections.discard(self)
        self.transport.abort()

    def _on_message_complete(self) -> None:
        self.worker.arrivals.forget(self)
        super()._on_message_complete()

    def _on_headers_complete(self) -> bool:
        refuse_overflow(self._callback_parser)
        done = bool(super()._on_headers_complete())
        if self._callback_parser.is_chunked:
            self._current_request.must_close = True  # sizes of chunks may wrap: bytes behind them count for nothing
        return done

    def _free_a_place(self) -> bool:
        """Closes the worker's connection that has been silent for longest, to make room for a new one.

        Only connections that are idle, or whose request has not arrived completely, are closed. A client therefore
        cannot shut out other clients by such connections.

        Returns:
            False, without a change, if every connection has a request that is being answered; else True.
        """
        arrivals = self.worker.arrivals
        waiting = [other for other in self._connections if other.is_idle or other in arrivals]
        if not waiting:
            return False
        min(waiting, key=lambda other: other._received_at).cut_off()  # noqa: SLF001 - of this very class
        return True

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way on the connection."""
        return bool(self._awaiting_request and not self._finishing_calls)

    def close_if_silent(self) -> None:
        """Closes the connection if no request is under way and no byte has come since the last call of this method."""
        received, self._received = self._received, False
        if self.is_idle and not received:
            super()._keepalive_timeout()

    def note_answer(self) -> None:
        """Starts the keepalive time after an answer. The time counts from the last byte that the client sent."""
        self._idle_since = self._received_at
        self._idle_limit = self._keepalive

    def _arm_keepalive_timer(self) -> None:
        self._idle_since = self.worker.loop.time()
        self._idle_limit = self._keepalive
        super()._arm_keepalive_timer()

    def _keepalive_timeout(self) -> None:
        remaining = self._idle_since + self._idle_limit - self.worker.loop.time()
        if remaining > 0:
            self._wait_idle(remaining)
        elif self.is_idle:
            super()._keepalive_timeout()
        else:
            self._wait_idle(self._idle_limit)

    def _wait_idle(self, seconds: float) -> None:
        self._keepalive_handle = self.worker.loop.call_later(seconds, self._keepalive_timeout)
