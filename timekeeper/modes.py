"""Finds, for `fairgpu doctor`, the rights and features that each mode needs, and the changes that a mode would bring.

Rights are read by access reviews, which the API server answers and does not store.

A node can serve only one stack. When a team moves to the mode share, its nodes move with it, and so must every other
team that has pods on these nodes. So all node pools on which one namespace has pods move together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from fairgpu import names
from fairgpu.asks import StackNames, read_asked
from fairgpu.charging import GPU_SECOND
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
from timekeeper.sources.base import name_of, namespace_of
from timekeeper.sources.kubernetes import BUDGETS, COLLECTIONS, QUOTAS, counts_own_resources

FLOOR: Final = (1, 32)
"""The oldest Kubernetes, as major and minor version, whose policies suffice for account and share (docs/install.md)."""
_REVIEWS: Final = "/apis/authorization.k8s.io/v1"
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_VERSION: Final = re.compile(r"v?([0-9]+)\.([0-9]+)")


class Needed(NamedTuple):
    """A right to create objects, in FairGPU's namespace or in the whole cluster.

    Attributes:
        group: the API group; empty for the core group.
        resource: the name of the collection.
        namespace: the namespace; empty for the whole cluster.
    """

    group: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"create {self.resource}{'.' if self.group else ''}{self.group}{where}"


_RBAC: Final = "rbac.authorization.k8s.io"
_POLICIES: Final = "admissionregistration.k8s.io"
FOR_LOOK: Final = (
    Needed("", "namespaces"),
    Needed(_RBAC, "clusterroles"),
    Needed(_RBAC, "clusterrolebindings"),
    Needed("apps", "deployments", names.SYSTEM_NAMESPACE),
    Needed("apps", "statefulsets", names.SYSTEM_NAMESPACE),
)
"""The rights to create the objects of the mode look, each listed once."""
FOR_ACCOUNT: Final = (
    Needed("apiextensions.k8s.io", "customresourcedefinitions"),
    Needed("scheduling.k8s.io", "priorityclasses"),
    Needed(_POLICIES, "validatingadmissionpolicies"),
    Needed(_POLICIES, "validatingadmissionpolicybindings"),
    Needed(_POLICIES, "mutatingwebhookconfigurations"),
    Needed(_POLICIES, "validatingwebhookconfigurations"),
)
"""The rights to create the objects of the modes account and share, besides those of the mode look."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The rights and features that a cluster lacks for an installation of FairGPU.

    Attributes:
        rights_for_look: the rights that the caller lacks to install the mode look.
        rights_for_account: the further rights that the caller lacks to install the mode account or share.
        features: the features that the cluster lacks for the modes account and share, or a default StorageClass for
            Redis; each as a sentence without its full stop.
    """

    rights_for_look: tuple[str, ...] = ()
    rights_for_account: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


def read_missing(api: KubernetesAPI, version: str, *, installed: bool = False) -> Missing:
    """Asks the API server for the rights and features that an installation of FairGPU needs; returns the missing ones.

    A right or feature counts as present if the caller may not ask for it.

    Args:
        version: the version of the API server, such as v1.34.1.
        installed: whether FairGPU is installed, so that its Redis needs no new volume.

    Raises:
        ApiError: the API server answers with an error other than 403 or 404, or does not answer.
    """
    features = (*_features(api, version), *(() if installed else _volumes(api)))
    return Missing(_lacked(api, FOR_LOOK), _lacked(api, FOR_ACCOUNT), features)


def may_write_gpu_pods(api: KubernetesAPI, account: str) -> bool:
    """Returns whether a service account may write the pod annotations and status that decide how GPU pods are charged.

    False also if the caller may not ask the API server about the rights of service accounts.

    Args:
        account: the service account as NAMESPACE:NAME.

    Raises:
        ApiError: the API server answers with an error other than 403 or 404, or does not answer.
    """
    namespace, _, name = account.partition(":")
    spec = {
        "user": f"system:serviceaccount:{namespace}:{name}",
        "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
        "resourceAttributes": {"group": names.DOMAIN, "resource": "podstatuses", "verb": "update"},
    }
    return _review(api, "SubjectAccessReview", spec) is True


def missing_lines(missing: Missing) -> list[str]:
    """Returns the missing rights and features as lines of text for `fairgpu doctor`; empty if nothing is missing."""
    lines = []
    for mode, rights in (("look", missing.rights_for_look), ("account or share", missing.rights_for_account)):
        if rights:
            lines += ["", f"To install {mode}, your account lacks the right to {', '.join(rights)}."]
    for feature in missing.features:
        lines += ["", f"{feature}."]
    return lines


def missing_document(missing: Missing) -> dict[str, Any]:
    """Returns the missing rights and features as a JSON object for `fairgpu doctor -o json`."""
    return {
        "rightsForLook": missing.rights_for_look,
        "rightsForAccount": missing.rights_for_account,
        "features": missing.features,
    }


def _lacked(api: KubernetesAPI, needed: Iterable[Needed]) -> tuple[str, ...]:
    lacked = []
    for right in needed:
        attributes = {"group": right.group, "resource": right.resource, "namespace": right.namespace, "verb": "create"}
        if _review(api, "SelfSubjectAccessReview", {"resourceAttributes": attributes}) is False:
            lacked.append(str(right))
    return tuple(lacked)


def _review(api: KubernetesAPI, kind: str, spec: Mapping[str, Any]) -> bool | None:
    """Returns whether an access review of this kind and spec allows its action; None if the review is not possible."""
    body: Json = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    try:
        status = mapping(api.create(f"{_REVIEWS}/{kind.lower()}s", body).get("status"))
    except ApiError as error:
        if error.status not in {403, 404}:
            raise
        return None
    return status.get("allowed") is True


def _volumes(api: KubernetesAPI) -> Iterable[str]:
    """Yields a sentence for people if no StorageClass is the default; nothing if one is, or if they cannot be read."""
    try:
        classes = mappings(api.get("/apis/storage.k8s.io/v1/storageclasses").get("items"))
    except ApiError as error:
        if error.status not in {403, 404}:
            raise
        return
    if not any(
        mapping(mapping(one.get("metadata")).get("annotations")).get(_DEFAULT_CLASS) == "true" for one in classes
    ):
        yield "No StorageClass is the default: name one for Redis, or it waits for its volume (docs/install.md)"


def _features(api: KubernetesAPI, version: str) -> Iterable[str]:
    stated = _VERSION.match(version)
    if stated is not None and (int(stated[1]), int(stated[2])) < FLOOR:
        floor = ".".join(map(str, FLOOR))
        yield f"account and share need Kubernetes {floor} or newer, and this is {version}. look runs here"
        return
    try:
        api.get(f"/apis/{_POLICIES}/v1/validatingadmissionpolicies", {"limit": 1})
    except ApiError as error:
        if error.not_found:
            yield "account and share need ValidatingAdmissionPolicies, which this API server does not serve"
        elif error.status != 403:
            raise


WRITERS: Final = {
    "hami": ("kube-system:hami-scheduler", "kube-system:hami-device-plugin"),
    "volcano": ("volcano-system:volcano-scheduler", "kube-system:volcano-device-plugin"),
    "kai": ("kai-scheduler:scheduler", "kai-scheduler:binder"),
    "aliyun": ("kube-system:gpushare-schd-extender",),
    "ascend": ("kube-system:hami-ascend",),
}
"""The service accounts of each stack's scheduler and device plugin, as NAMESPACE:NAME, keyed by stack.

