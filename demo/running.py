"""Runs pods: binds them, makes them busy beside a sidecar, ends them, and computes what each must cost."""

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
"""The least charge of a best-effort share, and here also its share of the device."""
END_LIMIT_SECONDS = 120.0
"""The time within which a sidecar must have sent its last report."""
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
    """Starts the work of a bound pod on the played GPUs, which write its usage into the pod's usage volume.

    Each container uses its first GPU alone.

    Args:
        gpus: the played GPUs.
        pod: the bound pod, as JSON with its allocation.
        usage: the folder that stands for the usage volume.
    """
    for container in allocation_of(pod).containers:
        share = container.devices[0]
        percent = share.core_percent or BEST_EFFORT_PERCENT
        busy = BUSY[pod["metadata"]["name"]] * percent / 100
        file = usage / container.name / "usage"
        gpus.run_on(Load(file, share.uuid, busy, share.memory_mib * 3 // 4, share.memory_mib))


def start_sidecar(children: Children, archive: Path, pod: Json, token: str, volumes: Path) -> Child:
    """Starts a pod's sidecar with the environment that admission gave it, as a kubelet would; returns the process.

    Only the files and the interval between reports, here one second, differ from that environment.

    Args:
        children: the processes, to which the sidecar is added.
        archive: the file of the sidecar, a zip archive that Python runs.
        pod: the bound pod, as JSON.
        token: the pod's bearer token, which is written beside the usage volume.
        volumes: the folder that stands for the pod's usage volume.

    Raises:
        StepError: admission put no sidecar into the pod.
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
    """Ends sidecars by SIGTERM, as a kubelet does, and checks that the timekeeper took the last report of each.

    Args:
        children: the processes, from which the sidecars are removed.
        sidecars: the processes of the sidecars.

    Raises:
        StepError: a sidecar ended with an error, or its last report was not taken.
    """
    for child in sidecars:
        status = children.end(child, END_LIMIT_SECONDS)
        if status != 0 or '"last_report":"taken"' not in child.tail():
            raise StepError(f"{child.name} ended with {status}:\n{child.tail()}")


def cost(pod: Json) -> int:
    """Returns an ended pod's cost at price 1 in microGPU-seconds, from the pod's own times and allocation alone."""
    status = pod["status"]
    statuses = [*status["containerStatuses"], *status.get("initContainerStatuses", [])]
    ends = [item["state"]["terminated"]["finishedAt"] for item in statuses]
    start = next(item["lastTransitionTime"] for item in status["conditions"] if item["type"] == "PodScheduled")
    return rate(allocation_of(pod)) * (max(_seconds(end) for end in ends) - _seconds(start))


def rate(allocation: Allocation) -> int:
    """Returns the cost of an allocation at price 1, in microGPU-seconds a second.

    Each piece of a device costs its share of the device's time or of its memory, whichever is larger. A best-effort
    piece counts as BEST_EFFORT_PERCENT of the time.
    """
    shares = [share for container in allocation.containers for share in container.devices]
    return sum(
        max(
            (share.core_percent or BEST_EFFORT_PERCENT) * UNIT // 100,
            -(-share.memory_mib * UNIT // share.total_mib),
        )
        for share in shares
    )


def sidecar_of(pod: Json) -> Json:
    """Returns the first init container of an admitted pod, which must be the sidecar.

    Raises:
        StepError: the container is not a sidecar.
    """
    init = pod["spec"].get("initContainers") or [{}]
    container: Json = init[0]
    if container.get("name") != names.SIDECAR_CONTAINER or container.get("restartPolicy") != "Always":
        raise StepError(f"no sidecar was put into pod {pod['metadata']['name']}")
    return container


def allocation_of(pod: Json) -> Allocation:
    """Returns the allocation that a bound pod has in its annotation."""
    return decode(pod["metadata"]["annotations"][names.ALLOCATION])


def _seconds(stamp: str) -> int:
    return int(datetime.strptime(stamp, TIME_FORMAT).replace(tzinfo=UTC).timestamp())
