"""The extender's metrics."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0)
OUTCOMES = {
    "filter": ("placed", "refused", "unreadable", "not_acting"),
    "prioritize": ("placed", "unreadable", "not_acting"),
    "bind": ("placed", "refused", "unreadable", "not_acting"),
}
"""The outcomes of a call, by its verb."""


class Measures:
    """Counters and histograms, made once a process."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._calls = Counter(
            "fairgpu_scheduler_calls",
            "Calls of kube-scheduler, by verb and by what became of the pod.",
            ("verb", "outcome"),
            registry=registry,
        )
        self._seconds = Histogram(
            "fairgpu_scheduler_call_duration_seconds",
            "Time from a call's body to its answer.",
            ("verb",),
            buckets=BUCKETS,
            registry=registry,
        )
        for verb, outcomes in OUTCOMES.items():
            self._seconds.labels(verb)
            for outcome in outcomes:
                self._calls.labels(verb, outcome)

    def answered(self, verb: str, outcome: str, seconds: float) -> None:
        """Counts an answer."""
        self._calls.labels(verb, outcome).inc()
        self._seconds.labels(verb).observe(seconds)
