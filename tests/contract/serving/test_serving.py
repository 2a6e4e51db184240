"""The server's promises to any client, over real TLS: bounds, no internals in an answer, a gentle end."""

from __future__ import annotations

import gc
import http.client
import json
import signal
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairgpu.certificates import make_leaf, utc_now
from fairgpu.serving.options import Address, ServerOptions
from fairgpu.serving.server import GunicornServer
from tests.contract.serving.served import LEAF, Served, serving
from tests.support.servers.serving_program import (
    MAX_BODY_BYTES,
    MAX_CONNECTIONS,
    STARTED_ON,
    STREAM_ENDED,
    WAITING,
)
from tests.support.waiting import LIMIT_S, wait_until


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Served]:
    """A server for a test that ends it, changes its chain, or counts its connections."""
    with serving(tmp_path) as served:
        yield served


@pytest.mark.parametrize("path", ["/echo", "/at-once/echo", "/flask/echo"])
@pytest.mark.parametrize("size", [0, 1, 70_000, MAX_BODY_BYTES])
def test_a_body_within_the_bound_arrives_whole(served: Served, path: str, size: int) -> None:
    assert served.ask("POST", path, b"x" * size) == (200, b"x" * size)


@pytest.mark.parametrize("path", ["/echo", "/at-once/echo", "/flask/echo", "/nowhere"])
def test_a_longer_one_gets_413_whether_it_says_so_or_not(served: Served, path: str) -> None:
    assert served.ask("POST", path, b"x" * (MAX_BODY_BYTES + 1))[0] == 413
    connection = served.connect()
    chunks = iter([b"x" * 50_000] * 3)
    connection.request("POST", path, chunks, encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize("path", ["/echo", "/at-once/echo"])
def test_a_body_that_does_not_arrive_gets_408(impatient: Served, path: str) -> None:
    connection = impatient.connect()
    connection.putrequest("POST", path)
    connection.putheader("Content-Length", "10")
    connection.endheaders(b"x")
    response = connection.getresponse()
    assert response.status == 408
    assert json.loads(response.read())["status"] == 408
    connection.close()


@pytest.mark.parametrize("route", ["GET /fail", "POST /at-once/fail", "GET /flask/fail"])
def test_a_failure_shows_nothing_of_the_inside_but_to_the_log(served: Served, route: str) -> None:
    status, body = served.ask(*route.split())
    assert status == 500
    assert b"secret detail" not in body
    wait_until(lambda: "secret detail" in (served.folder / "log").read_text(), "the log says why")


def test_a_connection_that_says_nothing_is_closed(impatient: Served) -> None:
    silent = impatient.connect()
    silent.connect()
    assert isinstance(silent.sock, ssl.SSLSocket)
    assert silent.sock.recv(1) == b""
    silent.close()


def test_a_connection_whose_client_reads_no_answer_is_closed(impatient: Served) -> None:
    deaf = impatient.connect()
    deaf.connect()
    assert deaf.sock is not None
    deaf.sock.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with deaf.sock, pytest.raises((ConnectionError, ssl.SSLEOFError)):
        send_until_closed(deaf.sock)


def test_nor_does_it_keep_its_place_by_sending(impatient: Served) -> None:
    deaf = impatient.connect()
    deaf.connect()
    assert deaf.sock is not None
    deaf.sock.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with deaf.sock, pytest.raises(ConnectionError):
        send_urgent_until_closed(deaf.sock)


def send_urgent_until_closed(sock: socket.socket) -> None:
    """Sends bytes that are none of TLS's; each restarts the timer of the kernel's TCP_USER_TIMEOUT."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        socket.socket.send(sock, b"!", socket.MSG_OOB)
        time.sleep(0.01)


def send_until_closed(sock: socket.socket) -> None:
    """Sends single bytes: the client of a connection that is gone learns so when it sends."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        sock.sendall(b"G")
        time.sleep(0.05)


def test_a_connection_that_never_shakes_hands_is_closed(impatient: Served) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=LIMIT_S) as plain:
        assert plain.recv(1) == b""


