"""Lists all dialects, and chooses the one that reads a container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fairgpu.dialects import aliyun, hami, kai, model, native, tencent, volcano
from fairgpu.dialects.reading import AroundNames, Container, Dialect, DialectSettings, Reading
from fairgpu.faults import Fault, field_path

BETWEEN_NAMES = " and "
"""The text between the names of several dialects in one container."""

ORDINARY: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
"""The resources that nearly every container requests, and that belong to no dialect."""


@dataclass(frozen=True, slots=True, eq=False)
class DialectSet:
    """Some dialects that are read together, with the keys of all of them.

    Attributes:
        dialects: the dialects.
        resources: the extended resources of all of them.
        prefixes: the prefixes of resources that belong to one of them.
        dialects_of: the names of the dialects that a resource may belong to, keyed by resource.
        requesting_annotations: the pod annotations that request a GPU by themselves.
        around_names: the forms of further requesting annotations: their keys contain the name of the container that
            gets the GPU.
        annotations: the requesting annotations, and those that only refine a request.
    """

    dialects: tuple[Dialect, ...]
    resources: frozenset[str]
    prefixes: tuple[str, ...]
    dialects_of: Mapping[str, frozenset[str]]
    requesting_annotations: frozenset[str]
    around_names: AroundNames
    annotations: frozenset[str]

    def may_have_gpu_keys(self, requests: dict[str, Any], limits: dict[str, Any]) -> bool:
        """Returns whether a container's requests or limits have a key of one of the dialects.

        A key is a resource of a dialect, or begins with a dialect's prefix. If there is none, no dialect needs to read
        the container, unless the pod's annotations request a GPU.

        Args:
            requests: the container's requests, as JSON.
            limits: the container's limits, as JSON.
        """
        for name in limits:
            if name not in ORDINARY and (name in self.resources or name.startswith(self.prefixes)):
                return True
        for name in requests:  # not any(): a generator takes longer, and this runs for every container
            if name not in ORDINARY and (name in self.resources or name.startswith(self.prefixes)):
                return True
        return False

    def request_by_annotation(self, annotations: Mapping[str, str]) -> bool:
        """Returns whether annotations of a pod request a GPU, even if for a container that the pod lacks.

        Args:
            annotations: the pod's annotations.
        """
        if not self.requesting_annotations.isdisjoint(annotations):
            return True
        for begins, ends in self.around_names:
            for key in annotations:  # not any(): a generator takes longer, and this runs for every pod
                if key.startswith(begins) and key.endswith(ends):
                    return True
        return False

    def may_be_read_by(self, container: Container) -> list[Dialect]:
        """Returns the dialects of which a container has a resource, or its pod an annotation that requests a GPU.

        Each dialect's `read` decides whether the container is the dialect's.
        """
        named: set[str] = set()
        for resources in (container.limits, container.requests):
            for key in resources:
                if key in self.dialects_of:
                    named |= self.dialects_of[key]
        annotated = not self.requesting_annotations.isdisjoint(container.annotations)
        return [
            dialect
            for dialect in self.dialects
            if dialect.name in named
            or (annotated and not dialect.requesting_annotations.isdisjoint(container.annotations))
            or (dialect.around_names and container.annotated(dialect.around_names))
            or (dialect.prefix and container.has_prefix(dialect.prefix))
        ]


def dialect_set(*dialects: Dialect) -> DialectSet:
    """Returns some dialects as a set, with the keys of all of them.

    Args:
        dialects: the dialects, in the order in which they are read.
    """
    requesting = frozenset[str]().union(*(dialect.requesting_annotations for dialect in dialects))
    resources = frozenset[str]().union(*(dialect.resources for dialect in dialects))
    return DialectSet(
        dialects=dialects,
        resources=resources,
        prefixes=tuple(dialect.prefix for dialect in dialects if dialect.prefix),
        dialects_of={
            key: frozenset(dialect.name for dialect in dialects if key in dialect.resources) for key in resources
        },
        requesting_annotations=requesting,
        around_names=tuple(form for dialect in dialects for form in dialect.around_names),
        annotations=requesting.union(*(dialect.other_annotations for dialect in dialects)),
    )


_FOREIGN = (tencent.DIALECT, hami.DIALECT, aliyun.DIALECT, kai.DIALECT, volcano.DIALECT, model.DIALECT)

NATIVE = dialect_set(native.DIALECT)
FOREIGN = dialect_set(*_FOREIGN)
DIALECTS = dialect_set(native.DIALECT, *_FOREIGN)


def read_container(
    container: Container, settings: DialectSettings, dialects: DialectSet = DIALECTS
) -> tuple[str, Reading] | None:
    """Returns the name of the dialect whose keys a container has, and its reading; None without keys of a dialect.

    If a container has keys of several dialects, the reading has a fault, because the author may rely on any of them.
    The name is then the names of these dialects, joined by " and ". An `nvidia.com/gpu` that the settings leave to
    another device plugin counts as a key of HAMi beside the keys of another dialect, and as none by itself.
    """
    readings = [
        (dialect.name, reading)
        for dialect in dialects.may_be_read_by(container)
        if (reading := dialect.read(container, settings)) is not None
    ]
    if not readings:
        return None
    left_alone = hami.left_alone(container, settings) and hami.DIALECT in dialects.dialects
    if len(readings) == 1 and not left_alone:
        return readings[0]
    if left_alone:
        readings.append((hami.DIALECT.name, Reading()))
    dialect_names = BETWEEN_NAMES.join(name for name, _ in readings)
    fault = Fault(
        path=field_path(*container.path, "resources"),
        given=f"the dialects {dialect_names} in one container",
        allowed="one dialect in a container",
        instead=f"the keys of {' or those of '.join(name for name, _ in readings)}, not both",
    )
    return dialect_names, Reading(
        faults=(fault, *(fault for _, reading in readings for fault in reading.faults)),
        warnings=tuple(warning for _, reading in readings for warning in reading.warnings),
        strip_resources=tuple(key for _, reading in readings for key in reading.strip_resources),
        strip_annotations=tuple(key for _, reading in readings for key in reading.strip_annotations),
    )


def unclaimed_annotations(
    annotations: Mapping[str, str],
    claimed: frozenset[str],
    root: tuple[str | int, ...],
    dialects: DialectSet = DIALECTS,
) -> list[Fault]:
    """Returns the faults of a pod's annotations that request a GPU for a container that the pod does not have.

    An annotation whose key contains a container's name gives no fault.

    Args:
        annotations: the pod's annotations.
        claimed: the names of the dialects that read a container of the pod. Their annotations are no faults.
        root: the field path of a pod template in its object; empty for a pod.
        dialects: the dialects whose annotations are examined.
    """
    return [
        dialect.unclaimed(annotations, root)
        for dialect in dialects.dialects
        if dialect.unclaimed is not None
        and dialect.name not in claimed
        and not dialect.requesting_annotations.isdisjoint(annotations)
    ]
