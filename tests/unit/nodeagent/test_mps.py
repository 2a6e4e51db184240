"""The daemon of NVIDIA's MPS among the processes of a node."""

from __future__ import annotations

import pytest

from nodeagent.vendors.nvidia import mps_on_node

OF_NODE, OF_A_POD = 10, 20


def is_trusted(pid: int) -> bool:
    return pid == OF_NODE


@pytest.mark.parametrize("name", [b"nvidia-cuda-mps-control", b"nvidia-cuda-mps-server"])
def test_its_daemon_and_its_server_withhold_the_gpus_by_the_name_that_the_kernel_cuts(name: bytes) -> None:
    assert "nvidia-cuda-mps-control runs on this node" in mps_on_node({1: b"systemd", OF_NODE: name[:15]}, is_trusted)


@pytest.mark.parametrize(
    "names",
    [{}, {OF_NODE: b"nvidia-persiste"}, {OF_NODE: b"nvidia-cuda-mp"}, {OF_A_POD: b"nvidia-cuda-mps"}],
    ids=["none", "another", "a part of it", "a pod's that took the name"],
)
def test_other_processes_withhold_nothing(names: dict[int, bytes]) -> None:
    assert mps_on_node(names, is_trusted) == ""


def test_only_processes_of_that_name_are_looked_at_again() -> None:
    def fails(pid: int) -> bool:
        raise AssertionError(pid)

    assert mps_on_node({OF_NODE: b"python"}, fails) == ""
