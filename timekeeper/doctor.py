"""The command `fairgpu doctor`: finds a cluster's GPU stacks, the pods that hold GPUs by them, and these pods' costs.

It also examines an installation of FairGPU, and what the modes account and share would change.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version as installed_version
from typing import Any, Final, NamedTuple

from fairgpu import names
from fairgpu.client.tables import table
from fairgpu.cluster import resource_claims
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.cluster.connect import unreadable
from fairgpu.cluster.reflector import Collection, list_collection
from fairgpu.json_values import mapping, mappings
from timekeeper.controller.state.books import ControllerRules, controller_rules
from timekeeper.domain.holdings import hami, nvidia, volcano
from timekeeper.domain.holdings.claims import DeviceKey, SliceDevice, read_slices, results_of, without_claimed
from timekeeper.domain.holdings.claims import decide as decide_claim
from timekeeper.domain.holdings.deciding import decide, is_accelerator, models_of
from timekeeper.domain.holdings.holding import Decision, Doubt, HostNode, read_host_node
from timekeeper.domain.holdings.listed import TABLE, Listed
from timekeeper.domain.pricing import Prices
from timekeeper.domain.reservations import Reservation, rate_at
from timekeeper.domain.sessions import CLAIM
from timekeeper.installation import Installation, judge, read_installation
from timekeeper.installation import as_document as installation_document
from timekeeper.installation import as_lines as installation_lines
from timekeeper.modes import (
    AskedThere,
    HeldThere,
    Missing,
    ModeChanges,
    NodePool,
    PoolNode,
    changes_document,
    changes_lines,
    gpu_hours,
    missing_document,
    missing_lines,
    node_pools,
    pool_of,
    pools_document,
    pools_lines,
    read_missing,
    read_mode_changes,
)
from timekeeper.settings import TimekeeperSettings
from timekeeper.sources.base import name_of, namespace_of
from timekeeper.sources.kubernetes import (
    COLLECTIONS,
    metered_pod,
    read_claim_object,
    read_slice_object,
    slim,
)

DOUBTS: Final[Mapping[Doubt, str]] = {
    Doubt.MODEL_UNKNOWN: "no label names the model: charged at the price of `*`",
    Doubt.REPLICAS_UNREADABLE: "the replicas of a shared GPU are not stated: charged as a whole GPU",
    Doubt.LABELS_CONTRADICT: "two labels exclude each other: the dearer one counts",
    Doubt.PROFILE_UNKNOWN: "a partition's name is not known: charged as a whole GPU",
    Doubt.SIZE_UNKNOWN: (
        "the size of the device is not stated: charged as the whole, by its share of time, or as the least it can be"
    ),
    Doubt.ALLOCATION_UNREADABLE: "what the scheduler wrote is missing or cut short: the request counts",
    Doubt.ALLOCATION_BELOW_REQUEST: "what stands on the pod is less than its request: the request counts",
    Doubt.DEVICE_UNKNOWN: "the node does not list the pod's device: the node's other devices count",
}


_NO_STACK: Final = (
    "No node offers GPUs of a stack that FairGPU knows. Where nodes have other accelerators, name their resources in "
    "timekeeper.other_stacks.resources of a settings file."
)
_NO_POD: Final = "No pod holds a GPU by these stacks now."
_MISSING: Final = "missing: apply the overlay again"
_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


@dataclass(frozen=True, slots=True)
class HoldingPod:
    """A pod or ResourceClaim that holds parts of GPUs, as `fairgpu doctor` found it.

    Attributes:
        namespace: the namespace of the pod or claim.
        name: the pod's name; of a claim, `resourceclaim/NAME`.
        stacks: the stacks by which the parts are held.
        models: the models of these GPUs; `*` stands for a model that no label names.
        rate: the rate that FairGPU would charge for the parts, in microGPU-seconds a second.
        doubts: the facts about these parts that no object of the cluster states; a rule then decides what is charged.
        node: the name of the node with these GPUs; of a claim, the node of its first device that names one, and empty
            if none does.
    """

    namespace: str
    name: str
    stacks: tuple[str, ...]
    models: tuple[str, ...]
    rate: int
    doubts: tuple[Doubt, ...] = ()
    node: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of `fairgpu doctor` on a cluster.

    Attributes:
        version: the version of the API server.
        stacks: keyed by stack, the number of nodes that have the stack.
        pods: the pods and ResourceClaims that hold GPUs, the most expensive first.
        waiting: the number of pods that ask for GPUs and have no node yet.
        unlisted: the drivers of Dynamic Resource Allocation whose devices are not metered.
        policies: keyed by the name of a ValidatingAdmissionPolicy of FairGPU's, its fault as a phrase; policies without
            a fault are left out.
        unreadable: the collections of Dynamic Resource Allocation that could not be read, or its API group if not even
            that could.
    """

    version: str
    stacks: Mapping[str, int] = field(default_factory=dict)
    pods: tuple[HoldingPod, ...] = ()
    waiting: int = 0
    unlisted: tuple[str, ...] = ()
    policies: Mapping[str, str] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()


