"""Aliyun's gpushare: memory of a GPU in units; a node offers the same number of units on each device.

Sources: AliyunContainerService/gpushare-scheduler-extender v0.2.0, pkg/utils/const.go (`aliyun.com/gpu-mem`,
`aliyun.com/gpu-count`, `ALIYUN_COM_GPU_MEM_DEV`); gpushare-device-plugin, cmd/inspect
(`aliyun.accelerator/nvidia_name`, `scheduler.framework.gpushare.allocation`); kubeflow/arena, pkg/apis/types
(`aliyun.com/gpu-core.percentage`).
"""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Final

from fairgpu.json_values import mapping
from timekeeper.domain.holdings import nvidia
from timekeeper.domain.holdings.holding import (
    NOTHING,
    WHOLE,
    BoundPod,
    Decision,
    Doubt,
    Holding,
    HostNode,
    join,
    spread,
)

WAY: Final = "aliyun"
MEMORY: Final = "aliyun.com/gpu-mem"
CORES: Final = "aliyun.com/gpu-core.percentage"
COUNT: Final = "aliyun.com/gpu-count"
DEVICE_MEMORY: Final = "ALIYUN_COM_GPU_MEM_DEV"
ALLOCATION: Final = "scheduler.framework.gpushare.allocation"
"""The pod's annotation with its allocated units of memory, keyed by container, then by device: `{"0":{"1":8}}`."""
MODEL_LABELS: Final = ("aliyun.accelerator/nvidia_name",)
RESOURCES: Final = frozenset({MEMORY, CORES})


def decide(pod: BoundPod, node: HostNode) -> Decision:
    """Returns the shares of GPUs that a pod holds by Aliyun's gpushare.

    The pod holds the memory that it requests. It holds the time that it requests, or as large a share of time as of
    memory if it requests no time. The size of a device is the node's memory divided by the number of its devices; if
    the node does not state both, it is the size that gpushare's extender wrote on the pod. If neither states it, the
    memory counts as that of one GPU. The shares are spread evenly over as many devices as the allocation names, or over
    more if the memory or the time needs more.
    """
    asked = pod.resources & RESOURCES
    if not asked:
        return NOTHING
    model = nvidia.model_of(node) or node.label(*MODEL_LABELS)
    doubts = set() if model else {Doubt.MODEL_UNKNOWN}
    units, cores = pod.amount(MEMORY), Fraction(pod.amount(CORES), 100)
    per_device = _units_of_a_device(pod, node)
    if units and not per_device:
        doubts.add(Doubt.SIZE_UNKNOWN)
    wanted = Fraction(units, per_device) if per_device else Fraction(1 if units else 0)
    count = max(spread(max(wanted, cores))[0], _devices(pod, doubts))
    memory, time = wanted / count, cores / count
    return Decision(
        join(Holding(WAY, model, count, min(time or memory, WHOLE), min(memory, WHOLE))), frozenset(doubts), asked
    )


def _units_of_a_device(pod: BoundPod, node: HostNode) -> int:
    offered, devices = node.capacity.get(MEMORY, 0), node.capacity.get(COUNT, 0)
    if offered and devices:
        return offered // devices
    text = pod.annotations.get(DEVICE_MEMORY, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else 0


def _devices(pod: BoundPod, doubts: set[Doubt]) -> int:
    """Returns the number of devices that the pod's annotation for the allocation names; 1 if it names none.

    An unreadable annotation also counts as one device, and adds a doubt to `doubts`.
    """
    text = pod.annotations.get(ALLOCATION)
    if not text:
        return 1
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        doubts.add(Doubt.ALLOCATION_UNREADABLE)
        return 1
    devices = {index for container in mapping(document).values() for index in mapping(container)}
    return max(len(devices), 1)
