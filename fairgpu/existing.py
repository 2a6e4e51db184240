"""The settings of GPUs that other stacks share: how pods ask for them, and the stacks' users and namespaces.

The names by which pods ask are listed here once. Policies and webhook rules cannot read settings: `fairgpu render`
writes the names into them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Final, Literal

from pydantic import Field

from fairgpu.asks import StackNames
from fairgpu.dialects.registry import FOREIGN
from fairgpu.names import SYSTEM_NAMESPACE
from fairgpu.settings import Section

SYSTEM: Final = ("kube-system", "kube-public", "kube-node-lease", SYSTEM_NAMESPACE)
"""The namespaces whose pods no part of FairGPU acts on."""
ResourceName = Annotated[str, Field(pattern=r"^[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9_.]*$", max_length=317)]
ResourcePrefix = Annotated[str, Field(pattern=r"^[a-z0-9][-a-z0-9.]*/[-A-Za-z0-9_.]*$", max_length=317)]
Key = Annotated[str, Field(pattern=r"^([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9][-A-Za-z0-9_.]*$", max_length=317)]
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Account = Annotated[str, Field(pattern=r"^[^\s'\\]+$", max_length=317)]

_AMD_MODES: Final = ("spx", "dpx", "tpx", "qpx", "cpx")
_AMD: Final = (
    "gpu",
    *(f"{mode}_nps{memory}" for mode in _AMD_MODES for memory in (1, 2, 4, 8)),
)
_HAMIS_ASCEND: Final = (
    *("Ascend910A", "Ascend910B2", "Ascend910B3", "Ascend910B4", "Ascend910B4-1", "Ascend910C"),
    "Ascend310P",
)
"""HAMi's names of Ascend's chips (charts/hami/templates/scheduler/device-configmap.yaml)."""
ASCEND_CHIPS: Final = (
    *("Ascend910", "Ascend310", *_HAMIS_ASCEND),
    *("Ascend310P-V", "Ascend310P-VPro", "Ascend310P-IPro"),
)
"""The chips of Ascend that a resource of the prefix `huawei.com/` names."""
ASCEND_TEMPLATES: Final = {
    **{f"Ascend910-{cores}c": 32 // cores for cores in (2, 4, 8, 16)},
    # Atlas A2 and A3: chips of 24 AI cores and more are divided by three, six and twelve, those of 20 by five and ten.
    "Ascend910-3c.1cpu.8g": 8,
    "Ascend910-6c.1cpu.16g": 4,
    "Ascend910-12c.3cpu.32g": 2,
    **dict.fromkeys(("Ascend910-5c.1cpu.8g", "Ascend910-5c.1cpu.16g"), 4),
    **dict.fromkeys(("Ascend910-10c.3cpu.16g", "Ascend910-10c.3cpu.16g.ndvpp"), 2),
    **dict.fromkeys(("Ascend910-10c.3cpu.32g", "Ascend910-10c.4cpu.16g.dvpp"), 2),
    **{f"Ascend310P-{cores}c": 8 // cores for cores in (1, 2, 4)},
    "Ascend310P-2c.1cpu": 4,
    **dict.fromkeys(("Ascend310P-4c.3cpu", "Ascend310P-4c.3cpu.ndvpp", "Ascend310P-4c.4cpu.dvpp"), 2),
}
"""The templates by which MindCluster divides a chip of Ascend, each with the number of such parts that a chip has.