def run(api: KubernetesAPI, settings: TimekeeperSettings, output: str, now: int) -> int:
    """Examines a cluster, which is only read, and prints the findings; returns 0.

    Args:
        settings: the settings, for prices and for resources of other stacks.
        output: `json` for JSON; any other value for text.
        now: the present instant.

    Raises:
        CommandError: the API server refuses the list of pods or of nodes, answers with another error, or does not
            answer; or the default budget in the settings is invalid.
    """
    rules = controller_rules(settings.model_copy(update={"mode": "look"}))
    report = _examined(api, settings, rules, now)
    text = json.dumps(report.document(), indent=2) if output == "json" else report.text(rules.prices)
    sys.stdout.write(text + "\n")
    return 0


@dataclass(frozen=True, slots=True)
class _Report:
    """The parts of the report of `fairgpu doctor`, from which its text and its JSON are made.

    `installation` is None if FairGPU is not installed in the cluster.
    """

    findings: Findings
    changes: ModeChanges
    missing: Missing
    installation: Installation | None
    pools: tuple[NodePool, ...]

    def document(self) -> Json:
        installation = None if self.installation is None else installation_document(self.installation)
        return {
            **as_document(self.findings),
            "modes": changes_document(self.changes),
            **pools_document(self.pools),
            "missing": missing_document(self.missing),
            "installation": installation,
        }

    def text(self, prices: Prices) -> str:
        lines = [as_text(self.findings, prices), "", *changes_lines(self.changes), *missing_lines(self.missing)]
        lines += ["", *pools_lines(self.pools)] if self.pools else []
        lines += ["", *installation_lines(self.installation)] if self.installation is not None else []
        return "\n".join(lines)


def _examined(api: KubernetesAPI, settings: TimekeeperSettings, rules: ControllerRules, now: int) -> _Report:
    own = rules.own_resources or {}
    findings, nodes = _holders(api, rules, now)
    try:
        changes = read_mode_changes(api, settings.existing, {stack.partition(" ")[0] for stack in findings.stacks}, own)
        installation = _installation(api, settings, now)
        missing = read_missing(api, findings.version, installed=installation is not None)
    except ApiError as error:
        raise unreadable(error, "the cluster") from error
    return _Report(findings, changes, missing, installation, _pools(nodes, findings.pods, changes, rules.overhead))


def _holders(api: KubernetesAPI, rules: ControllerRules, now: int) -> tuple[Findings, dict[str, PoolNode]]:
    """Reads the cluster; returns the findings on its GPU stacks and pods, and the nodes that offer GPUs, keyed by name.

    `rules` has the prices over time and the extended resources of other stacks that the admin lists. The prices at the
    instant `now` count.

    Raises:
        CommandError: the API server refuses the list of pods or of nodes, or does not answer.
    """
    own = rules.own_resources or {}
    unread: list[str] = []
    try:
        version = str(api.get("/version").get("gitVersion", ""))
        nodes, _ = list_collection(api, Collection(COLLECTIONS["nodes"], {}, slim))
        pods, _ = list_collection(api, Collection(COLLECTIONS["pods"], {}, partial(_fields, own)))
        claims, slices = _dynamic(api, unread)
        policies = _policies(api)
    except ApiError as error:
        raise unreadable(
            error, "the cluster", "doctor needs `list` of nodes and of pods in the whole cluster"
        ) from error

    def rate_of(reservation: Reservation) -> int:
        return rate_at(reservation, rules.prices, now, rules.charge)

    hosts = {name_of(node): read_host_node(node) for node in nodes}
    named = {(namespace_of(claim), name_of(claim)): claim for claim in claims}
    by_resource = _holding(
        pods, hosts, lambda pod, node: decide(without_claimed(pod, lambda: named, rules.drivers), node, own)
    )
    published = read_slices(item for item in slices if mapping(item.get("spec")).get("driver") in rules.drivers)
    by_claim = (_claiming(claim, published, rules.drivers) for claim in claims)
    holding = [each for each in (*by_resource, *by_claim) if each.decision.holdings]
    drivers = frozenset(str(mapping(item.get("spec")).get("driver")) for item in slices)
    findings = Findings(
        version,
        stacks_of(hosts.values(), own) | _nodes_of_drivers(published),
        tuple(sorted((_priced(one, rate_of) for one in holding), key=lambda pod: (-pod.rate, pod.namespace, pod.name))),
        sum(1 for pod in pods if not mapping(pod.get("spec")).get("nodeName")),
        tuple(sorted(drivers - rules.drivers)),
        policies,
        tuple(unread),
    )
    return findings, _pool_nodes(hosts, own, published)


