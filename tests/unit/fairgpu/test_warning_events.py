"""Warnings about one object that come again and again."""

from __future__ import annotations

import datetime as dt

from fairgpu.cluster.api import CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS, ApiError, Json
from fairgpu.cluster.warning_events import REPEAT_SECONDS, RETRY_SECONDS, About, RepeatedWarnings

NOON = dt.datetime(2026, 9, 1, 12, tzinfo=dt.UTC)
POD = About("Pod", "train", "uid-1", "team")


class Server:
    """Keeps the events that are written."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.is_away = False

    def create(self, _path: str, body: Json) -> Json:
        if self.is_away:
            raise ApiError(0, "", "no answer")
        self.messages.append(body["message"])
        return body


def after(seconds: float) -> dt.datetime:
    return NOON + dt.timedelta(seconds=seconds)


def test_a_warning_is_written_again_only_after_a_while() -> None:
    server = Server()
    warnings = RepeatedWarnings(server, "part", "n1")
    for seconds in (0, 1, REPEAT_SECONDS - 1):
        warnings.warn(POD, "Refused", "no room", after(seconds))
    assert server.messages == ["no room"]
    warnings.warn(POD, "Refused", "another cause", after(1))
    warnings.warn(POD, "Refused", "no room", after(REPEAT_SECONDS))
    assert server.messages == ["no room", "another cause", "no room"]


def test_a_clock_that_is_set_back_silences_no_warning() -> None:
    server = Server()
    warnings = RepeatedWarnings(server, "part", "n1")
    for seconds in (0, -86400, -86400 + 1):
        warnings.warn(POD, "Refused", "no room", after(seconds))
    assert server.messages == ["no room", "no room"]


def test_a_warning_that_the_api_server_did_not_take_is_tried_again() -> None:
    server = Server()
    warnings = RepeatedWarnings(server, "part", "n1")
    server.is_away = True
    assert warnings.warn(POD, "Refused", "no room", NOON)
    server.is_away = False
    assert not warnings.warn(POD, "Refused", "no room", after(RETRY_SECONDS - 1))
    assert warnings.warn(POD, "Refused", "no room", after(RETRY_SECONDS))
    assert not warnings.warn(POD, "Refused", "no room", after(RETRY_SECONDS + REPEAT_SECONDS - 1))
    assert server.messages == ["no room"]


def test_a_warning_for_which_the_api_server_gave_no_answer_is_not_tried_again_as_soon_as_the_wait_has_ended() -> None:
    server = Server()
    warnings = RepeatedWarnings(server, "part", "n1")
    server.is_away = True
    assert warnings.warn(POD, "Refused", "no room", NOON)
    assert not warnings.warn(POD, "Refused", "no room", after(CONNECT_TIMEOUT_SECONDS + READ_TIMEOUT_SECONDS))


def test_a_clock_that_is_set_back_delays_no_second_try() -> None:
    server = Server()
    warnings = RepeatedWarnings(server, "part", "n1")
    server.is_away = True
    warnings.warn(POD, "Refused", "no room", NOON)
    server.is_away = False
    assert warnings.warn(POD, "Refused", "no room", after(-1))
    assert server.messages == ["no room"]
