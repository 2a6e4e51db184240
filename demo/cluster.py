"""Plays the scheduler and the kubelet: gives a pod devices, and writes the bound pod into the timekeeper's folder."""

from __future__ import annotations

import copy
import json
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from demo.children import StepError
from fairgpu import names
from fairgpu.allocation import Allocation, ContainerAllocation, DeviceShare, encode
from fairgpu.dialects.reading import DialectSettings
from fairgpu.pod import read_pod
from fairgpu.request import GPURequest

MODEL = "A100"
DEVICE_MIB = 81920
DEVICES = 4
WHOLE = 100
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"

Json = dict[str, Any]


@dataclass(frozen=True)
class Device:
    """A simulated GPU of the node, with its free share and memory."""

    uuid: str
    core_percent: int = WHOLE
    memory_mib: int = DEVICE_MIB

    def take(self, core_percent: int, memory_mib: int) -> Device:
        """Returns the device after a piece of it was allocated."""
        return replace(self, core_percent=self.core_percent - core_percent, memory_mib=self.memory_mib - memory_mib)


@dataclass
class Cluster:
    """One node with four GPUs, and the folder in which the timekeeper finds pods."""

    pods: Path
    node: str = "gpu-node-1"
    devices: list[Device] = field(
        default_factory=lambda: [Device(f"GPU-{uuid.uuid4()}") for _ in range(DEVICES)],
    )

    def allocate(self, pod: Json) -> Allocation:
        """Allocates devices to a pod, first fit.

        Raises:
            StepError: no device has room.
        """
        containers = tuple(
            ContainerAllocation(container.name, (self._place(container.request),))
            for container in read_pod(pod, DialectSettings()).containers
            if container.request is not None
        )
        return Allocation(self.node, containers)

    def create(self, pod: Json) -> Json:
        """Stores a pod as the API server does, with a uid, to wait for a scheduler; writes its file."""
        created = copy.deepcopy(pod)
        now = datetime.now(UTC).strftime(TIME_FORMAT)
        created["metadata"].update(uid=str(uuid.uuid4()), creationTimestamp=now, resourceVersion="1")
        created["status"] = {"phase": "Pending"}
        self.write(created)
        return created

    def is_gated(self, pod: Json) -> bool:
        """Whether a scheduling gate holds the pod, by its file."""
        return bool(json.loads(self.file(pod).read_text())["spec"].get("schedulingGates"))

    def bind(self, pod: Json) -> Json:
        """Binds and starts a pod with its allocation; writes its file.

        Raises:
            StepError: no device has room.
        """
        now = datetime.now(UTC).strftime(TIME_FORMAT)
        bound = copy.deepcopy(pod)
        metadata = bound["metadata"]
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=now, resourceVersion="1")
        metadata.setdefault("annotations", {})[names.ALLOCATION] = encode(self.allocate(pod))
        bound["spec"]["nodeName"] = self.node
        bound["status"] = {
            "phase": "Running",
            "startTime": now,
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": now}],
        }
        self.write(bound)
        return bound

    def finish(self, pod: Json) -> Json:
        """Ends all containers of a pod successfully; writes its file."""
        now = datetime.now(UTC).strftime(TIME_FORMAT)
        ended = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now}}
        statuses = [{"name": item["name"], "state": ended} for item in pod["spec"]["containers"]]
        finished = {**pod, "status": {**pod["status"], "phase": "Succeeded", "containerStatuses": statuses}}
        self.write(finished)
        return finished

    def write(self, pod: Json) -> None:
        """Replaces the pod's file in one step."""
        self.pods.mkdir(parents=True, exist_ok=True)
        beside = self.pods / f".{pod['metadata']['uid']}"
        beside.write_text(json.dumps(pod))
        beside.replace(self.file(pod))

    def file(self, pod: Json) -> Path:
        """Returns the path of the pod's file."""
        return self.pods / f"{pod['metadata']['uid']}.json"

    def _place(self, request: GPURequest) -> DeviceShare:
        memory_mib = request.memory_mib
        if memory_mib is None:
            memory_mib = DEVICE_MIB * (request.memory_percentage or 0) // WHOLE
        for index, device in enumerate(self.devices):
            if device.core_percent >= request.core_percent and device.memory_mib >= memory_mib:
                self.devices[index] = device.take(request.core_percent, memory_mib)
                return DeviceShare(device.uuid, MODEL, DEVICE_MIB, request.core_percent, memory_mib)
        raise StepError(f"no GPU of {self.node} has room for {request}")
