"""One node for all of these tests."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.control_plane.build import built, control_plane_binaries
from tests.cluster.control_plane.control_plane import running_control_plane
from tests.node.binaries import NODE
from tests.node.machine import Machine, enter, running_machine
from tests.support.waiting import wait_until


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A node with two simulated GPUs, in the namespaces that `make node` gives this process."""
    if os.environ.get("FAIRGPU_NODE_NAMESPACES") != "1":
        pytest.fail("these tests want namespaces of their own: run `make node` as root")
    binaries = built(NODE, os.environ), control_plane_binaries(os.environ)
    folder = tmp_path_factory.mktemp("node")
    runc = shutil.which("runc") or str(Path(sys.executable).with_name("runc"))
    enter(folder)
    with (
        running_control_plane(binaries[1]) as plane,
        running_machine(folder, binaries[0], Path(runc), plane) as machine,
    ):
        yield machine


@pytest.fixture
def namespace(machine: Machine) -> Iterator[str]:
    """A namespace whose pods are gone afterwards, with all that they had on the node."""
    name = machine.plane.create_namespace()
    yield name
    machine.plane.remove_pods(name)
    folders = Path("/var/run/cdi"), Path("/run/fairgpu-nodeagent/containers")
    wait_until(lambda: not [path for folder in folders for path in folder.iterdir()], "what the containers had is gone")
