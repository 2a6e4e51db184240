"""Stand-ins for nodes, and what binds pods to them, under the real accounts.

There is no kubelet and no GPU here. All else that happens to these objects, the real control plane does.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairgpu import inventory
from fairgpu.cluster.api import ApiError
from fairgpu.quantity import parse_count
from scheduler.cluster.state import State
from scheduler.cluster.watches import NODES, PODS, NodesView, PodsView
from scheduler.extender import binding
from scheduler.extender.binding import Clock
from scheduler.extender.wire import BindArguments
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.support.waiting import wait_until

_CONTAINER_STATES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "Pending": {"waiting": {"reason": "ContainerCreating"}},
    "Running": {"running": {}},
    "Succeeded": {"terminated": {"exitCode": 0, "reason": "Completed"}},
    "Failed": {"terminated": {"exitCode": 1, "reason": "Error"}},
}


@dataclass(frozen=True)
class StandInNode:
    """A Node object and the kubelet's account that writes it."""

    name: str
    kubelet: Identity

    def set_pod_phase(self, namespace: str, pod: str, phase: str, finished_at: str | None = None) -> dict[str, Any]:
        """Say that all containers of a pod are in a phase: Pending, Running, Succeeded or Failed.

        `finished_at` is the RFC 3339 time at which they ended; now where absent. Returns the pod.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        spec = wait_until(lambda: self._read(path), f"{self.name} may read the pod that was bound to it")["spec"]
        at = finished_at or now()
        status = {
            "phase": phase,
            "startTime": at,
            "conditions": [_condition("Ready", met=phase == "Running"), _condition("Initialized", met=True)],
            "containerStatuses": [_container_status(c, phase, at) for c in spec["containers"]],
            "initContainerStatuses": [_container_status(c, phase, at) for c in spec.get("initContainers", [])],
        }
        # Conditions merge by type and statuses by name: what others wrote, PodScheduled above all, stays.
        return self.kubelet.api.patch(f"{path}/status", {"status": status}, "application/strategic-merge-patch+json")

    def _read(self, path: str) -> dict[str, Any] | None:
        """The pod; nothing as long as the node authorizer has not heard of its binding."""
        try:
            return self.kubelet.api.get(path)
        except ApiError as error:
            if error.status == 403:
                return None
            raise

    def remove_pod(self, namespace: str, pod: str) -> None:
        """Confirm that a pod which somebody deleted is gone from the node, as a kubelet does."""
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        # Who may delete it, the API server decides by the same cache as who may read it.
        wait_until(lambda: self._read(path), f"{self.name} may read the pod that was bound to it")
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        self.kubelet.api.delete(path, options)


def create_node(
    plane: ControlPlane, name: str, gpus: int = 8, memory_mib: int = 81920, model: str = "A100"
) -> StandInNode:
    """Register a ready node whose status offers GPUs of `memory_mib` each in FairGPU's resources."""
    kubelet = plane.node(name)
    metadata = {
        "name": name,
        "labels": {"kubernetes.io/hostname": name},
        "annotations": {"fairgpu.io/inventory": inventory.encode(inventory_of(name, gpus, memory_mib, model))},
    }
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    kubelet.api.create("/api/v1/nodes", node)
    capacity = {
        "cpu": "128",
        "memory": "1Ti",
        "ephemeral-storage": "1Ti",
        "pods": "500",
        "fairgpu.io/gpu": str(gpus * inventory.MAX_SLOTS),
        "fairgpu.io/gpu-core": str(gpus * 100),
        "fairgpu.io/gpu-memory": str(gpus * memory_mib),
        "fairgpu.io/gpu-memory-percentage": str(gpus * 100),
    }
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [_condition("Ready", met=True)]}
    kubelet.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    return StandInNode(name, kubelet)


def inventory_of(node: str, gpus: int, memory_mib: int, model: str = "A100") -> inventory.Inventory:
    """Returns the inventory that a node agent would write: GPUs of one model, linked alike."""
    devices = tuple(
        inventory.Device(f"GPU-{node}-{at}", model, memory_mib, None, f"00000000:{at:02X}:00.0") for at in range(gpus)
    )
    links = tuple(
        tuple(inventory.Link.SELF if one == other else inventory.Link.NVLINK for other in range(gpus))
        for one in range(gpus)
    )
    return inventory.Inventory("nvidia", "580.95.05", inventory.MAX_SLOTS, devices, links)


def place(scheduler: Identity, pod: Mapping[str, Any], node: str) -> None:
    """Bind a pod to a node by the code of FairGPU's scheduler: it reads the cluster, chooses devices and binds.

    kube-scheduler is not asked: the test names the node. Raises BindError where the pod does not fit there.
    """
    state = State()
    for collection, view in ((NODES, NodesView(state)), (PODS, PodsView(state))):
        items = (collection.read(item) for item in scheduler.api.get(collection.path)["items"])
        view.replaced([item for item in items if item is not None])
    metadata = pod["metadata"]
    arguments = BindArguments(metadata["name"], metadata["namespace"], metadata["uid"], node)
    clock = Clock(time.monotonic, threading.Event().wait)
    binding.bind(state, scheduler.api, arguments, clock, lambda: True, clock.now() + binding.GIVE_UP_SECONDS)


def bind(scheduler: Identity, pod: Mapping[str, Any], node: str, allocation: Mapping[str, Any] | str | None) -> None:
    """Bind a pod with one Binding that carries its allocation, which the API server merges into the pod.

    `scheduler` is the account fairgpu-scheduler in a test of what should be; others are refused an allocation.
    """
    metadata: dict[str, Any] = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    if allocation is not None:
        text = allocation if isinstance(allocation, str) else json.dumps(allocation, separators=(",", ":"))
        metadata["annotations"] = {"fairgpu.io/allocation": text}
    sent = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": metadata,
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    scheduler.api.create(f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding", sent)


def forged_allocation(pod: Mapping[str, Any], node: str, total_mib: int = 81920) -> dict[str, Any]:
    """An allocation that no scheduler made: a node's first GPUs for each GPU container, whatever other pods hold."""
    containers = []
    for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
        limits = container.get("resources", {}).get("limits", {})
        count = parse_count(limits.get("fairgpu.io/gpu", 0))
        if count:
            core = parse_count(limits.get("fairgpu.io/gpu-core", 0)) // count
            share = parse_count(limits.get("fairgpu.io/gpu-memory-percentage", 0)) // count
            memory = parse_count(limits.get("fairgpu.io/gpu-memory", 0)) // count or total_mib * share // 100
            device = {"model": "A100", "totalMiB": total_mib, "core": core, "memoryMiB": memory}
            devices = [{"uuid": f"GPU-{node}-{index}", **device} for index in range(count)]
            containers.append({"name": container["name"], "devices": devices})
    return {"v": 1, "node": node, "containers": containers}


def now() -> str:
    """The present time as the API writes it."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(kind: str, *, met: bool) -> dict[str, str]:
    return {"type": kind, "status": str(met), "reason": "StandIn", "lastTransitionTime": now()}


def _container_status(container: Mapping[str, Any], phase: str, at: str) -> dict[str, Any]:
    state = {kind: dict(fields) for kind, fields in _CONTAINER_STATES[phase].items()}
    if "running" in state:
        state["running"]["startedAt"] = at
    if "terminated" in state:
        state["terminated"] |= {"startedAt": at, "finishedAt": at}
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": phase == "Running",
        "started": phase == "Running",
        "restartCount": 0,
        "state": state,
        "resources": container.get("resources", {}),  # a kubelet that can resize says what is in force
    }
