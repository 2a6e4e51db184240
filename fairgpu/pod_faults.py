"""Faults of a pod beyond a single container's request: its size, its metadata, its demand as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fairgpu import names
from fairgpu.choices import Path
from fairgpu.container_parser import MAX_CONTAINERS, ContainerReading
from fairgpu.demand import Demand
from fairgpu.dialects.building import WHOLE_GPU_PERCENT
from fairgpu.dialects.reading import DialectSettings
from fairgpu.dialects.registry import DialectSet
from fairgpu.faults import Fault, field_path, show
from fairgpu.json_values import list_of, mapping, mappings

MAX_ANNOTATIONS: Final = 1000
"""The most annotations of a GPU pod."""
MAX_GPU_POD_ANNOTATIONS_BYTES: Final = 64 * 1024
"""The most bytes of a GPU pod's annotations, keys and values together, in UTF-8."""
MAX_FINALIZERS: Final = 64
MAX_LABELS: Final = 256
_BOUNDS: Final = (
    ("finalizers", MAX_FINALIZERS, "fewer"),
    ("labels", MAX_LABELS, "fewer; what nothing selects by belongs in annotations"),
)
MAX_POD_BYTES: Final = 1024 * 1024
"""The most bytes of a GPU pod as JSON at its creation, with those that its status will repeat."""
MAX_DEBUGGERS_BYTES: Final = 128 * 1024
"""The most bytes of a GPU pod's ephemeral containers as JSON, with those that its status will repeat."""
_STATUS_OF_A_CONTAINER: Final = 700
"""Bytes of a container's status that do not depend on its author: ids, states and instants, also of its last run."""
_STATUS_OF_A_CLAIM: Final = 320
"""Bytes of a claim in a pod's status: Kubernetes makes its name, of up to 253 characters, even from a short name of its
template."""
_STATUS_OF_A_GATE: Final = 80
"""Bytes: the condition Ready has a sentence about each readiness gate that is not met."""
_STATUS_OF_A_GROUP: Final = 12
"""Bytes of a group in the status of each container: a number of up to ten digits."""
ON_A_GPU_POD: Final = "on a pod that asks for a GPU"
MAX_ANNOTATIONS_LENGTH: Final = 256 * 1024
"""The API server's own limit on a pod's annotations (TotalAnnotationSizeLimitB in k8s.io/apimachinery)."""


def oversized(annotations: dict[str, Any], root: Path) -> tuple[Fault, ...]:
    """Returns the fault of annotations that are together longer than the API server allows; empty for shorter ones.

    The API server checks its limit, in bytes, only after admission. Here characters are counted, which are never more.

    Args:
        annotations: the pod's annotations, as JSON.
        root: the field path of a pod template in its object; empty for a pod.
    """
    length = _characters(annotations)
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


def out_of_bounds(metadata: dict[str, Any], root: Path) -> list[Fault]:
    """Returns a fault for each limit of the policy fairgpu-metadata that a GPU pod's metadata exceeds.

    The policy checks updates alone, so admission checks new pods by this function. The limits leave room for the
    annotations that FairGPU adds later, and let policies examine the whole metadata in little time.

    Args:
        metadata: the pod's metadata, as JSON.
        root: the field path of a pod template in its object; empty for a pod.
    """
    faults = []
    for field, most, instead in _BOUNDS:
        given = metadata.get(field)
        if isinstance(given, (dict, list)) and len(given) > most:
            allowed = f"at most {most} {ON_A_GPU_POD}"
            path = field_path(*root, "metadata", field)
            faults.append(Fault(path, f"{len(given)} {field}", allowed, instead))
    annotations = mapping(metadata.get("annotations"))
    # A character has at most four bytes in UTF-8.
    if len(annotations) > MAX_ANNOTATIONS or 4 * _characters(annotations) > MAX_GPU_POD_ANNOTATIONS_BYTES:
        faults += _annotations_out_of_bounds(annotations, (*root, "metadata", "annotations"))
    return faults


