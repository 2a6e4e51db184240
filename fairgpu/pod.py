"""Reads a whole pod: its containers' GPU requests, its choices, its demand and its faults.

The pod is raw JSON of any content. A field that is missing or of another type counts as no request, since the API
server itself refuses such a pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from fairgpu.choices import NOTHING_CHOSEN, Path, contradictions, merge_choices, read_choices
from fairgpu.container_parser import ContainerParser, ContainerReading, texts
from fairgpu.demand import NO_DEMAND, Demand, pod_demand
from fairgpu.dialects.reading import DialectSettings
from fairgpu.dialects.registry import DIALECTS, DialectSet
from fairgpu.faults import Fault
from fairgpu.json_values import mapping
from fairgpu.permissions import Permission, PermissionRequest
from fairgpu.pod_faults import beyond_a_node, misplaced, mistyped_annotations, oversized, too_many
from fairgpu.request import HIGH_PRIORITY, NO_CHOICES, CorePolicy, PodChoices

__all__ = ["ContainerReading", "PodReading", "read_pod"]


class PodReading:
    """A pod as it was read: its containers' GPU requests, its author's choices, its demand and its faults.

    `containers`, `init` and `ephemeral` have only containers with keys of a dialect, in order.

    Attributes:
        containers: the main containers.
        init: the init containers.
        ephemeral: the ephemeral containers.
        all_containers: the containers of the three lists together, the main containers first.
        choices: the choices of the pod's annotations and of the dialects together, before `permissions.grant`. They are
            not read if the pod neither requests a GPU nor has faults.
        permission_requests: the choices that need a permission of the namespace.
        strip_annotations: the dialects' keys to remove from the pod's annotations.
        faults: the faults of the containers, the annotations and the demand, each once. If one list of containers has
            ENOUGH_FAULTS, the rest of the list is not read.
        warnings: lines about keys whose effect here differs from that in their own project, and about annotations of
            fairgpu.io that FairGPU does not know.
        demand: the demand of the whole pod.
    """

    def __init__(  # noqa: PLR0913 - the fields of a value
        self,
        *,
        containers: tuple[ContainerReading, ...] = (),
        init: tuple[ContainerReading, ...] = (),
        ephemeral: tuple[ContainerReading, ...] = (),
        choices: PodChoices = NO_CHOICES,
        permission_requests: tuple[PermissionRequest, ...] = (),
        strip_annotations: tuple[str, ...] = (),
        faults: tuple[Fault, ...] = (),
        warnings: tuple[str, ...] = (),
        demand: Demand = NO_DEMAND,
    ) -> None:
        self.containers: Final = containers
        self.init: Final = init
        self.ephemeral: Final = ephemeral
        self.all_containers: Final = containers + init + ephemeral
        self.choices: Final = choices
        self.permission_requests: Final = permission_requests
        self.strip_annotations: Final = strip_annotations
        self.faults: Final = faults
        self.warnings: Final = warnings
        self.demand: Final = demand

    @property
    def has_gpu_keys(self) -> bool:
        """Whether any container of the pod has a key of a dialect.

        If none has, and the pod has no faults, FairGPU leaves the pod alone.
        """
        return bool(self.all_containers)

    @property
    def requests_gpu(self) -> bool:
        """Whether any container of the pod requests a GPU: keys such as `nvidia.com/gpu: 0` do not."""
        return any(container.request is not None for container in self.all_containers)

    @property
    def dialects(self) -> tuple[str, ...]:
        """The names of the containers' dialects, each once, in order of appearance."""
        return tuple(dict.fromkeys(container.dialect for container in self.all_containers))


_NO_REQUEST = PodReading()


