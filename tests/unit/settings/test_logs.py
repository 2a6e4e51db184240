from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from fairgpu.logs import configure_logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logs("INFO", stream)
    yield stream
    root.handlers, root.level = before
    structlog.reset_defaults()


def test_an_event_is_one_json_line_with_its_ids(stream: io.StringIO) -> None:
    structlog.get_logger().info("pod_mutated", namespace="team-a", uid="u1")
    event = json.loads(stream.getvalue())
    assert (event["event"], event["namespace"], event["uid"], event["level"]) == ("pod_mutated", "team-a", "u1", "info")


def test_the_standard_library_logs_in_the_same_form(stream: io.StringIO) -> None:
    logging.getLogger("gunicorn.error").warning("worker %s left", 7)
    assert json.loads(stream.getvalue())["event"] == "worker 7 left"


def test_a_secret_under_its_name_is_hidden(stream: io.StringIO) -> None:
    structlog.get_logger().info("asked", token="abc", Authorization="Bearer abc")
    assert "abc" not in stream.getvalue()
