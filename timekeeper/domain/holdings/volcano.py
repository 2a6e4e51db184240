"""Decides which vGPUs a pod holds by Volcano; the pod's list names devices by uuid, and the node's list describes them.

Source: Volcano ed72c7c8 (after v1.16.0-alpha.1), pkg/scheduler/api/devices/nvidia/vgpu/type.go
(`volcano.sh/vgpu-ids-new`), mig.go beside it (the place of a MIG instance) and
pkg/scheduler/api/devices/config/vgpu.go (`volcano.sh/node-vgpu-register`, resource names).
"""

from __future__ import annotations

from typing import Final

from timekeeper.domain.holdings.hami import Names, decode_lists, parts
from timekeeper.domain.holdings.holding import NOTHING, BoundPod, Decision, Doubt, HostNode

WAY: Final = "volcano"
ALLOCATED: Final = "volcano.sh/vgpu-ids-new"
REGISTER: Final = "volcano.sh/node-vgpu-register"
COUNT: Final = "volcano.sh/vgpu-number"
MEMORY: Final = "volcano.sh/vgpu-memory"
PERCENTAGE: Final = "volcano.sh/vgpu-memory-percentage"
CORES: Final = "volcano.sh/vgpu-cores"
RESOURCES: Final = frozenset({COUNT, MEMORY, PERCENTAGE, CORES})
_NAMES: Final = Names(COUNT, MEMORY, PERCENTAGE, CORES)


def decide(pod: BoundPod, node: HostNode) -> Decision:
    """Returns the vGPUs that a pod holds by Volcano, from the pod's request and the allocation in its annotation.

    A MIG instance counts as the smallest instance of the model that has the requested memory, with the doubt
    SIZE_UNKNOWN.
    """
    asked = pod.resources & RESOURCES
    if not asked:
        return NOTHING
    lists = decode_lists(node.annotations.get(REGISTER), pod.annotations.get(ALLOCATED))
    holdings, doubts = parts(WAY, pod, _NAMES, lists)
    if any(device.is_instance for devices in lists.pod or () for device in devices):
        doubts |= {Doubt.SIZE_UNKNOWN}
    return Decision(holdings, doubts, asked)
