"""The probe of a process that answers no other requests."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry

from fairgpu.cluster.api import ApiError
from fairgpu.serving.process_probe import Progress, serve_probe
from tests.support.servers.pod_server import PodServer
from tests.support.waiting import LIMIT_S


@contextmanager
def probed(healthy: Callable[[], bool]) -> Iterator[int]:
    """The port of a probe, until the end of the block."""
    server = serve_probe("127.0.0.1", 0, CollectorRegistry(), healthy)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def test_a_client_that_says_nothing_keeps_no_probe_waiting() -> None:
    with (
        probed(lambda: True) as port,
        socket.create_connection(("127.0.0.1", port)),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=LIMIT_S) as answer,
    ):
        assert answer.read() == b'{"status":"ok"}'


def test_a_process_that_is_stuck_fails_its_probe_and_still_shows_its_metrics() -> None:
    with probed(lambda: False) as port:
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


def test_what_other_threads_are_answered_does_not_hide_a_loop_that_hangs() -> None:
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
