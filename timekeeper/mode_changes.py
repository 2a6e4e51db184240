"""The changes that the modes `account` and `share` would bring to a cluster, for `fairgpu doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from fairgpu import names
from fairgpu.asks import StackNames, read_asked
from fairgpu.client.tables import table
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.cluster.optional_groups import KUEUE
from fairgpu.cluster.reflector import Collection, list_collection
from fairgpu.dialects.reading import DialectSettings
from fairgpu.dialects.registry import FOREIGN
from fairgpu.existing import Existing
from fairgpu.json_values import list_of, mapping, mappings
from fairgpu.pod import read_pod
from timekeeper.domain.holdings.deciding import is_accelerator
from timekeeper.domain.holdings.listed import Listed
from timekeeper.rights import may_write_gpu_pods
from timekeeper.sources.base import name_of, namespace_of
from timekeeper.sources.kubernetes import BUDGETS, COLLECTIONS, QUOTAS, counts_own_resources

WRITERS: Final = {
    "hami": ("kube-system:hami-scheduler",),
    "volcano": ("volcano-system:volcano-scheduler",),
    "kai": ("kai-scheduler:scheduler", "kai-scheduler:binder"),
    "aliyun": ("kube-system:gpushare-schd-extender",),
}
"""The service accounts by which each stack's scheduler writes the status of pods, or the annotations by which they are
charged, as its own manifests name them: NAMESPACE:NAME."""
_SCHEDULERS: Final = {"hami-scheduler": "hami", "volcano": "volcano", "kai-scheduler": "kai"}
_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"


@dataclass(frozen=True, slots=True)
class AskingPod:
    """A pod that asks for GPUs and has not ended.

    Attributes:
        namespace: its namespace.
        scheduler: the name of its scheduler.
        readable: whether FairGPU understands its request in the mode share.
        own_class: whether it names a priority class that is neither FairGPU's nor the cluster's default.
        node: its node; empty while it waits for one.
    """

    namespace: str
    scheduler: str
    readable: bool
    own_class: bool
    node: str = ""


@dataclass(frozen=True, slots=True)
class GPUQueue:
    """A ClusterQueue of Kueue that gives GPUs to pods.

    Attributes:
        name: its name.
        resources: the GPU resources that it covers, including FairGPU's.
        namespaces: the namespaces that have a LocalQueue of it.
    """

    name: str
    resources: tuple[str, ...]
    namespaces: tuple[str, ...]

    @property
    def counts_share(self) -> bool:
        """Whether the ClusterQueue covers all resources for which a pod asks in the mode share."""
        return set(names.CANONICAL_RESOURCES) <= set(self.resources)


@dataclass(frozen=True, slots=True)
class ModeChanges:
    """The changes that the modes account and share would bring to a cluster.

    Attributes:
        pods: the pods that ask for GPUs.
        refused_schedulers: by scheduler, the number of its pods. The mode account refuses the pods of these schedulers
            while their budget is held.
        writers: by stack, the service accounts that write the status or annotations by which GPU pods are charged. They
            need a right for that.
        nothing_yields: the budgets whose only effect is to deprioritize; without priority classes they change no pod.
        idle_quotas: the namespaces with a quota on FairGPU's own resources, which counts no pod in the mode account.
        queues: Kueue's ClusterQueues that cover GPUs.
        unreadable: the collections that could not be read.
    """

    pods: tuple[AskingPod, ...] = ()
    refused_schedulers: Mapping[str, int] = field(default_factory=dict)
    writers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nothing_yields: tuple[str, ...] = ()
    idle_quotas: tuple[str, ...] = ()
    queues: tuple[GPUQueue, ...] = ()
    unreadable: tuple[str, ...] = ()


def read_changes(
    api: KubernetesAPI, existing: Existing, stacks: Iterable[str], own: Mapping[str, Listed]
) -> ModeChanges:
    """Finds the changes that the modes account and share would bring to a cluster, which is only read.

    Args:
        stacks: the names of the cluster's stacks.
        own: by resource, the admin's settings for resources of other stacks.

    Raises:
        ApiError: the API server refuses the list of pods, or does not answer.
    """
    found, _ = list_collection(api, Collection(COLLECTIONS["pods"], {}, partial(_asking, existing.names)))
    unreadable: list[str] = []
    usual = {name_of(item) for item in _optional(api, _CLASSES, unreadable) if item.get("globalDefault")}
    known = {"", names.IN_BUDGET_CLASS, names.OVER_BUDGET_CLASS, *usual}
    pods = tuple(
        AskingPod(item["namespace"], item["scheduler"], item["readable"], item["class"] not in known, item["node"])
        for item in found
    )
    quotas = _optional(api, QUOTAS, unreadable)
    budgets = _optional(api, BUDGETS, unreadable)
    refused: dict[str, int] = {}
    for pod in pods:
        if pod.scheduler not in (*existing.gated_schedulers, names.SCHEDULER_NAME):
            refused[pod.scheduler] = refused.get(pod.scheduler, 0) + 1
    queues = _queues(api, own, unreadable)
    present = {*stacks, *(_SCHEDULERS.get(pod.scheduler, "") for pod in pods)}
    return ModeChanges(
        pods,
        refused,
        _lacking(api, present),
        tuple(sorted(name_of(item) for item in budgets if existing.classes == "never" and _only_deprioritizes(item))),
        tuple(sorted({namespace_of(item) for item in quotas if counts_own_resources(item)})),
        queues,
        tuple(unreadable),
    )


def _lacking(api: KubernetesAPI, stacks: AbstractSet[str]) -> dict[str, tuple[str, ...]]:
    """Returns those of WRITERS, of these stacks, that may not write what GPU pods are charged by."""
    lacking = {
        stack: tuple(account for account in accounts if not may_write_gpu_pods(api, account))
        for stack, accounts in WRITERS.items()
        if stack in stacks
    }
    return {stack: accounts for stack, accounts in lacking.items() if accounts}


def _queues(api: KubernetesAPI, own: Mapping[str, Listed], unreadable: list[str]) -> tuple[GPUQueue, ...]:
    """Returns Kueue's ClusterQueues that cover GPUs, by name; none where the API server does not have or show Kueue."""
    try:
        version = KUEUE.served_version(api)
    except ApiError as error:
        if not error.not_found:
            unreadable.append(KUEUE.path.rpartition("/")[2])
        return ()
    if not version:
        return ()
    users: dict[str, set[str]] = {}
    for item in _optional(api, f"{KUEUE.path}/{version}/localqueues", unreadable):
        users.setdefault(str(mapping(item.get("spec")).get("clusterQueue")), set()).add(namespace_of(item))
    found = []
    for item in _optional(api, f"{KUEUE.path}/{version}/clusterqueues", unreadable):
        groups = mappings(mapping(item.get("spec")).get("resourceGroups"))
        covered = {str(resource) for group in groups for resource in list_of(group.get("coveredResources"))}
        gpus = {name for name in covered if is_accelerator(name, own) or name in names.CANONICAL_RESOURCES}
        if gpus:
            found.append(GPUQueue(name_of(item), tuple(sorted(gpus)), tuple(sorted(users.get(name_of(item), ())))))
    return tuple(sorted(found, key=lambda queue: queue.name))


