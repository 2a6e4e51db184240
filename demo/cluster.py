"""Plays the API server's part of scheduling, and the kubelet: binds pods where the scheduler's placement puts them.

Bound pods are written into the timekeeper's folder.
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from demo.children import StepError
from fairgpu import names
from fairgpu.allocation import Allocation, encode
from fairgpu.inventory import MAX_SLOTS, Device, Inventory, Link
from scheduler.cluster.objects import allocation_of, read_waiting
from scheduler.placement.causes import explain
from scheduler.placement.choosing import Chooser
from scheduler.placement.fleet import Fleet, Node
from scheduler.placement.together import holding_of

MODEL = "A100"
DEVICE_MIB = 81920
DEVICES = 4
CPU_MILLI, HOST_MIB = 64_000, 256_000
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"

Json = dict[str, Any]


class Cluster:
    """The played cluster: one node with GPUs, and the pods that exist, as files that the timekeeper reads.

    Attributes:
        pods: the folder in which the timekeeper finds pods.
        node: the node's name.
    """

    def __init__(self, pods: Path) -> None:
        self.pods = pods
        self.node = "gpu-node-1"
        self._chooser = Chooser(Fleet())
        self.offer([f"GPU-{uuid.uuid4()}" for _ in range(DEVICES)])

    def offer(self, uuids: Sequence[str]) -> None:
        """Replaces the node's GPUs with others, all of one model, each linked to every other by NVLink.

        Args:
            uuids: the uuid of each new GPU.
        """
        devices = tuple(Device(each, MODEL, DEVICE_MIB, None, f"pci-{at}") for at, each in enumerate(uuids))
        links = tuple(tuple(Link.SELF if one == other else Link.NVLINK for other in uuids) for one in uuids)
        inventory = Inventory("nvidia", "simulated", MAX_SLOTS, devices, links)
        self._chooser.fleet.put(Node(self.node, inventory, CPU_MILLI, HOST_MIB))

    def allocate(self, pod: Json) -> Allocation:
        """Chooses devices for a pod as the scheduler does, and keeps them from later pods; returns the allocation.

        Raises:
            StepError: the node has no room for the pod.
            PodError: the pod requests no GPU by FairGPU's resources, or its request is impossible.
        """
        fleet, waiting = self._chooser.fleet, read_waiting(pod)
        rows = np.arange(fleet.size)
        row = self._chooser.best(waiting.request, rows)
        placed = None if row is None else self._chooser.place(waiting.request, row)
        if row is None or placed is None:
            causes = [explain(shortage, waiting.request) for shortage, _ in self._chooser.why(waiting.request, rows)]
            raise StepError(f"{self.node} has no room for {waiting.name}: {'; '.join(causes)}")
        fleet.hold(waiting.uid, holding_of(placed, waiting.request))
        node = fleet.nodes[row]
        assert node is not None  # noqa: S101 - it has just been chosen
        return allocation_of(waiting, placed, node)

    def create(self, pod: Json) -> Json:
        """Creates a pod that waits for a scheduler, as an API server does: writes its file.

        Returns:
            A copy of the pod with a new uid.
        """
        created = copy.deepcopy(pod)
        now = datetime.now(UTC).strftime(TIME_FORMAT)
        created["metadata"].update(uid=str(uuid.uuid4()), creationTimestamp=now, resourceVersion="1")
        created["status"] = {"phase": "Pending"}
        self.write(created)
        return created

    def is_gated(self, pod: Json) -> bool:
        """Returns whether a pod waits behind a scheduling gate, by the file of the pod in the timekeeper's folder.

        Args:
            pod: the pod, as JSON, of which only the uid is read. The timekeeper may have changed the file since.
        """
        return bool(json.loads(self.file(pod).read_text())["spec"].get("schedulingGates"))

    def bind(self, pod: Json) -> Json:
        """Creates a pod that runs on the node, and writes its file.

        Returns:
            A copy of the pod with a new uid and its allocation.

        Raises:
            StepError: the node has no room for the pod.
            PodError: the pod requests no GPU by FairGPU's resources, or its request is impossible.
        """
        now = datetime.now(UTC).strftime(TIME_FORMAT)
        bound = copy.deepcopy(pod)
        metadata = bound["metadata"]
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=now, resourceVersion="1")
        metadata.setdefault("annotations", {})[names.ALLOCATION] = encode(self.allocate(bound))
        bound["spec"]["nodeName"] = self.node
        bound["status"] = {
            "phase": "Running",
            "startTime": now,
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": now}],
        }
        self.write(bound)
        return bound

    def finish(self, pod: Json) -> Json:
        """Ends all main containers of a pod successfully, and writes its file; returns a copy of the ended pod.

        Later pods still do not get its devices.
        """
        now = datetime.now(UTC).strftime(TIME_FORMAT)
        ended = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now}}
        statuses = [{"name": item["name"], "state": ended} for item in pod["spec"]["containers"]]
        finished = {**pod, "status": {**pod["status"], "phase": "Succeeded", "containerStatuses": statuses}}
        self.write(finished)
        return finished

    def write(self, pod: Json) -> None:
        """Writes a pod's file in the timekeeper's folder; the timekeeper never reads a file that is half written."""
        self.pods.mkdir(parents=True, exist_ok=True)
        beside = self.pods / f".{pod['metadata']['uid']}"
        beside.write_text(json.dumps(pod))
        beside.replace(self.file(pod))

    def file(self, pod: Json) -> Path:
        """Returns the path of a pod's file in the timekeeper's folder."""
        return self.pods / f"{pod['metadata']['uid']}.json"
