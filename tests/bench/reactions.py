"""The time that the scheduler takes to react, on a real control plane with admission, budgets and two replicas.

A reaction is measured by a client that looks at the API server every LOOK_SECONDS, from the request that causes it to
the first answer that shows it. FAIRGPU_BENCH_WAITING names how many pods wait for a budget.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any
from urllib.request import urlopen

from tests.bench.placement import row
from tests.bench.scheduling import each
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.stand_ins import StandInNode, create_node
from tests.cluster.installation import install
from tests.cluster.journey.manifests import pod
from tests.cluster.services.everything import running_services
from tests.cluster.services.scheduler import Scheduler, scheduler_pods, scheduler_replica
from tests.support.ledger.periods import month_midway
from tests.support.waiting import wait_until

GOAL_WAITING = 5000
LOOK_SECONDS = 0.05
LONGEST_SECONDS = 900.0
BUDGETS = "/apis/fairgpu.io/v1alpha1/gpubudgets"
COUNTED = 'fairgpu_scheduler_conditions_total{outcome="written"}'


def rows() -> Iterator[dict[str, Any]]:
    """The figures, each beside its goal."""
    waiting = int(os.environ.get("FAIRGPU_BENCH_WAITING", GOAL_WAITING))
    with ExitStack() as stack:
        plane = stack.enter_context(running_control_plane(control_plane_binaries(os.environ)))
        install(plane)
        services = stack.enter_context(running_services(plane, end_proof="finalizer"))
        first, second = scheduler_pods(plane)
        leader = stack.enter_context(scheduler_replica(plane, first, services.timekeeper))
        wait_until(lambda: leader.leads(plane), "the first replica leads")
        other = stack.enter_context(scheduler_replica(plane, second, services.timekeeper))
        context = f"real control plane, load {os.getloadavg()[0]:.0f}"
        seconds = takeover(plane, leader)
        yield row("from SIGKILL of the leader to a Binding", seconds, "s", "<= 15", context, met=seconds <= 15)
        seconds = notice(plane)
        name = "from the creation of a pod that waits to a victim's notice"
        yield row(name, seconds, "s", "<= 2", context, met=seconds <= 2)
        seconds = release(plane)
        name = "from the opening of a budget to the Binding of a pod behind its gate"
        yield row(name, seconds, "s", "<= 2", context, met=seconds <= 2)
        seconds, fastest = opening(plane, other, waiting)
        context = f"{waiting:,} pods wait, {context}"
        name = "from the opening of a budget to the first Binding"
        yield row(name, seconds, "s", "<= 2", context, met=seconds <= 2)
        yield row("conditions written in the fastest second", fastest, "", "<= 50", context, met=fastest <= 50)


def takeover(plane: ControlPlane, leader: Scheduler) -> float:
    """Seconds from the kill of the replica that leads to the Binding of a pod that was created at once."""
    node, namespace = create_node(plane, "bench-takeover"), plane.create_namespace("bench-")
    path = create(plane, node, namespace, "before", 10)
    after(lambda: is_bound(plane, path))
    leader.signal(signal.SIGKILL)
    started = time.monotonic()
    path = create(plane, node, namespace, "after", 10)
    seconds = after(lambda: is_bound(plane, path), started)
    plane.remove_pods(namespace)
    return seconds


def notice(plane: ControlPlane) -> float:
    """Seconds from the creation of a pod within its budget to the notice of one that makes room for it."""
    node = create_node(plane, "bench-notice", gpus=1)
    spent, ours = plane.create_namespace("bench-spent-"), plane.create_namespace("bench-")
    budget(plane, spent, "deprioritize", hours=0)
    dry, limits = f"/api/v1/namespaces/{spent}/pods", {"fairgpu.io/gpu-core": 100}
    api = plane.admin.api
    after(
        lambda: (
            api.create(dry, on(node, "try", limits), {"dryRun": "All"})["spec"]["priorityClassName"]
            == "gpu-over-budget"
        )
    )
    victim = create(plane, node, spent, "over", 100)
    after(lambda: is_bound(plane, victim))
    started = time.monotonic()
    create(plane, node, ours, "within", 100)
    seconds = after(lambda: "fairgpu.io/reclaim-at" in api.get(victim)["metadata"]["annotations"], started)
    for name in (spent, ours):
        plane.remove_pods(name)
    api.delete(f"{BUDGETS}/{spent}")
    return seconds


def release(plane: ControlPlane) -> float:
    """Seconds from a budget's opening to the Binding of a pod that was created while the budget held all pods."""
    node, namespace = create_node(plane, "bench-release", gpus=1), plane.create_namespace("bench-")
    api, pods, limits = plane.admin.api, f"/api/v1/namespaces/{namespace}/pods", {"fairgpu.io/gpu-core": 100}
    budget(plane, namespace, "hold", hours=0)
    after(lambda: api.create(pods, on(node, "try", limits), {"dryRun": "All"})["spec"].get("schedulingGates"))
    path = create(plane, node, namespace, "held", 100)
    started = time.monotonic()
    api.patch(f"{BUDGETS}/{namespace}", {"spec": {"allowance": {"gpuHours": "100"}}})
    seconds = after(lambda: is_bound(plane, path), started)
    plane.remove_pods(namespace)
    api.delete(f"{BUDGETS}/{namespace}")
    return seconds


