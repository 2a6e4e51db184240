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
        core_percent: the percent of each GPU's time; 0 for best effort.
        memory_mib: the memory of each GPU, in MiB; 0 if it is given in percent.
        memory_percent: the memory of each GPU, in percent of the memory that the device offers; 0 if it is given in
            MiB.
    """

    gpus: int
    core_percent: int
    memory_mib: int = 0
    memory_percent: int = 0

    def mib_of(self, total_mib: int) -> int:
        """Returns the MiB that the container takes of a device which offers `total_mib`; rounded down."""
        return self.memory_mib or total_mib * self.memory_percent // 100


class Wanted(NamedTuple):
    """A pod's choice among devices.

    Attributes:
        use_models, avoid_models: the parts of models' names that are allowed (all if empty) and excluded, whatever the
            case of the letters.
        use_uuids, avoid_uuids: the uuids of the devices that are allowed (all if empty) and excluded.
        placement: the rule by which devices are chosen among those that fit.
    """

    use_models: tuple[str, ...] = ()
    avoid_models: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    placement: Placement = Placement.PACK


ANY_DEVICE = Wanted()


@dataclass(frozen=True, slots=True)
class Request:
    """All that a pod needs of a node. Equal requests are placed the same way.

    Attributes:
        containers: the need of each main container that asks for GPUs, in order.
        init: the need of each init container that asks for GPUs, and whether it is a native sidecar, which runs until
            the pod ends.
        wanted: the choice among devices.
        cpu_milli, host_mib: the processor time (thousandths of a core) and memory (MiB) that the pod needs of the node.
    """

    containers: tuple[Need, ...]
    init: tuple[tuple[Need, bool], ...] = ()
    wanted: Wanted = ANY_DEVICE
    cpu_milli: int = 0
    host_mib: int = 0

    @property
    def needs(self) -> tuple[Need, ...]:
        """The needs of all GPU containers, init containers first."""
        return (*(need for need, _ in self.init), *self.containers)

    @property
    def steps(self) -> tuple[tuple[Need, bool | None], ...]:
        """The need of each GPU container, init containers first, with a flag.

        The flag is None for a main container, True for an init container that keeps running (a native sidecar), and
        False for an init container that ends.
        """
        return (*self.init, *((need, None) for need in self.containers))

    @property
    def single(self) -> Need | None:
        """The need of the only GPU container; None if there are several or none, or if it is an init container."""
        return self.containers[0] if len(self.containers) == 1 and not self.init else None


def need_of(request: GPURequest) -> Need:
    """Returns a container's need of each of its GPUs, from its request.

    The request's amounts are for all its GPUs together, and the need's for one GPU.
    """
    gpus = request.gpus
    return Need(
        gpus,
        request.core_percent // gpus,
        (request.memory_mib or 0) // gpus,
        (request.memory_percentage or 0) // gpus,
    )
