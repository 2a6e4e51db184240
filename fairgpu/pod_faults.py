"""What can be wrong with a pod beyond a single container's request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairgpu import names
from fairgpu.choices import Path
from fairgpu.demand import Demand
from fairgpu.dialects.building import WHOLE_GPU_PERCENT
from fairgpu.dialects.reading import DialectSettings
from fairgpu.dialects.registry import DialectSet
from fairgpu.faults import Fault, field_path, show
from fairgpu.listening import MAX_CONTAINERS, ContainerReading

MAX_ANNOTATIONS: Final = 1000
"""On a GPU pod."""
MAX_ANNOTATIONS_LENGTH: Final = 256 * 1024
"""The API server's own bound of a pod's annotations together (TotalAnnotationSizeLimitB in k8s.io/apimachinery)."""


def oversized(annotations: Mapping[Any, Any], root: Path) -> tuple[Fault, ...]:
    """Annotations that no API server stores. It says so after admission, where they are read for each container."""
    length = 0
    for key, value in annotations.items():
        length += len(key) + (len(value) if isinstance(value, str) else 0)
    if length <= MAX_ANNOTATIONS_LENGTH:
        return ()
    return (
        Fault(
            path=field_path(*root, "metadata", "annotations"),
            given=f"{length} characters in {len(annotations)} annotations",
            allowed=f"at most {MAX_ANNOTATIONS_LENGTH} bytes together, as for every object",
            instead="less; what is longer belongs in a ConfigMap",
        ),
    )


def crowded(annotations: Mapping[Any, Any], root: Path, before: int = 0) -> list[Fault]:
    """More annotations than the policies of the API server can look through, of which a pod had so many `before`.

    With 40,000 they take half a minute and more, each time that the pod is told of its eviction or let go on.
    """
    if len(annotations) <= max(MAX_ANNOTATIONS, before):
        return []
    count = sum(not str(key).startswith(names.ANNOTATION_PREFIX) for key in annotations)  # admission adds ours
    if count <= max(MAX_ANNOTATIONS, before):
        return []
    return [
        Fault(
            path=field_path(*root, "metadata", "annotations"),
            given=f"{count} annotations",
            allowed=f"at most {MAX_ANNOTATIONS} on a pod that asks for a GPU",
            instead="fewer; what many say belongs in a ConfigMap",
        )
    ]


def too_many(spec: Mapping[str, Any], root: Path) -> list[Fault]:
    """More containers than are read of a pod that asks for a GPU."""
    lists = {field: spec.get(field) for field in ("containers", "initContainers", "ephemeralContainers")}
    return [
        Fault(
            path=field_path(*root, "spec", field),
            given=f"{len(containers)} containers",
            allowed=f"at most {MAX_CONTAINERS} in a pod that asks for a GPU",
            instead="fewer containers in a pod, and more pods",
        )
        for field, containers in lists.items()
        if isinstance(containers, list) and len(containers) > MAX_CONTAINERS and _own(containers) > MAX_CONTAINERS
    ]


def _own(containers: list[Any]) -> int:
    """How many there are beside FairGPU's reporter, which admission adds."""
    return sum(not isinstance(item, dict) or item.get("name") != names.SIDECAR_CONTAINER for item in containers)


def mistyped_annotations(given: Mapping[Any, Any], dialects: DialectSet, root: Path) -> list[Fault]:
    """An annotation such as `gpu-fraction: 0.5`, which YAML reads as a number and the API server refuses."""
    return [
        Fault(
            path=field_path(*root, "metadata", "annotations", key),
            given=show(value),
            allowed="text, as every annotation is",
            instead=f'"{show(value)}", in quotes',
        )
        for key, value in given.items()
        if isinstance(key, str) and key in dialects.annotations and not isinstance(value, str)
    ]


def misplaced(container: ContainerReading) -> list[Fault]:
    """A GPU asked for where there is none to be had."""
    if container.name == names.SIDECAR_CONTAINER:
        return [
            Fault(
                path=field_path(*container.path, "resources"),
                given=f"a GPU in the container {names.SIDECAR_CONTAINER}",
                allowed="no GPU there: the name is that of FairGPU's own reporter, which needs none",
                instead="the GPU in a container of another name",
            )
        ]
    if container.path[-2] == "ephemeralContainers":
        return [
            Fault(
                path=field_path(*container.path, "resources"),
                given="a GPU in an ephemeral container",
                allowed="no resources there, as for every ephemeral container",
                instead="the container without resources, or a pod of its own for it",
            )
        ]
    return []


def beyond_a_node(demand: Demand, settings: DialectSettings, root: Path) -> list[Fault]:
    """A demand that no node can ever meet, so that the pod would wait for good."""
    most = settings.max_gpus_per_node * WHOLE_GPU_PERCENT
    if demand.core_percent <= most and demand.memory_percentage <= most:
        return []
    path = field_path(*root, "spec", "containers")
    return [
        Fault(
            path=path,
            given=f"{amount} percent of GPU {what} in the containers together",
            allowed=f"at most {most}, as the largest node has {settings.max_gpus_per_node} GPUs",
            instead="less in a pod, and more pods",
        )
        for what, amount in (("time", demand.core_percent), ("memory", demand.memory_percentage))
        if amount > most
    ]
