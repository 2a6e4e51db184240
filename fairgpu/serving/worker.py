"""A worker process: gunicorn's asgi worker, with certificates that renew and a shutdown that waits for requests."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import ssl
from functools import partial
from typing import Any

import structlog
from gunicorn.arbiter import Arbiter
from gunicorn.asgi.lifespan import LifespanManager
from gunicorn.workers.gasgi import ASGIWorker

from fairgpu.serving.accepting import Acceptor, first_bytes
from fairgpu.serving.connection import BoundedConnection
from fairgpu.serving.handshakes import Arrivals, Handshakes
from fairgpu.serving.immediate import ImmediateConnection
from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.metrics import MetricsApplication
from fairgpu.serving.options import ServerOptions
from fairgpu.serving.tls import ChainError, LiveContext, ReadChain

_log = structlog.get_logger(__name__)

HEARTBEAT_SECONDS = 1.0
OTHER_DESCRIPTORS = 256
"""The file descriptors left for the application's own connections, for files and for metrics."""


class ServingWorker(ASGIWorker):  # type: ignore[misc] # gunicorn ships no types
    """A worker process of gunicorn, which serves a service's application and, on separate sockets, the metrics.

    After SIGTERM it still accepts connections for `drain_seconds`, until load balancers know of the shutdown; each
    connection is closed after its answer. Then it stops listening, closes idle connections, and waits up to
    `finish_seconds` for requests under way.

    Attributes:
        options: the options of the server.
        lifecycle: the actions and threads of this worker.
        arrivals: the bytes of unfinished requests, over all connections of this worker.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.options: ServerOptions = self.app.options
        self.lifecycle: Lifecycle = self.app.lifecycle
        self._end_requested = asyncio.Event()
        self._connections: set[BoundedConnection] = set()
        self.arrivals = Arrivals(self.options.max_arriving_bytes)

    def init_signals(self) -> None:
        """Does nothing, so that SIGTERM ends the worker at once while it starts and has no request yet.

        gunicorn would set handlers of signals here. uvloop loses a signal that comes between `add_signal_handler` and
        the start of the loop, so the handlers are set once the loop runs.
        """

    def handle_exit_signal(self) -> None:
        """Begins the worker's shutdown on SIGTERM at once, instead of at the next heartbeat."""
        super().handle_exit_signal()
        self._end_requested.set()
        self.lifecycle.drain()

    def handle_quit_signal(self) -> None:
        """Ends the worker on SIGINT and SIGQUIT, without waiting for requests."""
        super().handle_quit_signal()
        self._end_requested.set()
        self.lifecycle.drain()

    async def _serve(self) -> None:
        allow_descriptors(self.options.max_connections + self.options.max_handshakes + OTHER_DESCRIPTORS)
        read_chain: ReadChain | None = self.app.read_chain
        live = await self._first_chain(read_chain) if read_chain else None
        self.lifespan = LifespanManager(self.asgi, self.log, self.state)
        try:
            await self.lifespan.startup()
        except RuntimeError as error:
            self.lifespan = None
            raise SystemExit(Arbiter.WORKER_BOOT_ERROR) from error
        # Objects that exist now live as long as the process: frozen, they are left out of later garbage collections.
        gc.collect()
        gc.freeze()
        super().init_signals()
        self._listen(live)
        reading = asyncio.create_task(self._cut_off_unread())
        reloading = asyncio.create_task(self._reload(live, read_chain)) if live and read_chain else None
        while self.alive and self.ppid == os.getppid():
            await self._beat(HEARTBEAT_SECONDS)
        if reloading:
            reloading.cancel()
        self.lifecycle.drain()
        await self._end()
        reading.cancel()

    async def _first_chain(self, read_chain: ReadChain) -> LiveContext:
        """Waits until the certificate chain can be read, and returns a TLS context with it.

        The chain may be missing at first, since the process that issues it starts at the same time. If the arbiter
        of gunicorn ends meanwhile, raises SystemExit.
        """
        while True:
            try:
                return LiveContext(await asyncio.to_thread(read_chain))
            except ChainError as error:
                _log.warning("no certificate chain yet", server=self.options.name, error=str(error))
            await self._beat(HEARTBEAT_SECONDS)
            if self.ppid != os.getppid():
                raise SystemExit(0)

    def _listen(self, live: LiveContext | None) -> None:
        metrics = MetricsApplication(self.asgi)
        of_application, of_metrics = (
            Handshakes(self.options.max_handshakes, self.options.max_handshakes_of_address) for _ in range(2)
        )
        for index, listener in enumerate(self.sockets):
            is_metrics = index >= self.app.application_listeners
            application = metrics if is_metrics else self.asgi
            context = live.context if live and not is_metrics else None
            serve = partial(self._serve_connection, application, context)
            handshakes = of_metrics if is_metrics else of_application
            acceptor = Acceptor(self.loop, listener.sock, serve, lambda: len(self._connections), handshakes)
            acceptor.start()
            self.servers.append(acceptor)

    async def _serve_connection(self, application: Any, context: ssl.SSLContext | None, taken: socket.socket) -> None:
        if context and not await self._sends_first_bytes(taken):
            return
        await self.loop.connect_accepted_socket(
            lambda: ImmediateConnection(self, application, self._connections),
            taken,
            ssl=context,
            ssl_handshake_timeout=self.options.handshake_seconds if context else None,
            ssl_shutdown_timeout=1.0 if context else None,
        )

    async def _sends_first_bytes(self, taken: socket.socket) -> bool:
        sent = False
        try:
            sent = await first_bytes(self.loop, taken, self.options.handshake_seconds)
        finally:
            if not sent:
                taken.close()
        return sent

    async def _beat(self, seconds: float) -> None:
        """Sends the heartbeat to gunicorn's arbiter; then waits for `seconds`, or until the worker must end."""
        self.notify()
        try:
            async with asyncio.timeout(seconds):
                await self._end_requested.wait()
        except TimeoutError:
            pass

    async def _cut_off_unread(self) -> None:
        while True:
            await asyncio.sleep(self.options.unread_seconds)
            for connection in tuple(self._connections):
                connection.cut_off_if_unread()

    async def _reload(self, live: LiveContext, read_chain: ReadChain) -> None:
        while True:
            await asyncio.sleep(self.options.reload_seconds)
            try:
                if live.reload(await asyncio.to_thread(read_chain)):
                    _log.info("certificate chain reloaded", server=self.options.name)
            except ChainError as error:
                _log.error("certificate chain not reloaded", server=self.options.name, error=str(error))
            except Exception:  # noqa: BLE001 - the task would end, and the present certificate would expire
                _log.exception("part failed", part="certificate chain")

    async def _end(self) -> None:
        deadline = self.loop.time() + (0 if self._quick_shutdown else self.options.drain_seconds)
        while self.loop.time() < deadline and not self._quick_shutdown:
            self.notify()
            await asyncio.sleep(0.1)
        for server in self.servers:
            server.close()
        deadline = self.loop.time() + (0 if self._quick_shutdown else self.options.finish_seconds)
        while self._connections and self.loop.time() < deadline and not self._quick_shutdown:
            self.notify()
            for connection in tuple(self._connections):
                connection.close_if_silent()
            await asyncio.sleep(0.05)
        if self._connections:
            _log.warning("connections cut off", server=self.options.name, connections=len(self._connections))
        if self.lifespan and not self._quick_shutdown:
            await self.lifespan.shutdown()


def allow_descriptors(wanted: int) -> None:
    """Raises this process's soft limit of open files, which many runtimes set to 1024.

    Args:
        wanted: the number of open files that the process needs. If it is above the hard limit, the soft limit becomes
            the hard limit, and a warning is logged.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed < wanted:
        _log.warning("few file descriptors are allowed: connections may be refused", allowed=allowed, wanted=wanted)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
