"""Which pods the timekeeper watches at all, and what of objects it keeps in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from fairgpu import names
from fairgpu.cluster.api import Json
from timekeeper.metering.attribution import TEMPLATE_HASH

KIND: Final = ("apiVersion", "kind")
METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
ANNOTATIONS: Final = (*names.RESERVED_ANNOTATIONS, names.CORE_POLICY, names.TASK_PRIORITY)
OWNER: Final = ("kind", "name", "controller")
SPEC: Final = ("nodeName", "activeDeadlineSeconds", "terminationGracePeriodSeconds")
STATUS: Final = ("phase", "conditions", "startTime", "containerStatuses", "initContainerStatuses")
OUR_GATE: Final[Json] = {"name": names.BUDGET_GATE}
OTHER_GATE: Final[Json] = {"name": ""}
"""Stands for every other gate, so that ours keeps its place."""


def is_metered(pod: Json) -> bool:
    """Whether a pod asks for a piece of a GPU in canonical form: such requests never change, whoever made the pod.

    Annotations and finalizers alone make no pod one of these, since anybody may write them on a pod without a GPU.
    Tolerates any JSON: what admission did not see must not stop the meter.
    """
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return False
    return any(_asks(container) for key in ("containers", "initContainers") for container in _objects(spec.get(key)))


def metered_pod(pod: Json, kept_labels: Collection[str] = ()) -> Json | None:
    """A pod as far as the meter reads it; None for one that is not metered.

    What containers mount, run and are told is most of a pod, and a large cluster has tens of thousands of them. Nor is
    anything kept whose size its author chooses: 1.5 MiB of labels, which the API server takes, are ten here.

    The annotations of a pod without the label of GPU pods are not guarded by any policy, and are not read: bound, it is
    metered from its request.

    Args:
        pod: the pod as the API server has it.
        kept_labels: the keys of labels that showback keeps.
    """
    if not is_metered(pod):
        return None
    metadata, spec, status = (_mapping(pod.get(key)) for key in ("metadata", "spec", "status"))
    read_metadata = _chosen(metadata, METADATA)
    guarded = _mapping(metadata.get("labels")).get(names.POD_LABEL) == names.POD_LABEL_VALUE
    annotations = ANNOTATIONS if guarded else ()
    for key, wanted in (("annotations", annotations), ("labels", (names.POD_LABEL, TEMPLATE_HASH, *kept_labels))):
        if key in metadata:
            read_metadata[key] = _chosen(_mapping(metadata[key]), wanted)
    if "finalizers" in metadata:
        # Removing ours goes by its place.
        read_metadata["finalizers"] = [
            name if name == names.METER_FINALIZER else "" for name in _list(metadata["finalizers"])
        ]
    if "ownerReferences" in metadata:
        references = _objects(metadata["ownerReferences"])
        controllers = [reference for reference in references if reference.get("controller") is True]
        read_metadata["ownerReferences"] = [_chosen(owner, OWNER) for owner in controllers[:1]]
    read_spec = _chosen(spec, SPEC)
    if "schedulingGates" in spec:
        gates = _objects(spec["schedulingGates"])
        read_spec["schedulingGates"] = [OUR_GATE if gate == OUR_GATE else OTHER_GATE for gate in gates]
    for key in ("containers", "initContainers"):
        if key in spec:
            read_spec[key] = [_container(container) for container in _objects(spec[key])]
    return {**_chosen(pod, KIND), "metadata": read_metadata, "spec": read_spec, "status": _chosen(status, STATUS)}


def _container(container: Json) -> Json:
    limits = _chosen(_mapping(_mapping(container.get("resources")).get("limits")), names.CANONICAL_RESOURCES)
    asked: Json = {"resources": {"limits": limits}} if limits else {}
    return _chosen(container, ("name", "restartPolicy")) | asked


def _chosen(item: Json, keys: Iterable[str]) -> Json:
    return {key: item[key] for key in keys if key in item}


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def slim(item: Json) -> Json:
    """An object without what the API server keeps for itself, and a node without the names of its images."""
    read = dict(item)
    metadata, status = item.get("metadata"), item.get("status")
    if isinstance(metadata, dict):
        read["metadata"] = {key: value for key, value in metadata.items() if key != "managedFields"}
    if isinstance(status, dict):
        read["status"] = {key: value for key, value in status.items() if key != "images"}
    return read


def _asks(container: Json) -> bool:
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    return isinstance(limits, dict) and any(resource in limits for resource in names.CANONICAL_RESOURCES)


def _objects(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
