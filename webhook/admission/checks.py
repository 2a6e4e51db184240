"""Collects all faults of GPU pods, in their GPU requests and elsewhere, by the same checks for pods and templates."""

from __future__ import annotations

import posixpath
from typing import Any, Final

from fairgpu import names
from fairgpu.dialects import hami
from fairgpu.faults import Fault, field_path, show
from fairgpu.json_values import mapping
from fairgpu.permissions import Granted, Permission, grant
from fairgpu.pod import PodReading
from fairgpu.pod_faults import out_of_bounds
from webhook.admission.knowledge import Knowledge
from webhook.admission.priority import faults_of_class
from webhook.admission.sidecar import OUR_VOLUMES
from webhook.admission.verdict import indexes_named, objects
from webhook.settings import Webhook

Path = tuple[str | int, ...]

MAX_COPIES: Final = 16
"""The most elements of one list that may have names of FairGPU's own: the API server copies the list for each
removal."""
_COPIED: Final = (
    ("initContainers", (names.SIDECAR_CONTAINER,)),
    ("volumes", OUR_VOLUMES),
    ("schedulingGates", (names.BUDGET_GATE,)),
)
"""The lists of a pod's spec to which admission adds elements, each with the names of the elements that it adds."""
MAX_VOLUMES: Final = 254
MAX_GATES: Final = 63
"""The most volumes and scheduling gates beside FairGPU's own: the policy fairgpu-spec looks through 256 and 64."""
_BOUNDED: Final = (("volumes", OUR_VOLUMES, MAX_VOLUMES), ("schedulingGates", (names.BUDGET_GATE,), MAX_GATES))
USAGE_FOLDER: Final = posixpath.basename(names.USAGE_MOUNT_PATH)


def check_pod(
    pod: dict[str, Any],
    reading: PodReading,
    permissions: frozenset[Permission],
    knowledge: Knowledge,
    settings: Webhook,
    root: Path = (),
) -> tuple[tuple[Fault, ...], Granted]:
    """Returns all faults of a pod that requests a GPU, and the author's choices that the namespace permits.

    Args:
        pod: the pod or the pod template, as JSON with `metadata` and `spec`.
        reading: the GPU requests that were read from the pod.
        permissions: the permissions of the pod's namespace.
        knowledge: the priority classes of the cluster.
        settings: the webhook's settings.
        root: the field path of a pod template in its object; empty for a pod.
    """
    spec = mapping(pod.get("spec"))
    granted = grant(reading.choices, reading.permission_requests, permissions)
    faults = [*reading.faults, *granted.faults, *out_of_bounds(mapping(pod.get("metadata")), root)]
    faults += _faults_of_system(spec, root)
    faults += _faults_of_node(spec, root)
    faults += _faults_of_runtime(spec, reading, settings.runtime_classes, root)
    faults += faults_of_class(spec, settings.priorities, knowledge, root)
    faults += _faults_of_names(spec, root)
    faults += faults_of_copies(spec, root)
    faults += _faults_of_length(spec, root)
    faults += _faults_of_mounts(spec, reading)
    if settings.dialects.hami_plain_gpu == "leave" and reading.requests_gpu:
        faults += _faults_of_other_plugins(spec, reading, root)
    if settings.dialects.best_effort == "refuse":
        faults += _faults_of_best_effort(reading)
    return tuple(faults), granted


def _faults_of_system(spec: dict[str, Any], root: Path) -> list[Fault]:
    """Returns the faults of a pod that asks for Windows: the library that enforces a share of a GPU needs Linux."""
    if "os" not in spec and "nodeSelector" not in spec:
        return []
    named = (
        (mapping(spec.get("os")).get("name"), ("spec", "os", "name")),
        (mapping(spec.get("nodeSelector")).get("kubernetes.io/os"), ("spec", "nodeSelector", "kubernetes.io/os")),
    )
    return [
        Fault(
            path=field_path(*root, *path),
            given=show(given),
            allowed="linux, the only system on which a share of a GPU can be held",
            instead="linux, or the pod without a GPU",
        )
        for given, path in named
        if isinstance(given, str) and given.lower() == "windows"
    ]


def _faults_of_node(spec: dict[str, Any], root: Path) -> list[Fault]:
    node = spec.get("nodeName")
    if not isinstance(node, str) or not node:
        return []
    return [
        Fault(
            path=field_path(*root, "spec", "nodeName"),
            given=show(node),
            allowed="no node: FairGPU's scheduler chooses it together with the devices",
            instead="spec.nodeSelector with kubernetes.io/hostname, or fairgpu.io/use-gpu-uuid",
        )
    ]


def _faults_of_runtime(spec: dict[str, Any], reading: PodReading, allowed: tuple[str, ...], root: Path) -> list[Fault]:
    """Returns the fault of a runtime class that is not in `allowed`, on a pod that asks for a part of a GPU.

    Returns an empty list for any other pod. The class perhaps stands for a sandbox with its own kernel, into which the
    node agent's files cannot be mounted.

    Args:
        spec: the pod's spec, as JSON.
        reading: the GPU requests of the pod's containers.
        allowed: the names of runtime classes that the admin's settings allow.
        root: the field path of a pod template in its object; empty for a pod.
    """
    given = spec.get("runtimeClassName")
    if not isinstance(given, str) or not given or given in allowed:
        return []
    pieces = (each.request for each in reading.all_containers if each.request is not None)
    if all(each.whole for each in pieces):
        return []
    known = f", or one of {', '.join(allowed)}" if allowed else ""
    return [
        Fault(
            path=field_path(*root, "spec", "runtimeClassName"),
            given=show(given),
            allowed=f"none{known}: other runtimes do not hold a container to a piece of a GPU",
            instead="no runtimeClassName, or whole GPUs (fairgpu.io/gpu-core: 100 for each, and no amount of memory)",
        )
    ]


