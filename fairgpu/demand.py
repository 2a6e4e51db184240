"""The demand of a whole pod, whose containers run partly one after the other.

The rule is kube-scheduler's own for pods with native sidecars
(https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers). The demand
is the larger of two figures: the sum of the main containers and all native sidecars, and the largest sum of one init
container and the native sidecars that were started before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fairgpu.request import GPURequest


class Demand(NamedTuple):
    """A pod's demand for GPUs; each figure is the largest at any time of the pod's life.

    Attributes:
        gpus: the number of vGPUs.
        core_percent: GPU time summed over the vGPUs, in percent of one GPU.
        memory_mib: the memory that containers request in MiB, summed over the vGPUs.
        memory_percentage: the memory that containers request in percent of one GPU, summed over the vGPUs.
    """

    gpus: int = 0
    core_percent: int = 0
    memory_mib: int = 0
    memory_percentage: int = 0


NO_DEMAND = Demand()


def is_native_sidecar(container: Mapping[str, Any]) -> bool:
    """Returns whether an init container keeps running beside the main containers.

    Args:
        container: the init container, as JSON.
    """
    return container.get("restartPolicy") == "Always"


def peak(containers: Sequence[int], init_steps: Sequence[tuple[int, bool]]) -> int:
    """Returns the largest sum of the amounts that a pod's containers hold at the same time.

    Args:
        containers: the amount of each main container.
        init_steps: in order, each init container's amount and whether it is a native sidecar.
    """
    sidecars = 0
    highest_step = 0
    for amount, keeps_running in init_steps:
        highest_step = max(highest_step, amount + sidecars)
        if keeps_running:
            sidecars += amount
    return max(sum(containers) + sidecars, highest_step)


def pod_demand(containers: Sequence[GPURequest | None], init_steps: Sequence[tuple[GPURequest | None, bool]]) -> Demand:
    """Returns the demand of a pod, figure by figure.

    Args:
        containers: the GPU request of each main container; None if it requests no GPU.
        init_steps: in order, each init container's request and whether it is a native sidecar.
    """
    if not init_steps and len(containers) == 1 and containers[0] is not None:
        gpus, core_percent, memory_mib, memory_percentage = _figures(containers[0])
        return Demand(gpus, core_percent, memory_mib, memory_percentage)
    main = [_figures(request) for request in containers]
    steps = [(_figures(request), keeps_running) for request, keeps_running in init_steps]
    return Demand(
        *(
            peak([figures[at] for figures in main], [(figures[at], keeps) for figures, keeps in steps])
            for at in range(len(_NOTHING))
        )
    )


_NOTHING = (0, 0, 0, 0)


def _figures(request: GPURequest | None) -> tuple[int, int, int, int]:
    """Returns a request's figures in the order of Demand's fields; all 0 for None."""
    if request is None:
        return _NOTHING
    return request.gpus, request.core_percent, request.memory_mib or 0, request.memory_percentage or 0