def opening(plane: ControlPlane, replica: Scheduler, waiting: int) -> tuple[float, float]:
    """Seconds from a budget's opening to the first Binding, and the most conditions that were written in a second."""
    node, namespace = create_node(plane, "bench-opening", gpus=1), plane.create_namespace("bench-")
    api = plane.admin.api
    budget(plane, namespace, "hold", hours=100)
    holder = create(plane, node, namespace, "holds", 100)
    after(lambda: is_bound(plane, holder))
    each(range(waiting), lambda number: create(plane, node, namespace, f"waits-{number}", 100))
    one = f"/api/v1/namespaces/{namespace}/pods/waits-{waiting - 1}"
    after(lambda: "PodScheduled" in conditions(plane, one))
    api.patch(f"{BUDGETS}/{namespace}", {"spec": {"allowance": {"gpuHours": "0"}}})
    after(lambda: written(replica) >= waiting)
    api.delete(holder)
    node.remove_pod(namespace, "holds")
    after(lambda: f"budget {namespace} is spent" in conditions(plane, one).get("PodScheduled", ""))
    counts = [written(replica)]
    started = time.monotonic()
    api.patch(f"{BUDGETS}/{namespace}", {"spec": {"allowance": {"gpuHours": "100"}}})
    pods = f"/api/v1/namespaces/{namespace}/pods"
    bound: dict[str, str | int] = {"fieldSelector": "spec.nodeName!=", "limit": 1}
    seconds = after(lambda: bool(api.get(pods, bound)["items"]), started)
    for at in range(1, 11):
        time.sleep(max(0.0, started + at - time.monotonic()))
        counts.append(written(replica))
    # The control plane ends next; a request that deletes thousands of pods takes longer than any other may.
    return seconds, max(later - earlier for earlier, later in pairwise(counts))


def budget(plane: ControlPlane, namespace: str, exhausted: str, hours: int) -> None:
    """A GPUBudget of a namespace."""
    spec = {
        "namespaces": [namespace],
        "period": month_midway(),
        "onExhausted": exhausted,
        "allowance": {"gpuHours": str(hours)},
    }
    made = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": namespace}, "spec": spec}
    plane.admin.api.create(BUDGETS, made)


def on(node: StandInNode, name: str, limits: dict[str, Any]) -> dict[str, Any]:
    """A pod for one node."""
    manifest = pod(name, limits)
    manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node.name}
    return manifest


def create(plane: ControlPlane, node: StandInNode, namespace: str, name: str, core: int) -> str:
    """Creates a pod for one node; its path."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    plane.admin.api.create(pods, on(node, name, {"fairgpu.io/gpu-core": core}))
    return f"{pods}/{name}"


def is_bound(plane: ControlPlane, path: str) -> bool:
    """Whether a pod has a node."""
    return bool(plane.admin.api.get(path)["spec"].get("nodeName"))


def conditions(plane: ControlPlane, path: str) -> dict[str, str]:
    """The messages of a pod's conditions, by type."""
    found = plane.admin.api.get(path)["status"].get("conditions", [])
    return {one["type"]: one.get("message", "") for one in found}


def written(replica: Scheduler) -> float:
    """Returns the number of conditions that the replica has written."""
    with urlopen(f"http://127.0.0.1:{replica.metrics}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(COUNTED)), 0.0)


def after(condition: Callable[[], object], started: float | None = None) -> float:
    """Seconds until a condition holds.

    Raises:
        RuntimeError: it does not hold within LONGEST_SECONDS.
    """
    begin = time.monotonic() if started is None else started
    while not condition():
        if time.monotonic() - begin > LONGEST_SECONDS:
            raise RuntimeError("nothing has happened for too long")
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - begin