def as_lines(changes: ModeChanges) -> list[str]:
    """Returns the changes that the modes account and share would bring, as lines of text."""
    rows: dict[str, list[int]] = {}
    for pod in changes.pods:
        row = rows.setdefault(pod.namespace, [0, 0, 0, 0])
        row[0] += 1
        row[1] += pod.readable
        row[2] += not pod.readable
        row[3] += pod.own_class
    lines = ["With mode: account, new pods keep scheduler, node and request; a held budget holds them behind a gate."]
    lines += ["With mode: share, new pods go to FairGPU's scheduler and nodes, as far as it reads their request:", ""]
    head = ["namespace", "pods", "share reads", "share does not read", "own class: share refuses"]
    table_of_pods = table(head, [[name, *map(str, row)] for name, row in sorted(rows.items())])
    lines += [table_of_pods if rows else "No pod asks for a GPU now."]
    for scheduler, count in sorted(changes.refused_schedulers.items()):
        text = "was not tried with gated pods: account refuses its pods while their budget is held, and holds none"
        lines += ["", f"The scheduler {scheduler} ({_pods(count)}) {text}.", _ADD_SCHEDULER]
    for stack, accounts in sorted(changes.writers.items()):
        text = "writes the status of GPU pods, or the annotations by which they are charged"
        lines += ["", f"The scheduler of {stack} {text}. In account that takes a right."]
        lines += ["Once account is installed, give it to the accounts that the scheduler has:"]
        lines += [
            f"  kubectl create clusterrolebinding {stack}-writes-gpu-pods --clusterrole=fairgpu-pod-status-writer \\"
        ]
        lines += ["    " + " ".join(f"--serviceaccount={account}" for account in accounts)]
    if changes.nothing_yields:
        text = "without priority classes (existing.classes: never), onExhausted: deprioritize acts on no pod of theirs"
        lines += ["", f"Budgets {', '.join(changes.nothing_yields)}: {text}. Write hold, or enforcement: evict."]
    if changes.idle_quotas:
        text = "a quota on fairgpu.io/* counts nothing in account. Use requests.nvidia.com/gpu or your stack's resource"
        lines += ["", f"Namespaces {', '.join(changes.idle_quotas)}: {text}."]
    lines += _queue_lines(changes.queues)
    if changes.unreadable:
        text = "Whether a budget or quota has no effect there, or a queue gives GPUs, is not known without it"
        lines += ["", f"Not read for these modes: {', '.join(changes.unreadable)}. {text}."]
    return lines


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"