By these accounts, the scheduler and the plugin write the status of pods, or the annotations by which pods are charged
or given devices. The stack's own manifests name the accounts. The account for Ascend is HAMi's
(Project-HAMi/ascend-device-plugin ed35e1c, ascend-device-plugin.yaml).
"""
_SCHEDULERS: Final = {"hami-scheduler": "hami", "volcano": "volcano", "kai-scheduler": "kai"}
_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"


@dataclass(frozen=True, slots=True)
class AskingPod:
    """A pod that asks for GPUs by another stack's names or by a ResourceClaim, and has not ended.

    Attributes:
        namespace: the pod's namespace.
        scheduler: the name of the pod's scheduler.
        readable: whether FairGPU would understand the pod's request in the mode share, by the dialects' default
            settings.
        own_class: whether the pod names a priority class that is neither FairGPU's nor the cluster's default.
        node: the name of the pod's node; empty while the pod waits for a node.
    """

    namespace: str
    scheduler: str
    readable: bool
    own_class: bool
    node: str = ""


@dataclass(frozen=True, slots=True)
class GPUQueue:
    """A ClusterQueue of Kueue whose quota covers at least one GPU resource.

    Attributes:
        name: the ClusterQueue's name.
        resources: the GPU resources that the ClusterQueue covers, FairGPU's own and those of other stacks, sorted by
            name.
        namespaces: the namespaces with a LocalQueue that points to the ClusterQueue, sorted by name.
    """

    name: str
    resources: tuple[str, ...]
    namespaces: tuple[str, ...]

    @property
    def counts_share(self) -> bool:
        """Whether the ClusterQueue covers all of FairGPU's own resources, for which pods ask in the mode share."""
        return set(names.CANONICAL_RESOURCES) <= set(self.resources)


