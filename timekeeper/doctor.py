"""`fairgpu doctor`: which GPU stacks a cluster has, which pods hold GPUs by them, and what they would cost an hour."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from fairgpu.charging import GPU_SECOND
from fairgpu.client.tables import table
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.cluster.reflector import Collection, list_collection
from fairgpu.commands import CommandError
from fairgpu.json_values import list_of, mapping
from timekeeper.controller.state.books import controller_rules
from timekeeper.domain.holdings import hami, nvidia, volcano
from timekeeper.domain.holdings.deciding import decide, is_accelerator
from timekeeper.domain.holdings.holding import Doubt
from timekeeper.domain.holdings.listed import TABLE, Listed
from timekeeper.domain.holdings.observed import HostNode, read_bound_pod, read_host_node
from timekeeper.domain.pods import TERMINAL_PHASES
from timekeeper.domain.pricing import Prices
from timekeeper.domain.reservations import Reservation, rate_at
from timekeeper.settings import TimekeeperSettings
from timekeeper.sources.kubernetes import COLLECTIONS, metered_pod, slim

DOUBTS: Final[Mapping[Doubt, str]] = {
    Doubt.MODEL_UNKNOWN: "no label names the model: charged at the price of `*`",
    Doubt.REPLICAS_UNREADABLE: "the replicas of a shared GPU are not stated: charged as a whole GPU",
    Doubt.LABELS_CONTRADICT: "two labels exclude each other: the dearer one counts",
    Doubt.PROFILE_UNKNOWN: "a partition's name is not known: charged as a whole GPU",
    Doubt.SIZE_UNKNOWN: "the size of the device is not stated: charged as the whole, or by its share of time",
    Doubt.ALLOCATION_UNREADABLE: "what the scheduler wrote is missing or cut short: the request counts",
    Doubt.ALLOCATION_BELOW_REQUEST: "what stands on the pod is less than its request: the request counts",
    Doubt.DEVICE_UNKNOWN: "the node does not list the pod's device: the node's other devices count",
}


@dataclass(frozen=True, slots=True)
class HoldingPod:
    """A pod that holds parts of GPUs.

    Attributes:
        namespace: its namespace.
        name: its name.
        stacks: the stacks that it holds them by.
        models: their models; `*` stands for one that no label names.
        rate: its cost, in microGPU-seconds a second.
        doubts: the causes for which it is charged by a rule.
    """

    namespace: str
    name: str
    stacks: tuple[str, ...]
    models: tuple[str, ...]
    rate: int
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of an examination.

    Attributes:
        version: the API server's.
        stacks: the number of nodes of each stack.
        pods: the pods that hold GPUs, dearest first.
        waiting: the number of pods that ask for GPUs and have no node.
        by_claim: the names of pods that hold devices by claims of Dynamic Resource Allocation alone.
    """

    version: str
    stacks: Mapping[str, int] = field(default_factory=dict)
    pods: tuple[HoldingPod, ...] = ()
    waiting: int = 0
    by_claim: tuple[str, ...] = ()


def run(api: KubernetesAPI, settings: TimekeeperSettings, output: str, now: int) -> int:
    """Examines a cluster, which is only read, and prints the findings as text or JSON; returns 0.

    Raises:
        CommandError: the API server refuses a list, or does not answer.
    """
    rules = controller_rules(settings.model_copy(update={"mode": "look"}))
    own = rules.own_resources or {}
    try:
        version = str(api.get("/version").get("gitVersion", ""))
        nodes, _ = list_collection(api, Collection(COLLECTIONS["nodes"], {}, slim))
        pods, _ = list_collection(api, Collection(COLLECTIONS["pods"], {}, partial(_fields, own)))
    except ApiError as error:
        raise CommandError(f"the cluster cannot be read: {error}; doctor lists pods and nodes of all") from error

    def rate_of(reservation: Reservation) -> int:
        return rate_at(reservation, rules.prices, now, rules.charge)

    hosts = {_name(node): read_host_node(node) for node in nodes}
    found = Findings(
        version,
        stacks_of(hosts.values(), own),
        tuple(sorted(_holding(pods, hosts, own, rate_of), key=lambda pod: (-pod.rate, pod.namespace, pod.name))),
        sum(1 for pod in pods if not mapping(pod.get("spec")).get("nodeName")),
        tuple(sorted(f"{_namespace(pod)}/{_name(pod)}" for pod in pods if pod.get("byClaimAlone"))),
    )
    sys.stdout.write((as_json(found) if output == "json" else as_text(found, rules.prices)) + "\n")
    return 0


def _fields(own: Mapping[str, Listed], pod: Json) -> Json | None:
    """Returns the fields that are examined of a pod that runs or waits; None for one without a GPU."""
    spec = mapping(pod.get("spec"))
    if mapping(pod.get("status")).get("phase") in TERMINAL_PHASES:
        return None
    found = metered_pod(pod, own=own)
    if found is None and list_of(spec.get("resourceClaims")):
        kept = {key: value for key, value in spec.items() if key == "nodeName"}
        return {"metadata": {"namespace": _namespace(pod), "name": _name(pod)}, "spec": kept, "byClaimAlone": True}
    return found


