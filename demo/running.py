"""Pods that run: bound and busy, watched by a sidecar of their own, and ended; and what each of them must cost."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from demo.admission import Json
from demo.children import Child, Children, StepError
from demo.cluster import TIME_FORMAT
from demo.gpus import Gpus, Load
from demo.screen import UNIT
from fairgpu import names
from fairgpu.allocation import Allocation, decode

BEST_EFFORT_PERCENT = 10
"""The least charge of best effort; here it also gets as much."""
BUSY = {
    "train-resnet": 0.98,
    "finetune-bert": 0.9,
    "serve-llama": 0.35,
    "notebook-ada": 0.1,
    "evaluate": 0.8,
    "embed-corpus": 0.95,
    "pretrain": 0.99,
}
"""The part of its share that each pod's program uses."""


def work(gpus: Gpus, pod: Json, usage: Path) -> None:
    """Lets the program in a bound pod work; it leaves what it uses in this usage volume."""
    for container in allocation_of(pod).containers:
        share = container.devices[0]
        percent = share.core_percent or BEST_EFFORT_PERCENT
        busy = BUSY[pod["metadata"]["name"]] * percent / 100
        file = usage / container.name / "usage"
        gpus.run_on(Load(file, share.uuid, busy, share.memory_mib * 3 // 4, share.memory_mib))


def start_sidecar(children: Children, archive: Path, pod: Json, token: str, volumes: Path) -> Child:
    """Starts a pod's sidecar with the very environment that admission gave it, as the kubelet would.

    `volumes` is the folder of the pod's usage volume; the token is laid beside it.
    """
    file = volumes.with_name(f"{volumes.name}.token")
    file.touch(mode=0o600)
    file.write_text(token)
    given = {item["name"]: item["value"] for item in sidecar_of(pod)["env"]}
    mounts = {"FAIRGPU_TOKEN_FILE": str(file), "FAIRGPU_USAGE_FOLDER": str(volumes)}
    environment = {**given, **mounts, "FAIRGPU_REPORT_INTERVAL_SECONDS": "1"}
    command = [sys.executable, "-I", "-S", str(archive)]
    return children.start(f"sidecar-{pod['metadata']['name']}", command, environment)


def end_sidecars(children: Children, sidecars: list[Child]) -> None:
    """Ends them as a kubelet does.

    Raises:
        StepError: one ended with an error, or without its last report taken.
    """
    for child in sidecars:
        status = children.end(child)
        if status != 0 or '"last_report":"taken"' not in child.tail():
            raise StepError(f"{child.name} ended with {status}:\n{child.tail()}")


def cost(pod: Json) -> int:
    """The cost of an ended pod in microGPU-seconds, from its own object alone."""
    status = pod["status"]
    ends = [item["state"]["terminated"]["finishedAt"] for item in status["containerStatuses"]]
    start = next(item["lastTransitionTime"] for item in status["conditions"] if item["type"] == "PodScheduled")
    return rate(allocation_of(pod)) * (max(_seconds(end) for end in ends) - _seconds(start))


def rate(allocation: Allocation) -> int:
    """The cost of an allocation a second at price 1: the larger share of time and memory of each device, rounded up."""
    shares = [share for container in allocation.containers for share in container.devices]
    return sum(
        max(
            (share.core_percent or BEST_EFFORT_PERCENT) * UNIT // 100,
            -(-share.memory_mib * UNIT // share.total_mib),
        )
        for share in shares
    )


def sidecar_of(pod: Json) -> Json:
    """The container that admission put first.

    Raises:
        StepError: it is not there.
    """
    init = pod["spec"].get("initContainers") or [{}]
    container: Json = init[0]
    if container.get("name") != names.SIDECAR_CONTAINER or container.get("restartPolicy") != "Always":
        raise StepError(f"no sidecar was put into pod {pod['metadata']['name']}")
    return container


def allocation_of(pod: Json) -> Allocation:
    """The allocation of a bound pod."""
    return decode(pod["metadata"]["annotations"][names.ALLOCATION])


def _seconds(stamp: str) -> int:
    return int(datetime.strptime(stamp, TIME_FORMAT).replace(tzinfo=UTC).timestamp())
