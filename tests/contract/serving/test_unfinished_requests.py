"""Requests that begin and do not end: together they take a bounded amount of memory, and no other client waits."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.contract.serving.served import Served
from tests.support.servers.serving_program import MAX_ARRIVING_BYTES, MAX_BODY_BYTES, MAX_CONNECTIONS
from tests.support.waiting import LIMIT_S, wait_until

PART = MAX_BODY_BYTES - 10_000
FITTING = MAX_ARRIVING_BYTES // PART


@contextmanager
def beginning(served: Served, path: str, number: int, part: int = PART) -> Iterator[list[ssl.SSLSocket]]:
    """Connections on each of which a request began, one after the other, and lacks the end of its body."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY_BYTES}\r\n\r\n".encode()
    with ExitStack() as stack:
        begun = []
        for _ in range(number):
            client = served.connect()
            client.connect()
            stack.callback(client.close)
            assert isinstance(client.sock, ssl.SSLSocket)
            client.sock.sendall(head + bytes(part))
            begun.append(client.sock)
        yield begun


def is_ended(connection: ssl.SSLSocket) -> bool:
    """Whether the server has ended it; it says nothing on one that goes on."""
    connection.settimeout(0.05)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("path", ["/echo", "/at-once/echo", "/flask/echo"])
def test_where_they_are_too_much_those_that_have_been_arriving_for_longest_are_ended(served: Served, path: str) -> None:
    with beginning(served, path, FITTING + 3) as begun:
        for early in begun[:3]:
            wait_until(lambda: is_ended(early), "the first are ended")  # noqa: B023 - called before the next one
        assert served.ask("POST", path, b"x") == (200, b"x")
        last = begun[-1]
        last.settimeout(LIMIT_S)
        last.sendall(bytes(MAX_BODY_BYTES - PART))
        assert last.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("path", ["/echo", "/at-once/echo", "/flask/echo"])
def test_where_they_hold_all_connections_one_more_takes_the_place_of_the_one_that_is_silent_for_longest(
    served: Served, path: str
) -> None:
    with beginning(served, path, MAX_CONNECTIONS, part=1) as begun:
        fresh = served.connect()
        fresh.connect()
        wait_until(lambda: is_ended(begun[0]), "the first is ended")
        with beginning(served, path, 1, part=1):
            wait_until(lambda: is_ended(begun[1]), "the second is ended, and not the idle one")
            fresh.request("POST", path, b"x")
            assert fresh.getresponse().read() == b"x"
        fresh.close()
        last = begun[-1]
        last.settimeout(LIMIT_S)
        last.sendall(bytes(MAX_BODY_BYTES - 1))
        assert last.recv(12) == b"HTTP/1.1 200"


def test_a_request_that_has_ended_counts_no_more(served: Served) -> None:
    client = served.connect()
    for _ in range(3 * FITTING):
        client.request("POST", "/at-once/echo", bytes(PART))
        assert len(client.getresponse().read()) == PART
    client.close()
