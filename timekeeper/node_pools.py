"""Node pools for `fairgpu doctor`: the teams that hold GPUs on each, and the pools that move to share together.

A node works for one stack. A team that moves to share takes nodes with it, so every team with pods on these nodes
moves, too. Pools on which one namespace has pods therefore belong to one move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fairgpu.charging import GPU_SECOND
from fairgpu.client.tables import table

POOL_LABELS: Final = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "kubernetes.azure.com/agentpool",
)
"""The labels by which clouds name a node's pool.

Sources: https://cloud.google.com/kubernetes-engine/docs/how-to/node-pools,
https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html,
https://karpenter.sh/docs/concepts/nodepools/ and https://learn.microsoft.com/azure/aks/use-labels.
"""
UNNAMED: Final = "no pool label"
MIG: Final = "nvidia with MIG"
CLAIMS: Final = "claims of gpu.nvidia.com"
PLUGINS: Final = frozenset({"nvidia", "nvidia with shared GPUs", MIG, "hami", "volcano", "aliyun", "gpu-manager"})
"""The stacks whose nodes have NVIDIA's GPUs by a device plugin. The mode share knows no GPUs of others."""


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A node with GPUs.

    Attributes:
        pool: the name of its node pool; empty where no label names one.
        stacks: the stacks that share its GPUs.
        models: the models of its GPUs; `*` stands for a model that no label names.
    """

    pool: str
    stacks: tuple[str, ...]
    models: tuple[str, ...]


class HeldThere(NamedTuple):
    """A pod or a ResourceClaim that holds GPUs of a node.

    Attributes:
        node: the node's name.
        namespace: the namespace of the pod or claim.
        rate: its cost, in microGPU-seconds a second.
    """

    node: str
    namespace: str
    rate: int


class AskedThere(NamedTuple):
    """A pod that asks for GPUs and has a node.

    Attributes:
        node: the node's name.
        namespace: the pod's namespace.
        readable: whether FairGPU understands its request in the mode share.
    """

    node: str
    namespace: str
    readable: bool


@dataclass(frozen=True, slots=True)
class NodePool:
    """Nodes with the same pool, stacks and GPU models, and the GPU pods on them.

    Attributes:
        alike: the pool's name, the stacks and the models that these nodes share.
        nodes: the number of nodes.
        pods: by namespace, the number of GPU pods on them.
        readable: the number of those pods whose request FairGPU understands in the mode share.
        rate: the cost of the GPUs that pods and claims hold on them, in microGPU-seconds a second.
    """

    alike: PoolNode
    nodes: int = 0
    pods: Mapping[str, int] = field(default_factory=dict)
    readable: int = 0
    rate: int = 0

    @property
    def name(self) -> str:
        """The pool's name for people; a placeholder where no label names it."""
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
        """Whether the mode share can use the nodes: all their GPUs must be NVIDIA's."""
        return set(self.alike.stacks) <= PLUGINS | {CLAIMS}


def pool_of(labels: Mapping[str, str]) -> str:
    """Returns the name of a node's pool; empty where no label names one."""
    return next((labels[key] for key in POOL_LABELS if labels.get(key)), "")


def node_pools(
    nodes: Mapping[str, PoolNode], held: Iterable[HeldThere], asked: Iterable[AskedThere]
) -> tuple[NodePool, ...]:
    """Groups nodes with the same pool, stacks and GPU models; returns the groups sorted by the pool's name.

    Args:
        held: the pods and claims that hold GPUs; those on other nodes are left out.
        asked: the pods that ask for GPUs and move with a team; those on other nodes are left out.
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
    """Groups node pools that must change to the mode share together.

    The pools of one group have namespaces in common, directly or through other pools.
    """
    groups: list[list[NodePool]] = []
    for pool in pools:
        joined = [group for group in groups if any(one.pods.keys() & pool.pods.keys() for one in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([*(one for group in joined for one in group), pool])
    order = {pool.alike: place for place, pool in enumerate(pools)}
    sorted_groups = [tuple(sorted(group, key=lambda pool: order[pool.alike])) for group in groups]
    return tuple(sorted(sorted_groups, key=lambda group: order[group[0].alike]))


def as_lines(pools: Sequence[NodePool]) -> list[str]:
    """Returns a table of node pools and the order in which they can change to the mode share, as lines of text."""
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


def as_document(pools: Sequence[NodePool]) -> dict[str, Any]:
    """Returns node pools, and which of them must change to the mode share together, as a JSON object.

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
    """Formats a rate as GPU-hours an hour, with up to six decimal places.

    Args:
        rate: microGPU-seconds a second.
    """
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
    """Returns the name of a pool with its stacks, and with its models where other pools may have no label either."""
    stacks = ", ".join(pool.alike.stacks)
    return f"{pool.name} ({stacks})" if pool.alike.pool else f"{UNNAMED} ({stacks}: {', '.join(pool.alike.models)})"
