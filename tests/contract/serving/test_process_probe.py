"""The probe of a process that answers no other requests."""

from __future__ import annotations

import select
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from wsgiref.simple_server import WSGIServer

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from structlog.testing import capture_logs

from fairgpu.cluster.api import ApiError
from fairgpu.serving import process_probe
from fairgpu.serving.process_probe import Progress, serve_probe
from tests.support.servers.pod_server import PodServer
from tests.support.waiting import LIMIT_S, wait_until


@contextmanager
def probed(healthy: Callable[[], bool], registry: CollectorRegistry | None = None) -> Iterator[WSGIServer]:
    """A probe, until the end of the block."""
    server = serve_probe("127.0.0.1", 0, registry or CollectorRegistry(), healthy)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def test_a_client_that_says_nothing_keeps_no_probe_waiting() -> None:
    with (
        probed(lambda: True) as server,
        socket.create_connection(server.server_address),
        urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/healthz", timeout=LIMIT_S) as answer,
    ):
        assert answer.read() == b'{"status":"ok"}'


def test_a_client_that_never_speaks_is_let_go_without_a_word_beside_the_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process_probe._QuietHandler, "timeout", 0.01)
    with probed(lambda: True) as server, capture_logs() as logs:
        with socket.create_connection(server.server_address, LIMIT_S) as silent:
            assert silent.recv(1) == b""
        assert [event["log_level"] for event in logs] in ([], ["debug"])
    assert capfd.readouterr().err == ""


def test_metrics_that_cannot_be_collected_are_answered_with_500_and_logged(capfd: pytest.CaptureFixture[str]) -> None:
    class Broken(Collector):
        def collect(self) -> Iterator[Metric]:
            raise RuntimeError("a figure of another kind")

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Broken())
    with probed(lambda: True, registry) as server, capture_logs() as logs:
        with pytest.raises(urllib.error.HTTPError) as failed:
            urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=LIMIT_S)
        assert failed.value.code == 500
        failed.value.close()
    assert [(event["event"], event["path"]) for event in logs] == [("request failed", "/metrics")]
    assert capfd.readouterr().err == ""


def test_an_error_of_the_question_whether_the_process_gets_on_is_answered_with_500_and_logged() -> None:
    def broken() -> bool:
        raise RuntimeError("not known")

    with probed(broken) as server, capture_logs() as logs:
        with pytest.raises(urllib.error.HTTPError) as failed:
            urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/healthz", timeout=LIMIT_S)
        assert failed.value.code == 500
        failed.value.close()
    assert [(event["event"], event["path"]) for event in logs] == [("request failed", "/healthz")]


def test_connections_that_come_at_once_wait_to_be_accepted_and_do_not_come_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goes_on = threading.Event()
    with probed(lambda: True) as server, ExitStack() as clients:
        clients.callback(goes_on.set)

        def wait(request: socket.socket, _address: object) -> None:
            goes_on.wait()
            server.shutdown_request(request)

        monkeypatch.setattr(server, "process_request", wait)
        made = [clients.enter_context(socket.socket()) for _ in range(64)]
        for client in made:
            client.setblocking(False)
            client.connect_ex(server.server_address)
        wait_until(lambda: len(select.select([], made, [], 0)[1]) == len(made), "each connection is made")


def test_a_process_that_is_stuck_fails_its_probe_and_still_shows_its_metrics() -> None:
    with probed(lambda: False) as server:
        port = server.server_port
        with pytest.raises(urllib.error.HTTPError) as failed:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=LIMIT_S)
        assert failed.value.code == 503
        failed.value.close()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
            assert answer.status == 200


class Hours:
    """A clock of the test's own, in seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_loop_that_does_not_get_on_counts_as_stuck_after_its_bound_and_one_that_has_not_begun_never() -> None:
    clock = Hours()
    progress = Progress(60.0, clock)
    clock.now = 1000.0
    assert progress.lasts()
    progress.note()
    clock.now += 59.0
    assert progress.lasts()
    clock.now += 1.0
    assert not progress.lasts()


def test_a_loop_that_waits_for_a_slow_server_gets_on_with_each_answer() -> None:
    clock = Hours()
    progress = Progress(60.0, clock)
    progress.note()
    for _answer in range(10):
        clock.now += 59.0
        progress.answered()
        assert progress.lasts()


def test_answers_to_other_threads_do_not_hide_a_loop_that_hangs() -> None:
    clock = Hours()
    progress = Progress(60.0, clock)
    progress.note()
    clock.now += 60.0
    other = threading.Thread(target=progress.answered)
    other.start()
    other.join()
    assert not progress.lasts()


def test_each_answer_of_the_api_server_counts_and_each_failure() -> None:
    noted = []
    with PodServer() as server:
        api = server.api().noting(lambda: noted.append(threading.get_ident()))
        api.patch("/api/v1/namespaces/a/pods/p", {})
        assert len(noted) == 1
        with pytest.raises(ApiError, match="NotFound"):
            api.within(60.0).get("/api/v1/namespaces/a/pods/p")
        assert len(noted) == 2
    with pytest.raises(ApiError):
        api.get("/api/v1/namespaces/a/pods/p")
    assert noted == [threading.get_ident()] * 3