def test_a_connection_past_the_bound_takes_the_place_of_the_one_that_is_idle_for_longest(alone: Served) -> None:
    kept = [alone.connect() for _ in range(MAX_CONNECTIONS)]
    for connection in kept:
        connection.request("POST", "/echo", b"a")
        connection.getresponse().read()
    assert alone.ask("POST", "/echo", b"b") == (200, b"b")
    with pytest.raises(OSError, match=r".*"):
        reuse(kept[0])
    assert [reuse(connection) for connection in kept[1:]] == [b"c"] * (MAX_CONNECTIONS - 1)
    for connection in kept:
        connection.close()


def reuse(connection: http.client.HTTPSConnection) -> bytes:
    connection.auto_open = False
    connection.request("POST", "/echo", b"c")
    return connection.getresponse().read()


def test_where_all_connections_are_at_work_one_more_is_refused(alone: Served) -> None:
    waiting = [alone.connect() for _ in range(MAX_CONNECTIONS)]
    for connection in waiting:
        connection.request("GET", "/poll")
    log = alone.folder / "log"
    wait_until(lambda: log.read_text().count(WAITING) == MAX_CONNECTIONS, "all connections are at work")
    with pytest.raises(OSError, match=r".*"):
        alone.ask("POST", "/echo", b"b")
    alone.process.send_signal(signal.SIGTERM)
    assert [connection.getresponse().read() for connection in waiting] == [b'"released"'] * MAX_CONNECTIONS
    for connection in waiting:
        connection.close()


def test_bytes_that_are_no_http_get_400(served: Served) -> None:
    connection = served.connect()
    connection.connect()
    connection.sock.sendall(b"\x00\x01 nonsense\r\n\r\n")
    assert connection.sock.recv(100).startswith(b"HTTP/1.1 400")
    connection.close()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_before_1_2_is_refused(served: Served) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.minimum_version = ssl.TLSVersion.TLSv1
    with (
        socket.create_connection(("localhost", served.port), timeout=LIMIT_S) as plain,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(plain, server_hostname="localhost")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        connection = served.connect(version)
        connection.request("POST", "/echo", b"x")
        assert connection.getresponse().status == 200
        connection.close()


def test_a_new_chain_is_served_to_new_connections_while_old_ones_live_on(alone: Served) -> None:
    old = alone.connect()
    old.request("POST", "/echo", b"a")
    old.getresponse().read()
    assert isinstance(old.sock, ssl.SSLSocket)
    before, sock = old.sock.getpeercert(binary_form=True), old.sock
    alone.present(make_leaf(alone.authority, ("localhost",), utc_now(), LEAF))
    wait_until(lambda: presented(alone) != before, "the new chain is served")
    old.request("POST", "/echo", b"b")
    assert old.getresponse().read() == b"b"
    assert old.sock is sock
    old.close()


def presented(served: Served) -> bytes | None:
    """The certificate that a new connection is shown."""
    fresh = served.connect()
    fresh.connect()
    assert isinstance(fresh.sock, ssl.SSLSocket)
    certificate = fresh.sock.getpeercert(binary_form=True)
    fresh.close()
    return certificate


def test_a_chain_that_cannot_be_used_changes_nothing(alone: Served) -> None:
    (alone.folder / "tls.crt").write_bytes(b"nonsense")
    wait_until(
        lambda: "certificate chain not reloaded" in (alone.folder / "log").read_text(), "it says that it was not taken"
    )
    assert alone.ask("POST", "/echo", b"a") == (200, b"a")


def test_a_chain_is_read_again_after_an_unforeseen_failure(alone: Served) -> None:
    before = presented(alone)
    (alone.folder / "unforeseen").touch()
    wait_until(lambda: not (alone.folder / "unforeseen").exists(), "reading the chain fails")
    alone.present(make_leaf(alone.authority, ("localhost",), utc_now(), LEAF))
    wait_until(lambda: presented(alone) != before, "the new chain is served")


def test_a_long_poll_is_answered_when_the_server_is_asked_to_end(alone: Served) -> None:
    connection = alone.connect()
    connection.request("GET", "/poll")
    wait_until(lambda: WAITING in (alone.folder / "log").read_text(), "the request is at work")
    alone.process.send_signal(signal.SIGTERM)
    response = connection.getresponse()
    assert response.read() == b'"released"'
    assert response.getheader("Connection") == "close"
    connection.close()
    assert alone.process.wait(LIMIT_S) == 0


def test_a_worker_that_is_asked_to_end_while_it_starts_ends_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, "interrupted") as served:
        assert served.ask("POST", "/echo", b"x") == (200, b"x")
    assert (tmp_path / "begun").exists()
    assert STARTED_ON not in (tmp_path / "log").read_text()


