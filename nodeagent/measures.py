"""The agent's metrics. A node runs few pods, and so few series have a pod's name."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairgpu.inventory import Device
from nodeagent.containers.records import Record
from nodeagent.gpu_watch import Observation
from nodeagent.owners import ProcessState
from nodeagent.writer_process import WriterProcess

START_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0, 30.0)
OUTCOMES = ("prepared", "refused", "kubelet_silent")
COLLECTIONS = ("pods", "nodes", "resourceslices")
CONTAINER = ("pod_namespace", "pod_name", "container_name", "uuid")
"""The labels of the metrics of one container on one GPU. They differ from those that Prometheus gives to the agent's
own pod."""


class Measures:
    """The node agent's Prometheus metrics that its parts set: counts of events, times and states.

    They are in no registry before `show`.
    """

    def __init__(self) -> None:
        self._starts = Counter(
            "fairgpu_nodeagent_starts",
            "Containers that the kubelet was about to start, by outcome.",
            ("outcome",),
            registry=None,
        )
        self._seconds = Histogram(
            "fairgpu_nodeagent_start_duration_seconds",
            "Time from the kubelet's question before a start to the answer.",
            buckets=START_BUCKETS,
            registry=None,
        )
        self.processes_ended = Counter(
            "fairgpu_nodeagent_processes_ended",
            "GPU processes in pods that were ended because nothing held them to a share.",
            registry=None,
        )
        self.writer_ends = Counter(
            "fairgpu_nodeagent_page_writer_ends",
            "Times that the writer of the schedule pages ended by itself or hung, and was started again.",
            registry=None,
        )
        self.part_failures = Counter(
            "fairgpu_nodeagent_part_failures",
            "Failures of a part of the agent by an error that it does not know; the part runs again after a pause.",
            ("part",),
            registry=None,
        )
        self.offering = Gauge(
            "fairgpu_nodeagent_offering",
            "Whether the node takes new GPU pods: no other plugin offers its GPUs or takes the resource, slices were "
            "read, driver and runtime answer, the runtime applies CDI, and the shim lies on the host.",
            registry=None,
        )
        self.shim_installed = Gauge(
            "fairgpu_nodeagent_shim_installed",
            "Whether the shim of this agent's version lies on the host, whole.",
            registry=None,
        )
        self.registered = Gauge(
            "fairgpu_nodeagent_registered", "Whether the kubelet knows the device plugin.", registry=None
        )
        self._answered = Gauge(
            "fairgpu_nodeagent_driver_answered_timestamp_seconds",
            "When the driver last said which GPUs the node has; before it has, when the agent began to act.",
            registry=None,
        )
        self._runtime_answered = Gauge(
            "fairgpu_nodeagent_runtime_answered_timestamp_seconds",
            "When the container runtime last said how it is configured; before it has, when the agent began to act.",
            registry=None,
        )
        self._confirmed = Gauge(
            "fairgpu_nodeagent_watch_confirmed_timestamp_seconds",
            "When the API server last confirmed what the agent knows of a collection; before, when it began to act.",
            ("collection",),
            registry=None,
        )
        for outcome in OUTCOMES:
            self._starts.labels(outcome)

    def show(self, registry: CollectorRegistry, now_seconds: float) -> None:
        """Adds the metrics to a registry. Each metric that holds a time has `now_seconds` until its event happens.

        An agent that waits for an earlier agent's end shows no metrics: it neither offers GPUs nor asks their driver,
        and alerts are to follow the earlier agent's metrics.

        Args:
            registry: the registry, whose metrics Prometheus scrapes.
            now_seconds: the present time, in seconds since 1970.
        """
        self._answered.set(now_seconds)
        self._runtime_answered.set(now_seconds)
        for collection in COLLECTIONS:
            self._confirmed.labels(collection).set(now_seconds)
        for each in (
            self._starts,
            self._seconds,
            self.processes_ended,
            self.writer_ends,
            self.part_failures,
            self.offering,
            self.shim_installed,
            self.registered,
            self._answered,
            self._runtime_answered,
            self._confirmed,
        ):
            registry.register(each)

    def driver_answered(self) -> None:
        """Writes the present time into the metric that says when the GPU driver last answered."""
        self._answered.set_to_current_time()

    def runtime_answered(self) -> None:
        """Writes the present time into the metric that says when the container runtime last answered."""
        self._runtime_answered.set_to_current_time()

    def confirmed(self, collection: str) -> None:
        """Writes the present time into the metric that says when the API server last confirmed a collection."""
        self._confirmed.labels(collection).set_to_current_time()

    def not_watched(self, collection: str) -> None:
        """Removes the metric of a collection that the cluster does not have, since its time would never be renewed."""
        self._confirmed.remove(collection)

    def started(self, outcome: str, seconds: float) -> None:
        """Counts an answer to the kubelet, which asks before each start of a container, and the time that it took.

        Args:
            outcome: the answer, one of OUTCOMES.
            seconds: the time from the question to the answer.
        """
        self._starts.labels(outcome).inc()
        self._seconds.observe(seconds)


class NodeCollector(Collector):
    """The node agent's Prometheus metrics that are computed at each scrape.

    They show the node's GPUs, the parts that containers hold, and the processes that no share limits.
    """

    def __init__(
        self,
        seen: Callable[[], Observation],
        records: Callable[[], Iterable[Record]],
        devices: Callable[[], Iterable[Device]],
        withheld: Callable[[], Mapping[str, str]],
        writer: WriterProcess,
    ) -> None:
        self._seen = seen
        self._records = records
        self._devices = devices
        self._withheld = withheld
        self._writer = writer

    def collect(self) -> Iterable[Metric]:
        """Yields the metrics, for the Prometheus client."""
        seen = self._seen()
        yield self._gpus(seen)
        yield from self._pages()
        yield from self._containers(seen)
        yield _strays(seen)

    def _gpus(self, seen: Observation) -> Metric:
        metric = GaugeMetricFamily("fairgpu_nodeagent_gpus", "GPUs of the node, by what is wrong.", labels=("state",))
        health = Counts(str(device.health) for device in self._devices())
        for state in ("healthy", "fenced"):
            metric.add_metric((state,), health[state])
        metric.add_metric(("withheld",), len(self._withheld()))
        metric.add_metric(("silent",), len(seen.silent))
        return metric

    def _pages(self) -> Iterable[Metric]:
        oldest = GaugeMetricFamily(
            "fairgpu_nodeagent_oldest_page_age_seconds",
            "Age of the node's schedule page that was written least recently; none while no container shares a GPU.",
        )
        age = self._writer.oldest_page_seconds()
        if age is not None:
            oldest.add_metric((), age)
        outdated = GaugeMetricFamily(
            "fairgpu_nodeagent_outdated_pages",
            "GPUs whose schedule page is missing, or shows other containers or notices than those that there are.",
            value=self._writer.outdated_pages(),
        )
        return oldest, outdated

    def _containers(self, seen: Observation) -> Iterable[Metric]:
        memory = GaugeMetricFamily(
            "fairgpu_nodeagent_container_memory_bytes",
            "Device memory that the driver holds for a container.",
            labels=CONTAINER,
        )
        busy = GaugeMetricFamily(
            "fairgpu_nodeagent_container_busy_ratio",
            "Part of the last seconds in which a container kept a GPU busy, by the driver's samples.",
            labels=CONTAINER,
        )
        for record in self._records():
            for device in record.devices:
                figure = seen.figures.get((record.uid, record.container, device.uuid))
                if figure is not None:
                    labels = (record.namespace, record.pod, record.container, device.uuid)
                    memory.add_metric(labels, figure.driver_bytes)
                    if device.uuid in seen.timed:
                        busy.add_metric(labels, figure.busy_percent / 100)
        return memory, busy


def _strays(seen: Observation) -> Metric:
    metric = GaugeMetricFamily(
        "fairgpu_nodeagent_unslotted_processes",
        "Processes on a GPU that no share limits, by how the agent accounts for them.",
        labels=("standing",),
    )
    counts = Counts(each.state for _, each in seen.strays)
    for state in ProcessState:
        if state is ProcessState.HELD:
            continue
        metric.add_metric((state,), counts[state])
    return metric
