"""Pods as they are once FairGPU's webhook has been at them, and plain ones."""

from __future__ import annotations

from typing import Any

from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import parse_instant

SIDECAR_IMAGE = "localhost/fairgpu/sidecar:test"
"""The sidecar's image that deploy/overlays/loopback-test names."""

Pod = dict[str, Any]


def plain_pod(name: str = "plain") -> Pod:
    """A pod without a GPU that no scheduler places."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "nobody-schedules",
            "containers": [{"name": "main", "image": "example.org/app:1"}],
        },
    }


def canonical_pod(name: str = "gpu", *, priority_class: str = "gpu-in-budget", gated: bool = False) -> Pod:
    """A pod with 30 percent of one GPU that has all that the webhook adds."""
    annotations = {
        "fairgpu.io/source-dialect": "native",
        "fairgpu.io/budget-state": "held" if gated else "open",
        "fairgpu.io/created-by": "alice",
        "fairgpu.io/placement": "pack",
    }
    spec = _canonical_spec(priority_class)
    if gated:
        spec["schedulingGates"] = [{"name": "fairgpu.io/budget"}, {"name": "example.org/own"}]
    metadata = {"name": name, "labels": {"fairgpu.io/pod": "gpu"}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def stack_pod(limits: dict[str, str] | None = None, *, gated: bool = False) -> Pod:
    """A pod of another stack, as the webhook leaves it where the mode is account."""
    pod = plain_pod("gpu")
    pod["metadata"] |= {
        "labels": {"fairgpu.io/pod": "gpu"},
        "annotations": {"fairgpu.io/budget-state": "open", "fairgpu.io/created-by": "alice"},
    }
    pod["spec"]["containers"][0]["resources"] = {"limits": limits or {"nvidia.com/gpu": "1"}}
    if gated:
        pod["spec"]["schedulingGates"] = [{"name": "fairgpu.io/budget"}]
    return pod


def _canonical_spec(priority_class: str) -> dict[str, Any]:
    limits = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": "30", "fairgpu.io/gpu-memory": "4096"}
    token = {"audience": "fairgpu-timekeeper", "expirationSeconds": 3600, "path": "token"}
    sidecar_amounts = {"cpu": "50m", "memory": "40Mi"}
    return {
        "schedulerName": "fairgpu-scheduler",
        "priorityClassName": priority_class,
        "initContainers": [
            {
                "name": "fairgpu-sidecar",
                "image": SIDECAR_IMAGE,
                "restartPolicy": "Always",
                "resources": {"limits": sidecar_amounts, "requests": sidecar_amounts},
            }
        ],
        "containers": [
            {
                "name": "main",
                "image": "example.org/train:1",
                "resources": {"limits": limits},
                "volumeMounts": [{"name": "fairgpu-usage", "mountPath": "/run/fairgpu", "subPath": "main"}],
            }
        ],
        "volumes": [
            {"name": "fairgpu-usage", "emptyDir": {}},
            {"name": "fairgpu-token", "projected": {"sources": [{"serviceAccountToken": token}]}},
        ],
    }


def spent_in(status: dict[str, Any]) -> int | None:
    """The microGPU-seconds that a GPUBudget's status shows as spent; None before its first status."""
    spent = status.get("spent")
    return None if spent is None else int(spent["microGPUSeconds"])


def cost(pod: Pod, rate: int) -> int:
    """Returns the cost of a pod that has ended, from nothing but the API server's record of it.

    `rate` is in microGPU-seconds a second; one that is deleted before its containers have ended costs up to then.
    """
    (start,) = [c["lastTransitionTime"] for c in pod["status"]["conditions"] if c["type"] == "PodScheduled"]
    ended = [
        status["state"]["terminated"]["finishedAt"]
        for kind in ("containerStatuses", "initContainerStatuses")
        for status in pod["status"][kind]
        if "terminated" in status["state"]
    ]
    end = max(ended) if pod["status"]["phase"] == "Succeeded" else pod["metadata"]["deletionTimestamp"]
    return rate * (parse_instant(end) - parse_instant(start)) // SECOND
