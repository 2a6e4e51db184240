"""An HTTP connection that answers some requests at once, in the call that receives their last byte."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from http import HTTPStatus
from operator import itemgetter
from typing import Any

from gunicorn.asgi.protocol import _get_cached_date_header as date_header

from fairgpu.serving.connection import BoundedConnection
from fairgpu.serving.framing import refuse_overflow
from fairgpu.serving.messages import ImmediateAnswer, Response, body_came_late

_name = itemgetter(0)
UNUSUAL_HEADERS = frozenset((b"expect", b"transfer-encoding", b"upgrade"))


class ImmediateConnection(BoundedConnection):
    """An HTTP/1.1 connection of gunicorn that answers requests for an application's immediate routes by itself.

    For every request, gunicorn creates a scope, a task and a future and wakes two coroutines, which often costs more
    than the answer. Requests for other routes are left to gunicorn, and so are these:

    - requests with an unusual header, or with a body that is too long or of unknown length;
    - requests on a connection that is to close, behind a request that is still being answered, or of a client that is
      slow to read;
    - all requests while requests are logged or the worker is ending.

    The parser calls this object's methods for headers, body and end while it parses. They must not change the parser,
    so they only note what has come.
    """

    def __init__(self, worker: Any, application: Any, connections: set[BoundedConnection]) -> None:
        super().__init__(worker, application, connections)
        self._immediate = getattr(application, "immediate", {})
        self._answer: ImmediateAnswer | None = None
        self._chunks: list[bytes] = []
        self._late_handle: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way on the connection."""
        return self._answer is None and super().is_idle

    def connection_lost(self, exc: Exception | None) -> None:
        """Drops the request that had not been answered when the connection was closed."""
        self._forget_request()
        super().connection_lost(exc)

    def _on_headers_complete(self) -> bool:
        refuse_overflow(self._callback_parser)
        self._answer = self._immediate_answer()
        return self._answer is None and bool(super()._on_headers_complete())

    def _on_body(self, chunk: bytes) -> None:
        if self._answer is None:
            super()._on_body(chunk)
        else:
            self._chunks.append(chunk)

    def _on_message_complete(self) -> None:
        if self._answer is None:
            super()._on_message_complete()
        else:
            self.worker.arrivals.forget(self)

    def _feed_callback_parser(self, data: bytes) -> bool:
        going = bool(super()._feed_callback_parser(data))
        while going and self._answer is not None:
            parser = self._callback_parser
            if not parser.is_complete:
                self._expect_rest()
                break
            self._write(self._answer(b"".join(self._chunks)))
            self._forget_request()
            self.note_answer()
            if parser.remaining_truncated:  # the parser dropped bytes of a request
                self._close_transport()
                return False
            following = parser.remaining()
            parser.reset()
            if following and not self.worker.arrivals.add(self, len(following)):
                return False
            going = not following or bool(super()._feed_callback_parser(following))
        return going

    def _immediate_answer(self) -> ImmediateAnswer | None:
        """Returns the function that answers the request whose headers were just parsed; None if gunicorn answers it."""
        parser = self._callback_parser
        answer: ImmediateAnswer | None = self._immediate.get((parser.method, parser.path.partition(b"?")[0]))
        if answer is None or not self._is_free():
            return None
        length = parser.content_length
        if length is None or length > self.worker.options.max_body_bytes:
            return None
        if parser.is_chunked or not parser.should_keep_alive or parser.http_version != (1, 1):
            return None
        headers = (
            getattr(parser, "asgi_headers", None) or parser.headers
        )  # the parser in C has both, as sent in the latter
        return answer if UNUSUAL_HEADERS.isdisjoint(map(_name, headers)) else None

    def _is_free(self) -> bool:
        return not (
            self._current_request is not None
            or self._flow_control.write_paused
            or self.log.access_log_enabled
            or self.worker.lifecycle.draining
        )

    def _expect_rest(self) -> None:
        """Starts the time of `body_seconds`, once for a request; a body incomplete by then is answered with 408."""
        if self._late_handle is None:
            self._late_handle = self.worker.loop.call_later(self.worker.options.body_seconds, self._end_late)

    def _end_late(self) -> None:
        self._write(body_came_late(self.worker.options.body_seconds), close=True)
        self._forget_request()
        self._close_transport()

    def _forget_request(self) -> None:
        self._answer = None
        self._chunks = []
        if self._late_handle is not None:
            self._late_handle.cancel()
            self._late_handle = None

    def _write(self, response: Response, *, close: bool = False) -> None:
        status, body, content_type, headers = response
        lines = [_beginning(status, content_type), b"%d\r\n" % len(body), date_header()]
        if headers:
            lines += [b"%b: %b\r\n" % header for header in headers]
        if close:
            lines.append(b"connection: close\r\n")
        lines += (b"\r\n", body)
        self._safe_write(b"".join(lines))


@lru_cache
def _beginning(status: int, content_type: bytes) -> bytes:
    """Returns the first bytes of an answer: the status line, and headers up to `Content-Length: ` without its value."""
    line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    return b"%bcontent-type: %b\r\ncontent-length: " % (line, content_type)
