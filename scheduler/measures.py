"""The extender's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0)
OUTCOMES = {
    "filter": ("placed", "refused", "unreadable", "not_acting"),
    "prioritize": ("placed", "unreadable", "not_acting"),
    "preempt": ("placed", "refused", "unreadable", "not_acting"),
    "bind": ("placed", "refused", "unreadable", "not_acting"),
}
"""The outcomes of a call, by its verb."""
RECLAIMS = ("placed", "called_off", "in_vain")
"""The outcomes of an earmark: the pod was placed, the need ended, or the pod was not placed on the freed devices."""
EVICTIONS = ("evicted", "blocked", "gone", "failed")
"""The outcomes of an eviction; `blocked` is one that a PodDisruptionBudget forbids."""
WRITES = ("written", "refused", "failed")
"""The outcomes of writing a condition of a waiting pod."""
GANG_STATES = ("waiting", "held")
"""The states of a gang that is not placed: no devices are held for it, or they are held until all its pods are about to
be bound."""
HOLDS = ("placed", "released")
"""The outcomes of holding devices for a gang: all pods were about to be bound, or the devices were freed."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of the scheduler's state at one moment, for its metrics.

    Attributes:
        nodes: the number of nodes that offer devices.
        refused: the number of nodes whose inventory is invalid.
        shared: the number of nodes that offer a device that another node offers as well.
        gpus: the number of devices on which containers may be placed.
        held: how much of the devices is held or reserved, in GPUs: of each device, the larger of the held shares of its
            GPU time and its memory.
        waiting: the number of pods that wait for a node.
        fragmented: the number of waiting pods for which some node has enough free in sum, but in parts on several GPUs.
        gangs: the number of gangs that are not placed, keyed by state, one of GANG_STATES.
        gang_outcomes: the number of holds for gangs that have ended since the start, keyed by outcome, one of HOLDS.
        searches_cut: how often since the start a node was left out because the search for devices reached its limit.
        overlapping: the number of devices of which bound pods hold more than there is.
    """

    nodes: int = 0
    refused: int = 0
    shared: int = 0
    gpus: int = 0
    held: float = 0.0
    waiting: int = 0
    fragmented: int = 0
    gangs: Mapping[str, int] = field(default_factory=dict)
    gang_outcomes: Mapping[str, int] = field(default_factory=dict)
    searches_cut: int = 0
    overlapping: int = 0


PARTS = (
    "authority",
    "states",
    "lease",
    "pods",
    "nodes",
    "overlaps",
    "settling",
    "waking",
    "learning",
    "measures",
    "reclaim",
)
"""The parts of the scheduler, each in a thread of its own."""


class Measures:
    """The scheduler's Prometheus metrics; made once a process."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._calls = Counter(
            "fairgpu_scheduler_calls",
            "Calls of kube-scheduler, by verb and outcome.",
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
        self._acting = _gauge(
            "fairgpu_scheduler_acting",
            "Whether this replica places pods (1): its kube-scheduler leads, and it has read the cluster.",
            registry,
        )
        self._states_confirmed = _gauge(
            "fairgpu_scheduler_states_confirmed_timestamp_seconds",
            "When the timekeeper last confirmed the budgets' states; 0 for never.",
            registry,
        )
        self._nodes = _gauge("fairgpu_scheduler_nodes", "Nodes that offer GPUs on which pods can be placed.", registry)
        self._left_out = Gauge(
            "fairgpu_scheduler_nodes_left_out",
            "Nodes on which no pod is placed, by the fault of the inventory.",
            ("reason",),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._gpus = _gauge("fairgpu_scheduler_gpus", "GPUs on which containers may be placed.", registry)
        self._held = _gauge(
            "fairgpu_scheduler_held_gpus",
            "GPUs that pods hold: each GPU counts by the larger of the shares of its time and memory that are held.",
            registry,
        )
        self._overlapping = _gauge(
            "fairgpu_scheduler_overlapping_gpus", "GPUs of which bound pods hold more than there is.", registry
        )
        self._waiting = _gauge("fairgpu_scheduler_waiting_pods", "GPU pods that wait for a node.", registry)
        self._fragmented = _gauge(
            "fairgpu_scheduler_fragmented_pods",
            "Waiting pods for which some node has enough free in sum, but in pieces on several GPUs.",
            registry,
        )
        self._gangs = Gauge(
            "fairgpu_scheduler_gangs",
            "Gangs that are not placed, by state.",
            ("state",),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._holds = Counter(
            "fairgpu_scheduler_gang_holds",
            "Holds of devices for whole gangs that have ended, by outcome.",
            ("outcome",),
            registry=registry,
        )
        self._held_before = dict.fromkeys(HOLDS, 0)
        for outcome in HOLDS:
            self._holds.labels(outcome)
        self._searches_cut = Counter(
            "fairgpu_scheduler_searches_cut",
            "Nodes left out for a pod of several GPU containers, since the search for devices had no tries left.",
            registry=registry,
        )
        self._cut_before = 0
        self._conditions = Counter(
            "fairgpu_scheduler_conditions",
            "Conditions written for waiting pods whose answer has changed.",
            ("outcome",),
            registry=registry,
        )
        for outcome in WRITES:
            self._conditions.labels(outcome)
        self._reclaims = Counter(
            "fairgpu_scheduler_reclaims",
            "Earmarks that ended, by outcome.",
            ("outcome",),
            registry=registry,
        )
        self._reclaim_evictions = Counter(
            "fairgpu_scheduler_reclaim_evictions",
            "Evictions for pods that waited, by the API server's answer.",
            ("outcome",),
            registry=registry,
        )
        for outcome in RECLAIMS:
            self._reclaims.labels(outcome)
        for outcome in EVICTIONS:
            self._reclaim_evictions.labels(outcome)
        self._part_failures = Counter(
            "fairgpu_scheduler_part_failures",
            "Unknown errors of a part of the scheduler, at one pod or at all; the part tries again after a pause.",
            ("part",),
            registry=registry,
        )
        for part in PARTS:
            self._part_failures.labels(part)
        self.show(Figures(), acting=False)
        for verb, outcomes in OUTCOMES.items():
            self._seconds.labels(verb)
            for outcome in outcomes:
                self._calls.labels(verb, outcome)

    def answered(self, verb: str, outcome: str, seconds: float) -> None:
        """Counts an answer to kube-scheduler, and the time that it took.

        Args:
            verb: the call, a key of OUTCOMES.
            outcome: the outcome, one of OUTCOMES for that call.
            seconds: the time from the call to the answer.
        """
        self._calls.labels(verb, outcome).inc()
        self._seconds.labels(verb).observe(seconds)

    def condition(self, outcome: str) -> None:
        """Counts an attempt to write a waiting pod's condition; `outcome` is one of WRITES."""
        self._conditions.labels(outcome).inc()

    def reclaim(self, outcome: str) -> None:
        """Counts an earmark that has ended; `outcome` is one of RECLAIMS."""
        self._reclaims.labels(outcome).inc()

    def reclaim_eviction(self, outcome: str) -> None:
        """Counts an eviction for a waiting pod; `outcome` is one of EVICTIONS."""
        self._reclaim_evictions.labels(outcome).inc()

    def part_failed(self, part: str) -> None:
        """Counts an unexpected error of a part of the scheduler; `part` is one of PARTS."""
        self._part_failures.labels(part).inc()

    def show(self, figures: Figures, *, acting: bool) -> None:
        """Sets the metrics to the figures of the state.

        Args:
            acting: whether this replica places pods.
        """
        self._acting.set(acting)
        self._nodes.set(figures.nodes)
        self._left_out.labels("refused").set(figures.refused)
        self._left_out.labels("shared").set(figures.shared)
        self._gpus.set(figures.gpus)
        self._held.set(figures.held)
        self._overlapping.set(figures.overlapping)
        self._waiting.set(figures.waiting)
        self._fragmented.set(figures.fragmented)
        for state in GANG_STATES:
            self._gangs.labels(state).set(figures.gangs.get(state, 0))
        for outcome, before in self._held_before.items():
            self._holds.labels(outcome).inc(figures.gang_outcomes.get(outcome, 0) - before)
        self._held_before |= figures.gang_outcomes
        self._searches_cut.inc(figures.searches_cut - self._cut_before)
        self._cut_before = figures.searches_cut

    def set_states_confirmed(self, moment: float) -> None:
        """Sets the metric that says when the timekeeper last confirmed the budgets' states.

        Args:
            moment: that time, in seconds since 1970.
        """
        self._states_confirmed.set(moment)


def _gauge(name: str, text: str, registry: CollectorRegistry) -> Gauge:
    return Gauge(name, text, registry=registry, multiprocess_mode="livemax")
