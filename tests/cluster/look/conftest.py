"""A control plane for each file, with an audit log; nothing of FairGPU is on it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with running_control_plane(control_plane_binaries(os.environ), audited=True) as running:
        yield running
