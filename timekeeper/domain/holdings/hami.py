"""HAMi: vGPUs of NVIDIA devices, joined by uuid to the devices that the node lists.

Source: HAMi v2.6, pkg/device/nvidia/device.go (`hami.io/node-nvidia-register`, `hami.io/vgpu-devices-allocated`) and
charts/hami/values.yaml (resource names).
"""

from __future__ import annotations

from typing import Final

from fairgpu.dialects.hami import CORES, COUNT, MEMORY, PERCENTAGE, PRIORITY
from timekeeper.domain.holdings.device_lists import Names, decode_lists, parts
from timekeeper.domain.holdings.holding import NOTHING, Decision
from timekeeper.domain.holdings.observed import BoundPod, HostNode

WAY: Final = "hami"
ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
REGISTER: Final = "hami.io/node-nvidia-register"
RESOURCES: Final = frozenset({COUNT, MEMORY, PERCENTAGE, CORES, PRIORITY})
_NAMES: Final = Names(COUNT, MEMORY, PERCENTAGE, CORES)


def decide(pod: BoundPod, node: HostNode) -> Decision:
    """Returns the vGPUs that a pod holds on a node of HAMi.

    `nvidia.com/gpu` is HAMi's on a node that lists its devices for it, and NVIDIA's on any other: an annotation on the
    pod alone, which its author can write, does not make a GPU a part of one.
    """
    asked = pod.resources & RESOURCES
    if not asked - {PRIORITY} or not (node.annotations.get(REGISTER) or asked - {COUNT, PRIORITY}):
        return NOTHING
    lists = decode_lists(node.annotations.get(REGISTER), pod.annotations.get(ALLOCATED))
    holdings, doubts = parts(WAY, pod, _NAMES, lists)
    return Decision(holdings, doubts, asked)
