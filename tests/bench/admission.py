"""The time that admission adds to the creation of a GPU pod, as a real API server itself measures it.

The API server's first bucket ends at 5 ms, and nearly all reviews fall into it: a quantile inside it says where in the
bucket the rank lies, and not where its reviews do. The mean is exact.

The same pod is created in a namespace of each mode in turns: what `account` costs beside `share` holds still where
other work on the machine moves the clock.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.installation import install
from tests.cluster.journey.manifests import pod
from tests.cluster.services.everything import running_services
from tests.support.waiting import wait_until

METRIC = "apiserver_admission_webhook_admission_duration_seconds"
PODS = 300
WARM_UP = 30
MODES = ("share", "account")

_BUCKET = re.compile(METRIC + r'_bucket\{(?P<labels>[^}]*),le="(?P<bound>[^"]+)"\} (?P<count>[0-9.e+-]+)')
_SUM = re.compile(METRIC + r"_sum\{(?P<labels>[^}]*)\} (?P<seconds>[0-9.e+-]+)")


def rows() -> Iterator[dict[str, Any]]:
    """p50, p99 and mean of both webhooks over dry-run creations, from the difference of the API server's histograms.

    Then the mode account beside the mode share.
    """
    with running_control_plane(control_plane_binaries(os.environ)) as plane:
        install(plane)
        with running_services(plane):
            namespace = plane.create_namespace("bench-")
            create_pods(plane, namespace, WARM_UP)
            before, spent_before = histograms(plane)
            create_pods(plane, namespace, PODS)
            after, spent_after = histograms(plane)
            modes = list(account_beside_share(plane))
    for name in ("mutate.fairgpu.io", "validate.fairgpu.io"):
        counts = {bound: count - before[name].get(bound, 0.0) for bound, count in after[name].items()}
        for percent in (50, 99):
            value, (lower, upper) = quantile(counts, percent / 100)
            within = f"linear inside the bucket from {lower * 1000:g} to {upper * 1000:g} ms"
            yield row(f"{name}, added latency at the API server, p{percent}", value, within)
        mean = (spent_after[name] - spent_before[name]) / counts[float("inf")]
        yield row(f"{name}, added latency at the API server, mean", mean, "the histogram's sum over its count")
    yield from modes


def account_beside_share(plane: ControlPlane) -> Iterator[dict[str, Any]]:
    """The time of a creation, and that of its webhooks alone, in `account` to that in `share`, in turns."""
    paths = {
        mode: f"/api/v1/namespaces/{plane.create_namespace('bench-', labels={'fairgpu.io/mode': mode})}/pods"
        for mode in MODES
    }
    item = pod("trains", {"nvidia.com/gpu": 1})
    for mode, path in paths.items():
        wait_until(partial(in_mode, plane, path, item, mode), f"the API server has read the mode {mode}")
    taken: dict[str, list[float]] = {mode: [] for mode in MODES}
    _, spent_before = histograms(plane)
    for number in range(PODS):
        for mode in MODES if number % 2 == 0 else reversed(MODES):
            started = time.perf_counter()
            plane.admin.api.create(paths[mode], item, {"dryRun": "All"})
            taken[mode].append(time.perf_counter() - started)
    _, spent_after = histograms(plane)

    share, account = (statistics.median(taken[mode]) for mode in MODES)
    context = f"{PODS} creations of each in turns; medians {account * 1e3:.1f} and {share * 1e3:.1f} ms"
    yield ratio_row("a creation in account beside share, p50", account / share, f"{context}, policies included")
    added = {name: (spent_after[name] - spent_before.get(name, 0.0)) / PODS for name in spent_after}
    share, account = added["mutate.fairgpu.io"] + added["validate.fairgpu.io"], added["account.fairgpu.io"]
    means = f"means at the API server, {account * 1e3:.2f} and {share * 1e3:.2f} ms; account has no validating webhook"
    yield ratio_row("webhooks in account beside share, mean", account / share, means)


def in_mode(plane: ControlPlane, path: str, item: dict[str, Any], mode: str) -> bool:
    """Whether a pod is admitted as the mode has it: rewritten, or with its own request."""
    try:
        stored = plane.admin.api.create(path, item, {"dryRun": "All"})
    except ApiError as error:
        if error.status == 403:  # webhook rules and policies hear of a namespace's label one after the other
            return False
        raise
    return ("nvidia.com/gpu" in stored["spec"]["containers"][0]["resources"]["limits"]) is (mode == "account")


def ratio_row(what: str, value: float, how: str) -> dict[str, Any]:
    """One figure that is to be no more than 1."""
    return {
        "name": f"admission: {what}",
        "value": round(value, 3),
        "unit": "ratio",
        "goal": "<= 1",
        "met": value <= 1,
        "context": how,
    }


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
