"""NVIDIA's device plugin: whole GPUs, replicas of shared ones, and MIG devices.

Sources: labels and resource names as of k8s-device-plugin v0.17 (docs/gpu-feature-discovery/README.md,
internal/lm/resource.go, internal/rm/), MIG profiles as of NVIDIA's MIG User Guide, GKE's labels
(https://cloud.google.com/kubernetes-engine/docs/concepts/timesharing-gpus), Karpenter's
(https://karpenter.sh/docs/concepts/scheduling/, https://learn.microsoft.com/azure/aks/node-auto-provisioning-node-pools)
and EKS Auto Mode's
(https://docs.aws.amazon.com/eks/latest/userguide/create-node-pool.html).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from fairgpu.models import best_key
from timekeeper.domain.holdings.holding import (
    INSTANCE_TYPE,
    NOTHING,
    UNKNOWN_MODEL,
    WHOLE,
    BoundPod,
    Decision,
    Doubt,
    Holding,
    HostNode,
    join,
)

WAY: Final = "nvidia"
GPU: Final = "nvidia.com/gpu"
SHARED_SUFFIX: Final = ".shared"
"""The device plugin's suffix of a shared resource under `renameByDefault`."""
MIG_PREFIX: Final = "nvidia.com/mig-"

PRODUCT: Final = "nvidia.com/gpu.product"
MEMORY: Final = "nvidia.com/gpu.memory"
GPU_COUNT: Final = "nvidia.com/gpu.count"
SHARING: Final = "nvidia.com/gpu.sharing-strategy"
GKE_PARTITION: Final = "cloud.google.com/gke-gpu-partition-size"
GKE_CLIENTS: Final = "cloud.google.com/gke-max-shared-clients-per-gpu"
MODEL_LABELS: Final = (
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
)
"""Labels of clouds that name the model on a node where NVIDIA's feature discovery does not run."""
AZURE_MODEL: Final = "karpenter.azure.com/sku-gpu-name"
"""Karpenter's label on Azure. The instance type takes precedence: the label says A100 for both memory sizes of the
A100.
"""
INSTANCE_MODELS: Final = {
    "p3.": "Tesla V100-SXM2-16GB",
    "p3dn.": "Tesla V100-SXM2-32GB",
    "p4d.": "NVIDIA A100-SXM4-40GB",
    "p4de.": "NVIDIA A100-SXM4-80GB",
    "p5.": "NVIDIA H100 80GB HBM3",
    "p5e.": "NVIDIA H200",
    "p5en.": "NVIDIA H200",
    "p6-b200.": "NVIDIA B200",
    "g4dn.": "Tesla T4",
    "g5.": "NVIDIA A10G",
    "g6.": "NVIDIA L4",
    "g6e.": "NVIDIA L40S",
    "a2-highgpu-": "NVIDIA A100-SXM4-40GB",
    "a2-ultragpu-": "NVIDIA A100-SXM4-80GB",
    "a3-highgpu-": "NVIDIA H100 80GB HBM3",
    "a3-megagpu-": "NVIDIA H100 80GB HBM3",
    "a3-ultragpu-": "NVIDIA H200",
    "a4-highgpu-": "NVIDIA B200",
    "g2-standard-": "NVIDIA L4",
    "Standard_NC4as_T4_v3": "Tesla T4",
    "Standard_NC8as_T4_v3": "Tesla T4",
    "Standard_NC16as_T4_v3": "Tesla T4",
    "Standard_NC64as_T4_v3": "Tesla T4",
    "Standard_NC24ads_A100_v4": "NVIDIA A100 80GB PCIe",
    "Standard_NC48ads_A100_v4": "NVIDIA A100 80GB PCIe",
    "Standard_NC96ads_A100_v4": "NVIDIA A100 80GB PCIe",
    "Standard_ND96asr_v4": "NVIDIA A100-SXM4-40GB",
    "Standard_ND96amsr_A100_v4": "NVIDIA A100-SXM4-80GB",
    "Standard_NC40ads_H100_v5": "NVIDIA H100 NVL",
    "Standard_NC80adis_H100_v5": "NVIDIA H100 NVL",
    "Standard_ND96isr_H100_v5": "NVIDIA H100 80GB HBM3",
    "Standard_ND96isr_H200_v5": "NVIDIA H200",
}
"""The GPU model of cloud instance types, keyed by the start of the type's name, from the clouds' lists of instances."""


@dataclass(frozen=True, slots=True)
class Divisible:
    """A GPU model that MIG divides.

    Attributes:
        slices: the compute slices of the whole GPU.
        memory_gb: the memory of the whole GPU in GB; None if the model's name states it.
    """

    slices: int
    memory_gb: int | None = None


