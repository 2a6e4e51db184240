"""Tencent's gpu-manager: hundredths of a GPU's time, and blocks of 256 MiB of its memory.

Source: gpu-manager v1.1, pkg/types/types.go (`tencent.com/vcuda-core`, `tencent.com/vcuda-memory`), and gpu-admission,
pkg/algorithm/exclusive.go: a request of 100 and more is of whole GPUs. Its own label `gaia.tencent.com/gpu-model` has
one word of the driver's name, which need not be the model's.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from timekeeper.domain.holdings import nvidia
from timekeeper.domain.holdings.holding import NOTHING, WHOLE, Decision, Doubt, Holding, join
from timekeeper.domain.holdings.observed import BoundPod, HostNode

WAY: Final = "gpu-manager"
CORE: Final = "tencent.com/vcuda-core"
MEMORY: Final = "tencent.com/vcuda-memory"
RESOURCES: Final = frozenset({CORE, MEMORY})
HUNDRED: Final = 100


def decide(pod: BoundPod, node: HostNode) -> Decision:
    """Returns the whole GPUs, or the one part of a GPU, that a pod holds.

    A node offers 100 cores for each device, and its blocks of memory are evenly on them.
    """
    asked = pod.resources & RESOURCES
    if not asked:
        return NOTHING
    model = nvidia.model_of(node)
    doubts = set() if model else {Doubt.MODEL_UNKNOWN}
    core, blocks = pod.amount(CORE), pod.amount(MEMORY)
    if core >= HUNDRED:
        count = -(-core // HUNDRED)
        return Decision(join(Holding(WAY, model, count, WHOLE, WHOLE)), frozenset(doubts), asked)
    devices = node.capacity.get(CORE, 0) // HUNDRED
    each = node.capacity.get(MEMORY, 0) // devices if devices else 0
    if blocks and not each:
        doubts.add(Doubt.SIZE_UNKNOWN)
    memory = min(Fraction(blocks, each), WHOLE) if each else Fraction(1 if blocks else 0)
    return Decision(join(Holding(WAY, model, 1, Fraction(core, HUNDRED), memory)), frozenset(doubts), asked)
