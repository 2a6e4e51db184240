"""The pod templates of Kubernetes' own workloads."""

from __future__ import annotations

from typing import Any

from fairgpu.container_parser import mapping

Path = tuple[str, ...]

TEMPLATE_PATHS: dict[str, Path] = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "PodTemplate": ("template",),
}
"""The field path of the template of each kind in the core, apps and batch groups."""


def pod_template(kind: str, item: dict[str, Any]) -> tuple[Path, dict[str, Any]] | None:
    """Returns the template in a workload, and its field path; None for a kind without one."""
    path = TEMPLATE_PATHS.get(kind)
    if path is None:
        return None
    template = item
    for part in path:
        template = mapping(template.get(part))
    return path, template