def test_a_worker_shares_the_memory_of_all_that_was_loaded_before_it() -> None:
    options = ServerOptions("test", Address("127.0.0.1", 0), None)
    server = GunicornServer(options, lambda _: pytest.fail("no worker starts here"), None)
    gc.unfreeze()
    try:
        server.cfg.when_ready(None)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def requests_of(served: Served) -> float:
    """Returns the number of requests that the served application has received so far, by its metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{served.metrics_port}/metrics", timeout=LIMIT_S) as response:
        lines = response.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("test_requests_total "))


def test_metrics_are_plain_and_alone_on_their_port(served: Served) -> None:
    assert requests_of(served) >= 1
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{served.metrics_port}/echo", timeout=LIMIT_S)
    assert refused.value.code == 404
    refused.value.close()


def test_each_request_is_an_event_without_its_query_where_requests_are_logged(tmp_path: Path) -> None:
    with serving(tmp_path, "logged") as served:
        for path in ("/echo", "/at-once/echo"):
            assert served.ask("POST", f"{path}?token=hidden", b"x") == (200, b"x")
    log = (tmp_path / "log").read_text()
    events = [json.loads(line) for line in log.splitlines()]
    requests = [event for event in events if event["event"] == "request"]
    assert [(event["path"], event["status"]) for event in requests[-2:]] == [("/echo", 200), ("/at-once/echo", 200)]
    assert "hidden" not in log


def test_parts_of_a_stream_are_sent_as_they_come_and_it_ends_with_the_server(alone: Served) -> None:
    connection = alone.connect()
    connection.request("GET", "/stream")
    response = connection.getresponse()
    assert response.headers["Transfer-Encoding"] == "chunked"
    assert response.readline() == b"first\n"
    alone.process.send_signal(signal.SIGTERM)
    assert response.read() == b"last\n"
    connection.close()


def test_a_stream_whose_client_leaves_ends(alone: Served) -> None:
    connection = alone.connect()
    connection.request("GET", "/stream")
    response = connection.getresponse()
    assert response.readline() == b"first\n"
    log = alone.folder / "log"
    assert STREAM_ENDED not in log.read_text()
    response.close()
    connection.close()
    wait_until(lambda: STREAM_ENDED in log.read_text(), "the stream has ended")
    assert alone.ask("POST", "/echo", b"goes on") == (200, b"goes on")


def test_a_stream_that_fails_is_cut_off_and_shows_nothing_of_the_inside(alone: Served) -> None:
    connection = alone.connect()
    connection.request("GET", "/broken-stream")
    response = connection.getresponse()
    with pytest.raises(http.client.IncompleteRead) as cut_off:
        response.read()
    assert b"secret" not in cut_off.value.partial
    connection.close()
    wait_until(lambda: "secret detail" in (alone.folder / "log").read_text(), "the log says why")
