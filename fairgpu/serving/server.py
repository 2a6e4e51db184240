"""Runs a service: gunicorn's arbiter, with workers that are forked before the application is built."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import structlog
from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger

from fairgpu.serving.addresses import every_address, plain_address
from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.messages import ASGIApplication
from fairgpu.serving.metrics import forget_process, memory_folder, share_metrics
from fairgpu.serving.options import Address, ServerOptions
from fairgpu.serving.tls import ReadChain
from fairgpu.signals import end_forked_by_default

_log = structlog.get_logger(__name__)

BuildApplication = Callable[[Lifecycle], ASGIApplication]

WORKER = "fairgpu.serving.worker.ServingWorker"
HEARTBEAT_LIMIT_SECONDS = 30


def serve(options: ServerOptions, build: BuildApplication, read_chain: ReadChain | None) -> int:
    """Serves a service's application until SIGTERM, SIGINT or SIGQUIT; returns the exit status.

    Args:
        options: the addresses, processes, limits and times of the server.
        build: builds the application. Each worker calls it after the fork, so that no two workers share threads or
            connections.
        read_chain: returns the certificate chain to present. Each worker calls it again and again. None for a server of
            plain HTTP.
    """
    end_forked_by_default()
    with share_metrics():
        try:
            GunicornServer(options, build, read_chain).run()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1
    return 0


class GunicornServer(BaseApplication):  # type: ignore[misc] # gunicorn ships no types
    """gunicorn's application object for a service: it gives gunicorn its settings and the ASGI application.

    Attributes:
        options: the options of the server.
        lifecycle: the actions and threads of a worker; each worker has a copy, since it is forked.
        read_chain: returns the certificate chain to present; None for a server of plain HTTP.
    """

    def __init__(self, options: ServerOptions, build: BuildApplication, read_chain: ReadChain | None) -> None:
        self.options = options
        self.lifecycle = Lifecycle(options)
        self.read_chain = read_chain
        self._build = build
        self.application_listeners = 0
        """The number of the application's listeners, which come before those of the metrics."""
        super().__init__()

    def load_config(self) -> None:
        """Sets gunicorn's settings that differ from its defaults."""
        metrics = self.options.metrics_address
        of_application = _bound(self.options.address)
        self.application_listeners = len(of_application)
        settings = {
            "bind": of_application + (_bound(metrics) if metrics else []),
            "worker_class": WORKER,
            "workers": self.options.workers,
            "keepalive": self.options.keepalive_seconds,
            "timeout": HEARTBEAT_LIMIT_SECONDS,
            "graceful_timeout": int(self.options.drain_seconds + self.options.finish_seconds) + 2,
            "proc_name": self.options.name,
            "logger_class": EventLogger,
            "accesslog": "-" if self.options.access_log else None,
            "worker_tmp_dir": memory_folder(),
            "control_socket_disable": True,
            "forwarded_allow_ips": "",
            "when_ready": lambda _arbiter: freeze(),
            "child_exit": lambda _arbiter, worker: forget_process(worker.pid),
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> ASGIApplication:
        """Builds and returns the ASGI application, in the worker that calls this."""
        return self._build(self.lifecycle)


def freeze() -> None:
    """Leaves the objects that exist out of later garbage collections, after one that frees those not in use.

    A collection takes long if it looks at many objects. It also writes to each of them, and a page of memory that is
    shared with forked workers is copied once it is written to.
    """
    gc.collect()
    gc.freeze()


def _bound(address: Address) -> list[str]:
    """Returns an address as gunicorn's setting `bind` has it: `HOST:PORT` for each host to listen on.

    An address without a host becomes each of the addresses that `every_address` returns.
    """
    return [str(Address(host, address.port)) for host in ([address.host] if address.host else every_address())]


class EventLogger(Logger):  # type: ignore[misc] # gunicorn ships no types
    """The logger of gunicorn, which writes its log and access log as events of the process's own log."""

    def setup(self, cfg: Any) -> None:
        """Passes gunicorn's log records to the root logger instead of formatting them here."""
        super().setup(cfg)
        for logger in (self.error_log, self.access_log):
            for handler in list(logger.handlers):
                logger.removeHandler(handler)
            logger.propagate = True
        self.error_log.setLevel(logging.INFO)

    def access(self, resp: Any, _req: Any, environ: dict[str, Any], request_time: Any) -> None:
        """Logs one event a request: client, request, outcome and duration; never the query, which may be long.

        Args:
            resp: gunicorn's response, with the status and the number of bytes sent.
            environ: the request's WSGI environment.
            request_time: the duration of the request, as a timedelta.
        """
        _log.info(
            "request",
            client=plain_address(environ["REMOTE_ADDR"]),
            method=environ["REQUEST_METHOD"],
            path=environ["PATH_INFO"],
            status=resp.status,
            bytes=resp.sent,
            seconds=request_time.seconds + request_time.microseconds / 1e6,
        )
