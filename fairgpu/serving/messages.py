"""A request with its whole body, and an answer: the types of handlers, in place of ASGI's events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApplication = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON = b"application/json"
PROBLEM = b"application/problem+json"
LATE_BODY = "the body did not arrive within {seconds:g} seconds"
NOT_MODIFIED = 304


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request with its whole body.

    Attributes:
        scope: the request's ASGI scope, with method, path and headers.
        body: the body.
    """

    scope: Scope
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        """Returns the first value of a header; None if the request lacks it.

        Args:
            name: the header's name, in lower case.
        """
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value)
        return None

    def text_header(self, name: bytes) -> str | None:
        """Returns the first value of a header as text; None if the request lacks it.

        Args:
            name: the header's name, in lower case.
        """
        value = self.header(name)
        return None if value is None else value.decode("latin-1")


class Response(NamedTuple):
    """One answer to an HTTP request.

    Attributes:
        status: the HTTP status.
        body: the whole body.
        content_type: the value of the header Content-Type.
        headers: further headers, as pairs of name and value.
    """

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Stream(NamedTuple):
    """An answer of status 200 whose body is sent in parts as they come. The answer ends early if the client leaves.

    Attributes:
        parts: yields the parts of the body.
        content_type: the value of the header Content-Type.
        headers: further headers, as pairs of name and value.
    """

    parts: AsyncGenerator[bytes]
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


Handler = Callable[[Request], Awaitable[Response | Stream]]
ImmediateAnswer = Callable[[bytes], Response]
"""A function from a request's whole body to the answer; it waits for nothing."""


class BodyError(RuntimeError):
    """The body of a request is refused.

    Attributes:
        status: the HTTP status of the answer.
        arriving: whether the client may still be sending the body.
    """

    def __init__(self, status: int, message: str, *, arriving: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.arriving = arriving


class Disconnected(Exception):  # noqa: N818 - it is no error that a client leaves
    """The client closed the connection before its request was complete."""


async def read_body(scope: Scope, receive: Receive, max_bytes: int, seconds: float) -> bytes:
    """Returns the whole body of a request.

    Args:
        scope: the request's ASGI scope.
        receive: returns the next ASGI message of the request.
        max_bytes: the longest body that is accepted.
        seconds: the longest time for the parts of the body after the first. The server limits the wait for the first.

    Raises:
        BodyError: the body is longer than `max_bytes` (413) or takes longer than `seconds` to arrive (408).
        Disconnected: the client left.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > max_bytes:
            raise _too_long(max_bytes, arriving=True)
    # The server limits each wait. A limit on the whole body costs time, and is needed only for a second message.
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        if len(body) > max_bytes:
            raise _too_long(max_bytes, arriving=False)
        return body
    chunks, size = [body], len(body)
    try:
        async with asyncio.timeout(seconds):
            while message.get("more_body"):
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > max_bytes:
                    raise _too_long(max_bytes, arriving=bool(message.get("more_body")))
    except TimeoutError:
        raise BodyError(408, LATE_BODY.format(seconds=seconds)) from None
    return b"".join(chunks)


async def discard_body(receive: Receive, seconds: float) -> None:
    """Reads and drops the rest of a refused body, so that the client gets the answer.

    If the connection were closed while the client sends, the answer would be lost.

    Args:
        receive: returns the next ASGI message of the request.
        seconds: the longest time for which the body is read.
    """
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
    except TimeoutError:
        return


def _too_long(max_bytes: int, *, arriving: bool) -> BodyError:
    return BodyError(413, f"the body is longer than {max_bytes} bytes", arriving=arriving)


async def send_response(send: Send, response: Response, *, close: bool = False) -> None:
    """Sends an answer to an HTTP request.

    Args:
        send: sends an ASGI message.
        response: the answer.
        close: whether a header announces that the connection is closed after the answer.
    """
    headers = [(b"content-type", response.content_type), *response.headers]
    if response.status != NOT_MODIFIED:  # a client would take its length for that of the full answer
        headers.insert(1, (b"content-length", b"%d" % len(response.body)))
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def send_stream(receive: Receive, send: Send, stream: Stream, *, close: bool = False) -> None:
    """Sends the parts of an answer as they come, until they end or the client leaves; then closes `stream.parts`.

    An exception of `stream.parts` leaves the function; the client then gets no end of the answer.

    Args:
        receive: returns the next ASGI message of the request, one of which reports that the client has left.
        send: sends an ASGI message.
        stream: the answer.
        close: whether a header announces that the connection is closed after the answer.
    """
    headers = [(b"content-type", stream.content_type), *stream.headers]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    left = asyncio.ensure_future(_leaves(receive))
    try:
        async with aclosing(stream.parts) as parts:
            while True:
                part = asyncio.ensure_future(anext(parts, None))
                await asyncio.wait((part, left), return_when=asyncio.FIRST_COMPLETED)
                if not part.done():
                    part.cancel()
                    await asyncio.wait((part,))
                    return
                body_part = part.result()
                if body_part is None:
                    break
                await send({"type": "http.response.body", "body": body_part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        left.cancel()


async def _leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def body_came_late(seconds: float) -> Response:
    """Returns the answer, of status 408, to a request whose body did not arrive within `seconds`."""
    return problem(408, HTTPStatus(408).phrase, LATE_BODY.format(seconds=seconds))


def problem(status: int, title: str, detail: str) -> Response:
    """Returns a problem document (RFC 9457) as the answer to a request.

    Args:
        status: the HTTP status of the answer.
        title: the kind of problem, in a few words.
        detail: a sentence about this case.
    """
    document = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return Response(status, orjson.dumps(document), PROBLEM)
