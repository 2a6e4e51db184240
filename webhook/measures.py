"""The webhook's metrics."""

from __future__ import annotations

from datetime import datetime

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0)
OUTCOMES = ("untouched", "changed", "refused", "unreadable")


class Measures:
    """Counters and gauges, made once a process."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._reviews = Counter(
            "fairgpu_webhook_reviews",
            "Admission reviews answered, by webhook and by what became of the object.",
            ("webhook", "outcome"),
            registry=registry,
        )
        self._seconds = Histogram(
            "fairgpu_webhook_review_duration_seconds",
            "Time from a review's body to its answer, without the network.",
            ("webhook",),
            buckets=BUCKETS,
            registry=registry,
        )
        self._states_confirmed = Gauge(
            "fairgpu_webhook_states_confirmed_timestamp_seconds",
            "When the timekeeper last told the budgets' states, in the worker where that is longest ago; 0 for never.",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._certificate_expiry = Gauge(
            "fairgpu_webhook_certificate_expiry_timestamp_seconds",
            "When the served certificate ends, in seconds since 1970.",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._states_confirmed.set(0)
        self._counters = {
            (route, outcome): self._reviews.labels(route, outcome)
            for route in ("mutate", "validate")
            for outcome in OUTCOMES
        }
        self._timers = {route: self._seconds.labels(route) for route in ("mutate", "validate")}

    def reviewed(self, route: str, outcome: str, seconds: float) -> None:
        """Counts an answer."""
        self._counters[route, outcome].inc()
        self._timers[route].observe(seconds)

    def set_states_confirmed(self, moment: float) -> None:
        """Says when the states were last told, in seconds since 1970."""
        self._states_confirmed.set(moment)

    def set_certificate_expiry(self, moment: datetime) -> None:
        """Says when the certificate ends."""
        self._certificate_expiry.set(moment.timestamp())