def _faults_of_names(spec: dict[str, Any], root: Path) -> list[Fault]:
    return [
        Fault(
            path=field_path(*root, "spec", "containers", index, "name"),
            given=show(names.SIDECAR_CONTAINER),
            allowed="any other name: this one is of the reporter that FairGPU adds",
            instead="a name of your own",
        )
        for index in indexes_named(spec.get("containers"), (names.SIDECAR_CONTAINER,))
    ]


def faults_of_copies(spec: dict[str, Any], root: Path) -> list[Fault]:
    """Returns a fault for each list in a pod's spec in which more than MAX_COPIES elements have FairGPU's own names.

    A few such elements are allowed, as a copy of an admitted pod has one of each name.

    Args:
        spec: the pod's spec, as JSON.
        root: the field path of a pod template in its object; empty for a pod.
    """
    faults: list[Fault] = []
    for field, ours in _COPIED:
        items = spec.get(field)
        if isinstance(items, list) and len(items) > MAX_COPIES:
            faults += _copies(items, field, ours, (*root, "spec"))
    for field in ("containers", "initContainers"):
        containers = spec.get(field)
        for index, container in enumerate(containers if isinstance(containers, list) else ()):
            mounts = container.get("volumeMounts") if isinstance(container, dict) else None
            if isinstance(mounts, list) and len(mounts) > MAX_COPIES:
                faults += _copies(mounts, "volumeMounts", OUR_VOLUMES, (*root, "spec", field, index))
    return faults


def _copies(items: list[Any], field: str, ours: tuple[str, ...], path: Path) -> list[Fault]:
    count = len(indexes_named(items, ours))
    if count <= MAX_COPIES:
        return []
    return [
        Fault(
            path=field_path(*path, field),
            given=f"{count} named {' or '.join(ours)}",
            allowed=f"none, as FairGPU adds its own; up to {MAX_COPIES} are taken for those of a copied pod",
            instead="none of them",
        )
    ]


def _faults_of_length(spec: dict[str, Any], root: Path) -> list[Fault]:
    """Returns a fault for each list of a pod's spec that is too long for the policies, which examine each item."""
    faults: list[Fault] = []
    for field, ours, most in _BOUNDED:
        items = spec.get(field)
        if isinstance(items, list) and len(items) > most and len(items) - len(indexes_named(items, ours)) > most:
            allowed = f"at most {most} in a pod that asks for a GPU, beside FairGPU's own"
            path = field_path(*root, "spec", field)
            faults.append(Fault(path, f"{len(items)} {field}", allowed, "fewer in a pod, and more pods"))
    return faults


def _faults_of_mounts(spec: dict[str, Any], reading: PodReading) -> list[Fault]:
    """Returns a fault for each mount of another volume at the path where FairGPU's usage volume will be mounted.

    Only containers that have GPU keys are examined.
    """
    faults: list[Fault] = []
    for container in reading.containers + reading.init:
        field, index = container.path[-2:]
        items = spec.get(str(field))
        given = items[index] if isinstance(items, list) and isinstance(index, int) else {}
        mounts = mapping(given).get("volumeMounts")
        for position, mount in enumerate(mounts if isinstance(mounts, list) else ()):
            path = mount.get("mountPath") if isinstance(mount, dict) else None
            # Nearly all paths differ before they are normalised, which costs more.
            if not isinstance(path, str) or USAGE_FOLDER not in path or mount.get("name") in OUR_VOLUMES:
                continue
            if posixpath.normpath(path) == names.USAGE_MOUNT_PATH:
                faults.append(
                    Fault(
                        path=field_path(*container.path, "volumeMounts", position, "mountPath"),
                        given=show(path),
                        allowed=f"any path but {names.USAGE_MOUNT_PATH}, at which FairGPU's own volume is mounted",
                        instead="another path",
                    )
                )
    return faults


def _faults_of_other_plugins(spec: dict[str, Any], reading: PodReading, root: Path) -> list[Fault]:
    """Returns a fault for each container of a GPU pod whose `nvidia.com/gpu` is left to another device plugin.

    No node has both that plugin and FairGPU's node agent, so the pod would wait for ever.
    """
    ours = {container.path[-2:] for container in reading.all_containers}
    faults: list[Fault] = []
    for field in ("containers", "initContainers"):
        for index, container in objects(spec.get(field)):
            limits = mapping(mapping(container.get("resources")).get("limits"))
            given = limits.get(hami.COUNT, 0)
            if (field, index) in ours or given in (0, "0", None):
                continue
            faults.append(
                Fault(
                    path=field_path(*root, "spec", field, index, "resources", "limits", hami.COUNT),
                    given=f"{show(given)}, which is left to another device plugin, in a pod with a GPU of FairGPU's",
                    allowed="GPUs of one of the two in a pod: no node offers both",
                    instead=f"a share such as {hami.MEMORY} here as well, or a pod of its own for this container",
                )
            )
    return faults


def _faults_of_best_effort(reading: PodReading) -> list[Fault]:
    return [
        Fault(
            path=field_path(*container.path, "resources", "limits", names.GPU_CORE),
            given="no GPU time of its own (best effort)",
            allowed="1 to 100 percent of each GPU, as this cluster gives no best effort",
            instead=f'{names.GPU_CORE}: "10", or what the work needs',
        )
        for container in reading.all_containers
        if container.request is not None and container.request.best_effort
    ]