Source: MindCluster, component/ascend-device-plugin/pkg/common/constants.go, and its user guide's table of templates.
"""
ASCEND_CORES: Final = "npu-core"
"""MindCluster's resource for AI cores of a chip that is divided when a pod starts."""
_ASCEND: Final = (*ASCEND_CHIPS, *ASCEND_TEMPLATES, ASCEND_CORES)
_NOT_METERED: Final = frozenset({"aliyun.com/gpu-count", "volcano.sh/gpu-memory", "volcano.sh/gpu-number"})
"""The resources that the share mode's dialects read, but that no present release of their stacks answers with
devices."""
RESOURCES: Final = (
    *sorted(FOREIGN.resources - _NOT_METERED),
    "nvidia.com/gpu.shared",
    *(f"amd.com/{name}" for name in _AMD),
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "habana.ai/gaudi",
    *(f"huawei.com/{name}" for name in _ASCEND),
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neurondevice",
    "aws.amazon.com/neuroncore",
)
DEVICE_CLASSES: Final = (
    "gpu.nvidia.com",
    "mig.nvidia.com",
    "vfio.gpu.nvidia.com",
    "gpu.amd.com",
    "gpu.intel.com",
    "gaudi.intel.com",
    "tpu.google.com",
)
SCHEDULERS_ANNOTATIONS: Final = (
    "hami.io/vgpu-devices-allocated",
    "volcano.sh/vgpu-ids-new",
    "received-resource-type",
    "scheduler.framework.gpushare.allocation",
    "ALIYUN_COM_GPU_MEM_DEV",
    # By these the device plugins give a pod its devices, even if no scheduler has placed it: HAMi v2.10.0,
    # pkg/util/util.go, GetPendingPod; Project-HAMi/volcano-vgpu-device-plugin 4fb76ba, pkg/util/util.go;
    # Project-HAMi/ascend-device-plugin ed35e1c, internal/server/allocate.go.
    "hami.io/vgpu-devices-to-allocate",
    "volcano.sh/devices-to-allocate",
    *(key for chip in _HAMIS_ASCEND for key in (f"huawei.com/{chip}", f"hami.io/{chip}-devices-to-allocate")),
    # HAMi's plugin makes the MIG instance whose profile stands here: HAMi v2.10.0,
    # pkg/device-plugin/nvidiadevice/nvinternal/plugin/util.go, GetContainerDeviceStrArray.
    "hami.io/vgpu-mig-allocations",
)
"""The annotations that state the devices which a pod got or is to get: by them pods are charged, or given devices."""
RESERVATIONS: Final = ("kai-resource-reservation", "runai-reservation")
"""The namespaces of the pods by which KAI only keeps GPUs for others, the second one up to v0.5. They cost nothing."""
LEFT_ALONE: Final = (
    "gpu-operator",
    *RESERVATIONS,
    # A pod that asks for a whole GPU in the name of pods for which no node has a part. KAI writes its status so that an
    # autoscaler sees it: KAI v0.17.0, pkg/nodescaleadjuster/scaler/scaler.go.
    "kai-scale-adjust",
)
"""The namespaces in which stacks have pods of their own that ask for GPUs."""
OF_DEVICE_CLASS: Final = "deviceclass.resource.kubernetes.io/"
"""The prefix of the resource by which a container asks for a device of a DeviceClass without a claim.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/#extended-resource
"""


class Existing(Section):
    """The section `existing`: the GPUs that other stacks share, in clusters and namespaces of the mode `account`."""

    classes: Literal["never", "unnamed", "always"] = "never"
    """The pods that get the priority class of their budget's state: none; those that name no class; all. KAI takes a
    pod with a class value of 100 or more as one that cannot be preempted, and Kueue and Volcano order by the value."""
    resources: tuple[ResourceName, ...] = RESOURCES
    """The resources by which pods ask for GPUs. A resource of your own gets a line in
    `timekeeper.other_stacks.resources`, too, which says what a unit of it is."""
    prefixes: tuple[ResourcePrefix, ...] = ("nvidia.com/mig-",)
    """The beginnings of further resources."""
    annotations: tuple[Key, ...] = tuple(sorted(FOREIGN.requesting_annotations))
    """The annotations by which pods ask for a part of a GPU without a resource."""
    device_classes: tuple[ObjectName, ...] = DEVICE_CLASSES
    """The DeviceClasses of GPUs, for claims of Dynamic Resource Allocation."""
    schedulers_annotations: tuple[Key, ...] = SCHEDULERS_ANNOTATIONS
    """The annotations in which schedulers write what a pod got, or device plugins read what to give it; only `writers`
    may write them, on new pods, too."""
    writers: tuple[Account, ...] = ()
    """The users that may change those annotations, and the ones by which pods ask: schedulers and device plugins.
    Without any, the users that may `update podstatuses.fairgpu.io` in the whole cluster, as they need to write the
    status of GPU pods."""
    gated_schedulers: tuple[ObjectName, ...] = ("default-scheduler", "hami-scheduler", "kai-scheduler", "volcano")
    """The schedulers that leave a pod behind a scheduling gate alone, as kube-scheduler, HAMi's, KAI's from v0.5 and
    Volcano's from v1.11 on do. A pod of any other is refused while its budget is held: add your scheduler once you have
    tried it with a gated pod."""
    left_alone: tuple[ObjectName, ...] = LEFT_ALONE
    """The namespaces whose pods no webhook of FairGPU sees, beside those of the system: operators that check GPUs with
    pods of their own, and pods that only keep a GPU for others, or ask an autoscaler for a node for them. Where pods of
    other stacks are metered, these pods are charged to the account overhead, which has no limit; a budget that names
    such a namespace pays for it instead."""

    @property
    def unseen_namespaces(self) -> tuple[str, ...]:
        """The namespaces whose pods the webhooks never see: those of the system, and those of `left_alone`."""
        return tuple(dict.fromkeys((*SYSTEM, *self.left_alone)))

    @cached_property
    def names(self) -> StackNames:
        """The names by which pods ask for GPUs of other stacks."""
        extended = (f"{OF_DEVICE_CLASS}{name}" for name in self.device_classes)
        return StackNames(frozenset((*self.resources, *extended)), self.prefixes, frozenset(self.annotations))
