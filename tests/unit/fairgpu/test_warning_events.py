"""Warnings about one object that come again and again, and an API server that does not take them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from fairgpu.cluster.api import ApiError, Json
from fairgpu.cluster.warning_events import (
    KEPT_SECONDS,
    MOST_WAITING,
    REPEAT_SECONDS,
    RETRY_SECONDS,
    About,
    RepeatedWarnings,
)

NOON = dt.datetime(2026, 9, 1, 12, tzinfo=dt.UTC)
POD = About("Pod", "train", "uid-1", "team")
NO_ANSWER = ApiError(0, "", "no answer")


class Server:
    """Keeps the events that are written, and the names of those that it was sent."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.stamps: list[str] = []
        self.names: list[str] = []
        self.error: ApiError | None = None
        self.meanwhile: Callable[[], object] = lambda: None
        """Called while an event is on its way."""

    def create(self, _path: str, body: Json) -> Json:
        self.names.append(body["metadata"]["name"])
        self.meanwhile()
        if self.error is not None:
            raise self.error
        self.messages.append(body["message"])
        self.stamps.append(body["lastTimestamp"])
        return body


class Node:
    """A component's warnings, its API server, and its clock, which passes where a test lets it."""

    def __init__(self) -> None:
        self.server = Server()
        self.seconds = 1000.0
        self.warnings = RepeatedWarnings(self.server, "part", "n1", lambda: self.seconds)

    def warn(self, message: str = "no room") -> bool:
        return self.warnings.warn(POD, "Refused", message, NOON)


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_warning_is_written_again_only_after_a_while(node: Node) -> None:
    assert [node.warn(), node.warn(), node.warn("another cause")] == [True, False, True]
    node.warnings.write_due()
    assert node.server.messages == ["no room", "another cause"]
    node.seconds += REPEAT_SECONDS - 1
    assert not node.warn()
    node.seconds += 1
    assert node.warn()
    assert node.warnings.write_due() is None
    assert node.server.messages == ["no room", "another cause", "no room"]


def test_a_warning_waits_for_no_api_server(node: Node) -> None:
    node.server.meanwhile = lambda: pytest.fail("it is sent by the thread that warns")
    assert node.warn()


def test_a_warning_that_the_api_server_did_not_take_is_tried_until_it_does_though_nobody_warns_again(
    node: Node,
) -> None:
    node.server.error = NO_ANSWER
    assert node.warn()
    assert node.warnings.write_due() == RETRY_SECONDS
    node.seconds += RETRY_SECONDS - 1
    assert node.warnings.write_due() == 1
    node.seconds += 1
    assert node.warnings.write_due() == RETRY_SECONDS
    assert len(node.server.names) == 2
    node.server.error = None
    node.seconds += RETRY_SECONDS
    assert node.warnings.write_due() is None
    assert (node.server.messages, node.server.stamps) == (["no room"], ["2026-09-01T12:00:00Z"])
    assert len(set(node.server.names)) == 1, "a try that was carried out without an answer makes no second event"


def test_a_warning_that_waits_is_not_written_twice_where_its_cause_lasts(node: Node) -> None:
    node.server.error = NO_ANSWER
    node.warn()
    for _ in range(3):
        node.seconds += REPEAT_SECONDS
        node.warnings.write_due()
        assert not node.warn()
    node.server.error = None
    node.seconds += RETRY_SECONDS
    node.warnings.write_due()
    assert node.server.messages == ["no room"]


def test_one_warning_that_is_not_taken_delays_no_other(node: Node) -> None:
    node.server.error = NO_ANSWER
    node.warn()
    node.warnings.write_due()
    node.server.error = None
    node.warn("another cause")
    assert node.warnings.write_due() == RETRY_SECONDS
    assert node.server.messages == ["another cause"]


@pytest.mark.parametrize("status", [400, 404, 422], ids=["bad", "no such namespace", "invalid"])
def test_a_warning_that_can_never_be_taken_is_given_up_at_once(node: Node, status: int) -> None:
    node.server.error = ApiError(status, "", "never")
    node.warn()
    with capture_logs() as logs:
        assert node.warnings.write_due() is None
    assert [each["event"] for each in logs] == ["node event given up"]
    assert node.warn(), "where its cause lasts, it is due again"


def test_a_warning_is_given_up_once_it_is_older_than_an_event_lives(node: Node) -> None:
    node.server.error = NO_ANSWER
    node.warn()
    with capture_logs() as logs:
        node.warnings.write_due()
        node.seconds += KEPT_SECONDS - 1
        node.warnings.write_due()
        node.seconds += RETRY_SECONDS
        assert node.warnings.write_due() is None
    assert [each["event"] for each in logs] == ["node event not written", "node event given up"]


def test_the_oldest_of_too_many_warnings_that_wait_is_given_up(node: Node) -> None:
    node.server.error = NO_ANSWER
    with capture_logs() as logs:
        for number in range(MOST_WAITING + 1):
            node.warn(f"cause {number}")
    assert [each["event"] for each in logs] == ["node event given up"]
    node.server.error = None
    node.warnings.write_due()
    assert node.server.messages == [f"cause {number}" for number in range(1, MOST_WAITING + 1)]


def test_a_warning_that_comes_while_another_one_is_on_its_way_waits_for_none(node: Node) -> None:
    def another() -> None:
        node.server.meanwhile = lambda: None
        assert node.warn("another cause")

    node.server.meanwhile = another
    node.warn()
    node.warnings.write_due()
    assert node.server.messages == ["no room", "another cause"]
