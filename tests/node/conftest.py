"""One node for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.machine import Machine, running_node
from tests.support.waiting import wait_until


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A node whose pods the tests place themselves: nothing else of FairGPU runs than its agent."""
    with running_node(tmp_path_factory.mktemp("node")) as machine:
        yield machine


@pytest.fixture
def namespace(machine: Machine) -> Iterator[str]:
    """A namespace whose pods are gone afterwards, with all that they had on the node."""
    name = machine.plane.create_namespace()
    yield name
    machine.plane.remove_pods(name)
    folders = Path("/var/run/cdi"), Path("/run/fairgpu-nodeagent/containers")
    wait_until(lambda: not [path for each in folders for path in each.glob("*")], "what the containers had is gone")
