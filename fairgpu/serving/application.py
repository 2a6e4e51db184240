"""The application of a service: a few hot routes handled in the event loop, all others by a WSGI application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from a2wsgi import WSGIMiddleware

from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.messages import (
    BodyError,
    Disconnected,
    Handler,
    Message,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    discard_body,
    problem,
    read_body,
    send_response,
)

_log = structlog.get_logger(__name__)

TOO_LARGE = 413

WSGIApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Application:
    """An ASGI callable over hot routes and a WSGI application.

    Every body is read before anything is asked to handle it, so that its bounds hold for all routes. What a handler
    raises is logged here, and answered with a problem document that tells nothing of the inside.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        hot: Mapping[tuple[str, str], Handler],
        wsgi: WSGIApplication,
        wsgi_threads: int = 4,
    ) -> None:
        self._lifecycle = lifecycle
        self._hot = hot
        self._wsgi = WSGIMiddleware(wsgi, workers=wsgi_threads)  # type: ignore[arg-type] # its own types are narrower
        self._options = lifecycle.options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request, or the worker's start and end."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await asyncio.to_thread(self._lifecycle.start)
        except Exception as error:  # noqa: BLE001 - whatever keeps it from starting is told to the server
            _log.error("start failed", error=str(error), exc_info=True)
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.to_thread(self._lifecycle.stop)
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, self._options.max_body_bytes, self._options.body_seconds)
        except Disconnected:
            return
        except BodyError as error:
            response = problem(error.status, HTTPStatus(error.status).phrase, str(error))
            await discard_body(receive, self._options.body_seconds if error.status == TOO_LARGE else 0)
            await send_response(send, response, close=True)
            return
        handler = self._hot.get((scope["method"], scope["path"]))
        if handler is None:
            await self._serve_wsgi(scope, body, send)
            return
        try:
            response = await handler(Request(scope, body))
        except Exception:  # noqa: BLE001 - the one place where the unforeseen becomes an answer
            _log.exception("request failed", method=scope["method"], path=scope["path"])
            response = _internal_error()
        await send_response(send, response, close=self._lifecycle.draining)

    async def _serve_wsgi(self, scope: Scope, body: bytes, send: Send) -> None:
        if not scope["query_string"].isascii():
            await send_response(send, problem(400, "Bad Request", "the query is not percent-encoded"), close=True)
            return
        started = False

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._wsgi(scope, receive, noting)  # type: ignore[arg-type] # plain mappings, as ASGI has them
        except Exception:
            _log.exception("request failed", method=scope["method"], path=scope["path"])
            if started:
                raise
            await send_response(send, _internal_error())


def _internal_error() -> Response:
    return problem(500, "Internal Server Error", "the server's log has the reason")
