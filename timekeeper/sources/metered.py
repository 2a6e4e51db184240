"""Which pods the timekeeper watches at all."""

from __future__ import annotations

from fairgpu import names
from fairgpu.cluster.api import Json


def is_metered(pod: Json) -> bool:
    """Whether a pod holds or asks for a piece of a GPU in canonical form.

    Tolerates any JSON: what admission did not see must not stop the meter.
    """
    metadata, spec = pod.get("metadata"), pod.get("spec")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if isinstance(annotations, dict) and names.ALLOCATION in annotations:
        return True
    if not isinstance(spec, dict):
        return False
    return any(_asks(container) for key in ("containers", "initContainers") for container in _objects(spec.get(key)))


def _asks(container: Json) -> bool:
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    return isinstance(limits, dict) and any(resource in limits for resource in names.CANONICAL_RESOURCES)


def _objects(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
