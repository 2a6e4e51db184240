"""The probe of a process that answers no other requests."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry

from fairgpu.serving.process_probe import serve_probe
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