@dataclass(frozen=True, slots=True)
class ModeChanges:
    """The changes that the modes account and share would bring to a cluster.

    Attributes:
        pods: the pods that ask for GPUs.
        refused_schedulers: keyed by scheduler, the number of the scheduler's pods. It is not known whether such a
            scheduler starts a pod that waits behind a scheduling gate. Therefore the mode account refuses its pods
            while their budget's state is `held`, in which pods wait behind a gate until the budget has money.
        writers: keyed by stack, the stack's service accounts, as NAMESPACE:NAME, that write the status or annotations
            by which GPU pods are charged, and lack the right that FairGPU's policies require for such writes. All of
            them count as lacking it if the caller may not ask.
        nothing_yields: the names of the budgets that would have no effect: a spent one only lowers the priority of
            pods, but the settings give pods no priority classes.
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


def read_mode_changes(
    api: KubernetesAPI, existing: Existing, stacks: Iterable[str], own: Mapping[str, Listed]
) -> ModeChanges:
    """Returns the changes that the modes account and share would bring to a cluster, which is only read.

    Args:
        existing: the settings for pods of other stacks: which resources these pods name, and which schedulers start no
            pod that has a scheduling gate.
        stacks: the names of the cluster's stacks.
        own: the extended resources of other stacks that the admin lists, keyed by name.

    Raises:
        ApiError: the API server refuses the list of pods, or fails to answer for it or for an access review.
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
    """Returns, keyed by stack, the service accounts of WRITERS that lack a right that the mode account demands.

    It is the right to write the status and annotations by which GPU pods are charged; an account lacks it also if the
    caller may not ask. Stacks that are not in `stacks` are left out, and so are stacks without such an account.
    """
    lacking = {
        stack: tuple(account for account in accounts if not may_write_gpu_pods(api, account))
        for stack, accounts in WRITERS.items()
        if stack in stacks
    }
    return {stack: accounts for stack, accounts in lacking.items() if accounts}


def _queues(api: KubernetesAPI, own: Mapping[str, Listed], unreadable: list[str]) -> tuple[GPUQueue, ...]:
    """Returns Kueue's ClusterQueues that cover GPUs, sorted by name; none if there is no Kueue or it cannot be read.

    Args:
        own: the extended resources of other stacks that the admin lists, keyed by name.
        unreadable: gets the names of the collections that cannot be read.
    """
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


def changes_lines(changes: ModeChanges) -> list[str]:
    """Returns the changes that the modes account and share would bring, as lines of text for `fairgpu doctor`."""
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


def changes_document(changes: ModeChanges) -> dict[str, Any]:
    """Returns the changes that the modes account and share would bring, as JSON for `fairgpu doctor -o json`."""
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
    """Returns the fields of an AskingPod as JSON; None for a pod that has ended or asks for no GPU.

    The name of the pod's priority class, `class`, is in place of `own_class`. A pod asks for a GPU by a claim, or by a
    resource or an annotation of another stack.

    Args:
        stack: the names of the resources and annotations of other stacks.
    """
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
    """Returns the objects of the collection at a path of the API; none if it cannot be read.

    The name of a collection that the API server has and that cannot be read is added to `unreadable`.
    """
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


