"""Which pods the timekeeper watches at all, and what of objects it keeps in memory."""

from __future__ import annotations

from fairgpu import names
from fairgpu.cluster.api import Json


def is_metered(pod: Json) -> bool:
    """Whether a pod holds or asks for a piece of a GPU in canonical form, or waits for the meter to let it go.

    Tolerates any JSON: what admission did not see must not stop the meter.
    """
    metadata, spec = pod.get("metadata"), pod.get("spec")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if isinstance(annotations, dict) and names.ALLOCATION in annotations:
        return True
    finalizers = metadata.get("finalizers") if isinstance(metadata, dict) else None
    if isinstance(finalizers, list) and names.METER_FINALIZER in finalizers:
        return True
    if not isinstance(spec, dict):
        return False
    return any(_asks(container) for key in ("containers", "initContainers") for container in _objects(spec.get(key)))


def metered_pod(pod: Json) -> Json | None:
    """A pod as far as the meter reads it; None for one that is not metered.

    What containers mount, run and are told is most of a pod, and a large cluster has tens of thousands of them.
    """
    if not is_metered(pod):
        return None
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return slim(pod)
    read = {key: value for key, value in spec.items() if key not in {"volumes", "affinity", "tolerations"}}
    for key in ("containers", "initContainers"):
        if key in spec:
            read[key] = [
                {field: container[field] for field in ("name", "resources", "restartPolicy") if field in container}
                for container in _objects(spec[key])
            ]
    return {**slim(pod), "spec": read}


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