def _annotations_out_of_bounds(annotations: Mapping[str, Any], path: Path) -> list[Fault]:
    counted = {key: value for key, value in annotations.items() if key not in names.RESERVED_ANNOTATIONS}
    length = sum(len(key.encode()) + len(value.encode()) for key, value in counted.items() if isinstance(value, str))
    faults = []
    if len(counted) > MAX_ANNOTATIONS:
        allowed = f"at most {MAX_ANNOTATIONS} {ON_A_GPU_POD}, beside FairGPU's own"
        instead = "fewer; what many say belongs in a ConfigMap"
        faults.append(Fault(field_path(*path), f"{len(counted)} annotations", allowed, instead))
    if length > MAX_GPU_POD_ANNOTATIONS_BYTES:
        allowed = f"at most {MAX_GPU_POD_ANNOTATIONS_BYTES} bytes together {ON_A_GPU_POD}, beside FairGPU's own"
        instead = "less; what is longer belongs in a ConfigMap"
        faults.append(Fault(field_path(*path), f"{length} bytes in {len(counted)} annotations", allowed, instead))
    return faults


def _characters(annotations: dict[str, Any]) -> int:
    """Returns the number of characters of all annotations' keys and values; a value that is no text counts as 0."""
    characters = 0
    for key, value in annotations.items():
        characters += len(key)
        if isinstance(value, str):
            characters += len(value)
    return characters


def oversized_pod(size: int, spec: Mapping[str, Any]) -> list[Fault]:
    """Returns the fault of a GPU pod that will have more than MAX_POD_BYTES with its status; empty for a smaller pod.

    The kubelet adds the status later, which repeats parts of the spec. If the pod then reaches etcd's limit, FairGPU
    cannot write a notice on it, and cannot evict it.

    Args:
        size: the bytes of the pod as JSON.
        spec: the pod's spec, as JSON.
    """
    # No text is repeated more than four times. This spares nearly all pods the closer look.
    if 5 * size + _status_by_numbers(spec) <= MAX_POD_BYTES:
        return []
    repeated = status_bytes(spec)
    if size + repeated <= MAX_POD_BYTES:
        return []
    return [
        Fault(
            path=field_path("spec"),
            given=f"a pod of {size} bytes as JSON, with some {repeated} more in its status",
            allowed=f"at most {MAX_POD_BYTES} together {ON_A_GPU_POD}",
            instead="a smaller pod; what is long belongs in a ConfigMap or in the image",
        )
    ]


def oversized_debuggers(spec: Mapping[str, Any]) -> list[Fault]:
    """Returns the fault of ephemeral containers that with their status have more than MAX_DEBUGGERS_BYTES; else empty.

    Ephemeral containers are never removed from a pod, and a pod that becomes too large cannot be evicted.

    Args:
        spec: the pod's spec, as JSON.
    """
    containers = spec.get("ephemeralContainers")
    if not containers:
        return []
    shown = {"containers": containers, "securityContext": spec.get("securityContext")}
    size, repeated = len(json.dumps(containers)), status_bytes(shown)
    if size + repeated <= MAX_DEBUGGERS_BYTES:
        return []
    return [
        Fault(
            path=field_path("spec", "ephemeralContainers"),
            given=f"{size} bytes as JSON, with some {repeated} more in the pod's status",
            allowed=f"at most {MAX_DEBUGGERS_BYTES} together {ON_A_GPU_POD}",
            instead="smaller ones, or a new pod",
        )
    ]


def status_bytes(spec: Mapping[str, Any]) -> int:
    """Returns an estimate of the most bytes that a pod's status takes to repeat parts of the pod's spec.

    A kubelet repeats each container's name, image, mounts and resources, and with each container the pod's groups. An
    image that cannot be pulled is named twice more, in the reason why the container waits. Conditions name the
    containers and gates that are not ready (pkg/kubelet/kubelet_pods.go and status/generate.go of Kubernetes 1.36).
    Controllers add the names of the claims that they make of templates.

    Args:
        spec: the pod's spec, as JSON.
    """
    containers = [*mappings(spec.get("containers")), *mappings(spec.get("initContainers"))]
    texts = sum(map(_texts_of_container, containers)) + _length(spec.get("readinessGates"))
    return _status_by_numbers(spec) + texts


