"""Permissions of a namespace: its pods may use GPU time beyond their share, or go before other pods on a GPU.

The annotation `fairgpu.io/allow` on the Namespace lists the permissions; only cluster-level admins write it.
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
    """A permission of a namespace, as `fairgpu.io/allow` spells it."""

    ELASTIC = "elastic"
    HIGH_PRIORITY = "high-priority"


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """A choice of a pod's author that needs a permission of the namespace.

    Attributes:
        permission: the permission that the choice needs.
        path: the field path of the choice.
        given: the field's value.
        foreign: whether the choice is stated in another project's key. Authors of such keys need not know FairGPU's
            permissions: without the permission, their pod is admitted with the default and a warning. In FairGPU's own
            annotation the same choice is refused.
    """

    permission: Permission
    path: str
    given: str
    foreign: bool


class Granted:
    """The choices of a pod's author after the namespace's permissions were applied.

    Attributes:
        choices: the choices; a choice whose permission the namespace lacks is replaced by the default.
        faults: the faults of the replaced choices that FairGPU's own annotations state.
        warnings: lines about the replaced choices that keys of other projects state.
    """

    def __init__(self, choices: PodChoices, faults: tuple[Fault, ...], warnings: tuple[str, ...]) -> None:
        self.choices: Final = choices
        self.faults: Final = faults
        self.warnings: Final = warnings


def parse_permissions(annotation: Any) -> frozenset[Permission]:
    """Returns the permissions in the value of a namespace's annotation `fairgpu.io/allow`; unknown words grant none.

    Args:
        annotation: the value, as JSON; None if the namespace lacks the annotation.
    """
    words = _words(annotation)
    return frozenset(permission for permission in Permission if permission.value in words)


def unknown_permissions(annotation: Any) -> tuple[str, ...]:
    """Returns the words in the value of a namespace's annotation `fairgpu.io/allow` that grant nothing, sorted.

    Args:
        annotation: the value, as JSON; None if the namespace lacks the annotation.
    """
    return tuple(sorted(_words(annotation).difference(Permission)))


def grant(choices: PodChoices, requests: Iterable[PermissionRequest], permissions: frozenset[Permission]) -> Granted:
    """Returns the choices of a pod's author that count under the permissions of the pod's namespace.

    Args:
        choices: the choices of the pod's author.
        requests: the choices that need a permission.
        permissions: the permissions of the namespace.

    Returns:
        The choices; the default replaces each choice whose permission the namespace lacks, with a fault or a warning.
    """
    faults: list[Fault] = []
    warnings: list[str] = []
    for request in requests:
        if request.permission in permissions:
            continue
        choices = _without(choices, request.permission)
        fallback = _FALLBACKS[request.permission]
        if request.foreign:
            warnings.append(
                f"{request.path}: {request.given} is taken as {fallback}, since the namespace is not allowed "
                f'"{request.permission}"; a cluster admin allows it with the annotation {names.NAMESPACE_ALLOW}'
            )
        else:
            faults.append(
                Fault(
                    path=request.path,
                    given=request.given,
                    allowed=f'{fallback}, as the namespace is not allowed "{request.permission}"',
                    instead=f"{fallback}, or ask a cluster admin to annotate the namespace with "
                    f"{names.NAMESPACE_ALLOW}: {request.permission}",
                )
            )
    return Granted(choices, tuple(faults), tuple(warnings))


_FALLBACKS = {
    Permission.ELASTIC: f"{names.CORE_POLICY}: {CorePolicy.HARD}",
    Permission.HIGH_PRIORITY: f'{names.TASK_PRIORITY}: "{NORMAL_PRIORITY}"',
}


def _words(annotation: Any) -> frozenset[str]:
    if not isinstance(annotation, str):
        return frozenset()
    return frozenset(word for part in annotation.split(",") if (word := part.strip()))


def _without(choices: PodChoices, permission: Permission) -> PodChoices:
    if permission is Permission.ELASTIC:
        return replace(choices, core_policy=CorePolicy.HARD)
    return replace(choices, task_priority=NORMAL_PRIORITY)