def _queue_lines(queues: Sequence[GPUQueue]) -> list[str]:
    if not queues:
        return []
    rows = [[queue.name, ", ".join(queue.resources), ", ".join(queue.namespaces)] for queue in queues]
    lines = ["", "Kueue gives GPUs by these ClusterQueues:", "", table(["ClusterQueue", "covers", "namespaces"], rows)]
    lines += ["", "A budget with onExhausted: hold keeps pods that Kueue has admitted, and their quota with them."]
    blind = [queue.name for queue in queues if not queue.counts_share]
    if blind:
        wanted = ", ".join(sorted(names.CANONICAL_RESOURCES))
        lines += [f"Before share, let {', '.join(blind)} cover {wanted} (docs/kueue.md)."]
    return lines


_ADD_SCHEDULER: Final = "Try it with a gated pod; where it leaves the pod alone, add it to existing.gated_schedulers."


def as_document(changes: ModeChanges) -> dict[str, Any]:
    """Returns the changes that the modes account and share would bring, as a JSON object."""
    namespaces = sorted({pod.namespace for pod in changes.pods})
    return {
        "namespaces": [
            {
                "namespace": namespace,
                "pods": sum(pod.namespace == namespace for pod in changes.pods),
                "readByShare": sum(pod.namespace == namespace and pod.readable for pod in changes.pods),
                "ownPriorityClass": sum(pod.namespace == namespace and pod.own_class for pod in changes.pods),
            }
            for namespace in namespaces
        ],
        "schedulersNotTriedWithGates": dict(changes.refused_schedulers),
        "writers": dict(changes.writers),
        "budgetsByWhichNothingYields": changes.nothing_yields,
        "namespacesWithIdleQuotas": changes.idle_quotas,
        "clusterQueues": [
            {
                "name": queue.name,
                "resources": queue.resources,
                "namespaces": queue.namespaces,
                "coversShare": queue.counts_share,
            }
            for queue in changes.queues
        ],
        "notRead": changes.unreadable,
    }


def _asking(stack: StackNames, pod: Json) -> Json | None:
    """Returns the fields of an AskingPod; None for a pod that asks for no GPU, or has ended."""
    metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    claims = len(mappings(spec.get("resourceClaims")))
    if mapping(pod.get("status")).get("phase") in names.TERMINAL_PHASES:
        return None
    if read_asked(pod, stack, DialectSettings(), claims) is None:
        return None
    reading = read_pod(pod, DialectSettings(), dialects=FOREIGN)
    return {
        "namespace": str(metadata.get("namespace", "")),
        "scheduler": str(spec.get("schedulerName") or "default-scheduler"),
        "readable": reading.requests_gpu and not reading.faults and not claims,
        "class": str(spec.get("priorityClassName") or ""),
        "node": str(spec.get("nodeName") or ""),
    }


def _optional(api: KubernetesAPI, path: str, unreadable: list[str]) -> list[Json]:
    """Returns a collection; nothing where the API server does not have it, and its name where it refuses."""
    try:
        items, _ = list_collection(api, Collection(path, {}))
    except ApiError as error:
        if not error.not_found:
            unreadable.append(path.rpartition("/")[2])
        return []
    return items


def _only_deprioritizes(budget: Json) -> bool:
    spec = mapping(budget.get("spec"))
    limited = spec.get("allowance") is not None
    return (
        limited
        and spec.get("onExhausted", "deprioritize") == "deprioritize"
        and spec.get("enforcement", "enforce") == "enforce"
    )
