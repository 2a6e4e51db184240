"""Finds NVIDIA's Multi-Process Service (MPS) on a node. NVML names it only once it has a client.

Its daemon and its server are processes of the host, or of a privileged container such as NVIDIA's device plugin has for
MPS (https://docs.nvidia.com/deploy/mps/). Which GPUs it shares is in its environment, which the agent may not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

PROGRAM = b"nvidia-cuda-mps"
"""The name of nvidia-cuda-mps-control and of nvidia-cuda-mps-server, as the kernel cuts it."""


def why_withheld(names: Mapping[int, bytes], is_trusted: Callable[[int], bool]) -> str:
    """Returns why no GPU of a node can be shared in turns, because of the programs that run there; empty if all can.

    Args:
        names: the names of the processes, as the kernel cuts them, keyed by process id.
        is_trusted: returns whether a process, given its id, bears its name by the will of who administers the node.
    """
    if any(name == PROGRAM and is_trusted(pid) for pid, name in names.items()):
        return "nvidia-cuda-mps-control runs on this node, and may share any of its GPUs through MPS: end it"
    return ""
