"""Nodes and pods as plugins and schedulers of other stacks write them, and the parts of GPUs that each pod holds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

A100 = "NVIDIA-A100-SXM4-80GB"
GPU = "nvidia.com/gpu"
KAI_GROUP = {"runai-gpu-group": "4f1d"}
ASCEND = "huawei.com/Ascend910B3"
ASCEND_MEMORY, ASCEND_TIME = f"{ASCEND}-memory", f"{ASCEND}-core"
TEMPLATE = "huawei.com/Ascend910-12c.3cpu.32g"


def registered(model: str, memory: int, cores: int = 100, **more: Any) -> str:
    """Returns HAMi's list of a node's two devices, each with `memory` MiB, `cores` percent and the fields in `more`.

    HAMi's own scheduler counts memory and cores by this list. Here nodes offer both as resources, too, so that the
    stock scheduler binds the pods.
    """
    common = {"count": 10, "devmem": memory, "devcore": cores, "type": model, "health": True}
    return json.dumps([{"id": f"GPU-{at}", "index": at, **common, **more} for at in range(2)])


MIG_PROFILES = [
    {
        "name": name,
        "memoryMB": memory,
        "core": cores,
        "sliceCount": slices,
        "placements": [{"start": start, "size": size} for start in range(0, 8 - size + 1, size)],
    }
    for name, memory, cores, slices, size in (("1g.10gb", 9728, 15, 1, 1), ("3g.40gb", 40448, 43, 3, 4))
]
"""The profiles of a GPU as HAMi's plugin writes them: HAMi v2.10.0, pkg/device-plugin/nvidiadevice/nvinternal/plugin/
register.go, discoverMigProfiles."""


def mig_allocated(profile: str, memory: int, cores: int, size: int) -> dict[str, str]:
    """Returns the annotations that HAMi's scheduler writes on a pod with a MIG instance of the first device.

    Source: HAMi v2.10.0, pkg/device/nvidia/device.go, AddResourceUsage and PatchAnnotations, and mig_allocations.go.
    `memory` is in MiB, `cores` in percent of the GPU, and `size` in slices of the GPU.
    """
    placement = {"start": 0, "size": size}
    of = {"containerIndex": 0, "deviceIndex": 0, "gpuUUID": "GPU-0", "profile": profile, "placement": placement}
    return {
        "hami.io/vgpu-devices-allocated": f"GPU-0,NVIDIA,{memory},{cores}:;",
        "hami.io/vgpu-devices-to-allocate": f"GPU-0,NVIDIA,{memory},{cores}:;",
        "hami.io/vgpu-mig-allocations": json.dumps([of]),
    }


def npu_allocated(memory: int, cores: int, template: str = "") -> dict[str, str]:
    """Returns the annotations that HAMi's scheduler writes on a pod with a part of the first Ascend device.

    Source: HAMi v2.10.0, pkg/device/ascend/device.go, PatchAnnotations. `memory` is in MiB, and `cores` in percent.
    """
    info = {"UUID": "GPU-0", "temp": template, "memory": memory, "core": cores}
    return {
        "hami.io/Ascend910B3-devices-allocated": f"GPU-0,Ascend910B3,{memory},{cores}:;",
        "hami.io/Ascend910B3-devices-to-allocate": f"GPU-0,Ascend910B3,{memory},{cores}:;",
        "huawei.com/Ascend910B3": json.dumps([{key: value for key, value in info.items() if value}]),
    }


def volcano_register(model: str, memory: int, mode: str = "hami-core") -> str:
    """Returns Volcano's list of a node's two devices of `memory` MiB, shared in a mode: `hami-core` or `mig`."""
    return "".join(f"GPU-{at},10,{memory},NVIDIA-{model},true,{mode}:" for at in range(2))


@dataclass(frozen=True)
class Asking:
    """A pod of another stack: its containers' limits, and the annotations and labels that its scheduler wrote.

    `gpus` is the charge at price 1: the sum of its parts of GPUs, each by the larger of its shares of time and memory.
    """

    gpus: Fraction
    limits: tuple[dict[str, str], ...]
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    scheduler: str = ""
    """The name of the pod's scheduler; empty for the stock one."""