def read_pod(
    pod: Mapping[str, Any],
    settings: DialectSettings,
    *,
    root: Path = (),
    dialects: DialectSet = DIALECTS,
) -> PodReading:
    """Returns the GPU requests and choices of a pod, or of a pod template, with their faults.

    A pod whose annotations are together longer than the API server allows is not read: it has this fault alone.

    Args:
        pod: the pod, as JSON with `metadata` and `spec`.
        settings: the admin's settings of the dialects.
        root: the field path of `pod` in the object that messages name, such as `("spec", "template")`; empty for a pod.
        dialects: the dialects to read (`registry.NATIVE`, `registry.FOREIGN`, or all); keys of others have no effect.
    """
    spec = mapping(pod.get("spec"))
    metadata = mapping(pod.get("metadata"))
    annotations = mapping(metadata.get("annotations"))
    too_large = oversized(annotations, root)
    if too_large:
        return PodReading(faults=too_large)
    parser = ContainerParser(
        settings=settings,
        root=root,
        dialects=dialects,
        annotations=texts(annotations, dialects.annotations),
        labels=mapping(metadata.get("labels")),
    )
    containers = parser.parse(spec, "containers")
    init = parser.parse(spec, "initContainers")
    ephemeral = parser.parse(spec, "ephemeralContainers")
    all_containers = containers + init + ephemeral
    unclaimed = parser.unclaimed_annotations(all_containers)
    if not all_containers and not unclaimed:
        return _NO_REQUEST
    demand = pod_demand(
        [container.request for container in containers],
        [(container.request, container.native_sidecar) for container in init],
    )
    pod_faults = [fault for container in all_containers for fault in misplaced(container)]
    pod_faults += too_many(spec, root)
    pod_faults += beyond_a_node(demand, settings, root)
    pod_faults += unclaimed
    pod_faults += mistyped_annotations(annotations, dialects, root)
    return _joined(containers, init, ephemeral, demand, _Pod(annotations, (*root, "metadata"), pod_faults))


class _Pod:
    """A pod's annotations, the field path of its metadata, and the faults found so far."""

    def __init__(self, annotations: Mapping[Any, Any], metadata: Path, faults: list[Fault]) -> None:
        self.annotations: Final = annotations
        self.metadata: Final = metadata
        self.faults: Final = faults


def _joined(
    containers: tuple[ContainerReading, ...],
    init: tuple[ContainerReading, ...],
    ephemeral: tuple[ContainerReading, ...],
    demand: Demand,
    pod: _Pod,
) -> PodReading:
    """Returns the reading of a whole pod, from the readings of its containers and the pod's own annotations.

    The choices of a container that requests no GPU have no effect, unless the container has faults.
    """
    all_containers = containers + init + ephemeral
    requesting = [
        container for container in all_containers if container.request is not None or container.reading.faults
    ]
    own = read_choices(pod.annotations, pod.metadata) if requesting or pod.faults else NOTHING_CHOSEN
    choices = own.choices
    for container in requesting:
        choices = merge_choices(choices, container.reading.choices)
    readings = [container.reading for container in all_containers]
    needing = list(own.permission_requests)
    for container in requesting:
        needing += container.reading.permission_requests
    faults = [fault for reading in readings for fault in reading.faults]
    faults += pod.faults
    faults += own.faults
    faults += contradictions(choices, pod.metadata)
    warnings = [warning for reading in readings for warning in reading.warnings]
    warnings += own.warnings
    return PodReading(
        containers=containers,
        init=init,
        ephemeral=ephemeral,
        choices=choices,
        permission_requests=_needed_permissions(needing, choices),
        strip_annotations=_once([name for reading in readings for name in reading.strip_annotations]),
        faults=_once(faults),
        warnings=_once(warnings),
        demand=demand,
    )


def _needed_permissions(
    permission_requests: Sequence[PermissionRequest], choices: PodChoices
) -> tuple[PermissionRequest, ...]:
    """Returns one request for each permission that a pod's merged choices need.

    Args:
        permission_requests: all requests of the pod. If several need the same permission, the first is returned.
        choices: the pod's choices from its annotations and its containers together.
    """
    if not permission_requests:
        return ()
    needed = {
        Permission.ELASTIC: choices.core_policy is CorePolicy.ELASTIC,
        Permission.HIGH_PRIORITY: choices.task_priority == HIGH_PRIORITY,
    }
    return tuple({each.permission: each for each in reversed(permission_requests) if needed[each.permission]}.values())


_Item = TypeVar("_Item")


def _once(items: list[_Item]) -> tuple[_Item, ...]:
    return tuple(dict.fromkeys(items)) if len(items) > 1 else tuple(items)
