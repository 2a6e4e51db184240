"""What admission adds to the creation of a GPU pod, as a real API server itself measures it.

The API server's first bucket ends at 5 ms, and nearly all reviews fall into it: a quantile inside it says where in the
bucket the rank lies, and not where its reviews do. The mean is exact.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.installation import install
from tests.cluster.journey.manifests import pod
from tests.cluster.services.everything import running_services

METRIC = "apiserver_admission_webhook_admission_duration_seconds"
PODS = 300
WARM_UP = 30

_BUCKET = re.compile(METRIC + r'_bucket\{(?P<labels>[^}]*),le="(?P<bound>[^"]+)"\} (?P<count>[0-9.e+-]+)')
_SUM = re.compile(METRIC + r"_sum\{(?P<labels>[^}]*)\} (?P<seconds>[0-9.e+-]+)")


def rows() -> Iterator[dict[str, Any]]:
    """p50, p99 and mean of both webhooks over dry-run creations, from the difference of the API server's histograms."""
    with running_control_plane(control_plane_binaries(os.environ)) as plane:
        install(plane)
        with running_services(plane):
            namespace = plane.create_namespace("bench-")
            create_pods(plane, namespace, WARM_UP)
            before, spent_before = histograms(plane)
            create_pods(plane, namespace, PODS)
            after, spent_after = histograms(plane)
    for name in ("mutate.fairgpu.io", "validate.fairgpu.io"):
        counts = {bound: count - before[name].get(bound, 0.0) for bound, count in after[name].items()}
        for percent in (50, 99):
            value, (lower, upper) = quantile(counts, percent / 100)
            within = f"linear inside the bucket from {lower * 1000:g} to {upper * 1000:g} ms"
            yield row(f"{name}, added latency at the API server, p{percent}", value, within)
        mean = (spent_after[name] - spent_before[name]) / counts[float("inf")]
        yield row(f"{name}, added latency at the API server, mean", mean, "the histogram's sum over its count")


def row(what: str, seconds: float, how: str) -> dict[str, Any]:
    """One figure."""
    context = f"{PODS} creations one after the other, two replicas; {how}"
    return {
        "name": f"admission: {what}",
        "value": seconds * 1000,
        "unit": "ms",
        "goal": None,
        "met": None,
        "context": context,
    }


def create_pods(plane: ControlPlane, namespace: str, count: int) -> None:
    """Creates pods of which nothing stays."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    for number in range(count):
        plane.admin.api.create(path, pod(f"pod-{number}", {"fairgpu.io/gpu-core": 30}), {"dryRun": "All"})


def histograms(plane: ControlPlane) -> tuple[dict[str, dict[float, float]], dict[str, float]]:
    """The cumulative counts by upper bound in seconds, and the seconds spent in all, of each webhook."""
    text = plane.admin.kubectl("get", "--raw", "/metrics").stdout
    counts: dict[str, dict[float, float]] = {}
    for match in _BUCKET.finditer(text):
        if name := webhook_of_creations(match["labels"]):
            counts.setdefault(name, {})[float(match["bound"])] = float(match["count"])
    spent: dict[str, float] = {}
    for match in _SUM.finditer(text):
        if name := webhook_of_creations(match["labels"]):
            spent[name] = float(match["seconds"])
    return counts, spent


def webhook_of_creations(labels: str) -> str | None:
    """The webhook whose creations a series is of; None where it is of other operations."""
    named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    return named["name"] if named.get("operation") == "CREATE" else None


def quantile(counts: dict[float, float], share: float) -> tuple[float, tuple[float, float]]:
    """A quantile of a cumulative histogram, linear inside its bucket as Prometheus has it, and that bucket."""
    bounds = sorted(counts)
    rank = share * counts[bounds[-1]]
    lower, below = 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= rank:
            inside = counts[bound] - below
            value = lower if bound == float("inf") else lower + (bound - lower) * (rank - below) / inside
            return value, (lower, bound)
        lower, below = bound, counts[bound]
    raise AssertionError("a cumulative histogram ends with all of its counts")
