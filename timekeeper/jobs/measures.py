"""What the jobs process counts, and the plain port that tells it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

EVICTION_OUTCOMES = ("notice", "evict", "call-off", "without-notice", "blocked", "refused", "failed")
POD_STEPS = ("notice", "evict", "call-off", "release", "finalizer")
POD_OUTCOMES = ("written", "changed", "blocked", "refused", "failed", "away")
NOTIFICATION_OUTCOMES = ("delivered", "failed", "refused", "expired", "dropped")
EXPORT_OUTCOMES = ("written", "unchanged", "failed", "conflict")
JOB_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class JobMeasures:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leading = Gauge("fairgpu_timekeeper_leading", "Whether this process leads.", registry=self.registry)
        self.settled_at = Gauge(
            "fairgpu_timekeeper_settled_timestamp_seconds",
            "When every session was last settled.",
            registry=self.registry,
        )
        self.not_settled = Gauge(
            "fairgpu_timekeeper_accounts_not_settled",
            "Accounts of which the last attempt did not settle or publish everything.",
            registry=self.registry,
        )
        self.held_back = Gauge(
            "fairgpu_timekeeper_sessions_held_back",
            "Sessions of running pods that are opened once the store has room for them.",
            registry=self.registry,
        )
        self.clock_ahead = Gauge(
            "fairgpu_timekeeper_api_server_clock_ahead_seconds",
            "How far the latest creation that the API server has stamped lies ahead of this process's clock.",
            registry=self.registry,
        )
        self.durations = Histogram(
            "fairgpu_timekeeper_job_duration_seconds",
            "How long a job of the leading process took.",
            ["task"],
            buckets=JOB_BUCKETS,
            registry=self.registry,
        )
        self.failures = Counter(
            "fairgpu_timekeeper_job_failures", "Jobs that failed, by error.", ["task", "error"], registry=self.registry
        )
        self.pods = PodMeasures(self.registry)
        self.notifications = _by_outcome(
            "fairgpu_timekeeper_notifications",
            "Notifications, by what became of them.",
            NOTIFICATION_OUTCOMES,
            self.registry,
        )
        self.notifications_pending = Gauge(
            "fairgpu_timekeeper_notifications_pending",
            "Notifications that wait to be delivered by this process.",
            registry=self.registry,
        )


class PodMeasures:
    """Counts writes to pods by their outcome."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.evictions = _by_outcome(
            "fairgpu_timekeeper_evictions",
            "What running pods of spent budgets were due, by outcome.",
            EVICTION_OUTCOMES,
            registry,
        )
        self.writes = Counter(
            "fairgpu_timekeeper_pod_writes",
            "Writes to pods, by what was to be written and what became of it.",
            ["step", "outcome"],
            registry=registry,
        )
        self.not_written = Gauge(
            "fairgpu_timekeeper_pods_not_written",
            "Pods of which a write has failed three times in a row or more, by what was to be written.",
            ["step"],
            registry=registry,
        )
        for step in POD_STEPS:
            self.not_written.labels(step)
            for outcome in POD_OUTCOMES:
                self.writes.labels(step, outcome)


class ExportMeasures:
    """What became of months that were to be written outside."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.outcomes = _by_outcome(
            "fairgpu_timekeeper_exports", "Exports of months, by what became of them.", EXPORT_OUTCOMES, registry
        )
        self.pending = Gauge(
            "fairgpu_timekeeper_exports_pending",
            "Closed months whose export does not hold what the store holds.",
            registry=registry,
        )


def _by_outcome(name: str, text: str, outcomes: Iterable[str], registry: CollectorRegistry) -> Counter:
    """A counter with all outcomes from the start: a rate of what appears with its first event misses that event."""
    counter = Counter(name, text, ["outcome"], registry=registry)
    for outcome in outcomes:
        counter.labels(outcome)
    return counter


class _QuietHandler(WSGIRequestHandler):
    timeout = 10

    def log_message(self, *_arguments: Any) -> None:
        """Probes and scrapes are no events."""


class _Server(ThreadingMixIn, WSGIServer):
    """A client that is slow to ask keeps no probe waiting."""

    daemon_threads = True


def serve_measures(host: str, port: int, measures: JobMeasures, healthy: Callable[[], bool]) -> WSGIServer:
    """Serves `/metrics` and `/healthz` in a thread; the caller shuts the server down."""
    metrics = make_wsgi_app(measures.registry)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/healthz":
            answer: Iterable[bytes] = metrics(environ, start_response)
            return answer
        status = "200 OK" if healthy() else "503 Service Unavailable"
        start_response(status, [("Content-Type", "application/json")])
        return [b'{"status":"ok"}' if healthy() else b'{"status":"stuck"}']

    server = make_server(host, port, application, _Server, _QuietHandler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
