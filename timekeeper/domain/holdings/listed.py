"""Accelerators that a table describes: those of other vendors, and those that an admin lists in the settings.

Sources, by vendor:

- AMD: ROCm/k8s-device-plugin v1.31.0.9, docs/user-guide/configuration.md (resource naming strategies) and
  cmd/k8s-node-labeller/main.go (labels; that page names the one of the partition without `gpu.`).
- Intel: intel-device-plugins-for-kubernetes v0.35, cmd/gpu_plugin/README.md and cmd/gpu_plugin/labels.md.
- Gaudi: docs.habana.ai, Intel Gaudi Device Plugin for Kubernetes; the instance type names the model on EKS.
- Ascend: MindCluster 6.0, component/ascend-device-plugin/pkg/common/constants.go (`node.kubernetes.io/npu.chip.name`,
  names of partitions), HAMi's ascend-device-plugin v1.4, ascend-device-configmap.yaml (names of resources) and
  internal/server/register.go (the node's annotation), and HAMi v2.10, pkg/device/ascend/device.go (memory and cores).
- TPU: https://cloud.google.com/kubernetes-engine/docs/concepts/tpus.
- Neuron: https://awsdocs-neuron.readthedocs-hosted.com, Neuron device plugin: a `neuron` is a device with all of its
  cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from fairgpu.existing import ASCEND_CHIPS, ASCEND_CORES, ASCEND_TEMPLATES
from timekeeper.domain.holdings.hami import decode_lists
from timekeeper.domain.holdings.holding import (
    INSTANCE_TYPE,
    NOTHING,
    WHOLE,
    BoundPod,
    Container,
    Decision,
    Doubt,
    Holding,
    HostNode,
    held_at_once,
    join,
    spread,
)


@dataclass(frozen=True, slots=True)
class Listed:
    """The part of an accelerator that a unit of an extended resource stands for, and where its model is stated.

    Attributes:
        way: the name of the stack or vendor.
        parts: the number of units that make up a whole device.
        devices: the resource or label of a node that states the number of whole devices among which the node's units
            are divided; it takes precedence over `parts`. Empty for none.
        whole: the resource whose unit is a whole device of the same kind; empty for none. If a pod requests both,
            this resource is a part of that device and is not billed by itself.
        model_labels: the node's labels that name the model; the first one that a node has counts.
        model: the model if no label names it; empty for none.
    """

    way: str
    parts: int = 1
    devices: str = ""
    whole: str = ""
    model_labels: tuple[str, ...] = ()
    model: str = ""


_AMD_LABELS: Final = ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
INTEL_GPUS: Final = ("gpu.intel.com/i915", "gpu.intel.com/xe")
"""The resources for Intel's GPUs, one for each kernel driver that serves GPUs."""
_INTEL_LABELS: Final = ("gpu.intel.com/product", "gpu.intel.com/family")
_ASCEND_LABELS: Final = ("node.kubernetes.io/npu.chip.name", "accelerator")
AMD_PARTITION: Final = ("amd.com/gpu.compute-memory-partition", "amd.com/compute-memory-partition")
AMD_PARTS: Final = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4, "cpx": 8}
"""The number of partitions of an AMD GPU, keyed by compute mode. CPX has one for each XCD: eight on an MI300X."""
AMD_XCDS: Final = {"MI300A": 6}

TABLE: Final[Mapping[str, Listed]] = {
    "amd.com/gpu": Listed("amd", model_labels=_AMD_LABELS),
    **{
        f"amd.com/{compute}_nps{memory}": Listed("amd", parts=parts, model_labels=_AMD_LABELS)
        for compute, parts in AMD_PARTS.items()
        for memory in (1, 2, 4, 8)
    },
    **{name: Listed("intel", devices="gpu.intel.com/device.count", model_labels=_INTEL_LABELS) for name in INTEL_GPUS},
    "habana.ai/gaudi": Listed("gaudi", model_labels=(INSTANCE_TYPE,), model="Gaudi"),
    **{f"huawei.com/{chip}": Listed("ascend", model_labels=_ASCEND_LABELS, model=chip) for chip in ASCEND_CHIPS},
    **{
        f"huawei.com/{template}": Listed("ascend", parts, model_labels=_ASCEND_LABELS, model=template.partition("-")[0])
        for template, parts in ASCEND_TEMPLATES.items()
    },
    # The fewest AI cores of any chip: a node does not state how many its chips have.
    f"huawei.com/{ASCEND_CORES}": Listed("ascend", 8, model_labels=_ASCEND_LABELS),
    "google.com/tpu": Listed("tpu", model_labels=("cloud.google.com/gke-tpu-accelerator",)),
    "aws.amazon.com/neuron": Listed("neuron", model_labels=(INSTANCE_TYPE,)),
    "aws.amazon.com/neurondevice": Listed("neuron", model_labels=(INSTANCE_TYPE,)),
    "aws.amazon.com/neuroncore": Listed(
        "neuron",
        parts=2,
        devices="aws.amazon.com/neuron",
        whole="aws.amazon.com/neuron",
        model_labels=(INSTANCE_TYPE,),
    ),
}
"""FairGPU's own table, keyed by the name of the resource. These vendors' other resources hold no device."""