def _holding(
    pods: Iterable[Json], hosts: Mapping[str, HostNode], own: Mapping[str, Listed], rate_of: Any
) -> Iterable[HoldingPod]:
    for pod in pods:
        node = mapping(pod.get("spec")).get("nodeName")
        if not isinstance(node, str) or not node:
            continue
        decision = decide(read_bound_pod(pod), hosts.get(node, HostNode()), own)
        if decision.holdings:
            yield HoldingPod(
                _namespace(pod),
                _name(pod),
                tuple(sorted({holding.way for holding in decision.holdings})),
                tuple(sorted({holding.model or "*" for holding in decision.holdings})),
                rate_of(Reservation((), holdings=decision.holdings)),
                tuple(sorted(decision.doubts)),
            )


def stacks_of(nodes: Iterable[HostNode], own: Mapping[str, Listed]) -> dict[str, int]:
    """Returns the number of nodes of each stack, by what the nodes offer and what stands on them."""
    found: dict[str, int] = {}
    for node in nodes:
        offered = [resource for resource, units in node.capacity.items() if units and is_accelerator(resource, own)]
        for stack in sorted({_stack(node, resource, own) for resource in offered}):
            found[stack] = found.get(stack, 0) + 1
    return found


def _stack(node: HostNode, resource: str, own: Mapping[str, Listed]) -> str:
    listed = own.get(resource) or TABLE.get(resource)
    if listed is not None:
        return listed.way
    if resource in volcano.RESOURCES:
        return "volcano"
    if resource.startswith(("aliyun.com/", "tencent.com/")):
        return "aliyun" if resource.startswith("aliyun") else "gpu-manager"
    if hami.REGISTER in node.annotations:
        return "hami"
    if resource.startswith(nvidia.MIG_PREFIX) or "-MIG-" in node.label(nvidia.PRODUCT):
        return "nvidia with MIG"
    shared = resource.endswith(nvidia.SHARED_SUFFIX) or (node.number(f"{nvidia.GPU}.replicas") or 0) > 1
    return "nvidia with shared GPUs" if shared else "nvidia"


def as_text(found: Findings, prices: Prices) -> str:
    """Returns the findings for people: the stacks, what each namespace's pods cost, and what is charged by a rule."""
    lines = [f"Kubernetes {found.version}", ""]
    lines += [table(["stack", "nodes"], [[name, str(count)] for name, count in sorted(found.stacks.items())])]
    rows = _by_namespace(found.pods)
    priced = "" if len(prices) > 1 else " (every model at price 1: name a settings file for your prices)"
    lines += ["", f"With mode: look, metered as soon as it is installed{priced}:", ""]
    lines += [table(["namespace", "stack", "model", "pods", "GPU-hours an hour"], rows)]
    doubts = sorted({doubt for pod in found.pods for doubt in pod.doubts})
    if doubts:
        lines += ["", "Charged by a rule, since labels or annotations do not state it:", ""]
    for doubt in doubts:
        concerned = [f"{pod.namespace}/{pod.name}" for pod in found.pods if doubt in pod.doubts]
        more = f" and {len(concerned) - 3} more" if len(concerned) > 3 else ""
        lines.append(f"  {DOUBTS[doubt]}: {', '.join(concerned[:3])}{more}")
    if found.waiting:
        lines += ["", f"{found.waiting} pods wait for a node, which costs nothing."]
    if found.by_claim:
        text = "pods hold devices by resource claims alone, which are not metered, among them"
        lines += ["", f"{len(found.by_claim)} {text} {found.by_claim[0]}."]
    return "\n".join(lines)


def _by_namespace(pods: Sequence[HoldingPod]) -> list[list[str]]:
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for pod in pods:
        key = (pod.namespace, ", ".join(pod.stacks), ", ".join(pod.models))
        count, rate = sums.get(key, (0, 0))
        sums[key] = (count + 1, rate + pod.rate)
    return [[*key, str(count), _gpus(rate)] for key, (count, rate) in sorted(sums.items())]


def _gpus(rate: int) -> str:
    return f"{rate / GPU_SECOND:.6f}".rstrip("0").rstrip(".")


def as_json(found: Findings) -> str:
    """Returns the findings for programs; rates are in microGPU-seconds a second, as text."""
    document = {
        "version": found.version,
        "stacks": dict(found.stacks),
        "pods": [
            {
                "namespace": pod.namespace,
                "name": pod.name,
                "stacks": pod.stacks,
                "models": pod.models,
                "rateMicroGPUSecondsPerSecond": str(pod.rate),
                "doubts": pod.doubts,
            }
            for pod in found.pods
        ],
        "waiting": found.waiting,
        "byClaimAlone": found.by_claim,
    }
    return json.dumps(document, indent=2)


def _name(item: Json) -> str:
    return str(mapping(item.get("metadata")).get("name", ""))


def _namespace(item: Json) -> str:
    return str(mapping(item.get("metadata")).get("namespace", ""))
