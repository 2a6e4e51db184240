"""Somebody who may do everything inside one namespace, and what they try it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, create_node
from tests.cluster.pods import stack_pod
from tests.support.waiting import wait_until


@pytest.fixture
def make_namespace_of(control_plane: ControlPlane, make_namespace: Callable[..., str]) -> Callable[[str], str]:
    """Create a namespace of a mode; returns its name once the policies have read its label."""

    def make(mode: str) -> str:
        name = make_namespace(f"{mode}-", labels={"fairgpu.io/mode": mode})
        wait_until(lambda: _stacks_pods_pass(control_plane, name) is (mode == "account"), "policies know the mode")
        return name

    return make


def _stacks_pods_pass(control_plane: ControlPlane, namespace: str) -> bool:
    """Returns whether the guard of new pods admits a pod of another stack, as it does in the mode account alone."""
    try:
        control_plane.admin.api.create(f"/api/v1/namespaces/{namespace}/pods", stack_pod(), {"dryRun": "All"})
    except ApiError as error:
        return "fairgpu-spec" not in error.message
    return True


@pytest.fixture
def editor(control_plane: ControlPlane, namespace: str) -> Identity:
    return control_plane.namespace_admin(namespace)


@pytest.fixture
def pods(namespace: str) -> str:
    """The path of the test's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


@pytest.fixture
def node(control_plane: ControlPlane, namespace: str) -> Iterator[StandInNode]:
    yield create_node(control_plane, f"node-{namespace}")
    control_plane.admin.api.delete(f"/api/v1/nodes/node-{namespace}")
