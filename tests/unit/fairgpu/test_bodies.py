"""Bodies that are too long: their answer waits for what is still under way, and for nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairgpu.serving.application import Application
from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.options import Address, ServerOptions
from tests.support.waiting import LIMIT_S

MAX_BYTES = 10
OPTIONS = ServerOptions("test", Address("127.0.0.1", 0), max_body_bytes=MAX_BYTES, body_seconds=10 * LIMIT_S)

Part = tuple[bytes, bool]
"""A part of a body, and whether more follows."""


def answers(parts: list[Part], headers: list[tuple[bytes, bytes]]) -> tuple[list[Any], list[Part]]:
    """Returns the messages to a client that sends these parts and then waits, and the unread parts."""
    left = list(parts)
    sent: list[Any] = []

    async def receive() -> Any:
        if not left:  # the client has nothing more to say, and stays
            await asyncio.Event().wait()
        body, more = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": more}

    async def send(message: Any) -> None:
        sent.append(message)

    async def serve() -> None:
        application = Application(Lifecycle(OPTIONS), {}, lambda _environ, _start: [])
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "query_string": b""}
        async with asyncio.timeout(LIMIT_S):
            await application(scope, receive, send)

    asyncio.run(serve())
    return sent, left


@pytest.mark.parametrize(
    ("parts", "headers"),
    [
        ([(b"x" * 11, False)], []),
        ([(b"x" * 6, True), (b"x" * 6, False)], []),
        ([(b"x" * 6, True), (b"x" * 6, True), (b"", False)], []),
        ([(b"x" * 6, True), (b"x" * 6, True), (b"x" * 6, False)], []),
        ([(b"x" * 6, True), (b"x" * 6, False)], [(b"content-length", b"12")]),
    ],
    ids=["in one part", "in its last part", "its end comes later", "more comes later", "as it says"],
)
def test_the_answer_comes_as_soon_as_the_client_has_sent_it_all(
    parts: list[Part], headers: list[tuple[bytes, bytes]]
) -> None:
    sent, left = answers(parts, headers)
    assert sent[0]["status"] == 413
    assert (b"connection", b"close") in sent[0]["headers"]
    assert left == []