MILLICORES: Final = "gpu.intel.com/millicores"
"""The resource for thousandths of a GPU, summed over a pod's GPUs, by which Intel's resource manager gives parts.

A node with this manager offers hundreds of units of each GPU, so a unit does not state which part it is. Source:
intel-device-plugins-for-kubernetes v0.30 (deprecated later), cmd/gpu_plugin/fractional.md and labels.md.
"""
INTEL_SHARES: Final = ("gpu.intel.com/tiles", "gpu.intel.com/memory.max")
"""The resources for tiles and for bytes of memory of Intel's resource manager; a node offers the sum of its GPUs."""
INTEL_SIZES: Final = frozenset({MILLICORES, *INTEL_SHARES})

ASCEND_MEMORY: Final = "-memory"
"""HAMi's suffix of the resource for the memory of each Ascend device, in MiB."""
ASCEND_TIME: Final = "-core"
"""HAMi's suffix of the resource for the time of each Ascend device, in percent. Only its soft split has it."""
ASCEND_SIZES: Final = (ASCEND_MEMORY, ASCEND_TIME)
_SOFT_SPLIT: Final = 100
"""The cores that HAMi registers for each device of a node with the soft split; on other nodes it registers the AI
cores.
"""
ASCEND_REGISTER: Final = "hami.io/node-register-Ascend"
"""The prefix of HAMi's annotations on a node. The chip's name follows, and the value lists the node's devices of that
chip.
"""
ASCEND: Final = "huawei.com/Ascend"
"""The prefix of the resources for Ascend chips. The chip's name follows, as in the annotation."""


def model_of(entry: Listed, node: HostNode) -> str:
    """Returns the model of a resource's devices on a node; empty if neither the node nor the resource names one.

    The node's labels come first.
    """
    return node.label(*entry.model_labels) or entry.model


