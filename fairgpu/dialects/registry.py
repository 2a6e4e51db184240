"""All dialects, and the one reading of a container among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fairgpu.dialects import aliyun, hami, kai, model, native, tencent, volcano
from fairgpu.dialects.reading import Container, Dialect, DialectSettings, Reading, begin_with
from fairgpu.faults import Fault, field_path

BETWEEN_NAMES = " and "
"""Joins the names of several dialects in one container."""

_ORDINARY: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
"""What nearly every container asks for, and no dialect."""


@dataclass(frozen=True, slots=True, eq=False)
class DialectSet:
    """Dialects to listen for together, with the keys of all of them.

    Attributes:
        dialects: the dialects.
        resources: the extended resources by which a container speaks one of them.
        prefixes: those of resources that belong to one of them, whatever follows.
        speakers: by resource, the names of the dialects that it may be of.
        speaking_annotations: the pod annotations that ask for a GPU by themselves.
        annotations: these, and those that only say more about a request.
    """

    dialects: tuple[Dialect, ...]
    resources: frozenset[str]
    prefixes: tuple[str, ...]
    speakers: Mapping[str, frozenset[str]]
    speaking_annotations: frozenset[str]
    annotations: frozenset[str]

    def may_speak(self, requests: Mapping[str, Any], limits: Mapping[str, Any]) -> bool:
        """Whether a container names a resource of one of the dialects, or one that looks like it."""
        if _ORDINARY.issuperset(limits) and _ORDINARY.issuperset(requests):
            return False
        if not (self.resources.isdisjoint(limits) and self.resources.isdisjoint(requests)):
            return True
        return any(begin_with(prefix, limits) or begin_with(prefix, requests) for prefix in self.prefixes)

    def may_be_read_by(self, container: Container) -> list[Dialect]:
        """The dialects of which a container, or its pod, has one of the keys; each one's `read` decides."""
        named: set[str] = set()
        for resources in (container.limits, container.requests):
            for key in resources:
                if key in self.speakers:
                    named |= self.speakers[key]
        annotated = not self.speaking_annotations.isdisjoint(container.annotations)
        return [
            dialect
            for dialect in self.dialects
            if dialect.name in named
            or (annotated and not dialect.speaking_annotations.isdisjoint(container.annotations))
            or (dialect.prefix and container.prefixed(dialect.prefix))
        ]


def dialect_set(*dialects: Dialect) -> DialectSet:
    """A set of these dialects."""
    speaking = frozenset[str]().union(*(dialect.speaking_annotations for dialect in dialects))
    resources = frozenset[str]().union(*(dialect.resources for dialect in dialects))
    return DialectSet(
        dialects=dialects,
        resources=resources,
        prefixes=tuple(dialect.prefix for dialect in dialects if dialect.prefix),
        speakers={
            key: frozenset(dialect.name for dialect in dialects if key in dialect.resources) for key in resources
        },
        speaking_annotations=speaking,
        annotations=speaking.union(*(dialect.other_annotations for dialect in dialects)),
    )


_FOREIGN = (tencent.DIALECT, hami.DIALECT, aliyun.DIALECT, kai.DIALECT, volcano.DIALECT, model.DIALECT)

NATIVE = dialect_set(native.DIALECT)
FOREIGN = dialect_set(*_FOREIGN)
DIALECTS = dialect_set(native.DIALECT, *_FOREIGN)


def read_container(
    container: Container, settings: DialectSettings, listened: DialectSet = DIALECTS
) -> tuple[str, Reading] | None:
    """The dialect that a container speaks and what it says in it; nothing for a container without a GPU.

    Two dialects in one container are a fault: there is no telling which of them its author relies on.
    """
    spoken = [
        (dialect.name, reading)
        for dialect in listened.may_be_read_by(container)
        if (reading := dialect.read(container, settings)) is not None
    ]
    if not spoken:
        return None
    left_alone = hami.left_alone(container, settings) and hami.DIALECT in listened.dialects
    if len(spoken) == 1 and not left_alone:
        return spoken[0]
    if left_alone:
        spoken.append((hami.DIALECT.name, Reading()))
    found = BETWEEN_NAMES.join(name for name, _ in spoken)
    fault = Fault(
        path=field_path(*container.path, "resources"),
        given=f"the dialects {found} in one container",
        allowed="one dialect in a container",
        instead=f"the keys of {' or those of '.join(name for name, _ in spoken)}, not both",
    )
    return found, Reading(
        faults=(fault, *(fault for _, reading in spoken for fault in reading.faults)),
        warnings=tuple(warning for _, reading in spoken for warning in reading.warnings),
        strip_resources=tuple(key for _, reading in spoken for key in reading.strip_resources),
        strip_annotations=tuple(key for _, reading in spoken for key in reading.strip_annotations),
    )


def unheard(
    annotations: Mapping[str, str], heard: frozenset[str], root: tuple[str | int, ...], listened: DialectSet = DIALECTS
) -> list[Fault]:
    """The faults of annotations that ask for a GPU which no container takes; `heard` are the dialects read."""
    return [
        dialect.unheard(annotations, root)
        for dialect in listened.dialects
        if dialect.unheard is not None
        and dialect.name not in heard
        and not dialect.speaking_annotations.isdisjoint(annotations)
    ]