def _status_by_numbers(spec: Mapping[str, Any]) -> int:
    """Returns the part of `status_bytes` that depends on the numbers of containers, groups, claims and gates."""
    containers = len(list_of(spec.get("containers"))) + len(list_of(spec.get("initContainers")))
    groups = len(list_of(mapping(spec.get("securityContext")).get("supplementalGroups")))
    return (
        containers * (_STATUS_OF_A_CONTAINER + groups * _STATUS_OF_A_GROUP)
        + len(list_of(spec.get("resourceClaims"))) * _STATUS_OF_A_CLAIM
        + len(list_of(spec.get("readinessGates"))) * _STATUS_OF_A_GATE
    )


def _texts_of_container(container: Mapping[str, Any]) -> int:
    return (
        4 * _length(container.get("name"))
        + 4 * _length(container.get("image"))
        + _length(container.get("volumeMounts"))
        + 2 * _length(container.get("resources"))
    )


def _length(value: Any) -> int:
    """Returns, roughly, the number of bytes of a JSON value; 0 for an absent value (None)."""
    if value is None:
        return 0
    return len(value.encode()) if isinstance(value, str) else len(json.dumps(value, separators=(",", ":")))


def too_many(spec: Mapping[str, Any], root: Path) -> list[Fault]:
    """Returns a fault for each list of a GPU pod with over MAX_CONTAINERS containers; FairGPU's sidecar is not counted.

    Args:
        spec: the pod's spec, as JSON.
        root: the field path of a pod template in its object; empty for a pod.
    """
    faults = []
    for field in ("containers", "initContainers", "ephemeralContainers"):
        containers = spec.get(field)
        if isinstance(containers, list) and len(containers) > MAX_CONTAINERS and _own(containers) > MAX_CONTAINERS:
            path, given = field_path(*root, "spec", field), f"{len(containers)} containers"
            allowed = f"at most {MAX_CONTAINERS} in a pod that asks for a GPU"
            faults.append(Fault(path, given, allowed, "fewer containers in a pod, and more pods"))
    return faults


def _own(containers: list[Any]) -> int:
    """Returns the number of a pod's own containers in a list: those that do not have the name of FairGPU's sidecar."""
    return sum(not isinstance(item, dict) or item.get("name") != names.SIDECAR_CONTAINER for item in containers)


def mistyped_annotations(given: Mapping[Any, Any], dialects: DialectSet, root: Path) -> list[Fault]:
    """Returns a fault for each annotation of a dialect that is no text: YAML reads `gpu-fraction: 0.5` as a number.

    Args:
        given: the pod's annotations, as JSON.
        dialects: the dialects whose annotations are examined.
        root: the field path of a pod template in its object; empty for a pod.
    """
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
    """Returns the fault of a container that must not have keys of a dialect: FairGPU's sidecar, or an ephemeral one.

    Returns an empty list for any other container.

    Args:
        container: a container with keys of a dialect.
    """
    if container.name == names.SIDECAR_CONTAINER:
        return [
            Fault(
                path=field_path(*container.path, "resources"),
                given=f"a GPU in the container {names.SIDECAR_CONTAINER}",
                allowed="no GPU there: the name is that of FairGPU's own sidecar, which needs none",
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
    """Returns the faults of a demand for more GPU time, or more percent of memory, than the largest node has.

    A pod with such a demand would wait for ever.

    Args:
        demand: the demand of the whole pod.
        settings: the admin's settings, with the most GPUs of a node.
        root: the field path of a pod template in its object; empty for a pod.
    """
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
