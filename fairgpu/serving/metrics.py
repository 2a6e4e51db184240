"""Adds up the metrics of all workers, and serves them on a plain port that any worker answers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import prometheus_client
from prometheus_client import CollectorRegistry, multiprocess, values

from fairgpu.serving.messages import Receive, Response, Scope, Send, problem, send_response

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def share_metrics() -> tempfile.TemporaryDirectory[str]:
    """Makes metrics that are created from now on add up over all processes forked from this one.

    The returned folder, which carries them, must outlive the processes; the caller removes it.
    """
    folder = tempfile.TemporaryDirectory(prefix="fairgpu-metrics-", dir=memory_folder(), ignore_cleanup_errors=True)
    os.environ[FOLDER_VARIABLE] = folder.name
    # The library decides at its import, which may have come before this.
    values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call] # it ships none
    return folder


def forget_process(pid: int) -> None:
    """Removes a dead process from gauges that count living processes."""
    multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call] # it ships none


def memory_folder() -> str | None:
    """Returns a folder in memory, None where there is none; heartbeats and counters then wait for no disk."""
    return str(SHARED_MEMORY) if os.access(SHARED_MEMORY, os.W_OK) else None


class MetricsApplication:
    """`GET /metrics` in Prometheus's text format, summed over the workers."""

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answers with the sums over all workers."""
        if (scope["method"], scope["path"]) != ("GET", "/metrics"):
            await send_response(send, problem(404, "Not Found", "only /metrics is here"), close=True)
            return
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call] # it ships none
        body = prometheus_client.generate_latest(registry)
        content_type = prometheus_client.CONTENT_TYPE_LATEST.encode()
        await send_response(send, Response(200, body, content_type))
