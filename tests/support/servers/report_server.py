"""A TLS server in place of the timekeeper: it records each request, and answers as the test sets."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fairgpu.certificates import make_authority, make_leaf, utc_now
from tests.support.waiting import LIMIT_S


@dataclass(frozen=True)
class Received:
    path: str
    token: str
    body: dict[str, Any]
    headers: dict[str, str]
    at: float


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b'{"interval_s": 1}'
    headers: tuple[tuple[str, str], ...] = ()
    delay_seconds: float = 0.0


@dataclass
class ReportServer:
    url: str
    ca_pem: str
    answer: Answer = Answer()
    received: list[Received] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, condition: Callable[[list[Received]], bool]) -> list[Received]:
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self.received), LIMIT_S), self.received
            return list(self.received)


@contextmanager
def report_server(folder: Path, port: int = 0) -> Iterator[ReportServer]:
    ca_pem = make_certificates(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    state = ReportServer("", ca_pem)
    server = _Server(("127.0.0.1", port), _handler(state), context)
    state.url = f"https://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make_certificates(folder: Path) -> str:
    """Writes a CA and a certificate for 127.0.0.1 into the folder, unless they are there; returns the CA in PEM."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "ca.pem").exists():
        authority = make_authority("test CA", utc_now(), timedelta(hours=1))
        leaf = make_leaf(authority, ("127.0.0.1",), utc_now(), timedelta(hours=1))
        (folder / "server.key").write_bytes(leaf.key_pem)
        (folder / "server.pem").write_bytes(leaf.certificate_pem)
        (folder / "ca.pem").write_bytes(authority.certificate_pem)
    return (folder / "ca.pem").read_text()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext
    ) -> None:
        super().__init__(address, handler)
        self.context = context

    def finish_request(self, request: Any, client_address: Any) -> None:
        # Here and not in get_request: the handshake then runs in the connection's own thread.
        try:
            secure = self.context.wrap_socket(request, server_side=True)
        except OSError:
            return
        with secure:
            super().finish_request(secure, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing: a client may go away."""


def _handler(state: ReportServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer({})

        def do_POST(self) -> None:
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def answer(self, body: dict[str, Any]) -> None:
            answer = state.answer
            token = self.headers["Authorization"].removeprefix("Bearer ")
            with state.changed:
                state.received.append(Received(self.path, token, body, dict(self.headers), time.monotonic()))
                state.changed.notify_all()
            if answer.delay_seconds:
                threading.Event().wait(answer.delay_seconds)
            self.send_response(answer.status)
            for name, value in (("Content-Length", str(len(answer.body))), *answer.headers):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    return Handler
