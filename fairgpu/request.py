"""A container's GPU request in the canonical form, which all parts after admission read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from fairgpu import names


class GPURequest(NamedTuple):
    """One container's request, summed over its vGPUs as the canonical resources are.

    Exactly one of `memory_mib` and `memory_percentage` is set. `core_percent` 0 is best effort.
    """

    gpus: int
    core_percent: int
    memory_mib: int | None = None
    memory_percentage: int | None = None

    def resources(self) -> dict[str, str]:
        """Returns the canonical extended resources as quantities, for requests and limits alike."""
        canonical = {names.GPU: str(self.gpus), names.GPU_CORE: str(self.core_percent)}
        if self.memory_mib is not None:
            canonical[names.GPU_MEMORY] = str(self.memory_mib)
        if self.memory_percentage is not None:
            canonical[names.GPU_MEMORY_PERCENTAGE] = str(self.memory_percentage)
        return canonical

    @property
    def best_effort(self) -> bool:
        """Whether the request has no guaranteed GPU time, and runs only while others leave the GPU idle."""
        return self.core_percent == 0

    @property
    def whole(self) -> bool:
        """Whether the request is for all time and all memory of each of its GPUs; memory in MiB alone is never all."""
        return self.core_percent == self.memory_percentage == 100 * self.gpus


class CorePolicy(StrEnum):
    """The use of GPU time beyond a container's share: never (hard), or while the GPU is idle (elastic)."""

    HARD = "hard"
    ELASTIC = "elastic"


class Placement(StrEnum):
    """The choice of a pod's devices among those that fit."""

    PACK = "pack"
    SPREAD = "spread"
    TOPOLOGY = "topology"


class Gang(NamedTuple):
    """Pods of one namespace that are placed together or not at all.

    Attributes:
        name: the same for all of them.
        pods: how many of them start together, 1 to MAX_GANG.
    """

    name: str
    pods: int

    def __str__(self) -> str:
        return f"{self.name}/{self.pods}"


MAX_GANG = 512
"""kube-scheduler holds a connection to the extender open for each member that waits for the others."""

HIGH_PRIORITY = 0
NORMAL_PRIORITY = 1


@dataclass(frozen=True, slots=True)
class PodChoices:
    """The choices of a pod's author beside the amounts; unset means the admin's default."""

    use_models: tuple[str, ...] = ()
    avoid_models: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    placement: Placement | None = None
    core_policy: CorePolicy | None = None
    task_priority: int | None = None
    gang: Gang | None = None

    def annotations(self) -> dict[str, str]:
        """Returns the choices as FairGPU's own annotations."""
        written: dict[str, str] = {}
        lists = (
            (names.USE_GPU_MODEL, self.use_models),
            (names.AVOID_GPU_MODEL, self.avoid_models),
            (names.USE_GPU_UUID, self.use_uuids),
            (names.AVOID_GPU_UUID, self.avoid_uuids),
        )
        written.update({key: ",".join(values) for key, values in lists if values})
        if self.placement is not None:
            written[names.PLACEMENT] = self.placement.value
        if self.core_policy is not None:
            written[names.CORE_POLICY] = self.core_policy.value
        if self.task_priority is not None:
            written[names.TASK_PRIORITY] = str(self.task_priority)
        if self.gang is not None:
            written[names.GANG] = str(self.gang)
        return written


NO_CHOICES = PodChoices()
