"""Somebody who may do everything inside one namespace, and what they try it on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, create_node


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
