"""Adds up the metrics of all workers, and serves them on a plain port that any worker answers."""

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
    """Makes metrics that are created from now on add up over all processes that are forked from this one.

    Returns:
        The folder that holds the metrics. It must outlive the processes; the caller removes it.
    """
    folder = tempfile.TemporaryDirectory(prefix="fairgpu-metrics-", dir=memory_folder(), ignore_cleanup_errors=True)
    os.environ[FOLDER_VARIABLE] = folder.name
    # The library decides at its import, which may have come before this.
    values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call] # it ships none
    return folder


def forget_process(pid: int) -> None:
    """Removes a process that has ended, given by its id, from the gauges that count living processes."""
    multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call] # it ships none


def memory_folder() -> str | None:
    """Returns the path of a folder in memory; None if there is none.

    Writing heartbeats and counters there does not wait for a disk.
    """
    return str(SHARED_MEMORY) if os.access(SHARED_MEMORY, os.W_OK) else None


class MetricsApplication:
    """Answers `GET /metrics` in Prometheus's text format, summed over the workers; another application answers probes.

    If a service listens on loopback, the kubelet cannot reach its port; it sends the probes to this one.
    """

    def __init__(self, probed: ASGIApplication) -> None:
        """Stores the application that answers the probes."""
        self._probed = probed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers `GET /metrics`, hands on the probes, and answers anything else with 404."""
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
