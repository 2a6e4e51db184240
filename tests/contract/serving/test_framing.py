"""A request ends for the server where it ends for a proxy in front; else a part of one would pass as another."""

from __future__ import annotations

import socket
import ssl

import pytest

from tests.contract.serving.served import Served
from tests.support.waiting import LIMIT_S

PATHS = ("/echo", "/at-once/echo", "/flask/echo", "/nowhere")
SMUGGLED = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\nsmuggled"
TWO_TO_64 = 1 << 64


def conversation(served: Served, *sent: bytes) -> bytes:
    """All that the server says to these bytes until it closes the connection."""
    connection = served.connect()
    connection.connect()
    assert isinstance(connection.sock, ssl.SSLSocket)
    received = b""
    with connection.sock as sock:
        sock.settimeout(LIMIT_S)
        for piece in sent:
            sock.sendall(piece)
        while data := _received(sock):
            received += data
    return received


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(65536)
    except (ConnectionResetError, ssl.SSLEOFError):
        return b""


def head(path: str, *headers: str) -> bytes:
    return "\r\n".join((f"POST {path} HTTP/1.1", "Host: localhost", *headers, "", "")).encode()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "length",
    [TWO_TO_64, TWO_TO_64 + 5, TWO_TO_64 - 1, TWO_TO_64 >> 1, 2 * TWO_TO_64 + 5, 10**18, 10**19, 10**400 + 5],
    ids=lambda length: str(length)[:24],
)
def test_a_length_of_64_bits_or_more_is_refused_and_nothing_behind_it_is_read(
    served: Served, path: str, length: int
) -> None:
    answer = conversation(served, head(path, f"Content-Length: {length}") + b"x" * (length % TWO_TO_64 % 8) + SMUGGLED)
    assert answer.split()[1] in (b"400", b"413")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"smuggled" not in answer


def test_a_length_in_small_pieces_is_refused_as_well(served: Served) -> None:
    message = head("/at-once/echo", f"Content-Length: {TWO_TO_64 + 5}") + b"hello"
    answer = conversation(served, *(message[at : at + 1] for at in range(len(message))), SMUGGLED)
    assert answer.split()[1] == b"400"
    assert answer.count(b"HTTP/1.1 ") == 1


def test_the_second_of_two_requests_is_looked_at_like_the_first(served: Served) -> None:
    good = head("/at-once/echo", "Content-Length: 5") + b"first"
    answer = conversation(
        served, good + head("/at-once/echo", f"Content-Length: {TWO_TO_64 + 5}") + b"hello" + SMUGGLED
    )
    assert answer.count(b"HTTP/1.1 200") == 1
    assert answer.count(b"HTTP/1.1 400") == 1
    assert b"smuggled" not in answer


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [5, TWO_TO_64 + 5, (TWO_TO_64 << 64) + 5], ids=hex)
def test_behind_a_chunked_body_nothing_is_read(served: Served, path: str, size: int) -> None:
    chunks = b"%x\r\nhello\r\n0\r\n\r\n" % size
    answer = conversation(served, head(path, "Transfer-Encoding: chunked") + chunks + SMUGGLED)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"smuggled" not in answer
