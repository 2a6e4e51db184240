"""The cost of pods and claims of other stacks, computed independently from recorded objects and arrival times.

It shares no code with the timekeeper: one short rule for each stack. A part is (model, count, share of a GPU).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any

Json = Mapping[str, Any]
Part = tuple[str, int, Fraction]
SLICES = {"A100": 7, "H100": 7, "A30": 4}
MEMORY = {"A100": 80, "H100": 80, "A30": 24}
SECOND = 10**9
PROVISIONAL = 600 * SECOND


def nanoseconds(stamp: str) -> int:
    """Converts a time of the API server to nanoseconds since 1970."""
    moment = datetime.fromisoformat(stamp)
    return int(moment.timestamp()) * SECOND + moment.microsecond * 1000


def price_of(model: str, prices: Mapping[str, Fraction]) -> Fraction:
    """Returns the price whose key is a word of the model's name, in any case; else the price of `*`."""
    words = re.split(r"[ _-]", model.lower())
    return next((price for key, price in prices.items() if key.lower() in words), prices["*"])


def rate(parts: list[Part], prices: Mapping[str, Fraction]) -> int:
    """Returns the rate in microGPU-seconds a second; each part is rounded up."""
    return sum(count * math.ceil(1_000_000 * price_of(model, prices) * share) for model, count, share in parts)


class Seen:
    """A pod and its node as a watcher saw them: the requested resources, and the labels and annotations of both."""

    def __init__(self, pod: Json, node: Json) -> None:
        self.pod_labels = pod["metadata"].get("labels", {})
        self.written = pod["metadata"].get("annotations", {})
        self.labels, self.notes = node["metadata"].get("labels", {}), node["metadata"].get("annotations", {})
        self.capacity = {name: int(amount) for name, amount in node["status"]["capacity"].items()}
        self.asked = [
            {name: int(amount) for name, amount in item.get("resources", {}).get("limits", {}).items()}
            for item in pod["spec"]["containers"]
        ]
        self.total = {name: sum(each.get(name, 0) for each in self.asked) for each in self.asked for name in each}
        self.product = self.labels.get("nvidia.com/gpu.product", "")
        self.nvidia = re.sub(r"(-MIG-[^ ]*?)?(-SHARED)?$", "", self.product)


def parts_of_pod(pod: Json, node: Json) -> list[Part]:
    """Returns the parts of GPUs that a pod holds on a node, by one rule for each stack; claims are left out."""
    if "extendedResourceClaimStatus" in pod["status"]:
        return []
    seen = Seen(pod, node)
    if "gpu-fraction" in seen.written or "gpu-memory" in seen.written:
        return _kai(seen)
    if "hami.io/node-nvidia-register" in seen.notes and "nvidia.com/gpu" in seen.total:
        return _hami(seen)
    special = {"volcano.sh/vgpu-number": _volcano, "aliyun.com/gpu-mem": _aliyun, "tencent.com/vcuda-core": _tencent}
    for name, rule in special.items():
        if name in seen.total:
            return rule(seen)
    return [part for name, amount in seen.total.items() for part in _of_resource(seen, name, amount)]


def _kai(seen: Seen) -> list[Part]:
    if not seen.pod_labels.get("runai-gpu-group"):
        return []
    share = Fraction(seen.written.get("gpu-fraction", "0")) or Fraction(
        int(seen.written["gpu-memory"]), int(seen.labels["nvidia.com/gpu.memory"])
    )
    return [(seen.nvidia, 1, share)]


def _hami(seen: Seen) -> list[Part]:
    (device, *_) = json.loads(seen.notes["hami.io/node-nvidia-register"])
    memory, cores = seen.total.get("nvidia.com/gpumem", 0), seen.total.get("nvidia.com/gpucores", 0)
    found = re.findall(r"GPU-\d+,NVIDIA,(\d+),(\d+)", seen.written.get("hami.io/vgpu-devices-allocated", ""))
    sizes = [
        max(Fraction(max(int(given), memory), device["devmem"]), Fraction(max(int(core), cores), 100))
        for given, core in found
    ]
    lacking = seen.total["nvidia.com/gpu"] - len(sizes)
    requested = max(Fraction(memory or device["devmem"], device["devmem"]), Fraction(cores, 100))
    return [(device["type"], 1, size) for size in [*sizes, *[requested] * lacking]]


