"""A load of HTTPS requests on keep-alive connections, by processes that do as little as they can for each.

A connection each, no HTTP library: the request is one prepared piece of bytes, and an answer is read up to the length
that it announces. A process holds some of the connections and waits for whichever is ready, so that the client takes
less of the machine than what it measures.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import selectors
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CONNECT_LIMIT_SECONDS = 15.0
CHUNK = 1 << 16


@dataclass(frozen=True)
class Load:
    """What came of it: latencies in seconds, and answers a second of all clients together."""

    p50: float
    p99: float
    rate: float
    answers: int


def measure(port: int, reviews: Sequence[tuple[str, bytes]], clients: int, seconds: float) -> Load:
    """The load of so many clients, each sending its next request when it has its answer, by a process of its own.

    The requests are paths and bodies, sent in turns.

    Raises:
        RuntimeError: an answer was no 200, or a connection broke.
    """
    command = [sys.executable, "-m", "tests.bench._https_load", str(port), str(clients), str(seconds)]
    messages = json.dumps([(path, body.decode()) for path, body in reviews]).encode()
    done = subprocess.run(command, input=messages, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    taken, elapsed = json.loads(done.stdout)
    cuts = statistics.quantiles(taken, n=100) if len(taken) > 1 else [taken[0]] * 99
    return Load(p50=cuts[49], p99=cuts[98], rate=len(taken) / elapsed, answers=len(taken))


def main() -> None:
    """Runs the load that the arguments and the standard input name; prints latencies and the time."""
    port, clients, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    messages = [message(path, body.encode()) for path, body in json.load(sys.stdin)]
    connections = [connect(port) for _ in range(clients)]
    warm_up(connections, messages)
    started = time.perf_counter()
    taken = run(connections, itertools.cycle(messages), started + seconds)
    print(json.dumps([taken, time.perf_counter() - started]))


def message(path: str, body: bytes) -> bytes:
    """A request."""
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


def connect(port: int) -> ssl.SSLSocket:
    """A connection, as soon as the server takes any; whom it meets is not what is measured here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    deadline = time.monotonic() + CONNECT_LIMIT_SECONDS
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            plain = socket.create_connection(("127.0.0.1", port), timeout=CONNECT_LIMIT_SECONDS)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(plain)
        if time.monotonic() > deadline:
            raise RuntimeError(f"nobody listens on {port}")
        time.sleep(0.05)


def warm_up(connections: list[ssl.SSLSocket], messages: list[bytes]) -> None:
    for connection in connections:
        for sent in messages * 10:
            connection.sendall(sent)
            read_answer(connection)


def run(connections: list[ssl.SSLSocket], messages: Iterator[bytes], until: float) -> list[float]:
    """The latencies of all answers; each connection has one request under way."""
    if len(connections) == 1:
        return run_one(connections[0], messages, until)
    selector = selectors.DefaultSelector()
    sent: dict[ssl.SSLSocket, float] = {}
    for connection in connections:
        selector.register(connection, selectors.EVENT_READ)
        sent[connection] = time.perf_counter()
        connection.sendall(next(messages))
    taken: list[float] = []
    while sent:
        for key, _ in selector.select(CONNECT_LIMIT_SECONDS):
            connection = key.fileobj
            assert isinstance(connection, ssl.SSLSocket)
            read_answer(connection)
            now = time.perf_counter()
            taken.append(now - sent.pop(connection))
            if now < until:
                sent[connection] = now
                connection.sendall(next(messages))
    return taken


def run_one(connection: ssl.SSLSocket, messages: Iterator[bytes], until: float) -> list[float]:
    taken = []
    now = time.perf_counter()
    while now < until:
        connection.sendall(next(messages))
        read_answer(connection)
        done = time.perf_counter()
        taken.append(done - now)
        now = done
    return taken


def read_answer(connection: ssl.SSLSocket) -> None:
    data = connection.recv(CHUNK)
    while b"\r\n\r\n" not in data:
        data += received(connection)
    head, _, rest = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(data[:300].decode(errors="replace"))
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    missing = length - len(rest)
    while missing > 0:
        missing -= len(received(connection))


def received(connection: ssl.SSLSocket) -> bytes:
    data = connection.recv(CHUNK)
    if not data:
        raise RuntimeError("the server closed a connection")
    return data


if __name__ == "__main__":
    main()
