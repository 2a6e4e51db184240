"""What admission adds to the creation of a GPU pod, as a real API server itself measures it."""

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

_BUCKET = re.compile(METRIC + r'_bucket\{(?P<labels>[^}]*),le="(?P<bound>[^"]+)"\} (?P<count>[0-9.e+]+)')


def rows() -> Iterator[dict[str, Any]]:
    """p50 and p99 of both webhooks over dry-run creations, from the difference of the API server's histograms."""
    with running_control_plane(control_plane_binaries(os.environ)) as plane:
        install(plane)
        with running_services(plane):
            namespace = plane.create_namespace("bench-")
            create_pods(plane, namespace, WARM_UP)
            before = histograms(plane)
            create_pods(plane, namespace, PODS)
            after = histograms(plane)
    for name in ("mutate.fairgpu.io", "validate.fairgpu.io"):
        counts = {bound: count - before[name].get(bound, 0.0) for bound, count in after[name].items()}
        for percent in (50, 99):
            yield {
                "name": f"admission: {name}, added latency at the API server, p{percent}",
                "value": quantile(counts, percent / 100) * 1000,
                "unit": "ms",
                "goal": None,
                "met": None,
                "context": f"{PODS} creations one after the other, two replicas, interpolated in the histogram",
            }


def create_pods(plane: ControlPlane, namespace: str, count: int) -> None:
    """Creates pods of which nothing stays."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    for number in range(count):
        plane.admin.api.create(path, pod(f"pod-{number}", {"fairgpu.io/gpu-core": 30}), {"dryRun": "All"})


def histograms(plane: ControlPlane) -> dict[str, dict[float, float]]:
    """The cumulative counts by upper bound in seconds, of each webhook."""
    found: dict[str, dict[float, float]] = {}
    for match in _BUCKET.finditer(plane.admin.kubectl("get", "--raw", "/metrics").stdout):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
        if labels.get("operation") == "CREATE":
            found.setdefault(labels["name"], {})[float(match["bound"])] = float(match["count"])
    return found


def quantile(counts: dict[float, float], share: float) -> float:
    """A quantile of a cumulative histogram, linear inside a bucket as Prometheus's histogram_quantile is."""
    bounds = sorted(counts)
    rank = share * counts[bounds[-1]]
    lower, below = 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= rank:
            inside = counts[bound] - below
            return lower if bound == float("inf") else lower + (bound - lower) * (rank - below) / inside
        lower, below = bound, counts[bound]
    return lower