def default_models(table: Mapping[str, Listed]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Returns the node labels that name the model of a table's resources, keyed by (stack, default model).

    The default model counts on a node without these labels. Resources without a default model are left out.
    """
    return {(entry.way, entry.model): entry.model_labels for entry in table.values() if entry.model}


def decide(pod: BoundPod, node: HostNode, table: Mapping[str, Listed]) -> Decision:
    """Returns the parts of devices that a pod holds through the resources of a table, on as few devices as suffice.

    Args:
        table: keyed by the name of an extended resource, the part of a device that a unit of it stands for.
    """
    asked = pod.resources & table.keys()
    if not asked:
        return NOTHING
    doubts: set[Doubt] = set()
    holdings: list[Holding] = []
    covered = set(asked)
    for name in sorted(asked):
        entry = table[name]
        if entry.whole in asked:
            continue
        model = model_of(entry, node)
        if not model:
            doubts.add(Doubt.MODEL_UNKNOWN)
        sizes = {f"{name}{suffix}" for suffix in ASCEND_SIZES} & pod.resources
        if sizes:
            covered |= sizes
            holdings += _of_hamis_ascend(pod, node, name, Holding(entry.way, model, 0, WHOLE, WHOLE), doubts)
            continue
        devices = Fraction(pod.amount(name), _units_of_a_device(name, entry, model, node, doubts))
        if entry.way == "intel" and not INTEL_SIZES.isdisjoint(pod.resources | node.capacity.keys()):
            covered |= INTEL_SIZES & pod.resources
            devices = max(devices, _of_intels_manager(pod, node, name, doubts))
        count, part = spread(devices)
        holdings.append(Holding(entry.way, model, count, part, part))
    return Decision(join(*holdings), frozenset(doubts), frozenset(covered))


def _of_intels_manager(pod: BoundPod, node: HostNode, name: str, doubts: set[Doubt]) -> Fraction:
    """Returns the GPUs that a pod asks Intel's resource manager for: the most of its millicores, tiles and memory.

    A container's millicores, tiles and memory count for each of the two GPU resources that it asks for: if it asks for
    both, nothing states how they are divided. If the node does not state its tiles or memory, each unit of the resource
    `name` counts as a whole GPU. Each unit of a container that asks for none of the three counts as a whole GPU, too:
    nothing bounds its use. Facts that are not known are added to `doubts`.
    """
    if any(all(item.resources.get(driver) for driver in INTEL_GPUS) for item in (*pod.containers, *pod.init)):
        doubts.add(Doubt.SIZE_UNKNOWN)
    pod = _kept(pod, lambda item: bool(item.resources.get(name)))
    unsized = _kept(pod, lambda item: not any(item.resources.get(size) for size in INTEL_SIZES)).amount(name)
    if unsized:
        doubts.add(Doubt.SIZE_UNKNOWN)
    parts = [Fraction(pod.amount(MILLICORES), 1000)]
    for size in INTEL_SHARES:
        if size in pod.resources:
            gpus, offered = _devices(TABLE[name], node), node.capacity.get(size, 0) or node.number(size) or 0
            if not gpus or not offered:
                doubts.add(Doubt.SIZE_UNKNOWN)
            parts.append(Fraction(pod.amount(size) * gpus, offered) if gpus and offered else Fraction(pod.amount(name)))
    return max(parts) + unsized


def _kept(pod: BoundPod, keeps: Callable[[Container], bool]) -> BoundPod:
    """Returns a copy of the pod with the requests of only those containers for which `keeps` returns True."""

    def chosen(containers: Iterable[Container]) -> tuple[Container, ...]:
        return tuple(item if keeps(item) else Container({}, item.keeps_running) for item in containers)

    return replace(pod, containers=chosen(pod.containers), init=chosen(pod.init))


def _devices(entry: Listed, node: HostNode) -> int:
    """Returns the number of whole devices of a resource that a node states; 0 if it states none."""
    stated = node.capacity.get(entry.devices, 0) or node.number(entry.devices) or 0
    return stated or (node.capacity.get(MILLICORES, 0) // 1000 if entry.way == "intel" else 0)


def _units_of_a_device(name: str, entry: Listed, model: str, node: HostNode, doubts: set[Doubt]) -> int:
    """Returns how many units of the resource `name` are one device of the node; adds contradictions to `doubts`."""
    if entry.way == "amd":
        # Under the naming strategy `single`, `amd.com/gpu` stands for the partitions of a GPU, too.
        mode = name.removeprefix("amd.com/") if "_nps" in name else node.label(*AMD_PARTITION)
        return amd_parts(mode, model, doubts)
    devices = _devices(entry, node)
    # Labels count the GPUs of both of Intel's drivers together, and the plugin divides each GPU into as many units.
    units = sum(node.capacity.get(one, 0) for one in (INTEL_GPUS if name in INTEL_GPUS else (name,)))
    if not devices or units < devices:
        return entry.parts
    if units % devices:
        doubts.add(Doubt.LABELS_CONTRADICT)
    return units // devices


def amd_parts(mode: str, model: str, doubts: set[Doubt]) -> int:
    """Returns the number of partitions of an AMD GPU.

    It is 1 without a mode, and also for a mode of compute that AMD_PARTS lacks: a partition in an unknown mode is
    charged as a whole GPU.

    Args:
        mode: the GPU's modes of compute and memory, such as `cpx_nps4`; empty for none.
        model: the GPU's model, by which AMD_XCDS corrects the number in the mode `cpx`.
        doubts: the set to which PROFILE_UNKNOWN is added if AMD_PARTS lacks the mode of compute.
    """
    compute = mode.partition("_")[0].lower()
    if compute == "cpx":
        return next((count for key, count in AMD_XCDS.items() if key in model), AMD_PARTS["cpx"])
    if compute and compute not in AMD_PARTS:
        doubts.add(Doubt.PROFILE_UNKNOWN)
    return AMD_PARTS.get(compute, 1)


def _of_hamis_ascend(
    pod: BoundPod, node: HostNode, name: str, whole: Holding, doubts: set[Doubt]
) -> tuple[Holding, ...]:
    """Returns the parts of Ascend devices that a pod asks HAMi for; no two containers share a part.

    A container holds the same share of each of its devices. Without a request for memory it holds all memory. HAMi's
    hard split divides time as it divides memory; its soft split bounds time by the resource for time alone.

    Args:
        name: the resource for the number of devices.
        whole: a holding with the stack, the model, the shares of a whole device, and the count 0. The results are
            copies of it with other counts and shares.
        doubts: the set that SIZE_UNKNOWN is added to if the node registers no devices: each device then counts as
            whole.
    """
    register = node.annotations.get(f"{ASCEND_REGISTER}{name.removeprefix(ASCEND)}")
    registered = (decode_lists(register, None).node or {}).values()
    smallest = min((device.memory for device in registered), default=0)
    soft = any(device.cores == _SOFT_SPLIT for device in registered)
    if not smallest:
        doubts.add(Doubt.SIZE_UNKNOWN)

    def part(container: Container) -> Holding:
        asked, count = container.resources, container.resources.get(name, 0)
        if not smallest:
            return replace(whole, count=count)
        mib = asked.get(f"{name}{ASCEND_MEMORY}", 0)
        memory = min(Fraction(mib, smallest), WHOLE) if mib else WHOLE
        time = min(Fraction(asked.get(f"{name}{ASCEND_TIME}", 0), 100), WHOLE)
        return replace(whole, count=count, time=time if soft else max(time, memory), memory=memory)

    return held_at_once(pod, part)
