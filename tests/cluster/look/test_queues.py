"""Use by ClusterQueue where Kueue writes no label of it on pods, as Kueue before 0.17."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.look.devices import create_node
from tests.cluster.look.installed import Installed, installed
from tests.cluster.look.queues import create_local_queue, define_queues
from tests.support.waiting import wait_until
from timekeeper.domain.usage import UNKNOWN
from timekeeper.sources.kubernetes import CLUSTER_QUEUE, QUEUE_NAME

GPU = "nvidia.com/gpu"
BY = f"label:{CLUSTER_QUEUE}"


@pytest.fixture(scope="module")
def teams(plane: ControlPlane) -> tuple[str, str]:
    """Two namespaces whose queues have one name, and are of two ClusterQueues; their pods run."""
    create_node(plane, "gpus", {GPU: "8"}, {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, {})
    define_queues(plane)
    vision, speech = (plane.create_namespace(prefix) for prefix in ("vision-", "speech-"))
    create_local_queue(plane, vision, "gpu", "research")
    create_local_queue(plane, speech, "gpu", "products")
    _run(plane, vision, "queued", {QUEUE_NAME: "gpu"})
    _run(plane, vision, "admitted", {QUEUE_NAME: "gpu", CLUSTER_QUEUE: "written-by-kueue"})
    _run(plane, vision, "misspelt", {QUEUE_NAME: "gpus"})
    _run(plane, speech, "queued", {QUEUE_NAME: "gpu"})
    return vision, speech


@pytest.fixture(scope="module")
def look(plane: ControlPlane, teams: tuple[str, str]) -> Iterator[Installed]:
    spec = f"namespaces: [{teams[0]}]\nallowance: {{gpuHours: 1}}\nperiod: {{every: month}}\n"
    with installed(plane, {"vision": spec}) as found:
        yield found


def test_use_of_pods_that_name_their_queue_alone_is_of_its_cluster_queue(
    look: Installed, teams: tuple[str, str]
) -> None:
    vision, speech = teams
    expected = {(vision, "research"), (vision, "written-by-kueue"), (vision, UNKNOWN), (speech, "products")}

    def billed() -> Any:
        items = look.client.get("/v1/usage", window="today", aggregate=f"namespace,{BY}")["items"]
        found = {(one["key"]["namespace"], one["key"][BY]) for one in items if int(one["billed"]["microGPUSeconds"])}
        return found if len(found) >= len(expected) else None

    assert wait_until(billed, "use of each queue") == expected


def _run(plane: ControlPlane, namespace: str, name: str, labels: dict[str, str]) -> None:
    """Creates a pod; returns once the stock scheduler has bound it."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    containers = [{"name": "main", "image": "example.org/train:1", "resources": {"limits": {GPU: "1"}}}]
    metadata = {"name": name, "labels": labels}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}
    plane.admin.api.create(path, body)
    wait_until(lambda: plane.admin.api.get(f"{path}/{name}")["spec"].get("nodeName"), "the pod is bound")
