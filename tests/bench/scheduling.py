"""Pods a second through a real kube-scheduler with the extender, against the same kube-scheduler without one.

The runs take turns, each with pods of its own that wait before kube-scheduler starts. A run is measured from the first
Binding to the last. FAIRGPU_BENCH_NODES, FAIRGPU_BENCH_PODS and FAIRGPU_BENCH_ROUNDS name other sizes than those of the
goal, and the goal is judged at its own alone.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from fairgpu import inventory
from tests.bench._builds import builds
from tests.bench.placement import row
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.processes import OF_OTHERS_S, Process, running
from tests.cluster.control_plane.stand_ins import inventory_of
from tests.cluster.services.replicas import AT_ONCE
from tests.cluster.services.scheduler import is_ready, without_a_pod
from tests.support.ports import free_ports
from tests.support.processes import PROGRAM
from tests.support.waiting import wait_until

GOAL_NODES, GOAL_PODS, GOAL_ROUNDS, GPUS, MIB = 1000, 5000, 5, 8, 81920
SHARES = (5, 10, 15, 20)
CONFIGURATION = Path(__file__).parents[2] / "deploy" / "base" / "scheduler" / "configuration.yaml"
THREADS = 8
LOOK_SECONDS = 0.05
LONGEST_SECONDS = 1800.0


def rows() -> Iterator[dict[str, Any]]:
    """The figures, each beside its goal."""
    nodes = int(os.environ.get("FAIRGPU_BENCH_NODES", GOAL_NODES))
    pods = int(os.environ.get("FAIRGPU_BENCH_PODS", GOAL_PODS))
    rounds = int(os.environ.get("FAIRGPU_BENCH_ROUNDS", GOAL_ROUNDS))
    with running_control_plane(control_plane_binaries(os.environ)) as plane:
        each(range(nodes), lambda number: create_node(plane, f"node-{number:04}"))
        rates: dict[bool, list[float]] = {True: [], False: []}
        for number in range(rounds):
            for extended in (True, False) if number % 2 else (False, True):
                rates[extended].append(pods_a_second(plane, pods, extended=extended))
    shares = [one / other for one, other in zip(rates[True], rates[False], strict=True)]
    share = statistics.median(shares)
    whole = (nodes, pods, rounds) == (GOAL_NODES, GOAL_PODS, GOAL_ROUNDS)
    sizes = f"{nodes:,} nodes, {pods:,} pods, median of {rounds} interleaved runs"
    context = f"{sizes}, load {os.getloadavg()[0]:.0f}"
    met, spread = share >= 0.9 if whole else None, f"{context}, the runs {min(shares):.2f} to {max(shares):.2f}"
    yield row("pods a second with the extender, as a share of without", share, "", ">= 0.9", spread, met=met)
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
    path = waiting_pods(plane, [SHARES[number % len(SHARES)] for number in range(pods)])
    with ExitStack() as stack:
        port, metrics = free_ports(2)
        if extended:
            stack.enter_context(extender(plane, "extender", plane.admin.kubeconfig, port, metrics))
        stack.enter_context(kube_scheduler(plane, plane.admin.kubeconfig, port if extended else None))
        seconds = seconds_of_bindings(plane, path)
    # To delete thousands of pods by one request takes longer than any other request may.
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    plane.admin.api.within(LONGEST_SECONDS).delete(path, options)
    return pods / seconds


def waiting_pods(plane: ControlPlane, shares: Sequence[int]) -> str:
    """Creates a pod for each share in a namespace of their own, before kube-scheduler starts; the collection's path."""
    path = f"/api/v1/namespaces/{plane.create_namespace('bench-')}/pods"
    each(enumerate(shares), lambda item: plane.admin.api.create(path, pod(f"pod-{item[0]}", item[1])))
    return path


@contextmanager
def extender(plane: ControlPlane, name: str, kubeconfig: Path, port: int, metrics: int) -> Iterator[Process]:
    """The real extender, once it has read nodes and pods."""
    # As the image runs it, where its modules are compiled.
    build = list(builds().values())[-1]
    environment = {
        **settings(plane, port, metrics),
        "KUBECONFIG": str(kubeconfig),
        "PYTHONPATH": build["PYTHONPATH"],
        "PYTHONSAFEPATH": "1",
    }
    command = [str(PROGRAM), "scheduler", "serve"]  # FAIRGPU would set another PYTHONPATH
    with running(name, command, plane.folder / f"{name}.log", environment, stop_signal=AT_ONCE) as process:
        wait_until(lambda: is_ready(process, f"http://127.0.0.1:{metrics}/readyz"), "the extender is ready")
        yield process


@contextmanager
def kube_scheduler(plane: ControlPlane, kubeconfig: Path, port: int | None) -> Iterator[Process]:
    """The real kube-scheduler as deploy/ configures it, with the extender at this port or with none."""
    configured = without_a_pod(yaml.safe_load(CONFIGURATION.read_text()), str(kubeconfig), port or 0)
    configured["leaderElection"] = {"leaderElect": False}
    if port is None:
        del configured["extenders"]
    file = plane.folder / "bench-scheduler.yaml"
    file.write_text(yaml.safe_dump(configured))
    command: list[str | Path] = [plane.binaries / "kube-scheduler", f"--config={file}", "--secure-port=0"]
    log = plane.folder / "bench-scheduler.log"
    with running("kube-scheduler", command, log, {"PATH": os.defpath}, OF_OTHERS_S) as process:
        yield process


def seconds_of_bindings(plane: ControlPlane, path: str) -> float:
    """Waits until all pods of a collection are bound; the seconds from the first Binding to the last."""
    # In pairs of the first and the last answer that differ: one pod is bound, none is left.
    began = when(lambda: there_are(plane, path, "spec.nodeName!="))
    return when(lambda: not there_are(plane, path, "spec.nodeName=")) - began


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


def pod(name: str, core: int) -> dict[str, Any]:
    """A pod with a percentage of a GPU, as the webhook admits it."""
    limits = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": str(core), "fairgpu.io/gpu-memory-percentage": str(core)}
    container = {"name": "main", "image": "example.org/train:1", "resources": {"limits": limits, "requests": limits}}
    spec = {"schedulerName": "fairgpu-scheduler", "containers": [container]}
    metadata = {"name": name, "labels": {"fairgpu.io/pod": "gpu"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


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
