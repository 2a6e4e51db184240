"""A server on loopback that answers as a test wants: late, never, too much, or with something that is not HTTP."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Answering = Callable[[socket.socket], None]
"""A function that answers on a connection whose request was read."""


class BadServer:
    """A listening server.

    Attributes:
        url: its address.
        requests: the heads of the requests that came in.
    """

    def __init__(self, answer: Answering, context: ssl.SSLContext | None) -> None:
        self._answer, self._context = answer, context
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self._listening.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.ending.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(60)

    def _serve(self) -> None:
        while not self.ending.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with suppress(OSError), connection:
                if self._context is not None:
                    connection = self._context.wrap_socket(connection, server_side=True)
                with connection:
                    self.requests.append(connection.recv(65536))
                    self._answer(connection)


@contextmanager
def serving(answer: Answering, context: ssl.SSLContext | None = None) -> Iterator[BadServer]:
    server = BadServer(answer, context)
    try:
        yield server
    finally:
        server.close()


def http_answer(status: str, body: bytes, *headers: str) -> Answering:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]).encode()
    return lambda connection: connection.sendall(head + body)


def hang(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def drip(head: bytes) -> Answering:
    """Returns a function that sends a byte every now and then, so that no single read of the client times out."""

    def answer(connection: socket.socket) -> None:
        connection.settimeout(0.05)
        connection.sendall(head)
        while True:
            try:
                if not connection.recv(1):
                    return
            except TimeoutError:
                connection.sendall(b"x")

    return answer


def flood(head: bytes, piece: bytes) -> Answering:
    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        for _ in range(100):
            connection.sendall(piece)

    return answer