POOL_LABELS: Final = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "kubernetes.azure.com/agentpool",
)
"""The labels of nodes in which clouds write the name of the node's pool.

Sources: https://cloud.google.com/kubernetes-engine/docs/how-to/node-pools,
https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html,
https://karpenter.sh/docs/concepts/nodepools/ and https://learn.microsoft.com/azure/aks/use-labels.
"""
UNNAMED: Final = "no pool label"
MIG: Final = "nvidia with MIG"
CLAIMS: Final = "claims of gpu.nvidia.com"
PLUGINS: Final = frozenset({"nvidia", "nvidia with shared GPUs", MIG, "hami", "volcano", "aliyun", "gpu-manager"})
"""The stacks that offer NVIDIA's GPUs by a device plugin; the mode share can use only NVIDIA's GPUs."""


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A node with GPUs.

    Attributes:
        pool: the name of the node's pool; empty if no label names a pool.
        stacks: the stacks that share the node's GPUs.
        models: the models of the node's GPUs; `*` stands for a model that no label names.
    """

    pool: str
    stacks: tuple[str, ...]
    models: tuple[str, ...]


class HeldThere(NamedTuple):
    """A pod or a ResourceClaim that holds GPUs of a node.

    Attributes:
        node: the node's name; empty if no device of a claim names its node.
        namespace: the namespace of the pod or claim.
        rate: the cost of the held parts, in microGPU-seconds a second.
    """

    node: str
    namespace: str
    rate: int


class AskedThere(NamedTuple):
    """A pod that asks for GPUs.

    Attributes:
        node: the name of the pod's node; empty while the pod waits for a node.
        namespace: the pod's namespace.
        readable: whether FairGPU would understand the pod's request in the mode share.
    """

    node: str
    namespace: str
    readable: bool


@dataclass(frozen=True, slots=True)
class NodePool:
    """The nodes that have the same pool, stacks and GPU models, and the GPU pods on them.

    Attributes:
        alike: the pool's name, the stacks and the models that these nodes have in common.
        nodes: the number of nodes.
        pods: keyed by namespace, the number of pods on them that ask for GPUs and move with their team.
        readable: the number of these pods whose request FairGPU understands in the mode share.
        rate: the cost of the GPUs that pods and claims hold on them, in microGPU-seconds a second.
    """

    alike: PoolNode
    nodes: int = 0
    pods: Mapping[str, int] = field(default_factory=dict)
    readable: int = 0
    rate: int = 0

    @property
    def name(self) -> str:
        """The pool's name as shown to people; a placeholder if no label names it."""
        return self.alike.pool or UNNAMED

    @property
    def obstacles(self) -> tuple[str, ...]:
        """The tasks that an admin must do on the nodes before the mode share can use them, as phrases."""
        stacks = set(self.alike.stacks)
        steps = {
            "take the device plugin away": not stacks.isdisjoint(PLUGINS),
            "switch MIG off": MIG in stacks,
            "take NVIDIA's driver for claims away": CLAIMS in stacks,
        }
        return tuple(step for step, needed in steps.items() if needed)

    @property
    def can_move(self) -> bool:
        """Whether the mode share can use the nodes once their `obstacles` are removed: all their GPUs are NVIDIA's."""
        return set(self.alike.stacks) <= PLUGINS | {CLAIMS}


def pool_of(labels: Mapping[str, str]) -> str:
    """Returns the name of a node's pool according to the node's labels; empty if no label names a pool."""
    return next((labels[key] for key in POOL_LABELS if labels.get(key)), "")


def node_pools(
    nodes: Mapping[str, PoolNode], held: Iterable[HeldThere], asked: Iterable[AskedThere]
) -> tuple[NodePool, ...]:
    """Groups nodes with the same pool, stacks and GPU models; returns the groups sorted by the pool's name.

    Args:
        nodes: keyed by name, the nodes with GPUs.
        held: the pods and claims that hold GPUs; those on nodes that are not in `nodes` do not count.
        asked: the pods that ask for GPUs and move with their team; those on nodes that are not in `nodes` do not count.
    """
    counts: dict[PoolNode, int] = {}
    for node in nodes.values():
        counts[node] = counts.get(node, 0) + 1
    rates = dict.fromkeys(counts, 0)
    for one in held:
        if one.node in nodes:
            rates[nodes[one.node]] += one.rate
    pods: dict[PoolNode, dict[str, int]] = {node: {} for node in counts}
    readable = dict.fromkeys(counts, 0)
    for pod in asked:
        if pod.node in nodes:
            there = pods[nodes[pod.node]]
            there[pod.namespace] = there.get(pod.namespace, 0) + 1
            readable[nodes[pod.node]] += pod.readable
    order = sorted(counts, key=lambda node: (node.pool, node.stacks, node.models))
    return tuple(NodePool(node, counts[node], pods[node], readable[node], rates[node]) for node in order)