def _installation(api: KubernetesAPI, settings: TimekeeperSettings, now: int) -> Installation | None:
    observed = read_installation(api, settings.jobs.lease_name)
    if observed is None:
        return None
    return judge(observed, installed_version("fairgpu"), settings.jobs.lease_seconds, now)


def _pools(
    nodes: Mapping[str, PoolNode], holding: Iterable[HoldingPod], changes: ModeChanges, left_alone: frozenset[str]
) -> tuple[NodePool, ...]:
    """Returns the nodes grouped by pool, stacks and models, with the pods that hold GPUs or ask for them.

    `holding` are the pods that hold GPUs, and `changes` name the pods that ask for GPUs. Pods that ask for GPUs in a
    namespace of `left_alone` do not count: they need not move with the nodes.
    """
    held = (HeldThere(pod.node, pod.namespace, pod.rate) for pod in holding)
    asked = (AskedThere(pod.node, pod.namespace, pod.readable) for pod in changes.pods)
    return node_pools(nodes, held, (pod for pod in asked if pod.namespace not in left_alone))


def _pool_nodes(
    hosts: Mapping[str, HostNode], own: Mapping[str, Listed], published: Mapping[DeviceKey, SliceDevice]
) -> dict[str, PoolNode]:
    """Returns the nodes that offer GPUs by resources or by claims, keyed by name.

    Args:
        hosts: all nodes, keyed by name.
        own: the extended resources of other stacks that the admin lists, keyed by name.
        published: the devices of ResourceSlices.
    """
    by_claims: dict[str, set[tuple[str, str]]] = {}
    for (driver, _, _), device in published.items():
        by_claims.setdefault(device.node, set()).add((f"claims of {driver}", device.model))
    found = {}
    for name, host in hosts.items():
        claimed = by_claims.get(name, set())
        stacks = _stacks_of_node(host, own) | {stack for stack, _ in claimed}
        models = models_of(host, own) | {model for _, model in claimed}
        if stacks:
            shown = tuple(sorted(model or "*" for model in models))
            found[name] = PoolNode(pool_of(host.labels), tuple(sorted(stacks)), shown)
    return found


def _fields(own: Mapping[str, Listed], pod: Json) -> Json | None:
    """Returns the fields of a pod that metering reads; None for a pod that has ended, or asks for no GPU.

    Args:
        own: the extended resources of other stacks that the admin lists, keyed by name.
        pod: the pod as the API server has it.
    """
    return None if mapping(pod.get("status")).get("phase") in names.TERMINAL_PHASES else metered_pod(pod, own=own)


def _dynamic(api: KubernetesAPI, unread: list[str]) -> tuple[list[Json], list[Json]]:
    """Returns the ResourceClaims and the ResourceSlices; none if the API server does not have these collections.

    The names of collections that the API server refuses to show, or cannot show now, are added to `unread`.
    """
    try:
        version = resource_claims.RESOURCE.served_version(api)
    except ApiError as error:
        if not error.not_found:
            unread.append(resource_claims.GROUP.rpartition("/")[2])
        return [], []
    if not version:
        return [], []
    kinds: dict[str, Callable[[Json], Json | None]] = {
        "resourceclaims": read_claim_object,
        "resourceslices": read_slice_object,
    }
    found: dict[str, list[Json]] = {kind: [] for kind in kinds}
    for kind, read in kinds.items():
        try:
            found[kind], _ = list_collection(api, Collection(f"{resource_claims.GROUP}/{version}/{kind}", {}, read))
        except ApiError as error:
            if not error.not_found:
                unread.append(kind)
    return found["resourceclaims"], found["resourceslices"]


