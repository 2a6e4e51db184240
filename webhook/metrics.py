"""The webhook's metrics."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0)
ROUTES = ("mutate", "validate", "account")
OUTCOMES = ("untouched", "changed", "refused", "unreadable")


class Tally:
    """Counts of one webhook's answers, in plain numbers that one thread changes and that only grow.

    Attributes:
        outcomes: the numbers of answers, keyed by outcome.
        buckets: the number of answers in each range of durations that BUCKETS bounds.
        seconds: the sum of all durations.
    """

    __slots__ = ("buckets", "outcomes", "seconds")

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0


class BulkHistogram(Histogram):
    """A histogram of Prometheus to which many observations are added at once."""

    def add(self, buckets: Sequence[int], seconds: float) -> None:
        """Adds many observations to the histogram.

        Args:
            buckets: the number of new observations in each bucket; the last bucket has no upper bound.
            seconds: the sum of the new observations.
        """
        self._sum.inc(seconds)
        for bucket, count in zip(self._buckets, buckets, strict=True):
            if count:
                bucket.inc(count)


class Measures:
    """The webhook's counters and gauges, created once a process.

    The metrics library counts in memory that all workers share, and to count a review there takes longer than TLS takes
    for the review. So reviews are counted in plain numbers, and `publish` adds the growth of these to the metrics.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._reviews = Counter(
            "fairgpu_webhook_reviews",
            "Admission reviews answered, by webhook and by outcome.",
            ("webhook", "outcome"),
            registry=registry,
        )
        self._seconds = BulkHistogram(
            "fairgpu_webhook_review_duration_seconds",
            "Time from a review's body to its answer, without the network.",
            ("webhook",),
            buckets=BUCKETS,
            registry=registry,
        )
        self._states_confirmed = Gauge(
            "fairgpu_webhook_states_confirmed_timestamp_seconds",
            "When the timekeeper last confirmed the budgets' states, in the worker with the oldest; 0 for never.",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._ready = Gauge(
            "fairgpu_webhook_ready",
            "Whether a worker of the replica has all that reviews wait for (1), or none has (0).",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._certificate_expiry = Gauge(
            "fairgpu_webhook_certificate_expiry_timestamp_seconds",
            "When the served certificate ends, in seconds since 1970.",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._ingress_open = Gauge(
            "fairgpu_webhook_ingress_open",
            "Whether the webhook's NetworkPolicy lets every address connect (1), or names those that may (0).",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._differing = Gauge(
            "fairgpu_webhook_rendered_objects_differing",
            "Policies, their bindings, webhook rules and role bindings that are not of the version and its settings.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._states_confirmed.set(0)
        self._counters = {
            (route, outcome): self._reviews.labels(route, outcome) for route in ROUTES for outcome in OUTCOMES
        }
        self._timers = {route: self._seconds.labels(route) for route in ROUTES}
        self._tallies = {route: Tally() for route in ROUTES}
        self._published = {route: Tally() for route in ROUTES}
        self._publishing = threading.Lock()  # guards _published: the thread that publishes, and the end of the worker

    def reviewed(self, route: str, outcome: str, seconds: float) -> None:
        """Counts the answer to an admission review. Only the thread of the event loop may call this.

        Args:
            route: the webhook: `mutate`, `validate` or `account`.
            outcome: the kind of answer: `untouched`, `changed`, `refused` or `unreadable`.
            seconds: the time from the body of the request to the answer.
        """
        tally = self._tallies[route]
        tally.outcomes[outcome] += 1
        tally.buckets[bisect_left(BUCKETS, seconds)] += 1
        tally.seconds += seconds

    def publish(self) -> None:
        """Adds the reviews that were counted since the last call of this method to the metrics; safe in any thread."""
        with self._publishing:
            for route, tally in self._tallies.items():
                self._publish(route, tally, self._published[route])

    def _publish(self, route: str, tally: Tally, published: Tally) -> None:
        for outcome, count in tally.outcomes.items():
            self._counters[route, outcome].inc(count - published.outcomes[outcome])
            published.outcomes[outcome] = count
        buckets, seconds = list(tally.buckets), tally.seconds
        new = [count - before for count, before in zip(buckets, published.buckets, strict=True)]
        self._timers[route].add(new, seconds - published.seconds)
        published.buckets, published.seconds = buckets, seconds

    def set_states_confirmed(self, moment: float) -> None:
        """Sets the metric of the time, in seconds since 1970, at which the timekeeper last confirmed the states."""
        self._states_confirmed.set(moment)

    def set_ready(self, is_ready: bool) -> None:  # noqa: FBT001 - a callback's argument
        """Sets the metric of readiness: 1 if the worker has all knowledge that reviews wait for, else 0."""
        self._ready.set(is_ready)

    def set_ingress_open(self, is_open: bool) -> None:  # noqa: FBT001 - a callback's argument
        """Sets the metric of open ingress: 1 if the webhook's NetworkPolicy lets every address connect, else 0."""
        self._ingress_open.set(is_open)

    def set_objects_differing(self, count: int) -> None:
        """Sets the metric of the number of policies, webhook rules and bindings that differ from the settings."""
        self._differing.set(count)

    def set_certificate_expiry(self, moment: datetime) -> None:
        """Sets the metric of the time, in seconds since 1970, at which the served certificate expires."""
        self._certificate_expiry.set(moment.timestamp())
