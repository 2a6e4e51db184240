"""The permissions that a namespace needs."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.permissions import Permission, PermissionRequest, grant, parse_permissions
from fairgpu.request import CorePolicy, PodChoices

ELASTIC = PodChoices(core_policy=CorePolicy.ELASTIC, task_priority=0)
ALL = frozenset(Permission)


def permission_requests(*, foreign: bool) -> list[PermissionRequest]:
    return [
        PermissionRequest(Permission.ELASTIC, "metadata.annotations[a]", '"elastic"', foreign),
        PermissionRequest(Permission.HIGH_PRIORITY, "metadata.annotations[b]", '"0"', foreign),
    ]


@pytest.mark.parametrize(
    ("annotation", "permissions"),
    [
        ("elastic", {Permission.ELASTIC}),
        (" high-priority ,elastic,", ALL),
        ("everything, *", set()),
        ("Elastic", set()),
        ("", set()),
        (None, set()),
        (["elastic"], set()),
    ],
)
def test_only_words_that_are_known_grant_anything(annotation: Any, permissions: set[Permission]) -> None:
    assert parse_permissions(annotation) == permissions


def test_an_allowed_change_holds_without_a_word() -> None:
    granted = grant(ELASTIC, permission_requests(foreign=False), ALL)
    assert (granted.choices, granted.faults, granted.warnings) == (ELASTIC, (), ())


def test_a_wish_in_our_own_words_is_refused_without_permission_and_says_whom_to_ask() -> None:
    granted = grant(ELASTIC, permission_requests(foreign=False), frozenset())
    assert [str(fault) for fault in granted.faults] == [
        (
            'metadata.annotations[a]: given "elastic"; allowed: fairgpu.io/core-policy: hard, as the namespace is not '
            'allowed "elastic"; write fairgpu.io/core-policy: hard, or ask a cluster admin to annotate the '
            "namespace with fairgpu.io/allow: elastic"
        ),
        (
            'metadata.annotations[b]: given "0"; allowed: fairgpu.io/task-priority: "1", as the namespace is not '
            'allowed "high-priority"; write fairgpu.io/task-priority: "1", or ask a cluster admin to annotate the '
            "namespace with fairgpu.io/allow: high-priority"
        ),
    ]


def test_a_wish_in_foreign_words_falls_back_with_a_warning() -> None:
    granted = grant(ELASTIC, permission_requests(foreign=True), frozenset({Permission.HIGH_PRIORITY}))
    assert granted.choices == PodChoices(core_policy=CorePolicy.HARD, task_priority=0)
    assert granted.faults == ()
    assert granted.warnings == (
        (
            'metadata.annotations[a]: "elastic" is taken as fairgpu.io/core-policy: hard, since the namespace is not '
            'allowed "elastic"; a cluster admin allows it with the annotation fairgpu.io/allow'
        ),
    )
