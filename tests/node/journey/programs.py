"""Programs in pods of the journey, and what becomes of them: out of the API server, the runtime and the books."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.services.timekeeper_client import TimekeeperClient
from tests.node.machine import PROGRAMS
from timekeeper.domain.timestamps import parse_instant

BUDGETS = "/apis/fairgpu.io/v1alpha1/gpubudgets"
KERNEL_MS, KERNELS = 20, 60
WORK_NS = KERNELS * KERNEL_MS * 1_000_000
OUT_OF_MEMORY = "2"

WORK = f"""
read began rest < /proc/uptime
{{
  echo init; echo ctx $SIMULATED_GPU; echo total $SIMULATED_GPU; echo alloc big 5000000000; echo alloc small 1000000000
  i=0; while [ $i -lt {KERNELS} ]; do echo launch spin_ms_{KERNEL_MS}; i=$((i + 1)); done
}} | actor
read ended rest < /proc/uptime
echo $began $ended
until [ -e /out/end ]; do sleep 0.2; done
"""
"""Asks for more memory than the pod has, works for WORK_NS of GPU time, and ends when it is asked to."""

WORK_ON_A_WHOLE_GPU = f"""
{{
  echo init; echo ctx $SIMULATED_GPU; echo total $SIMULATED_GPU
  until [ -e /out/end ]; do echo launch spin_ms_{KERNEL_MS}; sleep 0.1; done
}} | actor
"""
"""Works for a fifth of the time or less, until it is asked to end."""


def program(name: str, limits: Mapping[str, Any], script: str = WORK) -> dict[str, Any]:
    """A pod as a user writes it."""
    container = {
        "name": "main",
        "image": PROGRAMS,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "resources": {"limits": limits},
        "volumeMounts": [{"name": "out", "mountPath": "/out"}],
    }
    spec = {"containers": [container], "restartPolicy": "Never", "volumes": [{"name": "out", "emptyDir": {}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def end(pod: Mapping[str, Any]) -> None:
    """Lets the pod's program end."""
    Path("/var/lib/kubelet/pods", pod["metadata"]["uid"], "volumes/kubernetes.io~empty-dir/out/end").touch()


def under_the_shim(pod: Mapping[str, Any]) -> set[bool]:
    """Returns whether programs on a GPU in a pod have the shim in their memory, as the kernel lists it (proc(5)).

    Both answers are in the set if programs differ; it is empty before a program begins.
    """
    uid = pod["metadata"]["uid"]
    return {
        "libvcuda" in _read(folder / "maps")
        for folder in Path("/proc").glob("[0-9]*")
        if uid in _read(folder / "cgroup") and _read(folder / "comm") == "actor\n"
    }


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""  # the process has just ended


def printed(pod: Mapping[str, Any]) -> list[str]:
    """The lines that the pod's program printed, out of the runtime's log."""
    metadata = pod["metadata"]
    folder = f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
    lines = Path("/var/log/pods", folder, "main", "0.log").read_text().splitlines()
    return [line.split(" ", 3)[3] for line in lines]


def status_of(plane: ControlPlane, budget: str) -> dict[str, Any]:
    found: dict[str, Any] = plane.admin.api.get(f"{BUDGETS}/{budget}").get("status", {})
    return found


def ended(user: Identity, path: str) -> dict[str, Any] | None:
    pod = user.api.get(path)
    assert pod["status"]["phase"] != "Failed", pod["status"]
    return pod if pod["status"]["phase"] == "Succeeded" else None


def held_ns(pod: Mapping[str, Any]) -> int:
    """The time from the pod's binding to the end of its last container, as the API server has it."""
    [bound] = [each["lastTransitionTime"] for each in pod["status"]["conditions"] if each["type"] == "PodScheduled"]
    statuses = [*pod["status"]["containerStatuses"], *pod["status"]["initContainerStatuses"]]
    last = max(parse_instant(each["state"]["terminated"]["finishedAt"]) for each in statuses)
    return last - parse_instant(bound)


def reported(books: TimekeeperClient, namespace: str, least: int) -> dict[str, Any] | None:
    """The namespace's session once its sidecar has reported so many microGPU-seconds."""
    for session in books.get("/v1/sessions", namespace=namespace)["sessions"]:
        if session["used"] is not None and int(session["used"]["microGPUSeconds"]) >= least:
            found: dict[str, Any] = session
            return found
    return None
