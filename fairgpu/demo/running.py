"""Pods that run: bound and busy, watched by a sidecar of their own, and ended; and what each of them must cost."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime

from fairgpu import names
from fairgpu.allocation import Allocation, decode
from fairgpu.demo.admission import Json
from fairgpu.demo.cluster import TIME_FORMAT
from fairgpu.demo.folder import NAMESPACE
from fairgpu.demo.gpus import Load
from fairgpu.demo.screen import UNIT
from fairgpu.demo.stage import Stage, sidecar_of

BEST_EFFORT_PERCENT = 10
"""What best effort is charged at least; here it also gets as much."""
BUSY = {
    "train-resnet": 0.98,
    "finetune-bert": 0.9,
    "serve-llama": 0.35,
    "notebook-ada": 0.1,
    "evaluate": 0.8,
    "embed-corpus": 0.95,
    "pretrain": 0.99,
}
"""How much of the share that it holds each pod's program really uses."""


def run(stage: Stage, pod: Json) -> None:
    """Binds a pod and lets its program work."""
    bound, allocation = stage.cluster.bind(pod)
    stage.bound.append(bound)
    for container in allocation.containers:
        share = container.devices[0]
        percent = share.core_percent or BEST_EFFORT_PERCENT
        busy = BUSY[pod["metadata"]["name"]] * percent / 100
        file = stage.folder.usage(bound) / container.name / "usage"
        stage.gpus.run_on(Load(file, share.uuid, busy, share.memory_mib * 3 // 4, share.memory_mib))


def start_sidecar(stage: Stage, pod: Json) -> None:
    """Starts a pod's sidecar with the very environment that admission gave it, as the kubelet would."""
    metadata = pod["metadata"]
    token = stage.folder.tokens / metadata["uid"]
    token.touch(mode=0o600)
    token.write_text(stage.folder.signer.pod(NAMESPACE, metadata["name"], metadata["uid"]))
    given = {item["name"]: item["value"] for item in sidecar_of(pod)["env"]}
    mounts = {"FAIRGPU_TOKEN_FILE": str(token), "FAIRGPU_USAGE_FOLDER": str(stage.folder.usage(pod))}
    environment = {**given, **mounts, "FAIRGPU_REPORT_INTERVAL_SECONDS": "1"}
    command = [sys.executable, "-I", "-S", str(stage.folder.sidecar)]
    stage.sidecars.append(stage.children.start(f"sidecar-{metadata['name']}", command, environment))


def finish(stage: Stage, pod: Json) -> int:
    """Lets a pod succeed now; what its reservation cost, in microGPU-seconds, from its own times."""
    seconds = int(time.time())
    stamp = datetime.fromtimestamp(seconds, UTC).strftime(TIME_FORMAT)
    statuses = [
        {"name": item["name"], "state": {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": stamp}}}
        for item in pod["spec"]["containers"]
    ]
    pod["status"] = {**pod["status"], "phase": "Succeeded", "containerStatuses": statuses}
    stage.cluster.write(pod)
    scheduled = datetime.strptime(pod["status"]["startTime"], TIME_FORMAT).replace(tzinfo=UTC)
    return rate(decode(pod["metadata"]["annotations"][names.ALLOCATION])) * (seconds - int(scheduled.timestamp()))


def rate(allocation: Allocation) -> int:
    """What an allocation costs a second at price 1: the larger share of time and memory of each device, rounded up."""
    shares = [share for container in allocation.containers for share in container.devices]
    return sum(
        max(
            (share.core_percent or BEST_EFFORT_PERCENT) * UNIT // 100,
            -(-share.memory_mib * UNIT // share.total_mib),
        )
        for share in shares
    )
