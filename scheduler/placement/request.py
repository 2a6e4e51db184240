"""A pod's request as placement reads it: each container's need of each of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fairgpu.request import GPURequest, Placement

MAX_GPUS_OF_A_CONTAINER = 16
"""The most GPUs of a container, by the records of its usage file (vcuda/include/usage.h)."""


class Need(NamedTuple):
    """A container's need of each of its GPUs.

    Attributes:
        gpus: the number of GPUs, all different.
        core_percent: GPU time; 0 is best effort.
        memory_mib: memory in MiB; 0 where `memory_percent` says it.
        memory_percent: memory in percent of what the device offers; 0 where `memory_mib` says it.
    """

    gpus: int
    core_percent: int
    memory_mib: int = 0
    memory_percent: int = 0

    def mib_of(self, total_mib: int) -> int:
        """Returns the MiB that the need takes of a device, by the MiB that the device offers; rounded down."""
        return self.memory_mib or total_mib * self.memory_percent // 100


class Wanted(NamedTuple):
    """The choice among devices.

    Attributes:
        use_models, avoid_models: substrings of models' names, whatever the case of the letters.
        use_uuids, avoid_uuids: whole uuids.
        placement: how to choose among those that fit.
    """

    use_models: tuple[str, ...] = ()
    avoid_models: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    placement: Placement = Placement.PACK


ANY_DEVICE = Wanted()


@dataclass(frozen=True, slots=True)
class Request:
    """A pod's need. Equal requests are of one kind, and are placed the same way.

    Attributes:
        containers: the need of each main container that has one, in order.
        init: the need of each init container that has one, and whether it is a native sidecar, which runs until the pod
            ends.
        wanted: the choice among devices.
        cpu_milli, host_mib: the node's processor time and memory that it takes.
    """

    containers: tuple[Need, ...]
    init: tuple[tuple[Need, bool], ...] = ()
    wanted: Wanted = ANY_DEVICE
    cpu_milli: int = 0
    host_mib: int = 0

    @property
    def needs(self) -> tuple[Need, ...]:
        """The needs of all containers, init containers first."""
        return (*(need for need, _ in self.init), *self.containers)

    @property
    def steps(self) -> tuple[tuple[Need, bool | None], ...]:
        """Each container's need, init containers first, with whether it is an init container that keeps running."""
        return (*self.init, *((need, None) for need in self.containers))

    @property
    def single(self) -> Need | None:
        """The only need; None where there are several."""
        return self.containers[0] if len(self.containers) == 1 and not self.init else None


def need_of(request: GPURequest) -> Need:
    """Returns a container's need, its sums divided evenly among its vGPUs."""
    gpus = request.gpus
    return Need(
        gpus,
        request.core_percent // gpus,
        (request.memory_mib or 0) // gpus,
        (request.memory_percentage or 0) // gpus,
    )