def moves(pools: Sequence[NodePool]) -> tuple[tuple[NodePool, ...], ...]:
    """Groups node pools that must change to the mode share together; returns the groups.

    Two pools are in one group if a namespace has pods on both, or if other pools connect them in this way. The pools of
    a group are in the order of `pools`, and so are the groups, by their first pools.
    """
    groups: list[list[NodePool]] = []
    for pool in pools:
        joined = [group for group in groups if any(one.pods.keys() & pool.pods.keys() for one in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([*(one for group in joined for one in group), pool])
    order = {pool.alike: place for place, pool in enumerate(pools)}
    sorted_groups = [tuple(sorted(group, key=lambda pool: order[pool.alike])) for group in groups]
    return tuple(sorted(sorted_groups, key=lambda group: order[group[0].alike]))


def pools_lines(pools: Sequence[NodePool]) -> list[str]:
    """Returns lines of text: a table of node pools, and which of them must change to the mode share together.

    There are no lines without pools.
    """
    if not pools:
        return []
    head = ["pool", "nodes", "stack", "model", "namespaces", "pods", "share reads", "GPU-hours an hour"]
    rows = [
        [
            pool.name,
            str(pool.nodes),
            ", ".join(pool.alike.stacks),
            ", ".join(pool.alike.models),
            ", ".join(sorted(pool.pods)),
            str(sum(pool.pods.values())),
            str(pool.readable),
            gpu_hours(pool.rate),
        ]
        for pool in pools
    ]
    lines = ["Pool by pool, by the pods that have a node:", "", table(head, rows), ""]
    lines += ["To share, a team moves with its nodes, and with the other teams that have pods there:", ""]
    return lines + [f"  {number}. {_move(group)}" for number, group in enumerate(moves(pools), 1)]


def pools_document(pools: Sequence[NodePool]) -> dict[str, Any]:
    """Returns node pools, and which must change to the mode share together, as JSON for `fairgpu doctor -o json`.

    Rates are in microGPU-seconds a second, as text.
    """
    numbers = {pool.alike: number for number, group in enumerate(moves(pools), 1) for pool in group}
    return {
        "pools": [
            {
                "name": pool.alike.pool or None,
                "nodes": pool.nodes,
                "stacks": pool.alike.stacks,
                "models": pool.alike.models,
                "pods": dict(sorted(pool.pods.items())),
                "readByShare": pool.readable,
                "rateMicroGPUSecondsPerSecond": str(pool.rate),
                "move": numbers[pool.alike],
                "canMove": pool.can_move,
                "before": pool.obstacles if pool.can_move else (),
            }
            for pool in pools
        ]
    }


def gpu_hours(rate: int) -> str:
    """Formats a rate in microGPU-seconds a second as GPU-hours an hour, with up to six decimal places."""
    return f"{rate / GPU_SECOND:.6f}".rstrip("0").rstrip(".")


def _move(group: Sequence[NodePool]) -> str:
    namespaces = sorted({namespace for pool in group for namespace in pool.pods})
    pools = ", ".join(map(_named, group))
    who = f"with {', '.join(namespaces)}" if namespaces else "where no team has a pod"
    staying = [pool for pool in group if not pool.can_move]
    if staying:
        those = ", ".join(dict.fromkeys(map(_named, staying)))
        others = "" if len(staying) == len(group) else ": split these teams first, or leave them in account"
        return f"{pools}, {who}. Stays: share knows no GPUs but NVIDIA's, and others are in {those}{others}."
    before = list(dict.fromkeys(step for pool in group for step in pool.obstacles))
    unread = sum(sum(pool.pods.values()) - pool.readable for pool in group)
    pods = f" Share does not read the request of {unread} of the pods." if unread else ""
    return f"{pools}, {who}. First on these nodes: {', '.join(before)}.{pods}"


def _named(pool: NodePool) -> str:
    """Returns a pool's name and stacks, as shown to people; for a pool without a name, its models, too."""
    stacks = ", ".join(pool.alike.stacks)
    return f"{pool.name} ({stacks})" if pool.alike.pool else f"{UNNAMED} ({stacks}: {', '.join(pool.alike.models)})"