def _policies(api: KubernetesAPI) -> dict[str, str]:
    """Returns the faults of FairGPU's own ValidatingAdmissionPolicies as phrases, keyed by the policy's name.

    A policy is at fault if it is missing or may not be read. It is also at fault if the condition that the webhook
    writes in its status is missing, or says that the policy differs from the webhook's settings. Policies of parts that
    need not be installed, such as the node agent, may be missing. If all policies of the other parts are missing, the
    result is empty, since FairGPU is then not installed.

    Raises:
        ApiError: the API server answers with an error other than 403 or 404, or does not answer.
    """
    faults: dict[str, str] = {}
    for name in (*names.POLICIES, *names.COMPONENT_POLICIES):
        try:
            faults[name] = _matter(api.get(f"{_POLICIES}/{name}"))
        except ApiError as error:
            if error.status not in {403, 404}:
                raise
            faults[name] = _MISSING if error.not_found else "your account may not read it"
    if all(faults[name] == _MISSING for name in names.POLICIES):
        return {}
    of_absent = {name for name in names.COMPONENT_POLICIES if faults[name] == _MISSING}
    return {name: fault for name, fault in faults.items() if fault and name not in of_absent}


def _matter(policy: Json) -> str:
    """Returns the fault of one of FairGPU's policies, by the condition that the webhook writes in the policy's status.

    The fault is empty if the condition says that the policy is as the webhook's settings demand. A policy without the
    condition is at fault, too.
    """
    conditions = mappings(mapping(policy.get("status")).get("conditions"))
    said = next((one for one in conditions if one.get("type") == names.RENDERED_CONDITION), None)
    if said is None:
        return "not compared with the settings yet: the webhook does so when it starts"
    return "" if said.get("status") == "True" else str(said.get("message"))


class _Holder(NamedTuple):
    """A pod or a ResourceClaim that holds parts of GPUs.

    Attributes:
        namespace: the namespace of the pod or claim.
        name: the pod's name; of a claim, `resourceclaim/NAME`.
        decision: the parts of GPUs that are held.
        node: the name of the node with these GPUs.
    """

    namespace: str
    name: str
    decision: Decision
    node: str


def _holding(
    pods: Iterable[Json], hosts: Mapping[str, HostNode], decide_on: Callable[[Json, HostNode], Decision]
) -> Iterable[_Holder]:
    for pod in pods:
        node = mapping(pod.get("spec")).get("nodeName")
        if isinstance(node, str) and node:
            yield _Holder(namespace_of(pod), name_of(pod), decide_on(pod, hosts.get(node, HostNode())), node)


def _claiming(claim: Json, published: Mapping[DeviceKey, SliceDevice], drivers: frozenset[str]) -> _Holder:
    keys = ((str(item.get("driver")), str(item.get("pool")), str(item.get("device"))) for item in results_of(claim))
    node = next((found.node for key in keys if (found := published.get(key)) is not None and found.node), "")
    return _Holder(namespace_of(claim), CLAIM + name_of(claim), decide_claim(claim, published, drivers), node)


def _priced(holder: _Holder, rate_of: Callable[[Reservation], int]) -> HoldingPod:
    decision = holder.decision
    return HoldingPod(
        holder.namespace,
        holder.name,
        tuple(sorted({holding.way for holding in decision.holdings})),
        tuple(sorted({holding.model or "*" for holding in decision.holdings})),
        rate_of(Reservation((), holdings=decision.holdings)),
        tuple(sorted(decision.doubts)),
        holder.node,
    )


def _nodes_of_drivers(published: Mapping[DeviceKey, SliceDevice]) -> dict[str, int]:
    """Returns the number of nodes that the devices of each driver name; devices such as those of `allNodes` name none.

    Args:
        published: the devices of ResourceSlices.
    """
    nodes: dict[str, set[str]] = {}
    for (driver, _, _), device in sorted(published.items(), key=lambda item: item[0]):
        nodes.setdefault(driver, set()).update([device.node] if device.node else [])
    return {f"claims of {driver}": len(named) for driver, named in nodes.items()}


def stacks_of(nodes: Iterable[HostNode], own: Mapping[str, Listed]) -> dict[str, int]:
    """Returns the number of nodes that have each stack, keyed by stack, according to their resources and labels.

    Args:
        own: the extended resources of other stacks that the admin lists, keyed by name.
    """
    counts: dict[str, int] = {}
    for node in nodes:
        for stack in sorted(_stacks_of_node(node, own)):
            counts[stack] = counts.get(stack, 0) + 1
    return counts


