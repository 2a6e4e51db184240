"""The processor time and memory of its node that a pod counts with, as kube-scheduler counts them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler.cluster.excerpts import PodEvent, excerpt
from scheduler.cluster.objects import host_demand


def container(cpu: str, memory: str, **more: Any) -> dict[str, Any]:
    """A container with these requests."""
    return {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


@pytest.mark.parametrize(
    ("spec", "demand"),
    [
        ({"containers": [container("1", "1Gi"), container("500m", "1Mi")]}, (1500, 1025)),
        ({"containers": [container("1", "1Gi")], "overhead": {"cpu": "250m", "memory": "8Mi"}}, (1250, 1032)),
        ({"containers": [container("1", "1Gi")], "initContainers": [container("2", "1Mi")]}, (2000, 1024)),
        (
            {
                "containers": [container("1", "1Gi")],
                "initContainers": [container("2", "1Mi", restartPolicy="Always"), container("2", "1Mi")],
            },
            (4000, 1025),
        ),
        ({"containers": [container("1", "1Gi")], "resources": {"requests": {"cpu": "8"}}}, (8000, 1024)),
        (
            {
                "containers": [container("0", "0")],
                "resources": {"requests": {"cpu": "8", "memory": "2Gi"}},
                "overhead": {"cpu": "250m"},
            },
            (8250, 2048),
        ),
    ],
    ids=["two containers", "overhead", "init", "native sidecar", "of the pod", "of the pod with overhead"],
)
def test_a_pod_counts_with_what_kube_scheduler_counts(spec: dict[str, Any], demand: tuple[int, int]) -> None:
    event = excerpt(PodEvent)(json.dumps({"type": "ADDED", "object": {"metadata": {}, "spec": spec}}).encode())
    assert host_demand(event["object"]["spec"]) == demand