DIVISIBLE: Final = {
    "A100": Divisible(7),
    "A800": Divisible(7),
    "A30": Divisible(4, 24),
    "H100": Divisible(7, 80),
    "H100 NVL": Divisible(7, 94),
    "H100 96GB": Divisible(7, 96),
    "H800": Divisible(7, 80),
    "H20": Divisible(7, 96),
    "H200": Divisible(7, 141),
    "GH200": Divisible(7, 96),
    "B200": Divisible(7, 180),
    "GB200": Divisible(7, 186),
    "RTX PRO 6000": Divisible(4, 96),
    "RTX PRO 5000": Divisible(2, 48),
}
"""The MIG User Guide's tables of supported GPUs and profiles; a key is a run of whole words of the model's name."""
UNKNOWN_DIVISIBLE: Final = Divisible(7)
"""The division that is assumed of a model that no label names: seven slices, as most models have."""

_EIGHTHS: Final = {1: Fraction(1, 8), 2: Fraction(1, 4), 3: Fraction(1, 2)}
"""The share of a GPU's memory that a MIG instance has, keyed by its compute slices, on a GPU of seven slices."""
_PROFILE: Final = re.compile(
    r"(?:(?P<compute>[1-9])c\.)?(?P<slices>[1-9])g\.(?P<memory>[1-9][0-9]{0,3})gb(?:[.+-](?:me|gfx|all))*"
)
_MEMORY_IN_NAME: Final = re.compile(r"(?:^|[ _-])([1-9][0-9]{0,3})GB(?:[ _-]|$)", re.IGNORECASE)
_MIG_IN_PRODUCT: Final = re.compile(r"-MIG-(?P<profile>[^ ]+?)(?:-SHARED)?$")


def decide(pod: BoundPod, node: HostNode) -> Decision:
    """Returns the parts of NVIDIA's GPUs that a pod holds according to its requests to the device plugin.

    A replica of a GPU that n pods share is 1/n of it. A MIG device counts with its part of the GPU's compute slices
    and its part of the GPU's memory. A MIG profile that cannot be read, and labels that exclude each other, raise the
    charge and never lower it. A model that no label names counts as divided by MIG into seven slices.
    """
    asked = {name for name in pod.resources if name in {GPU, GPU + SHARED_SUFFIX} or name.startswith(MIG_PREFIX)}
    if not asked:
        return NOTHING
    model = model_of(node)
    doubts: set[Doubt] = set() if model else {Doubt.MODEL_UNKNOWN}
    holdings = []
    for name in sorted(asked):
        replicas = _replicas(node, name, doubts)
        time, memory = _part(node, name, model, doubts)
        holdings.append(Holding(WAY, model, pod.amount(name), time / replicas, memory / replicas))
    return Decision(join(*holdings), frozenset(doubts), frozenset(asked))


def model_of(node: HostNode) -> str:
    """Returns the model of a node's NVIDIA GPUs, without suffixes such as `-SHARED` and `-MIG-1g.5gb`; empty for none.

    The label of NVIDIA's feature discovery takes precedence over the labels and the instance type of a cloud, because
    it comes from the driver.
    """
    product = node.label(PRODUCT)
    return _MIG_IN_PRODUCT.sub("", product).removesuffix("-SHARED") if product else cloud_model(node)


def cloud_model(node: HostNode) -> str:
    """Returns the model of a node's NVIDIA GPUs that a cloud's labels state; empty for none.

    The labels name the model, or the node's instance type. A cloud writes them with the node, minutes before NVIDIA's
    feature discovery writes how the GPUs are shared. These names differ from all names of feature discovery: so a
    session's model shows whether its holdings were decided before feature discovery had labelled the node.
    """
    named = node.label(*MODEL_LABELS)
    if named:
        return named
    instance = node.label(INSTANCE_TYPE)
    of_instance = next((model for start, model in INSTANCE_MODELS.items() if instance.startswith(start)), "")
    return of_instance or node.label(AZURE_MODEL) or UNKNOWN_MODEL


def memory_mib(node: HostNode) -> int | None:
    """Returns the memory of a whole NVIDIA GPU of a node in MiB; None if no label states it.

    NVIDIA's feature discovery writes the label. On a node that offers MIG devices as GPUs, the label states the memory
    of a MIG device, so that the result is None.
    """
    if _single_profile(node):
        return None  # the label states the memory of a MIG device there
    return node.number(MEMORY) or None


def _replicas(node: HostNode, name: str, doubts: set[Doubt]) -> int:
    """Returns the number of pods that share one device of the resource `name` on a node; 1 if it is not shared.

    Feature discovery writes 0 if sharing is disabled for a resource, and 1 if none is configured. Labels that are
    unreadable or exclude each other add a doubt to `doubts`.
    """
    label = f"{name.removesuffix(SHARED_SUFFIX)}.replicas"
    shared_by_name = name.endswith(SHARED_SUFFIX) or node.label(PRODUCT).endswith("-SHARED")
    if not node.label(label):
        clients = node.number(GKE_CLIENTS)
        inferred = clients if clients is not None else _replicas_by_capacity(node, name)
        if shared_by_name and inferred <= 1:
            doubts.add(Doubt.REPLICAS_UNREADABLE)
        return max(inferred, 1)
    replicas = node.number(label)
    if replicas is None:
        doubts.add(Doubt.REPLICAS_UNREADABLE)
        return 1
    if replicas > 1 and node.label(SHARING) == "none":
        doubts.add(Doubt.LABELS_CONTRADICT)
        return 1
    if replicas <= 1 and shared_by_name:
        doubts.add(Doubt.LABELS_CONTRADICT)
    return max(replicas, 1)


