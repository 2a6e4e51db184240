"""A small service over `fairgpu.serving`, for tests: it echoes, fails, waits and counts.

    python -m tests.support.servers.serving_program PORT METRICS_PORT FOLDER PATIENCE [OPTION...]

The folder holds `tls.crt` and `tls.key`. For a file `unforeseen` there, reading them fails once. The service waits
PATIENCE seconds for what a client owes it. It logs each request with the option `logged`, and listens on each address
instead of on loopback with `everywhere`. With `interrupted`, its first worker gets SIGTERM while it starts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import structlog
from flask import Flask, request
from prometheus_client import Counter

from fairgpu.logs import configure_logs
from fairgpu.serving.application import Application, Route
from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.messages import Handler, Request, Response, Stream
from fairgpu.serving.options import Address, ServerOptions
from fairgpu.serving.server import serve
from fairgpu.serving.tls import Chain, read_chain_files

MAX_BODY_BYTES = 100_000
MAX_ARRIVING_BYTES = 500_000
MAX_CONNECTIONS = 20
MAX_HANDSHAKES = 60
MAX_HANDSHAKES_OF_ADDRESS = 40
LARGE_BYTES = 16 << 20
WAITING = "a client waits"
STREAM_ENDED = "a stream has ended"
STARTED_ON = "a worker that got SIGTERM while it started went on"


def build(lifecycle: Lifecycle) -> Application:
    counted = Counter("test_requests", "Requests of this worker.")
    released = asyncio.Event()
    lifecycle.on_drain(released.set)

    def echo_at_once(body: bytes) -> Response:
        counted.inc()
        return Response(200, body)

    def fail_at_once(_body: bytes) -> Response:
        raise ValueError("secret detail")

    async def echo(received: Request) -> Response:
        return echo_at_once(received.body)

    async def fail(_received: Request) -> Response:
        raise ValueError("secret detail")

    async def large(_received: Request) -> Response:
        return Response(200, bytes(LARGE_BYTES))

    async def until_drain(_received: Request) -> Response:
        structlog.get_logger().info(WAITING)
        await released.wait()
        return Response(200, b'"released"')

    immediate = {("POST", "/at-once/echo"): echo_at_once, ("POST", "/at-once/fail"): fail_at_once}
    hot: dict[Route, Handler] = {
        ("POST", "/echo"): echo,
        ("GET", "/fail"): fail,
        ("GET", "/poll"): until_drain,
        ("GET", "/large"): large,
        **build_streams(released),
    }
    return Application(lifecycle, hot, build_flask(), immediate=immediate)


def build_interrupted(folder: Path, lifecycle: Lifecycle) -> Application:
    """Builds the application; the first worker that does so sends SIGTERM to itself before."""
    begun = folder / "begun"
    if not begun.exists():
        begun.touch()
        os.kill(os.getpid(), signal.SIGTERM)
        structlog.get_logger().info(STARTED_ON)
    return build(lifecycle)


def build_streams(released: asyncio.Event) -> dict[Route, Handler]:
    """Returns the route of a stream that goes on until `released` is set, and the route of one that fails."""

    async def parts() -> AsyncGenerator[bytes]:
        try:
            yield b"first\n"
            await released.wait()
            yield b"last\n"
        finally:
            structlog.get_logger().info(STREAM_ENDED)

    async def broken() -> AsyncGenerator[bytes]:
        yield b"first\n"
        raise ValueError("secret detail")

    async def stream(_received: Request) -> Stream:
        return Stream(parts(), b"text/plain")

    async def broken_stream(_received: Request) -> Stream:
        return Stream(broken())

    return {("GET", "/stream"): stream, ("GET", "/broken-stream"): broken_stream}


def build_flask() -> Flask:
    flask = Flask("test")

    @flask.post("/flask/echo")
    def echo() -> bytes:
        return request.get_data()

    @flask.get("/flask/fail")
    def fail() -> str:
        raise ValueError("secret detail")

    return flask


def main() -> int:
    configure_logs()
    port, metrics_port, folder, patience = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
    host = "" if "everywhere" in sys.argv[5:] else "127.0.0.1"
    options = ServerOptions(
        name="test",
        address=Address(host, port),
        metrics_address=Address(host, metrics_port),
        workers=1,
        max_body_bytes=MAX_BODY_BYTES,
        max_arriving_bytes=MAX_ARRIVING_BYTES,
        body_seconds=patience,
        handshake_seconds=patience,
        header_seconds=patience,
        unread_seconds=patience,
        max_connections=MAX_CONNECTIONS,
        max_handshakes=MAX_HANDSHAKES,
        max_handshakes_of_address=MAX_HANDSHAKES_OF_ADDRESS,
        drain_seconds=0.5,
        finish_seconds=30.0,
        reload_seconds=0.1,
        access_log="logged" in sys.argv[5:],
    )
    builds = partial(build_interrupted, folder) if "interrupted" in sys.argv[5:] else build
    return serve(options, builds, partial(read_chain, folder))


def read_chain(folder: Path) -> Chain:
    """Returns the chain in the folder; fails in an unforeseen way once for a file `unforeseen`."""
    unforeseen = folder / "unforeseen"
    if unforeseen.exists():
        unforeseen.unlink()
        raise LookupError("unforeseen")
    return read_chain_files(folder / "tls.crt", folder / "tls.key")


if __name__ == "__main__":
    sys.exit(main())
