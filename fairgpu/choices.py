"""Reads the choices of a pod's author from `fairgpu.io/*` annotations, and merges them with a dialect's choices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from fairgpu import names
from fairgpu.faults import Fault, field_path, guess, show
from fairgpu.permissions import Permission, PermissionRequest
from fairgpu.request import (
    HIGH_PRIORITY,
    MAX_GANG,
    NO_CHOICES,
    NORMAL_PRIORITY,
    CorePolicy,
    Gang,
    Placement,
    PodChoices,
)

Path = tuple[str | int, ...]
METADATA: Path = ("metadata",)

MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._()/+-]{0,62}")
"""A GPU model as the driver names it, or a part of the name."""
UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,62}")
"""A GPU's uuid as the driver names it, such as `GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76`."""
MAX_LISTED = 256
"""The most names in the list of one annotation. The limit exists since lists are read for each container, name by
name."""
LIST_ALLOWED = (
    f"at most {MAX_LISTED} names with commas between them, each of 1 to 63 letters, digits, spaces and ._()/+-"
)
GANG = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)/([1-9][0-9]{0,3})")
"""The name of a gang, as a label's value is written, and how many pods it has."""
GANG_ALLOWED = (
    "NAME/N: a name of 1 to 63 letters, digits and ._- that begins and ends with a letter or a digit, and the number "
    f"of pods that start together, 1 to {MAX_GANG}"
)
MAX_UNKNOWN_NAMED = 16
"""The most unknown annotations of fairgpu.io that warnings name."""

_KNOWN = frozenset(names.CHOICE_ANNOTATIONS + names.RESERVED_ANNOTATIONS)


@dataclass(frozen=True, slots=True)
class ChoicesReading:
    """The choices that a pod's author made in `fairgpu.io/*` annotations.

    Attributes:
        choices: the choices of the valid annotations.
        permission_requests: the choices that need a permission of the namespace.
        faults: the faults of the invalid annotations.
        warnings: lines about annotations whose keys FairGPU does not know.
    """

    choices: PodChoices = NO_CHOICES
    permission_requests: tuple[PermissionRequest, ...] = ()
    faults: tuple[Fault, ...] = ()
    warnings: tuple[str, ...] = ()


NOTHING_CHOSEN = ChoicesReading()


def read_choices(annotations: Mapping[Any, Any], metadata: Path = METADATA) -> ChoicesReading:
    """Returns the choices that a pod's author made in `fairgpu.io/*` annotations, with the faults of invalid ones.

    Args:
        annotations: the pod's annotations, as JSON.
        metadata: the field path of the pod's metadata, which faults and warnings begin with.
    """
    ours = [
        key
        for key in annotations
        if isinstance(key, str) and key.startswith(names.ANNOTATION_PREFIX) and key not in names.RESERVED_ANNOTATIONS
    ]
    if not ours:
        return NOTHING_CHOSEN
    reader = _Reader(annotations, metadata, [])
    choices = PodChoices(
        use_models=reader.list_of(names.USE_GPU_MODEL, MODEL, "A100,H100"),
        avoid_models=reader.list_of(names.AVOID_GPU_MODEL, MODEL, "A100,H100"),
        use_uuids=reader.list_of(names.USE_GPU_UUID, UUID, "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"),
        avoid_uuids=reader.list_of(names.AVOID_GPU_UUID, UUID, "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"),
        placement=reader.one_of(names.PLACEMENT, Placement),
        core_policy=reader.one_of(names.CORE_POLICY, CorePolicy),
        task_priority=reader.read(names.TASK_PRIORITY, _priority, '"0" (high) or "1" (normal)', '"1"'),
        gang=reader.read(names.GANG, parse_gang, GANG_ALLOWED, '"training/8"'),
    )
    return ChoicesReading(
        choices=choices,
        permission_requests=_permission_requests(choices, metadata),
        faults=tuple(reader.faults),
        warnings=_of_unknown([key for key in ours if key not in _KNOWN], metadata),
    )


def merge_choices(own: PodChoices, others: PodChoices) -> PodChoices:
    """Returns the choices of two sources together; if both state the same kind of choice, that of `own` counts.

    Args:
        own: the choices that take precedence, such as those of the pod's `fairgpu.io/*` annotations.
        others: further choices, such as those that a dialect read.
    """
    if own is NO_CHOICES or own == others:
        return others
    if others is NO_CHOICES:
        return own
    return PodChoices(
        use_models=own.use_models or others.use_models,
        avoid_models=own.avoid_models or others.avoid_models,
        use_uuids=own.use_uuids or others.use_uuids,
        avoid_uuids=own.avoid_uuids or others.avoid_uuids,
        placement=own.placement if own.placement is not None else others.placement,
        core_policy=own.core_policy if own.core_policy is not None else others.core_policy,
        task_priority=own.task_priority if own.task_priority is not None else others.task_priority,
        gang=own.gang if own.gang is not None else others.gang,
    )


def parse_list(text: str, item: re.Pattern[str]) -> tuple[str, ...]:
    """Returns the items of a comma-separated list, each once; spaces around them and empty items are dropped.

    Args:
        text: the list, as the value of an annotation.
        item: the pattern that each item must match as a whole.

    Raises:
        ValueError: the list has no item, more than MAX_LISTED, or one that does not match; or it has more than twice
            MAX_LISTED commas.
    """
    if text.count(",") > 2 * MAX_LISTED:
        raise ValueError(f"{text.count(',')} commas")
    items = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not items or len(items) > MAX_LISTED or not all(item.fullmatch(part) for part in items):
        raise ValueError(text)
    return items