def _replicas_by_capacity(node: HostNode, name: str) -> int:
    """Returns how many units of the resource `name` a node offers for each GPU that it has; 1 if that is not stated."""
    devices = node.number(GPU_COUNT) or 0
    units = node.capacity.get(name, 0)
    return units // devices if devices and name in {GPU, GPU + SHARED_SUFFIX} and units % devices == 0 else 1


def _part(node: HostNode, name: str, model: str, doubts: set[Doubt]) -> tuple[Fraction, Fraction]:
    """Returns the shares of a GPU's time and memory, from 0 to 1, that one device of the resource `name` is.

    A MIG device is a part of a GPU, any other device a whole one; sharing among pods does not count here. Facts that
    are not known are added to `doubts`.
    """
    if name.startswith(MIG_PREFIX):
        base = name.removesuffix(SHARED_SUFFIX)
        own, whole = node.number(f"{base}.memory"), node.number(MEMORY)
        return mig_part(base.removeprefix(MIG_PREFIX), model, own, whole, doubts)
    profile = _single_profile(node)
    return (WHOLE, WHOLE) if not profile else mig_part(profile, model, None, None, doubts)


def _single_profile(node: HostNode) -> str:
    """Returns the MIG profile of the devices that a node offers as `nvidia.com/gpu`; empty if these are whole GPUs."""
    matched = _MIG_IN_PRODUCT.search(node.label(PRODUCT))
    return matched["profile"] if matched else node.label(GKE_PARTITION)


def smallest_instance(model: str, memory: Fraction) -> tuple[Fraction, Fraction] | None:
    """Returns the shares of a GPU's time and memory that belong to its smallest MIG instance with enough memory.

    If none has enough memory, these are the shares of the whole GPU. None for a model that MIG does not divide, or that
    is not known.

    Args:
        model: the GPU's model.
        memory: the share of the GPU's memory that the instance must have, from 0 to 1.
    """
    key = best_key(DIVISIBLE, model)
    if not key:
        return None
    slices = DIVISIBLE[key].slices
    eighths = _EIGHTHS if slices == UNKNOWN_DIVISIBLE.slices else {n: Fraction(n, slices) for n in (1, 2)}
    sizes = ((Fraction(count, slices), share) for count, share in eighths.items() if memory <= share)
    return next(sizes, (WHOLE, WHOLE))


def mig_part(
    profile: str, model: str, own_mib: int | None, whole_mib: int | None, doubts: set[Doubt]
) -> tuple[Fraction, Fraction]:
    """Returns a MIG device's shares of the GPU's time and memory, each from 0 to 1.

    If the memory of the device and that of the GPU are both stated, they count, and not the memory in the profile's
    name. A compute instance `1c.3g.20gb` has a third of the memory of its GPU instance, since three compute instances
    share that memory.

    Args:
        profile: the MIG profile, such as `1g.5gb`.
        model: the GPU's model; empty if it is not known.
        own_mib: the memory of the MIG device in MiB; None if it is not known.
        whole_mib: the memory of the whole GPU in MiB; None if it is not known.
        doubts: the set that a doubt is added to: PROFILE_UNKNOWN if the profile is not known, and the device then
            counts as the whole GPU; SIZE_UNKNOWN if the GPU's memory is not known, and the share of memory then equals
            the share of time.
    """
    matched = _PROFILE.fullmatch(profile)
    if matched is None:
        doubts.add(Doubt.PROFILE_UNKNOWN)
        return WHOLE, WHOLE
    key = best_key(DIVISIBLE, model)
    divisible = DIVISIBLE[key] if key else UNKNOWN_DIVISIBLE
    slices = int(matched["slices"])
    compute = int(matched["compute"] or slices)
    if slices > divisible.slices or compute > slices:
        doubts.add(Doubt.PROFILE_UNKNOWN)
        return WHOLE, WHOLE
    time = Fraction(compute, divisible.slices)
    if own_mib and whole_mib and own_mib <= whole_mib:
        return time, Fraction(own_mib, whole_mib) * Fraction(compute, slices)
    named = _MEMORY_IN_NAME.search(model)
    total = divisible.memory_gb or (int(named[1]) if named else 0)
    if not total:
        doubts.add(Doubt.SIZE_UNKNOWN)
        return time, time
    return time, min(Fraction(int(matched["memory"]), total), WHOLE) * Fraction(compute, slices)
