"""Pods a second through a real kube-scheduler with the extender, against the same kube-scheduler without one.

The runs take turns, each with pods of its own that wait before kube-scheduler starts. A run is measured from the first
Binding to the last. FAIRGPU_BENCH_NODES and FAIRGPU_BENCH_PODS name other sizes than those of the goal.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from fairgpu import inventory
from tests.bench.placement import row
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.processes import running
from tests.cluster.control_plane.stand_ins import inventory_of
from tests.cluster.services.replicas import AT_ONCE, service
from tests.cluster.services.scheduler import is_ready, without_a_pod
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

GOAL_NODES, GOAL_PODS, ROUNDS, GPUS, MIB = 1000, 5000, 5, 8, 81920
CONFIGURATION = Path(__file__).parents[2] / "deploy" / "base" / "scheduler" / "configuration.yaml"
THREADS = 8
LOOK_SECONDS = 0.05
LONGEST_SECONDS = 1800.0


def rows() -> Iterator[dict[str, Any]]:
    """The figures, each beside its goal."""
    nodes = int(os.environ.get("FAIRGPU_BENCH_NODES", GOAL_NODES))
    pods = int(os.environ.get("FAIRGPU_BENCH_PODS", GOAL_PODS))
    with running_control_plane(control_plane_binaries(os.environ)) as plane:
        each(range(nodes), lambda number: create_node(plane, f"node-{number:04}"))
        rates: dict[bool, list[float]] = {True: [], False: []}
        for number in range(ROUNDS):
            for extended in (True, False) if number % 2 else (False, True):
                rates[extended].append(pods_a_second(plane, pods, extended=extended))
    shares = [one / other for one, other in zip(rates[True], rates[False], strict=True)]
    share, whole = statistics.median(shares), (nodes, pods) == (GOAL_NODES, GOAL_PODS)
    context = f"{nodes:,} nodes, {pods:,} pods, median of {ROUNDS} interleaved runs, load {os.getloadavg()[0]:.0f}"
    met = share >= 0.9 if whole else None
    yield row("pods a second with the extender, as a share of without", share, "", ">= 0.9", context, met=met)
    with_, without = (statistics.median(rates[extended]) for extended in (True, False))
    yield row("pods a second through kube-scheduler with the extender", with_, "", "", context, met=None)
    yield row("the same without", without, "", "", context, met=None)
    yield row("added to a cycle by the extender", 1000 / with_ - 1000 / without, "ms", "", context, met=None)


def each(items: Any, act: Any) -> None:
    """Acts on each item, in several threads."""
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(act, items))


def create_node(plane: ControlPlane, name: str) -> None:
    """A ready node of 8 GPUs with their inventory."""
    api = plane.admin.api
    text = inventory.encode(inventory_of(name, GPUS, MIB))
    metadata = {"name": name, "annotations": {"fairgpu.io/inventory": text}}
    api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    offered = {
        "cpu": "128",
        "memory": "1Ti",
        "pods": "500",
        "fairgpu.io/gpu": str(GPUS * inventory.MAX_SLOTS),
        "fairgpu.io/gpu-core": str(GPUS * 100),
        "fairgpu.io/gpu-memory": str(GPUS * MIB),
        "fairgpu.io/gpu-memory-percentage": str(GPUS * 100),
    }
    ready = {"type": "Ready", "status": "True", "reason": "Bench", "message": ""}
    status = {"capacity": offered, "allocatable": offered, "conditions": [ready]}
    api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    wait_until(lambda: not api.get(f"/api/v1/nodes/{name}")["spec"].get("taints"), f"{name} takes pods")


def pods_a_second(plane: ControlPlane, pods: int, *, extended: bool) -> float:
    """Pods a second from the first Binding to the last, of pods that all wait at the start."""
    namespace = plane.create_namespace("bench-")
    path = f"/api/v1/namespaces/{namespace}/pods"
    each(range(pods), lambda number: plane.admin.api.create(path, pod(number)))
    with ExitStack() as stack:
        configuration = yaml.safe_load(CONFIGURATION.read_text())
        port, metrics = free_ports(2)
        configured = without_a_pod(configuration, str(plane.admin.kubeconfig), port)
        configured["leaderElection"] = {"leaderElect": False}
        if extended:
            extender = service(plane, "extender", ["scheduler", "serve"], settings(plane, port, metrics), AT_ONCE)
            process = stack.enter_context(extender)
            wait_until(lambda: is_ready(process, f"http://127.0.0.1:{metrics}/readyz"), "the extender is ready")
        else:
            del configured["extenders"]
        file = plane.folder / "bench-scheduler.yaml"
        file.write_text(yaml.safe_dump(configured))
        command = [plane.binaries / "kube-scheduler", f"--config={file}", "--secure-port=0"]
        log = plane.folder / "bench-scheduler.log"
        stack.enter_context(running("kube-scheduler", command, log, {"PATH": os.defpath}))
        # In pairs of the first and the last answer that differ: one pod is bound, none is left.
        began = when(lambda: there_are(plane, path, "spec.nodeName!="))
        ended = when(lambda: not there_are(plane, path, "spec.nodeName="))
    plane.remove_pods(namespace)
    return pods / (ended - began)


def settings(plane: ControlPlane, port: int, metrics: int) -> dict[str, str]:
    """The extender's environment; no timekeeper is there, so that every pod is within its budget."""
    return {
        "KUBECONFIG": str(plane.admin.kubeconfig),
        "HOME": str(plane.folder),
        "PATH": os.defpath,
        "TMPDIR": str(plane.folder),
        "FAIRGPU_SCHEDULER_EXTENDER_PORT": str(port),
        "FAIRGPU_SCHEDULER_EXTENDER_METRICS_HOST": "127.0.0.1",
        "FAIRGPU_SCHEDULER_EXTENDER_METRICS_PORT": str(metrics),
        "FAIRGPU_SCHEDULER_STATES_URL": "https://localhost:1",
        "FAIRGPU_SCHEDULER_STATES_CA_FILE": str(plane.folder / "none"),
    }


def pod(number: int) -> dict[str, Any]:
    """A pod with a tenth of a GPU or so, as the webhook admits it."""
    share = str(5 + 5 * (number % 4))
    limits = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": share, "fairgpu.io/gpu-memory-percentage": share}
    container = {"name": "main", "image": "example.org/train:1", "resources": {"limits": limits, "requests": limits}}
    spec = {"schedulerName": "fairgpu-scheduler", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}, "spec": spec}


def there_are(plane: ControlPlane, path: str, selector: str) -> bool:
    """Whether the API server has a pod that a selector of fields matches."""
    return bool(plane.admin.api.get(path, {"fieldSelector": selector, "limit": 1})["items"])


def when(condition: Any) -> float:
    """The instant at which a condition was first seen to hold.

    Raises:
        RuntimeError: it did not within LONGEST_SECONDS.
    """
    deadline = time.monotonic() + LONGEST_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("kube-scheduler has not placed all pods")
        time.sleep(LOOK_SECONDS)
    return time.monotonic()