def parse_gang(text: str) -> Gang:
    """Returns the gang in the value of the annotation `fairgpu.io/gang`, which is NAME/N.

    Raises:
        ValueError: the value is not NAME/N, or N is more than MAX_GANG.
    """
    matched = GANG.fullmatch(text)
    if matched is None or int(matched[2]) > MAX_GANG:
        raise ValueError(text)
    return Gang(matched[1], int(matched[2]))


def contradictions(choices: PodChoices, metadata: Path = METADATA) -> tuple[Fault, ...]:
    """Returns a fault for each model or uuid that a pod asks both to use and to avoid.

    Args:
        choices: the choices of the pod's author.
        metadata: the field path of the pod's metadata, which faults begin with.
    """
    if not (choices.avoid_models or choices.avoid_uuids):
        return ()
    pairs = (
        (names.USE_GPU_MODEL, choices.use_models, names.AVOID_GPU_MODEL, choices.avoid_models),
        (names.USE_GPU_UUID, choices.use_uuids, names.AVOID_GPU_UUID, choices.avoid_uuids),
    )
    return tuple(
        Fault(
            path=field_path(*metadata, "annotations"),
            given=f"{show(item)} both to be used and to be avoided",
            allowed=f"each name in one of {use} and {avoid}, or of the keys of a dialect that stand for them",
            instead=f"{show(item)} in one of the two",
        )
        for use, used, avoid, avoided in pairs
        for item in used
        if item in avoided
    )


def _permission_requests(choices: PodChoices, metadata: Path) -> tuple[PermissionRequest, ...]:
    requests = []
    if choices.core_policy is CorePolicy.ELASTIC:
        path = field_path(*metadata, "annotations", names.CORE_POLICY)
        requests.append(PermissionRequest(Permission.ELASTIC, path, show(CorePolicy.ELASTIC.value), foreign=False))
    if choices.task_priority == HIGH_PRIORITY:
        path = field_path(*metadata, "annotations", names.TASK_PRIORITY)
        requests.append(PermissionRequest(Permission.HIGH_PRIORITY, path, show(str(HIGH_PRIORITY)), foreign=False))
    return tuple(requests)


def _of_unknown(keys: list[str], metadata: Path) -> tuple[str, ...]:
    lines = [_unknown(key, metadata) for key in keys[:MAX_UNKNOWN_NAMED]]
    if len(keys) > MAX_UNKNOWN_NAMED:
        lines.append(f"{field_path(*metadata, 'annotations')}: {len(keys) - MAX_UNKNOWN_NAMED} more that are not known")
    return tuple(lines)


def _unknown(key: str, metadata: Path) -> str:
    near = guess(key, names.CHOICE_ANNOTATIONS)
    hint = f"; did you mean {near}?" if near else ""
    return f"{field_path(*metadata, 'annotations', key)}: FairGPU knows no such annotation and ignores it{hint}"


def _priority(text: str) -> int:
    priority = {str(HIGH_PRIORITY): HIGH_PRIORITY, str(NORMAL_PRIORITY): NORMAL_PRIORITY}.get(text)
    if priority is None:
        raise ValueError(text)
    return priority


_Value = TypeVar("_Value")
_Choice = TypeVar("_Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the `fairgpu.io/*` annotations of one pod, one by one, and adds a fault for each invalid one.

    Attributes:
        annotations: the pod's annotations, as JSON.
        metadata: the field path of the pod's metadata, which faults begin with.
        faults: the faults of the annotations that have been read.
    """

    annotations: Mapping[Any, Any]
    metadata: Path
    faults: list[Fault]

    def read(self, key: str, parse: Callable[[str], _Value], allowed: str, instead: str) -> _Value | None:
        """Returns what `parse` makes of an annotation's text; None if the annotation is absent or invalid.

        An annotation is invalid if its value is no text, or if `parse` raises ValueError. A fault is then added.

        Args:
            key: the annotation's key.
            parse: returns the value that a text stands for, or raises ValueError.
            allowed: the fault's text for what is allowed.
            instead: the fault's text for what to write instead. For a value that only lacks quotes, the fault says so
                in place of this text.
        """
        value = self.annotations.get(key)
        if value is None and key not in self.annotations:
            return None
        text = value if isinstance(value, str) else show(value)
        try:
            parsed = parse(text.strip())
        except ValueError:
            parsed = None
        if parsed is not None and isinstance(value, str):
            return parsed
        if parsed is not None:
            instead = f'"{text}", in quotes'
        path = field_path(*self.metadata, "annotations", key)
        self.faults.append(Fault(path=path, given=show(value), allowed=allowed, instead=instead))
        return None

    def one_of(self, key: str, choices: type[_Choice]) -> _Choice | None:
        """Returns the value of the annotation `key`, which must be a word of the enumeration `choices`.

        Returns None if the annotation is absent. For any other value, adds a fault and returns None.
        """
        words = " or ".join(choice.value for choice in choices)
        return self.read(key, choices, words, next(iter(choices)).value)

    def list_of(self, key: str, item: re.Pattern[str], example: str) -> tuple[str, ...]:
        """Returns the names in the annotation `key`, which lists them separated by commas; empty if it is absent.

        For an invalid list, adds a fault that proposes `example`, and returns no names.
        """
        return self.read(key, lambda text: parse_list(text, item), LIST_ALLOWED, example) or ()