def _stacks_of_node(node: HostNode, own: Mapping[str, Listed]) -> set[str]:
    offered = (resource for resource, units in node.capacity.items() if units and is_accelerator(resource, own))
    return {_stack(node, resource, own) for resource in offered}


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
    divided = "-MIG-" in node.label(nvidia.PRODUCT) or node.label(nvidia.GKE_PARTITION)
    if resource.startswith(nvidia.MIG_PREFIX) or divided:
        return "nvidia with MIG"
    replicas = node.number(f"{nvidia.GPU}.replicas") or node.number(nvidia.GKE_CLIENTS) or 0
    shared = resource.endswith(nvidia.SHARED_SUFFIX) or replicas > 1
    return "nvidia with shared GPUs" if shared else "nvidia"


def as_text(findings: Findings, prices: Prices) -> str:
    """Returns the findings on a cluster as text: its stacks, the cost of each namespace's pods, and the doubts.

    Args:
        prices: the price of each model over time; the text says so if only the default price is set.
    """
    lines = [f"Kubernetes {findings.version}", ""]
    stacks = [[name, str(count)] for name, count in sorted(findings.stacks.items())]
    lines += [table(["stack", "nodes"], stacks) if stacks else _NO_STACK]
    rows = _by_namespace(findings.pods)
    priced = "" if len(prices) > 1 else " (every model at price 1: name a settings file for your prices)"
    lines += ["", f"With mode: look, metered as soon as it is installed{priced}:", ""]
    lines += [table(["namespace", "stack", "model", "pods", "GPU-hours an hour"], rows) if rows else _NO_POD]
    doubts = sorted({doubt for pod in findings.pods for doubt in pod.doubts})
    if doubts:
        lines += ["", "Charged by a rule, since labels or annotations do not state it:", ""]
    for doubt in doubts:
        concerned = [f"{pod.namespace}/{pod.name}" for pod in findings.pods if doubt in pod.doubts]
        more = f" and {len(concerned) - 3} more" if len(concerned) > 3 else ""
        lines.append(f"  {DOUBTS[doubt]}: {', '.join(concerned[:3])}{more}")
    if findings.waiting:
        waiting = "1 pod waits" if findings.waiting == 1 else f"{findings.waiting} pods wait"
        lines += ["", f"{waiting} for a node, which costs nothing."]
    if findings.unreadable:
        unread = ", ".join(findings.unreadable)
        lines += ["", f"Not read: {unread}. {_without(findings.unreadable)}"]
    for matter in dict.fromkeys(findings.policies.values()):
        named = [name for name, fault in findings.policies.items() if fault == matter]
        lines += ["", f"The {'policy' if len(named) == 1 else 'policies'} {', '.join(named)}: {matter}."]
    if findings.unlisted:
        text = "cost nothing. Where their devices are accelerators, list them in timekeeper.other_stacks.drivers."
        lines += ["", f"Resource claims of the drivers {', '.join(findings.unlisted)} {text}"]
    return "\n".join(lines)


def _without(unreadable: Sequence[str]) -> str:
    """Returns a sentence for people about what the report lacks because these collections could not be read."""
    if list(unreadable) == ["resourceslices"]:
        return "Without it, each device of a claim counts as a GPU of unknown model."
    return "What pods hold by resource claims is not known without it."


def _by_namespace(pods: Sequence[HoldingPod]) -> list[list[str]]:
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for pod in pods:
        key = (pod.namespace, ", ".join(pod.stacks), ", ".join(pod.models))
        count, rate = sums.get(key, (0, 0))
        sums[key] = (count + 1, rate + pod.rate)
    return [[*key, str(count), gpu_hours(rate)] for key, (count, rate) in sorted(sums.items())]


def as_document(findings: Findings) -> dict[str, Any]:
    """Returns the findings on a cluster for `fairgpu doctor -o json`; rates are text, in microGPU-seconds a second."""
    return {
        "version": findings.version,
        "stacks": dict(findings.stacks),
        "pods": [
            {
                "namespace": pod.namespace,
                "name": pod.name,
                "node": pod.node,
                "stacks": pod.stacks,
                "models": pod.models,
                "rateMicroGPUSecondsPerSecond": str(pod.rate),
                "doubts": pod.doubts,
            }
            for pod in findings.pods
        ],
        "waiting": findings.waiting,
        "unlistedDrivers": findings.unlisted,
        "policies": dict(findings.policies),
        "notRead": findings.unreadable,
    }
