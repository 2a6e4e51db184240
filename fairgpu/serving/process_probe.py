"""The liveness probe and the metrics of a process that answers no other requests, served in threads of their own."""

from __future__ import annotations

import io
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any, TextIO, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from fairgpu.serving.addresses import every_address, plain_address

_log = structlog.get_logger(__name__)


class Progress:
    """A record of when the thread of a loop last made progress, by which a probe sees whether the thread hangs.

    The loop's thread notes progress, and each answer that it gets from a server counts as progress, too. So a pass of
    the loop can wait for many slow answers. Several threads can use one object.
    """

    def __init__(self, most_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Makes a record without progress.

        Args:
            most_seconds: the longest time that a thread which does not hang takes from one note to the next.
            clock: returns seconds of a monotonic clock.
        """
        self._most_seconds = most_seconds
        self._clock = clock
        self._last: tuple[int, float] | None = None
        """The thread of the loop, and the time of its last note; replaced whole, so that it needs no lock."""

    def note(self) -> None:
        """Notes that the loop makes progress; from now on, the calling thread counts as the loop's thread."""
        self._last = threading.get_ident(), self._clock()

    def answered(self) -> None:
        """Notes progress, if the thread of the loop calls this; in any other thread it does nothing.

        A client of a server calls it after each answer, and after each failure to get an answer in time. So a loop that
        waits for slow servers does not count as one that hangs.
        """
        last = self._last
        if last is not None and last[0] == threading.get_ident():
            self.note()

    def lasts(self) -> bool:
        """Returns whether the loop still makes progress: its last note is less than `most_seconds` ago.

        The result is True before the first note.
        """
        last = self._last
        return last is None or self._clock() - last[1] < self._most_seconds


def serve_probe(host: str, port: int, registry: CollectorRegistry, healthy: Callable[[], bool]) -> WSGIServer:
    """Serves `/healthz` and, at any other path, metrics over plain HTTP, in threads; returns the server.

    The caller shuts the server down.

    Args:
        host: the address to listen on; empty for every address of the machine.
        port: the port; with 0 the kernel chooses one.
        registry: the metrics to serve.
        healthy: returns whether the process makes progress. `/healthz` answers 503 while it does not.

    Raises:
        OSError: the address cannot be listened on.
    """
    metrics = make_wsgi_app(registry)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            if environ["PATH_INFO"] != "/healthz":
                return cast("Iterable[bytes]", metrics(environ, start_response))
            is_healthy = healthy()
        except Exception:  # noqa: BLE001 - a collector may raise anything
            _log.exception("request failed", method=environ["REQUEST_METHOD"], path=environ["PATH_INFO"])
            start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b""]
        start_response("200 OK" if is_healthy else "503 Service Unavailable", [("Content-Type", "application/json")])
        return [b'{"status":"ok"}' if is_healthy else b'{"status":"stuck"}']

    host = host or every_address()[-1]
    server = make_server(host, port, application, _ServerOfIPv6 if ":" in host else _Server, _QuietHandler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


class _QuietHandler(WSGIRequestHandler):
    timeout = 10

    def log_message(self, *_arguments: Any) -> None:
        """Logs nothing: probes and scrapes are no events."""

    def get_stderr(self) -> TextIO:
        """Returns a stream that nothing reads: wsgiref writes tracebacks of answers that cannot be sent into it."""
        return io.StringIO()


class _Server(ThreadingMixIn, WSGIServer):
    """Serves each request in a thread of its own, so that a slow client delays no probe."""

    daemon_threads = True
    request_queue_size = 128
    """The connections that the kernel keeps until they are accepted. A client beyond them tries again after a second,
    then after two: a probe is over by then."""

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """Logs the error of a request as an event, where socketserver would print its traceback."""
        client, error = plain_address(client_address[0]), sys.exception()
        if isinstance(error, OSError):
            _log.debug("no request", client=client, error=repr(error))
        else:
            _log.error("request failed", client=client, exc_info=error)


class _ServerOfIPv6(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        """Binds a socket on `::` that takes IPv4 as well, whatever the kernel's default (net.ipv6.bindv6only)."""
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()
