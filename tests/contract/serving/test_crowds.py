"""No client waits for others that connect and do not go on; they cost a bounded amount."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.contract.serving.conftest import PATIENCE_SECONDS
from tests.contract.serving.served import Served, serving
from tests.support.servers.serving_program import MAX_CONNECTIONS, MAX_HANDSHAKES, MAX_HANDSHAKES_OF_ADDRESS
from tests.support.waiting import LIMIT_S, wait_until

CROWD = 500
OWN_DESCRIPTORS = 40
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303")
"""The first bytes of a ClientHello of 200 bytes."""
ELSEWHERE = "127.0.0.2"


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("served")
    with serving(folder, patience=PATIENCE_SECONDS) as server:
        yield server


@contextmanager
def crowd(served: Served, number: int, address: str, said: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections from an address that say this and no more."""
    with ExitStack() as stack:
        connections = []
        for _ in range(number):
            connection = socket.create_connection(("127.0.0.1", served.port), LIMIT_S, (address, 0))
            connections.append(stack.enter_context(connection))
            connection.sendall(said)
        yield connections


def descriptors(served: Served) -> int:
    """Returns the number of descriptors that the one worker has open."""
    (worker,) = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
    return len(list(Path(f"/proc/{worker}/fd").iterdir()))


@pytest.mark.parametrize("address", ["127.0.0.1", ELSEWHERE])
@pytest.mark.parametrize("said", [b"", CLIENT_HELLO], ids=["nothing", "half a ClientHello"])
def test_a_client_is_answered_whatever_crowd_has_called_before_it(crowded: Served, address: str, said: bytes) -> None:
    with crowd(crowded, CROWD, address, said):
        for _ in range(3):
            assert crowded.ask("POST", "/echo", b"x") == (200, b"x")
        assert descriptors(crowded) <= MAX_HANDSHAKES_OF_ADDRESS + MAX_CONNECTIONS + OWN_DESCRIPTORS


def test_crowds_from_many_addresses_have_no_more_places_than_there_are(crowded: Served) -> None:
    with ExitStack() as stack:
        for last in range(2, 12):
            stack.enter_context(crowd(crowded, MAX_HANDSHAKES_OF_ADDRESS // 2, f"127.0.0.{last}"))
        assert crowded.ask("POST", "/echo", b"x") == (200, b"x")
        assert descriptors(crowded) <= MAX_HANDSHAKES + MAX_CONNECTIONS + OWN_DESCRIPTORS


def test_the_first_clients_are_served_on_while_a_crowd_calls(crowded: Served) -> None:
    connection = crowded.connect()
    connection.request("POST", "/echo", b"before")
    assert connection.getresponse().read() == b"before"
    with crowd(crowded, CROWD, ELSEWHERE):
        connection.request("POST", "/echo", b"meanwhile")
        assert connection.getresponse().read() == b"meanwhile"
    connection.close()


GARBAGE = random.Random(7).randbytes(2000)


NO_HANDSHAKES = (
    b"",
    b"\x16",
    CLIENT_HELLO,
    CLIENT_HELLO + GARBAGE[:189],
    b"\x16\x03\x01\xff\xff" + GARBAGE,
    b"\x16\x03\x01\x00\x00",
    b"\x15\x03\x01\x00\x02\x02\x28",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x80\x2e\x01\x00\x02",
    GARBAGE,
    bytes(2000),
)


def test_bytes_that_are_no_handshake_end_their_connection_and_no_other(crowded: Served) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(crowd(crowded, 1, ELSEWHERE, said))[0] for said in NO_HANDSHAKES]
        assert crowded.ask("POST", "/echo", b"x") == (200, b"x")
        for connection in connections:
            wait_until_ended(connection)
    assert "Traceback" not in (crowded.folder / "log").read_text()


def wait_until_ended(connection: socket.socket) -> None:
    """Reads what the server says of it (an alert, at most) until it closes."""
    try:
        while connection.recv(1000):
            pass
    except ConnectionResetError:
        pass


def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(crowded: Served) -> None:
    before = descriptors(crowded)
    with crowd(crowded, 30, ELSEWHERE, CLIENT_HELLO), crowd(crowded, 30, ELSEWHERE):
        assert crowded.ask("POST", "/echo", b"x") == (200, b"x")
    wait_until(lambda: descriptors(crowded) <= before + 2, "their descriptors are closed")
