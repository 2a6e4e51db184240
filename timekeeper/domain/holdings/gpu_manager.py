"""Tencent's gpu-manager: hundredths of a GPU's time, and blocks of 256 MiB of its memory.

Source: gpu-manager v1.1, pkg/types/types.go (`tencent.com/vcuda-core`, `tencent.com/vcuda-memory`), and gpu-admission,
pkg/algorithm/allocate.go: each container is given devices by itself, one to share for fewer than 100 cores, and whole
ones from 100 on. The model is not read from gpu-manager's label `gaia.tencent.com/gpu-model`: the label has one word of
the driver's name for the GPU, and that word need not identify the model.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from timekeeper.domain.holdings import nvidia
from timekeeper.domain.holdings.holding import (
    NOTHING,
    WHOLE,
    BoundPod,
    Container,
    Decision,
    Doubt,
    Holding,
    HostNode,
    held_at_once,
)

WAY: Final = "gpu-manager"
CORE: Final = "tencent.com/vcuda-core"
MEMORY: Final = "tencent.com/vcuda-memory"
RESOURCES: Final = frozenset({CORE, MEMORY})
HUNDRED: Final = 100


def decide(pod: BoundPod, node: HostNode) -> Decision:
    """Returns the GPUs and parts of GPUs that a pod holds by Tencent's gpu-manager, for each container by itself.

    A node offers 100 cores for each device, and its blocks of memory are spread evenly over its devices. Two containers
    with 60 cores each hold two parts of 60, and not two GPUs. An init container counts if it holds more than the
    containers that run later. If the node's memory is not known, a container with memory holds all memory of its GPU.
    """
    asked = pod.resources & RESOURCES
    if not asked:
        return NOTHING
    model = nvidia.model_of(node)
    doubts = set() if model else {Doubt.MODEL_UNKNOWN}
    devices = node.capacity.get(CORE, 0) // HUNDRED
    each = node.capacity.get(MEMORY, 0) // devices if devices else 0
    if not each and any(_blocks(item) for item in (*pod.containers, *pod.init)):
        doubts.add(Doubt.SIZE_UNKNOWN)

    def part(container: Container) -> Holding:
        return _part(container, model, each)

    return Decision(held_at_once(pod, part), frozenset(doubts), asked)


def _part(container: Container, model: str, blocks_of_a_device: int) -> Holding:
    core, blocks = container.resources.get(CORE, 0), _blocks(container)
    if core >= HUNDRED:
        return Holding(WAY, model, -(-core // HUNDRED), WHOLE, WHOLE)
    whole = Fraction(1 if blocks else 0)
    memory = min(Fraction(blocks, blocks_of_a_device), WHOLE) if blocks_of_a_device else whole
    return Holding(WAY, model, 1 if core or blocks else 0, Fraction(core, HUNDRED), memory)


def _blocks(container: Container) -> int:
    return container.resources.get(MEMORY, 0)
