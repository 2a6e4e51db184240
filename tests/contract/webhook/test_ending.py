"""A webhook that gets SIGTERM loses no request: first it is unready, then it is gone."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.admission import gpu_pod, read_answer, review
from tests.support.servers.webhook_server import WebhookServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.patient

BODY = review(gpu_pod())
# Long enough for what happens meanwhile on a machine that is busy.
DRAINING = {"serving": {"drain_seconds": 15.0, "finish_seconds": 20.0}}


def wait_until_unready(server: WebhookServer) -> None:
    wait_until(lambda: server.ask("GET", "/readyz")[0] == 503, "it says that it is unready")


def test_readiness_fails_first_while_reviews_are_still_answered(tmp_path: Path) -> None:
    with WebhookServer(tmp_path, settings=DRAINING) as server:
        kept = server.connect()
        kept.request("POST", "/mutate", BODY)
        assert kept.getresponse().read()
        server.tell_to_end()
        wait_until_unready(server)
        status, body = server.ask("POST", "/mutate", BODY)
        assert status == 200
        assert read_answer(body).allowed
        kept.request("POST", "/mutate", BODY)
        response = kept.getresponse()
        assert read_answer(response.read()).allowed
        assert response.getheader("Connection") == "close"
        kept.close()
        assert server.wait_until_ended() == 0


def test_idle_connections_do_not_hold_up_the_end(tmp_path: Path) -> None:
    longer_than_this_test_waits = 600
    settings = {"serving": {"drain_seconds": 0.2, "finish_seconds": longer_than_this_test_waits}}
    with WebhookServer(tmp_path, settings=settings) as server:
        idle = [server.connect() for _ in range(5)]
        for connection in idle:
            connection.request("GET", "/healthz")
            connection.getresponse().read()
        server.tell_to_end()
        assert server.wait_until_ended() == 0
        for connection in idle:
            connection.close()


def test_a_request_under_way_is_answered(tmp_path: Path) -> None:
    settings = {"serving": {"drain_seconds": 1.0, "finish_seconds": 60}}
    with WebhookServer(tmp_path, settings=settings) as server:
        slow = server.connect()
        slow.putrequest("POST", "/mutate")
        slow.putheader("Content-Length", str(len(BODY)))
        slow.endheaders(BODY[:100])
        server.tell_to_end()
        wait_until_unready_or_closed(server)
        slow.send(BODY[100:])
        response = slow.getresponse()
        assert read_answer(response.read()).allowed
        slow.close()
        assert server.wait_until_ended() == 0


def wait_until_unready_or_closed(server: WebhookServer) -> None:
    try:
        wait_until_unready(server)
    except OSError:
        return


def test_two_replicas_in_turn_lose_no_request(tmp_path: Path) -> None:
    """A rolling restart as a Service sees it: the other replica is up before one goes."""
    failures: list[str] = []
    answered = 0
    ended = threading.Event()
    current: list[WebhookServer] = []

    def call() -> None:
        nonlocal answered
        target, connection = current[0], current[0].connect()
        while not ended.wait(0.03):
            if current[0] is not target:
                connection.close()
                target, connection = current[0], current[0].connect()
            try:
                connection.request("POST", "/mutate", BODY)
                response = connection.getresponse()
                if not read_answer(response.read()).allowed:
                    failures.append("refused")
                if response.getheader("Connection") == "close":
                    connection.close()
                answered += 1
            except OSError as error:
                failures.append(repr(error))
                connection.close()
        connection.close()

    with WebhookServer(tmp_path / "old", settings=DRAINING) as old, WebhookServer(tmp_path / "new") as new:
        current.append(old)
        thread = threading.Thread(target=call)
        thread.start()
        old.tell_to_end()
        wait_until_unready(old)
        current[0] = new
        assert old.wait_until_ended() == 0
        ended.set()
        thread.join()
    assert failures == []
    assert answered > 10
