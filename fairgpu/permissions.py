"""Wishes that a namespace needs leave for: GPU time beyond the share, and going before others.

The annotation `fairgpu.io/allow` on the Namespace lists what its pods may ask for; only cluster-level admins write it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from fairgpu import names
from fairgpu.faults import Fault
from fairgpu.request import NORMAL_PRIORITY, CorePolicy, PodChoices


class Permission(StrEnum):
    """What a namespace can be allowed, as `fairgpu.io/allow` spells it."""

    ELASTIC = "elastic"
    HIGH_PRIORITY = "high-priority"


@dataclass(frozen=True, slots=True)
class Wish:
    """A choice that needs a permission.

    Attributes:
        permission: the one it needs.
        path: the field that states it.
        given: what stands there.
        foreign: whether another project's key states it. Its author never heard of our permissions, so without one
            the pod comes in with the default and a warning; one who writes our own annotation is refused.
    """

    permission: Permission
    path: str
    given: str
    foreign: bool


class Granted:
    """The choices that hold in a namespace, and what is said about those that do not."""

    def __init__(self, choices: PodChoices, faults: tuple[Fault, ...], warnings: tuple[str, ...]) -> None:
        self.choices: Final = choices
        self.faults: Final = faults
        self.warnings: Final = warnings


def parse_permissions(annotation: Any) -> frozenset[Permission]:
    """The permissions in the value of `fairgpu.io/allow`; words that mean nothing grant nothing."""
    if not isinstance(annotation, str):
        return frozenset()
    words = {word.strip() for word in annotation.split(",")}
    return frozenset(permission for permission in Permission if permission.value in words)


def grant(choices: PodChoices, wishes: Iterable[Wish], permissions: frozenset[Permission]) -> Granted:
    """Holds a pod's choices to what its namespace is allowed."""
    faults: list[Fault] = []
    warnings: list[str] = []
    for wish in wishes:
        if wish.permission in permissions:
            continue
        choices = _without(choices, wish.permission)
        fallback = _FALLBACKS[wish.permission]
        if wish.foreign:
            warnings.append(
                f"{wish.path}: {wish.given} is taken as {fallback}, since the namespace is not allowed "
                f'"{wish.permission}"; a cluster admin allows it with the annotation {names.NAMESPACE_ALLOW}'
            )
        else:
            faults.append(
                Fault(
                    path=wish.path,
                    given=wish.given,
                    allowed=f'{fallback}, as the namespace is not allowed "{wish.permission}"',
                    instead=f"{fallback}, or ask a cluster admin to annotate the namespace with "
                    f"{names.NAMESPACE_ALLOW}: {wish.permission}",
                )
            )
    return Granted(choices, tuple(faults), tuple(warnings))


_FALLBACKS = {
    Permission.ELASTIC: f"{names.CORE_POLICY}: {CorePolicy.HARD}",
    Permission.HIGH_PRIORITY: f'{names.TASK_PRIORITY}: "{NORMAL_PRIORITY}"',
}


def _without(choices: PodChoices, permission: Permission) -> PodChoices:
    if permission is Permission.ELASTIC:
        return replace(choices, core_policy=CorePolicy.HARD)
    return replace(choices, task_priority=NORMAL_PRIORITY)
