"""Adds up the metrics of all workers, and serves them over plain HTTP on a port that any worker answers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import prometheus_client
from prometheus_client import CollectorRegistry, multiprocess, values

from fairgpu.serving.messages import ASGIApplication, Receive, Response, Scope, Send, problem, send_response
from fairgpu.serving.probes import HEALTH, READINESS

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def share_metrics() -> tempfile.TemporaryDirectory[str]:
    """Lets all processes that are forked from this one share the metrics that are created from now on: counts add up.

    Returns:
        The folder that holds the metrics. It must outlive the processes; the caller removes it.
    """
    folder = tempfile.TemporaryDirectory(prefix="fairgpu-metrics-", dir=memory_folder(), ignore_cleanup_errors=True)
    os.environ[FOLDER_VARIABLE] = folder.name
    # The library decides at its import, which may have come before this.
    values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call] # it ships none
    return folder


def forget_process(pid: int) -> None:
    """Removes the share of a process that has ended from the gauges that add up over living processes.

    Args:
        pid: the process's id.
    """
    multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call] # it ships none


def memory_folder() -> str | None:
    """Returns the path of a folder in memory, where heartbeats and counters are written without waiting for a disk.

    Returns None if the machine has no such folder.
    """
    return str(SHARED_MEMORY) if os.access(SHARED_MEMORY, os.W_OK) else None


class MetricsApplication:
    """The ASGI application of the metrics port: it answers `GET /metrics`, summed over all workers of the service.

    The answer is in Prometheus's text format. The service's own application answers probes on this port: the kubelet
    sends them here if the service listens on loopback, where the kubelet cannot reach it.
    """

    def __init__(self, probed: ASGIApplication) -> None:
        """Makes the application; `probed` is the service's own application, which answers the probes."""
        self._probed = probed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers `GET /metrics`, passes probes to the service's application, and answers other requests with 404."""
        asked = scope["method"], scope["path"]
        if asked in (HEALTH, READINESS):
            await self._probed(scope, receive, send)
            return
        if asked != ("GET", "/metrics"):
            text = "only /metrics, /healthz and /readyz are here"
            await send_response(send, problem(404, "Not Found", text), close=True)
            return
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call] # it ships none
        body = prometheus_client.generate_latest(registry)
        content_type = prometheus_client.CONTENT_TYPE_LATEST.encode()
        await send_response(send, Response(200, body, content_type))
