"""Rewrites a container: its GPU request in canonical form, and the mount of the volume for its usage file."""

from __future__ import annotations

from typing import Any

from fairgpu import names
from fairgpu.pod import ContainerReading
from webhook.admission.json_patch import Operation, add, change_map, remove_elements
from webhook.admission.sidecar import OUR_VOLUMES, usage_mount
from webhook.admission.verdict import indexes_named, objects


def change_containers(
    spec: dict[str, Any], field: str, readings: tuple[ContainerReading, ...], *, mounts: bool = True
) -> list[Operation]:
    """Returns the JSON Patch operations that rewrite the containers in one of the pod's lists, each in its place.

    Keys of a dialect become the canonical request.

    Args:
        spec: the pod's spec, as JSON.
        field: `containers` or `initContainers`.
        readings: the containers of this list that have keys of a dialect.
        mounts: whether the operations also add the mount of the usage volume, or remove it from a container without a
            GPU.
    """
    by_index = {reading.index: reading for reading in readings}
    operations: list[Operation] = []
    for index, container in objects(spec.get(field)):
        reading = by_index.get(index)
        path = f"/spec/{field}/{index}"
        if reading is not None:
            operations += _change_resources(container, path, reading)
        if mounts and container.get("name") != names.SIDECAR_CONTAINER:
            uses_gpu = reading is not None and reading.request is not None
            operations += _change_mounts(container, path, uses_gpu=uses_gpu)
    return operations


def _change_resources(container: dict[str, Any], path: str, reading: ContainerReading) -> list[Operation]:
    canonical = reading.request.resources() if reading.request else {}
    resources = container.get("resources")
    if not isinstance(resources, dict):
        return [add(f"{path}/resources", {"limits": canonical, "requests": canonical})] if canonical else []
    here = f"{path}/resources"
    strip = reading.reading.strip_resources
    return [
        *change_map(resources, here, "limits", canonical, strip),
        *change_map(resources, here, "requests", canonical, strip),
    ]


def _change_mounts(container: dict[str, Any], path: str, *, uses_gpu: bool) -> list[Operation]:
    name = container.get("name")
    wanted = usage_mount(name) if uses_gpu and isinstance(name, str) else None
    given = container.get("volumeMounts")
    if not isinstance(given, list):
        return [add(f"{path}/volumeMounts", [wanted])] if wanted else []
    here = f"{path}/volumeMounts"
    ours = indexes_named(given, OUR_VOLUMES)
    if not ours and wanted is None:
        return []
    if wanted is not None and len(ours) == 1 and given[ours[0]] == wanted:
        return []
    return [*remove_elements(here, ours), *([add(f"{here}/-", wanted)] if wanted else [])]
