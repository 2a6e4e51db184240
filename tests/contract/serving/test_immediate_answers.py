"""Answers that wait for nothing come in the order of their requests, whatever way each request goes."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tests.contract.serving.conftest import PATIENCE_SECONDS
from tests.contract.serving.served import Served


@dataclass
class Wire:
    """A connection on which bytes are sent as they are, and answers read one after the other."""

    sock: ssl.SSLSocket
    rest: bytes = field(default=b"")

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.sock.sendall(piece)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        while b"\r\n\r\n" not in self.rest:
            self.rest += self.received()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers["content-length"])
        while len(self.rest) < length:
            self.rest += self.received()
        body, self.rest = self.rest[:length], self.rest[length:]
        return int(first.split()[1]), headers, body

    def received(self) -> bytes:
        data = self.sock.recv(65536)
        assert data, "the connection was closed"
        return data


@contextmanager
def connected(served: Served) -> Iterator[Wire]:
    connection = served.connect()
    connection.connect()
    assert isinstance(connection.sock, ssl.SSLSocket)
    yield Wire(connection.sock)
    connection.close()


@pytest.fixture
def wire(served: Served) -> Iterator[Wire]:
    with connected(served) as wire:
        yield wire


@pytest.fixture
def impatient_wire(impatient: Served) -> Iterator[Wire]:
    """Its other end waits for seconds for what is owed to it."""
    with connected(impatient) as wire:
        yield wire


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join((*lines, "", "")).encode() + body


AT_ONCE = "/at-once/echo"


def test_an_answer_is_framed_and_dated_as_any_other(wire: Wire) -> None:
    wire.send(post(AT_ONCE, b"x"))
    status, headers, body = wire.answer()
    assert (status, body) == (200, b"x")
    assert headers["content-type"] == "application/json"
    assert headers["date"].endswith(" GMT")
    assert "connection" not in headers


@pytest.mark.parametrize("paths", [(AT_ONCE,) * 5, (AT_ONCE, "/echo", AT_ONCE, AT_ONCE, "/echo"), ("/echo", AT_ONCE)])
def test_requests_sent_without_waiting_are_answered_in_their_order(wire: Wire, paths: tuple[str, ...]) -> None:
    bodies = [b"%d" % number * 100 for number in range(len(paths))]
    wire.send(b"".join(post(path, body) for path, body in zip(paths, bodies, strict=True)))
    assert [wire.answer()[2] for _ in paths] == bodies


def test_a_request_that_comes_byte_by_byte_is_answered(wire: Wire) -> None:
    message = post(f"{AT_ONCE}?timeout=10s", b"body")
    wire.send(*(message[at : at + 1] for at in range(len(message))))
    assert wire.answer()[2] == b"body"
    wire.send(post(AT_ONCE, b"next"))
    assert wire.answer()[2] == b"next"


def test_a_client_that_waits_for_leave_to_send_its_body_gets_it(wire: Wire) -> None:
    message = post(AT_ONCE, b"body", "Expect: 100-continue")
    wire.send(message[:-4])
    assert wire.received() == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire.send(b"body")
    assert wire.answer()[2] == b"body"


def test_a_client_that_asks_for_the_end_of_the_connection_gets_it(wire: Wire) -> None:
    wire.send(post(AT_ONCE, b"x", "Connection: close"))
    status, headers, body = wire.answer()
    assert (status, headers["connection"], body) == (200, "close", b"x")
    assert wire.sock.recv(1) == b""


@pytest.mark.parametrize("header", ["Content-Length: 2", "Transfer-Encoding: gzip", "Transfer-Encoding: chunked"])
def test_a_body_whose_end_is_shown_in_two_ways_is_refused(wire: Wire, header: str) -> None:
    wire.send(post(AT_ONCE, b"x", header))
    assert wire.answer()[0] == 400


def test_a_body_that_comes_late_ends_the_connection_with_408(impatient_wire: Wire) -> None:
    impatient_wire.send(post(AT_ONCE, b"whole"), post(AT_ONCE, b"body")[:-1])
    assert impatient_wire.answer()[2] == b"whole"
    status, headers, _ = impatient_wire.answer()
    assert (status, headers["connection"]) == (408, "close")
    assert impatient_wire.sock.recv(1) == b""


def test_a_connection_in_use_outlives_the_time_that_its_first_request_had(impatient_wire: Wire) -> None:
    impatient_wire.send(post(AT_ONCE, b"first"))
    assert impatient_wire.answer()[2] == b"first"
    impatient_wire.sock.settimeout(PATIENCE_SECONDS * 1.5)
    with pytest.raises(TimeoutError):
        impatient_wire.sock.recv(1)
    impatient_wire.send(post(AT_ONCE, b"second"))
    assert impatient_wire.answer()[2] == b"second"
