"""The canonical form of a container's GPU request and of a pod's choices, which all parts after admission read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from fairgpu import names


class GPURequest(NamedTuple):
    """One container's GPU request; like the canonical resources, all figures are sums over the container's vGPUs.

    Attributes:
        gpus: the number of vGPUs.
        core_percent: GPU time, in percent of one GPU; 0 is best effort.
        memory_mib: memory in MiB; None if `memory_percentage` is given instead.
        memory_percentage: memory in percent of one GPU; None if `memory_mib` is given instead.
    """

    gpus: int
    core_percent: int
    memory_mib: int | None = None
    memory_percentage: int | None = None

    def resources(self) -> dict[str, str]:
        """Returns the amounts of FairGPU's extended resources, as text keyed by resource.

        A container's requests and limits both get these amounts.
        """
        canonical = {names.GPU: str(self.gpus), names.GPU_CORE: str(self.core_percent)}
        if self.memory_mib is not None:
            canonical[names.GPU_MEMORY] = str(self.memory_mib)
        if self.memory_percentage is not None:
            canonical[names.GPU_MEMORY_PERCENTAGE] = str(self.memory_percentage)
        return canonical

    @property
    def best_effort(self) -> bool:
        """Whether the request has no guaranteed GPU time, and gets only the time that others do not use."""
        return self.core_percent == 0

    @property
    def whole(self) -> bool:
        """Whether the request is for whole GPUs: all time of each, and 100 percent of the memory of each.

        False if the memory is given in MiB, since the size of the GPUs is not known.
        """
        return self.core_percent == self.memory_percentage == 100 * self.gpus


class CorePolicy(StrEnum):
    """The rule for GPU time beyond a container's share: `hard` gives none, `elastic` gives what others do not use."""

    HARD = "hard"
    ELASTIC = "elastic"


class Placement(StrEnum):
    """The rule by which a pod's devices are chosen among those that fit.

    `pack` takes the devices that lose least of what coming requests can use, `spread` the emptiest devices, and
    `topology` the devices that are linked best.
    """

    PACK = "pack"
    SPREAD = "spread"
    TOPOLOGY = "topology"


class Gang(NamedTuple):
    """Some pods of one namespace that are placed together or not at all.

    Attributes:
        name: the gang's name, which all its pods have in an annotation.
        pods: the number of pods that start together, 1 to MAX_GANG.
    """

    name: str
    pods: int

    def __str__(self) -> str:
        return f"{self.name}/{self.pods}"


MAX_GANG = 512
"""The most pods of a gang: for each pod that waits for the others, kube-scheduler keeps a connection to the extender
open."""

HIGH_PRIORITY = 0
NORMAL_PRIORITY = 1


@dataclass(frozen=True, slots=True)
class PodChoices:
    """The choices of a pod's author beside the amounts. An empty tuple or None means the admin's default.

    Attributes:
        use_models: names of models, or parts of such names; the pod may get devices of these models only.
        avoid_models: names of models, or parts of such names; the pod must not get devices of these models.
        use_uuids: the uuids of the devices that the pod may get.
        avoid_uuids: the uuids of the devices that the pod must not get.
        placement: the rule by which devices are chosen among those that fit.
        core_policy: the rule for GPU time beyond the shares of the pod's containers.
        task_priority: 0 if the pod goes before other pods on the same GPU, 1 if it does not.
        gang: the gang whose pods are placed together with this one.
    """

    use_models: tuple[str, ...] = ()
    avoid_models: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    placement: Placement | None = None
    core_policy: CorePolicy | None = None
    task_priority: int | None = None
    gang: Gang | None = None

    def annotations(self) -> dict[str, str]:
        """Returns the choices as `fairgpu.io/*` annotations of the pod; a choice that was not made gives none."""
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