@dataclass(frozen=True)
class Stack:
    """A node of one stack, the model that the node names, and pods that may run there, keyed by name."""

    name: str
    model: str
    capacity: dict[str, str]
    labels: dict[str, str]
    pods: dict[str, Asking]
    annotations: dict[str, str] = field(default_factory=dict)


def _one(gpus: str, resource: str, amount: int, **more: str) -> Asking:
    return Asking(Fraction(gpus), ({resource: str(amount), **more},))


_FOUND = {"nvidia.com/gpu.product": A100, "nvidia.com/gpu.memory": "81920"}

STACKS = (
    Stack(
        "nvidia-whole",
        "NVIDIA-H100-80GB-HBM3",
        {GPU: "8"},
        {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.replicas": "1"},
        {"whole": _one("2", GPU, 2), "two": Asking(Fraction(2), ({GPU: "1"}, {GPU: "1"}))},
    ),
    Stack(
        "nvidia-sliced",
        A100,
        {GPU: "32"},
        {
            "nvidia.com/gpu.product": f"{A100}-SHARED",
            "nvidia.com/gpu.replicas": "4",
            "nvidia.com/gpu.sharing-strategy": "time-slicing",
        },
        {"sliced": _one("1/2", GPU, 2)},
    ),
    Stack(
        "nvidia-renamed",
        A100,
        {"nvidia.com/gpu.shared": "16"},
        {"nvidia.com/gpu.product": A100, "nvidia.com/gpu.replicas": "2", "nvidia.com/gpu.sharing-strategy": "mps"},
        {"renamed": _one("1/2", "nvidia.com/gpu.shared", 1)},
    ),
    Stack(
        "nvidia-mixed",
        A100,
        {"nvidia.com/mig-3g.40gb": "2", "nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-1g.10gb.me": "1"},
        {**_FOUND, "nvidia.com/mig.strategy": "mixed", "nvidia.com/gpu.replicas": "0"},
        {
            "half": _one("1/2", "nvidia.com/mig-3g.40gb", 1),
            "seventh": _one("1/7", "nvidia.com/mig-1g.10gb", 1),
            "media": _one("1/7", "nvidia.com/mig-1g.10gb.me", 1),
        },
    ),
    Stack(
        "nvidia-single",
        A100,
        {GPU: "7"},
        {"nvidia.com/gpu.product": f"{A100}-MIG-1g.10gb", "nvidia.com/mig.strategy": "single"},
        {"instance": _one("1/7", GPU, 1)},
    ),
    Stack(
        "gke",
        "nvidia-l4",
        {GPU: "10"},
        {
            "cloud.google.com/gke-accelerator": "nvidia-l4",
            "cloud.google.com/gke-max-shared-clients-per-gpu": "5",
            "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
        },
        {"client": _one("1/5", GPU, 1)},
    ),
    Stack(
        "gke-mig",
        "nvidia-tesla-a100",
        {GPU: "7"},
        {
            "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
            "cloud.google.com/gke-gpu-partition-size": "1g.5gb",
        },
        {"partition": _one("1/7", GPU, 1)},
    ),
    Stack(
        "karpenter",
        "h100",
        {GPU: "8"},
        {"karpenter.k8s.aws/instance-gpu-name": "h100"},
        {"provisioned": _one("1", GPU, 1)},
    ),
    Stack("eks-auto", "l40s", {GPU: "4"}, {"eks.amazonaws.com/instance-gpu-name": "l40s"}, {"auto": _one("1", GPU, 1)}),
    Stack(
        "aks",
        "NVIDIA A100 80GB PCIe",
        {GPU: "1"},
        {"node.kubernetes.io/instance-type": "Standard_NC24ads_A100_v4"},
        {"azure": _one("1", GPU, 1)},
    ),
    Stack("aks-auto", "T4", {GPU: "1"}, {"karpenter.azure.com/sku-gpu-name": "T4"}, {"sku": _one("1", GPU, 1)}),
    Stack(
        "eks",
        "NVIDIA A10G",
        {GPU: "4"},
        {"node.kubernetes.io/instance-type": "g5.12xlarge"},
        {"cloud": _one("1", GPU, 1)},
    ),
    Stack(
        "hami",
        "NVIDIA A10",
        {GPU: "20", "nvidia.com/gpumem": "245760", "nvidia.com/gpucores": "2000"},
        {"gpu": "on"},
        {
            "vgpu": Asking(
                Fraction(1, 4),
                ({GPU: "1", "nvidia.com/gpumem": "6144", "nvidia.com/gpucores": "25"},),
                {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,6144,25:;"},
            ),
            "shrunk": Asking(
                Fraction(1, 2),
                ({GPU: "1", "nvidia.com/gpumem": "12288"},),
                {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,1,0:;"},
            ),
        },
        {"hami.io/node-nvidia-register": registered("NVIDIA A10", 24576)},
    ),
    Stack(
        "hami-mig",
        "NVIDIA A100-SXM4-80GB",
        {GPU: "14", "nvidia.com/gpumem": "163840", "nvidia.com/gpucores": "200"},
        {"gpu": "on"},
        {
            "smallest": Asking(
                Fraction(15, 100), ({GPU: "1", "nvidia.com/gpumem": "8000"},), mig_allocated("1g.10gb", 9728, 15, 1)
            ),
            "larger": Asking(
                Fraction(40448, 81920),
                ({GPU: "1", "nvidia.com/gpumem": "30000"},),
                mig_allocated("3g.40gb", 40448, 43, 4),
            ),
        },
        {
            "hami.io/node-nvidia-register": registered(
                "NVIDIA A100-SXM4-80GB", 81920, mode="mig", migProfiles=MIG_PROFILES
            )
        },
    ),
    Stack(
        "volcano",
        "Tesla V100",
        {"volcano.sh/vgpu-number": "20", "volcano.sh/vgpu-memory": "32000", "volcano.sh/vgpu-cores": "200"},
        {},
        {
            "volcanic": Asking(
                Fraction(1),
                (
                    {
                        "volcano.sh/vgpu-number": "2",
                        "volcano.sh/vgpu-memory": "3000",
                        "volcano.sh/vgpu-cores": "50",
                    },
                ),
                {"volcano.sh/vgpu-ids-new": "GPU-0,NVIDIA,3000,50:GPU-1,NVIDIA,3000,50:"},
            )
        },
        {"volcano.sh/node-vgpu-register": volcano_register("Tesla V100", 16000)},
    ),
    Stack(
        "volcano-mig",
        "NVIDIA A100-SXM4-80GB",
        {"volcano.sh/vgpu-number": "20", "volcano.sh/vgpu-memory": "163840"},
        {},
        {
            "placed": Asking(
                Fraction(1, 7),
                ({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "8000"},),
                {"volcano.sh/vgpu-ids-new": "GPU-0[group1-0],NVIDIA,8000,0:"},
            )
        },
        {"volcano.sh/node-vgpu-register": volcano_register("NVIDIA A100-SXM4-80GB", 81920, "mig")},
    ),
    Stack(
        "kai",
        A100,
        {GPU: "8"},
        _FOUND,
        {
            "fraction": Asking(Fraction(1, 2), ({},), {"gpu-fraction": "0.5"}, KAI_GROUP, "kai-scheduler"),
            "memory": Asking(Fraction(1, 4), ({},), {"gpu-memory": "20480"}, KAI_GROUP, "kai-scheduler"),
        },
    ),
    Stack(
        "aliyun",
        "Tesla-T4",
        {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "2"},
        {"aliyun.accelerator/nvidia_name": "Tesla-T4"},
        {"gpushare": _one("1/2", "aliyun.com/gpu-mem", 8)},
    ),
    Stack(
        "gpu-manager",
        "Tesla-T4",
        {"tencent.com/vcuda-core": "400", "tencent.com/vcuda-memory": "240"},
        {"nvidia.com/gpu.product": "Tesla-T4"},
        {
            "blocks": _one("1/2", "tencent.com/vcuda-core", 20, **{"tencent.com/vcuda-memory": "30"}),
            "pair": Asking(Fraction(6, 5), ({"tencent.com/vcuda-core": "60"}, {"tencent.com/vcuda-core": "60"})),
            "devices": _one("2", "tencent.com/vcuda-core", 200),
        },
    ),
    Stack(
        "amd",
        "AMD_Instinct_MI300X_OAM",
        {"amd.com/gpu": "8"},
        {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"},
        {"instinct": _one("2", "amd.com/gpu", 2)},
    ),
    Stack(
        "amd-partitioned",
        "AMD_Instinct_MI300X_OAM",
        {"amd.com/cpx_nps4": "64"},
        {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"},
        {"xcd": _one("1/8", "amd.com/cpx_nps4", 1)},
    ),
    Stack(
        "intel",
        "Max_1550",
        {"gpu.intel.com/i915": "8"},
        {"gpu.intel.com/product": "Max_1550", "gpu.intel.com/device.count": "4"},
        {"tile": _one("1/2", "gpu.intel.com/i915", 1)},
    ),
    Stack(
        "intel-managed",
        "Flex_170",
        {
            "gpu.intel.com/i915": "600",
            "gpu.intel.com/millicores": "2000",
            "gpu.intel.com/tiles": "4",
            "gpu.intel.com/memory.max": str(2 * 16 * 2**30),
        },
        {"gpu.intel.com/product": "Flex_170", "gpu.intel.com/device.count": "2"},
        {
            "millicores": _one("1/4", "gpu.intel.com/i915", 1, **{"gpu.intel.com/millicores": "250"}),
            "tiled": _one("1/2", "gpu.intel.com/i915", 1, **{"gpu.intel.com/tiles": "1"}),
            "video": _one("1/8", "gpu.intel.com/i915", 1, **{"gpu.intel.com/memory.max": str(2 * 2**30)}),
        },
    ),
    Stack("gaudi", "Gaudi", {"habana.ai/gaudi": "8"}, {}, {"gaudi": _one("1", "habana.ai/gaudi", 1)}),
    Stack(
        "ascend",
        "910B3",
        {ASCEND: "8", ASCEND_MEMORY: "524288"},
        {"node.kubernetes.io/npu.chip.name": "910B3"},
        {
            "chip": _one("1", ASCEND, 1),
            "template": Asking(
                Fraction(1, 4), ({ASCEND: "1", ASCEND_MEMORY: "16384"},), npu_allocated(16384, 0, "vir05_1c_16g")
            ),
            "templates": Asking(Fraction(1, 2), ({ASCEND: "1", ASCEND_MEMORY: "16384"},) * 2),
        },
        {"hami.io/node-register-Ascend910B3": registered("Ascend910B3", 65536, 20)},
    ),
    Stack(
        "ascend-soft",
        "910B3",
        {ASCEND: "20", ASCEND_MEMORY: "131072", ASCEND_TIME: "200"},
        {"node.kubernetes.io/npu.chip.name": "910B3"},
        {
            "soft": Asking(
                Fraction(4, 5),
                ({ASCEND: "1", ASCEND_MEMORY: "16384", ASCEND_TIME: "80"},),
                {"huawei.com/vnpu-mode": "hami-core", **npu_allocated(16384, 80)},
            )
        },
        {"hami.io/node-register-Ascend910B3": registered("Ascend910B3", 65536), "hami-vnpu-core": "true"},
    ),
    Stack(
        "ascend-templates",
        "910B1",
        {TEMPLATE: "8"},
        {"node.kubernetes.io/npu.chip.name": "910B1"},
        {"vir12": _one("1/2", TEMPLATE, 1)},
    ),
    Stack(
        "tpu",
        "tpu-v5-lite-podslice",
        {"google.com/tpu": "4"},
        {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"},
        {"tpu": _one("4", "google.com/tpu", 4)},
    ),
    Stack(
        "neuron",
        "trn1.32xlarge",
        {"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "32"},
        {"node.kubernetes.io/instance-type": "trn1.32xlarge"},
        {"core": _one("1/2", "aws.amazon.com/neuroncore", 1), "inferentia": _one("1", "aws.amazon.com/neuron", 1)},
    ),
    Stack(
        "own",
        "NPU-9",
        {"example.com/npu": "16"},
        {"example.com/npu.product": "NPU-9"},
        {"npu": _one("1/4", "example.com/npu", 1)},
    ),
    Stack(
        "unknown",
        "",
        {"nvidia.com/mig-9z.99gb": "4"},
        {},
        {"strange": _one("1", "nvidia.com/mig-9z.99gb", 1)},
    ),
)
"""A node of each stack, with pods for each way in which the stack's users request GPUs."""

OWN_LINE: dict[str, Any] = {"parts": 4, "model_labels": ["example.com/npu.product"]}
"""The admin's setting for the resource `example.com/npu`."""
