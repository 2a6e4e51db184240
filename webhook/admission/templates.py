"""Where workloads keep the template of their pods."""

from __future__ import annotations

from typing import Any

from webhook.admission.verdict import mapping

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
"""By kind; the kinds of the core, apps and batch groups."""


def pod_template(kind: str, item: dict[str, Any]) -> tuple[Path, dict[str, Any]] | None:
    """The template in a workload, and its field path; nothing for a kind that has none."""
    path = TEMPLATE_PATHS.get(kind)
    if path is None:
        return None
    template = item
    for part in path:
        template = mapping(template.get(part))
    return path, template
