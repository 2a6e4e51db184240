"""The ASGI application of a service: the event loop answers a few routes, a WSGI application all others."""

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
    ImmediateAnswer,
    Message,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    Stream,
    discard_body,
    problem,
    read_body,
    send_response,
    send_stream,
)

_log = structlog.get_logger(__name__)

Route = tuple[str, str]
"""A method and a path."""
WSGIApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Application:
    """The ASGI application of a service: the event loop answers some routes, a WSGI application in threads all others.

    Every body is read before a handler is called, so that the limits on bodies hold for all routes. A handler's
    exception is logged, and answered with status 500 and a problem document that does not show the exception. If part
    of the answer was sent before, the connection is closed without the rest.

    Attributes:
        immediate: the functions that answer without blocking, keyed by method and path. Each takes a whole body and
            returns the answer. The HTTP server may call them directly, without ASGI.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        hot: Mapping[Route, Handler],
        wsgi: WSGIApplication,
        wsgi_threads: int = 4,
        immediate: Mapping[Route, ImmediateAnswer] | None = None,
    ) -> None:
        self._lifecycle = lifecycle
        answers = {route: _guarded(route, answer) for route, answer in (immediate or {}).items()}
        self.immediate = {(method.encode(), path.encode()): answer for (method, path), answer in answers.items()}
        self._hot = {**hot, **{route: _handler(answer) for route, answer in answers.items()}}
        self._wsgi = WSGIMiddleware(wsgi, workers=wsgi_threads)  # type: ignore[arg-type] # its own types are narrower
        self._options = lifecycle.options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one ASGI scope: a request, or the lifespan, whose events are the worker's start and end.

        A WebSocket is closed at once.
        """
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
        except Exception as error:  # noqa: BLE001 - the server gets any reason
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
            refusal = problem(error.status, HTTPStatus(error.status).phrase, str(error))
            if error.arriving:
                await discard_body(receive, self._options.body_seconds)
            await send_response(send, refusal, close=True)
            return
        handler = self._hot.get((scope["method"], scope["path"]))
        if handler is None:
            await self._serve_wsgi(scope, body, send)
            return
        response: Response | Stream
        try:
            response = await handler(Request(scope, body))
        except Exception:  # noqa: BLE001 - the one place where the unforeseen becomes an answer
            _log.exception("request failed", method=scope["method"], path=scope["path"])
            response = _internal_error()
        if not isinstance(response, Stream):
            await send_response(send, response, close=self._lifecycle.draining)
            return
        try:
            await send_stream(receive, send, response, close=self._lifecycle.draining)
        except Exception:
            # The connection is closed without the end of the answer, by which the client sees that it is cut off.
            _log.exception("request failed", method=scope["method"], path=scope["path"])
            raise

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


def _guarded(route: Route, answer: ImmediateAnswer) -> ImmediateAnswer:
    """Returns a function that calls `answer`; if `answer` raises, it logs the exception and answers with status 500."""

    def guarded(body: bytes) -> Response:
        try:
            return answer(body)
        except Exception:  # noqa: BLE001 - as for every other handler
            _log.exception("request failed", method=route[0], path=route[1])
            return _internal_error()

    return guarded


def _handler(answer: ImmediateAnswer) -> Handler:
    """Returns a coroutine function that calls `answer` with a request's body, for requests that come by ASGI."""

    async def handle(request: Request) -> Response:
        return answer(request.body)

    return handle


def _internal_error() -> Response:
    return problem(500, "Internal Server Error", "the server's log has the reason")
