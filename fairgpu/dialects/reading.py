"""The types that make up a dialect: a container as it is read, the result of reading it, and the dialect itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from fairgpu.faults import Fault, field_path
from fairgpu.permissions import PermissionRequest
from fairgpu.request import NO_CHOICES, GPURequest, PodChoices

NONE_GIVEN: Mapping[str, str] = MappingProxyType({})

AroundNames = tuple[tuple[str, str], ...]
"""Forms of annotations that request a GPU for one container of the pod: the beginning and the end of each, between
which the container's name stands."""


@dataclass(frozen=True, slots=True)
class DialectSettings:
    """The admin's settings of the dialects.

    Attributes:
        max_gpus_per_node: the most GPUs that a node has. A container that asks for more vGPUs is refused.
        hami_plain_gpu: whether `nvidia.com/gpu` alone means whole GPUs, or is left to another device plugin.
        aliyun_memory_unit_mib: the size of one unit of `aliyun.com/gpu-mem`, in MiB.
        volcano_memory_unit_mib: the size of one unit of `volcano.sh/vgpu-memory`, in MiB (Volcano's gpuMemoryFactor).
    """

    max_gpus_per_node: int = 16
    hami_plain_gpu: Literal["whole", "leave"] = "whole"
    aliyun_memory_unit_mib: int = 1024
    volcano_memory_unit_mib: int = 1


