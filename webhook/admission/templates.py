"""Finds the pod templates of Kubernetes' own workloads, and of custom resources whose pods work together.

The custom resources are JobSet (https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/), LeaderWorkerSet
(https://lws.sigs.k8s.io/docs/reference/leaderworkerset.v1/), and Kubeflow's PyTorchJob and MPIJob
(https://www.kubeflow.org/docs/components/trainer/legacy-v1/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from fairgpu.json_values import mapping
from webhook.admission.verdict import objects

Path = tuple[str | int, ...]

TEMPLATE_PATHS: Final[dict[str, tuple[str, ...]]] = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "PodTemplate": ("template",),
}
"""The field path of the pod template in a workload of the core, apps and batch groups, keyed by kind."""


class PodTemplate:
    """A pod template in a workload.

    Attributes:
        path: the template's field path in the workload.
        template: the template, as JSON with `metadata` and `spec`.
        together: the number of the template's pods that work together; 1 if each works alone.
    """

    def __init__(self, path: Path, template: dict[str, Any], together: int = 1) -> None:
        self.path: Final = path
        self.template: Final = template
        self.together: Final = together


def pod_template(kind: str, item: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]] | None:
    """Returns the field path of the pod template in a built-in workload, and the template; None for any other kind.

    Args:
        kind: the workload's kind, such as `Deployment`.
        item: the workload, as JSON.
    """
    path = TEMPLATE_PATHS.get(kind)
    if path is None:
        return None
    template: Any = item
    for part in path:
        template = mapping(mapping(template).get(part))
    return path, template


def pod_templates(kind: str, item: dict[str, Any]) -> list[PodTemplate]:
    """Returns all pod templates in a built-in workload or in a custom resource of a kind in JOBS.

    The list is empty for an object of any other kind.

    Args:
        kind: the object's kind, such as `Job` or `JobSet`.
        item: the object, as JSON.
    """
    own = pod_template(kind, item)
    if own is not None:
        return [PodTemplate(*own)]
    read = JOBS.get(kind)
    return [] if read is None else read(mapping(item.get("spec")))


def _job_set(spec: dict[str, Any]) -> list[PodTemplate]:
    templates = []
    for index, replicated in objects(spec.get("replicatedJobs")):
        job = mapping(mapping(replicated.get("template")).get("spec"))
        path = ("spec", "replicatedJobs", index, "template", "spec", "template")
        pods = _count(replicated, "replicas") * _count(job, "parallelism")
        templates.append(PodTemplate(path, mapping(job.get("template")), pods))
    return templates


def _leader_worker_set(spec: dict[str, Any]) -> list[PodTemplate]:
    group = mapping(spec.get("leaderWorkerTemplate"))
    size, path = _count(group, "size"), ("spec", "leaderWorkerTemplate")
    worker, leader = mapping(group.get("workerTemplate")), group.get("leaderTemplate")
    if not isinstance(leader, dict):  # the leader is made from the workers' template then
        return [PodTemplate((*path, "workerTemplate"), worker, size)]
    return [
        PodTemplate((*path, "leaderTemplate"), leader),
        PodTemplate((*path, "workerTemplate"), worker, size - 1),
    ]


def _kubeflow(field: str) -> Callable[[dict[str, Any]], list[PodTemplate]]:
    def read(spec: dict[str, Any]) -> list[PodTemplate]:
        return [
            PodTemplate(("spec", field, role, "template"), mapping(part.get("template")), _count(part, "replicas"))
            for role, part in mapping(spec.get(field)).items()
            if isinstance(part, dict)
        ]

    return read


def _count(item: dict[str, Any], field: str) -> int:
    """Returns the number of pods or jobs that a field states; 1, the default of the resources in JOBS, if it is absent.

    A value that is no whole number from 0 counts as absent.
    """
    value = item.get(field, 1)
    return value if type(value) is int and value >= 0 else 1


JOBS: Final[Mapping[str, Callable[[dict[str, Any]], list[PodTemplate]]]] = {
    "JobSet": _job_set,
    "LeaderWorkerSet": _leader_worker_set,
    "PyTorchJob": _kubeflow("pytorchReplicaSpecs"),
    "MPIJob": _kubeflow("mpiReplicaSpecs"),
}
"""The readers of the spec of custom resources whose pods work together, by their kind."""
