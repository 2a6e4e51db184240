"""The metrics of a REST worker. No label has a value that a client chooses."""

from __future__ import annotations

from datetime import datetime

from prometheus_client import Counter, Gauge, Histogram


class Measures:
    """The metrics of a worker of the REST API."""

    def __init__(self) -> None:
        self.reports = Counter("fairgpu_timekeeper_reports", "Reports of pods, by outcome.", ["outcome"])
        self.report_batch = Histogram(
            "fairgpu_timekeeper_report_batch_size",
            "Reports that shared a round trip to the store.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
        )
        self.problems = Counter(
            "fairgpu_timekeeper_problems", "Requests answered with a problem, by its kind.", ["kind"]
        )
        self.waiting = Gauge(
            "fairgpu_timekeeper_states_waiting",
            "Clients that wait for a state to change.",
            multiprocess_mode="livesum",
        )
        self.gpu_watches = Gauge(
            "fairgpu_timekeeper_gpu_watches",
            "Open watches of GPUNodes and GPUPods.",
            multiprocess_mode="livesum",
        )
        self.states_read = Gauge(
            "fairgpu_timekeeper_states_read_timestamp_seconds",
            "When the store was last asked for the states and answered, in the worker where that is longest ago.",
            multiprocess_mode="livemin",
        )
        self._certificate_expiry = Gauge(
            "fairgpu_timekeeper_certificate_expiry_timestamp_seconds",
            "When the served certificate ends, in the worker where that is soonest.",
            multiprocess_mode="livemin",
        )

    def set_certificate_expiry(self, moment: datetime) -> None:
        """Sets the metric that says when the server's certificate expires."""
        self._certificate_expiry.set(moment.timestamp())