class Container:
    """A container of a manifest as dialects read it: raw JSON values, with their field paths.

    Attributes:
        path: the container's field path, such as `("spec", "containers", 0)`.
        name: the container's name.
        requests: `resources.requests` as given.
        limits: `resources.limits` as given.
        annotations: the pod's annotations.
        labels: the pod's labels as given.
        first: whether the container is the first of `spec.containers`.
    """

    def __init__(  # noqa: PLR0913 - the fields of a value
        self,
        path: tuple[str | int, ...],
        name: str,
        requests: dict[str, Any],
        limits: dict[str, Any],
        annotations: Mapping[str, str] = NONE_GIVEN,
        labels: Mapping[str, Any] = NONE_GIVEN,
        *,
        first: bool = False,
    ) -> None:
        self.path: Final = path
        self.name: Final = name
        self.requests: Final = requests
        self.limits: Final = limits
        self.annotations: Final = annotations
        self.labels: Final = labels
        self.first: Final = first

    def limit_path(self, resource: str) -> str:
        """Returns the field path of one of the container's limits."""
        return field_path(*self.path, "resources", "limits", resource)

    def request_path(self, resource: str) -> str:
        """Returns the field path of one of the container's requests."""
        return field_path(*self.path, "resources", "requests", resource)

    def annotation_path(self, key: str) -> str:
        """Returns the field path of one of the annotations of the container's pod."""
        return field_path(*self.path[:-3], "metadata", "annotations", key)

    def label_path(self, key: str) -> str:
        """Returns the field path of one of the labels of the container's pod."""
        return field_path(*self.path[:-3], "metadata", "labels", key)

    def names(self, resource: str) -> bool:
        """Returns whether the container's limits or requests name a resource."""
        return resource in self.limits or resource in self.requests

    def named(self, resources: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the resources of a list that the container's limits or requests name.

        Args:
            resources: the list, whose order is kept.
        """
        return tuple(resource for resource in resources if resource in self.limits or resource in self.requests)

    def prefixed(self, prefix: str) -> tuple[str, ...]:
        """Returns the names of resources in the container's limits or requests that begin with a prefix."""
        found = [key for key in self.limits if key.startswith(prefix)]
        found += [key for key in self.requests if key.startswith(prefix) and key not in self.limits]
        return tuple(found)

    def annotated(self, forms: AroundNames) -> tuple[str, ...]:
        """Returns the keys of the pod's annotations that contain this container's name between two given texts.

        Args:
            forms: pairs of the text before the name and the text after it. The keys are returned in this order.
        """
        keys = (f"{begins}{self.name}{ends}" for begins, ends in forms)
        return tuple(key for key in keys if key in self.annotations)

    def has_prefix(self, prefix: str) -> bool:
        """Returns whether a name of a resource in the container's limits or requests begins with a prefix."""
        for resources in (self.limits, self.requests):
            for key in resources:  # not any(): a generator takes longer, and this runs for every container
                if key.startswith(prefix):
                    return True
        return False


class Reading:
    """The result of reading a container in one dialect: a GPU request or its faults, and the keys to remove.

    Attributes:
        request: the canonical request; None with faults, or if the container requests no GPU.
        choices: the dialect's choices for the pod beside the amounts.
        permission_requests: the choices that need a permission of the namespace.
        faults: all faults, at once.
        warnings: lines about keys whose effect here differs from that in their own project.
        strip_resources: keys to remove from the container's requests and limits.
        strip_annotations: keys to remove from the pod's annotations.
    """

    def __init__(  # noqa: PLR0913 - the fields of a value
        self,
        *,
        request: GPURequest | None = None,
        choices: PodChoices = NO_CHOICES,
        permission_requests: tuple[PermissionRequest, ...] = (),
        faults: tuple[Fault, ...] = (),
        warnings: tuple[str, ...] = (),
        strip_resources: tuple[str, ...] = (),
        strip_annotations: tuple[str, ...] = (),
    ) -> None:
        self.request: Final = request
        self.choices: Final = choices
        self.permission_requests: Final = permission_requests
        self.faults: Final = faults
        self.warnings: Final = warnings
        self.strip_resources: Final = strip_resources
        self.strip_annotations: Final = strip_annotations

    def but(
        self,
        *,
        request: GPURequest | None = None,
        choices: PodChoices | None = None,
        permission_requests: tuple[PermissionRequest, ...] | None = None,
        faults: tuple[Fault, ...] | None = None,
        warnings: tuple[str, ...] | None = None,
    ) -> Reading:
        """Returns a copy of this reading with other values of the given fields; an argument of None keeps the value."""
        return Reading(
            request=self.request if request is None else request,
            choices=self.choices if choices is None else choices,
            permission_requests=self.permission_requests if permission_requests is None else permission_requests,
            faults=self.faults if faults is None else faults,
            warnings=self.warnings if warnings is None else warnings,
            strip_resources=self.strip_resources,
            strip_annotations=self.strip_annotations,
        )

    def says_the_same(self, other: Reading) -> bool:
        """Returns whether another reading is equal to this reading in all fields."""
        return (
            self.request == other.request
            and self.choices == other.choices
            and self.permission_requests == other.permission_requests
            and self.faults == other.faults
            and self.warnings == other.warnings
            and self.strip_resources == other.strip_resources
            and self.strip_annotations == other.strip_annotations
        )


@dataclass(frozen=True, slots=True)
class Dialect:
    """One project's way to request a GPU in a manifest.

    Attributes:
        name: the value of `fairgpu.io/source-dialect`.
        read: returns the Reading of a container; None if the dialect does not read it, such as one without its keys.
        resources: the extended resources of the dialect.
        prefix: the prefix that only resources of this dialect have, by which a misspelt resource is noticed; empty for
            none.
        requesting_annotations: the pod annotations that request a GPU by themselves.
        around_names: the forms of further requesting annotations: their keys contain the name of the container that
            gets the GPU.
        other_annotations: the pod annotations that only refine a request.
        unclaimed: returns the fault of annotations that request a GPU for a container that the pod does not have. Its
            arguments are the pod's annotations and field path. It is called only for `requesting_annotations`. None for
            a dialect without such annotations.
    """

    name: str
    read: Callable[[Container, DialectSettings], Reading | None]
    resources: frozenset[str] = frozenset()
    prefix: str = ""
    requesting_annotations: frozenset[str] = frozenset()
    around_names: AroundNames = ()
    other_annotations: frozenset[str] = frozenset()
    unclaimed: Callable[[Mapping[str, str], tuple[str | int, ...]], Fault] | None = None