def _volcano(seen: Seen) -> list[Part]:
    _, _, memory, model, *_ = seen.notes["volcano.sh/node-vgpu-register"].split(",")
    of_memory = Fraction(seen.total["volcano.sh/vgpu-memory"], int(memory))
    share = max(of_memory, Fraction(seen.total.get("volcano.sh/vgpu-cores", 0), 100))
    if "[" in seen.written.get("volcano.sh/vgpu-ids-new", ""):
        instances = {Fraction(1, 8): Fraction(1, 7), Fraction(1, 4): Fraction(2, 7), Fraction(1, 2): Fraction(1, 2)}
        share = max(share, next((part for most, part in instances.items() if of_memory <= most), Fraction(1)))
    return [(model.removeprefix("NVIDIA-"), seen.total["volcano.sh/vgpu-number"], share)]


def _aliyun(seen: Seen) -> list[Part]:
    of_device = seen.capacity["aliyun.com/gpu-mem"] // seen.capacity["aliyun.com/gpu-count"]
    share = Fraction(seen.total["aliyun.com/gpu-mem"], of_device)
    return [(seen.labels["aliyun.accelerator/nvidia_name"], 1, share)]


def _tencent(seen: Seen) -> list[Part]:
    blocks = seen.capacity["tencent.com/vcuda-memory"] // (seen.capacity["tencent.com/vcuda-core"] // 100)
    found = []
    for each in seen.asked:
        core = each["tencent.com/vcuda-core"]
        of_memory = Fraction(each.get("tencent.com/vcuda-memory", 0), blocks)
        whole = core >= 100
        found.append(
            (seen.nvidia, core // 100 if whole else 1, Fraction(1) if whole else max(Fraction(core, 100), of_memory))
        )
    return found


def _of_resource(seen: Seen, name: str, amount: int) -> list[Part]:
    labels = seen.labels
    if name.startswith("nvidia.com/"):
        return [_of_nvidia(seen, name, amount)]
    if name == "gpu.intel.com/i915" and (managed := _of_intels_manager(seen)):
        return [(labels["gpu.intel.com/product"], 1, managed)]
    if name == "gpu.intel.com/i915":
        tiles = seen.capacity[name] // int(labels["gpu.intel.com/device.count"])
        sizes = [tiles] * (amount // tiles) + [amount % tiles] * (amount % tiles > 0)
        return [(labels["gpu.intel.com/product"], 1, Fraction(size, tiles)) for size in sizes]
    if name == "huawei.com/Ascend910B3":
        (device, *_) = json.loads(seen.notes["hami.io/node-register-Ascend910B3"])
        model = labels["node.kubernetes.io/npu.chip.name"]
        return [(model, each[name], _of_ascend(each, name, device["devmem"])) for each in seen.asked if name in each]
    simple = {
        "amd.com/gpu": (labels.get("amd.com/gpu.product-name", ""), 1),
        "amd.com/cpx_nps4": (labels.get("amd.com/gpu.product-name", ""), 8),
        "habana.ai/gaudi": ("Gaudi", 1),
        "huawei.com/Ascend910-12c.3cpu.32g": (labels.get("node.kubernetes.io/npu.chip.name", ""), 2),
        "google.com/tpu": (labels.get("cloud.google.com/gke-tpu-accelerator", ""), 1),
        "aws.amazon.com/neuron": (labels.get("node.kubernetes.io/instance-type", ""), 1),
        "aws.amazon.com/neuroncore": (labels.get("node.kubernetes.io/instance-type", ""), 2),
        "example.com/npu": (labels.get("example.com/npu.product", ""), 4),
    }
    return [(simple[name][0], amount, Fraction(1, simple[name][1]))] if name in simple else []


def _of_ascend(asked: Mapping[str, int], name: str, memory_mib: int) -> Fraction:
    memory = Fraction(asked.get(f"{name}-memory", memory_mib), memory_mib)
    return max(memory, Fraction(asked.get(f"{name}-core", 0), 100))


def _of_intels_manager(seen: Seen) -> Fraction:
    """Returns the part of one GPU, of the two that the node has; 0 if the pod states no share."""
    asked, offered = seen.total, seen.capacity
    of_time = Fraction(asked.get("gpu.intel.com/millicores", 0), 1000)
    shares = ("gpu.intel.com/tiles", "gpu.intel.com/memory.max")
    return max([of_time, *(Fraction(2 * asked[name], offered[name]) for name in shares if name in asked)])


def _of_nvidia(seen: Seen, name: str, amount: int) -> Part:
    labels = seen.labels
    if name.startswith("nvidia.com/mig-"):
        return seen.nvidia, amount, _mig(name.removeprefix("nvidia.com/mig-"), seen.nvidia)
    within = re.search(r"-MIG-([0-9a-z.]+)", seen.product)
    profile = within[1] if within else labels.get("cloud.google.com/gke-gpu-partition-size", "")
    share = _mig(profile, seen.nvidia) if profile else Fraction(1)
    stated = labels.get("nvidia.com/gpu.replicas", labels.get("cloud.google.com/gke-max-shared-clients-per-gpu"))
    replicas = int(stated) if stated and stated.isdigit() else 1
    return seen.nvidia or _cloud(labels), amount, share / max(replicas, 1)


def _cloud(labels: Mapping[str, str]) -> str:
    """Returns the model that a cloud's labels name; empty for none."""
    for key in (
        "cloud.google.com/gke-accelerator",
        "karpenter.k8s.aws/instance-gpu-name",
        "eks.amazonaws.com/instance-gpu-name",
        "karpenter.azure.com/sku-gpu-name",
    ):
        if key in labels:
            return labels[key]
    instances = {"g5.12xlarge": "NVIDIA A10G", "Standard_NC24ads_A100_v4": "NVIDIA A100 80GB PCIe"}
    return instances.get(labels.get("node.kubernetes.io/instance-type", ""), "")


def parts_of_claim(claim: Json, slices: Sequence[Json]) -> list[Part]:
    """Returns the parts that a claim holds of the devices in some slices, by one rule for each way to divide one.

    A device of a driver other than those of GPUs costs nothing, and neither does administrative access.
    """
    found = []
    for result in claim["status"].get("allocation", {}).get("devices", {}).get("results", []):
        if result.get("adminAccess") or result["driver"] not in {"gpu.nvidia.com", "gpu.amd.com"}:
            continue
        (spec,) = (one["spec"] for one in slices if one["spec"]["pool"]["name"] == result["pool"])
        (device,) = (one for one in spec["devices"] if one["name"] == result["device"])
        (model,) = device["attributes"]["productName"].values()
        found.append((model, 1, _share_of_device(device, spec, result)))
    return found


def _share_of_device(device: Json, spec: Json, result: Json) -> Fraction:
    if device.get("allowMultipleAllocations"):
        (whole,) = device["capacity"]["memory"].values()
        return Fraction(_gib(result["consumedCapacity"]["memory"]), _gib(whole))
    for taken in device.get("consumesCounters", []):
        (totals,) = (one["counters"] for one in spec["sharedCounters"] if one["name"] == taken["counterSet"])
        used = taken["counters"]
        of_memory = Fraction(_gib(used["memory"]["value"]), _gib(totals["memory"]["value"]))
        compute = "multiprocessors"
        return max(of_memory, Fraction(int(used[compute]["value"]), int(totals[compute]["value"])))
    profile = device["attributes"].get("partitionProfile", {}).get("string", "")
    return Fraction(1, 8) if profile.startswith("cpx_") else Fraction(1)


def _gib(text: str) -> int:
    return int(text.removesuffix("Gi"))


def _mig(profile: str, model: str) -> Fraction:
    """Returns the larger of a MIG device's shares of time and memory; a profile of another form is a whole GPU."""
    matched = re.fullmatch(r"([1-9])g\.(\d+)gb(\.me)?", profile)
    if not matched:
        return Fraction(1)
    key = next((word for word in SLICES if word in model.split("-")), "A100")
    memory = Fraction(int(matched[2]), MEMORY[key]) if model else Fraction(0)
    return min(max(Fraction(int(matched[1]), SLICES[key]), memory), Fraction(1))


@dataclass
class Line:
    """The bill of one pod or claim: its parts as first seen, and its start and end in nanoseconds since 1970."""

    parts: list[Part]
    start: int
    end: int | None = None
    by_cloud: bool = False
    """Whether the pod was first seen on a node without labels of feature discovery: only the cloud named its model."""

    @property
    def provisional(self) -> bool:
        """Whether later labels of the node may change the parts: one of them has no model, or only the cloud's."""
        return self.by_cloud or any(not model for model, *_ in self.parts)

    def cost(self, prices: Mapping[str, Fraction], until: int) -> int:
        """Returns the cost in microGPU-seconds up to an instant, rounded down once."""
        return rate(self.parts, prices) * (min(self.end or until, until) - self.start) // SECOND


class PlainBill:
    """The bills of a cluster's pods and claims, from the objects that a watcher saw and the times of its looks."""

    def __init__(self, since: int) -> None:
        """`since` is the instant from which on metering counts, in nanoseconds since 1970."""
        self.since = since
        self.lines: dict[str, Line] = {}

    def see(self, now: int, pods: Mapping[str, Json], nodes: Mapping[str, Json], deleted_at: int) -> None:
        """Takes a list of all pods and nodes at the time `now`; pods that it lacks count as deleted at `deleted_at`.

        Both times are nanoseconds since 1970. `pods` is keyed by uid, `nodes` by name.
        """
        for uid, pod in pods.items():
            node = nodes[pod["spec"]["nodeName"]]
            line = self.lines.get(uid)
            if line is None:
                found = parts_of_pod(pod, node)
                if not found:
                    continue
                line = self.lines[uid] = Line(found, max(self._bound(pod), self.since), by_cloud=self._by_cloud(node))
            elif line.end is None and line.provisional and now - line.start < PROVISIONAL:
                line.parts = parts_of_pod(pod, node) or line.parts
                line.by_cloud = self._by_cloud(node)
            if line.end is None and pod["status"]["phase"] == "Succeeded":
                (status,) = pod["status"]["containerStatuses"][:1]
                line.end = max(nanoseconds(status["state"]["terminated"]["finishedAt"]), line.start)
        for uid, line in self.lines.items():
            if uid not in pods and line.end is None and not uid.startswith("claim-"):
                line.end = max(deleted_at, line.start)

    def see_claims(
        self, now: int, claims: Mapping[str, Json], pods: Mapping[str, Json], slices: Sequence[Json]
    ) -> None:
        """Takes all claims as a list shows them at an instant; `slices` has their devices."""
        for uid, claim in claims.items():
            bound = [self._bound(pods[user["uid"]]) for user in claim["status"]["reservedFor"] if user["uid"] in pods]
            found = parts_of_claim(claim, slices)
            if found and uid not in self.lines:
                self.lines[uid] = Line(found, max(min(bound, default=now), self.since))

    def free(self, uid: str, ends: list[int]) -> None:
        """Ends a claim's bill at the latest of the instants at which the pods that reserved it ended."""
        self.lines[uid].end = max(ends)

    @staticmethod
    def _by_cloud(node: Json) -> bool:
        labels = node["metadata"].get("labels", {})
        return bool(_cloud(labels)) and "nvidia.com/gpu.product" not in labels

    @staticmethod
    def _bound(pod: Json) -> int:
        (condition,) = pod["status"]["conditions"]
        return max(nanoseconds(condition["lastTransitionTime"]), nanoseconds(pod["metadata"]["creationTimestamp"]))
