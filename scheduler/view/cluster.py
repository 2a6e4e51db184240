"""Reads nodes and pods once, into the state by which the scheduler decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fairgpu.cluster.api import ApiError, KubernetesAPI
from fairgpu.cluster.reflector import list_collection
from fairgpu.inventory import InventoryError
from scheduler.cluster.objects import PodNote, read_node
from scheduler.cluster.state import State
from scheduler.cluster.watches import NODES, NOTE, PODS

Json = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """The cluster at one moment.

    Attributes:
        state: nodes with their GPUs, and what pods hold of them.
        pods: each pod by its uid.
        faults: the fault of each node's inventory that has one.
    """

    state: State
    pods: dict[str, PodNote] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


def read_cluster(api: KubernetesAPI) -> Cluster:
    """Lists nodes and pods.

    Raises:
        ApiError: the API server refuses, or cannot be reached.
    """
    nodes, _ = list_collection(api, NODES)
    pods, _ = list_collection(api, PODS)
    return cluster_of(nodes, [item[NOTE] for item in pods])


def cluster_of(nodes: list[Json], notes: list[PodNote]) -> Cluster:
    """Returns the cluster of these objects."""
    cluster = Cluster(State())
    for item in nodes:
        try:
            node = read_node(item)
        except InventoryError as error:
            cluster.faults[item["metadata"]["name"]] = str(error)
            continue
        if node is None:
            continue
        for other in cluster.state.put_node(node):
            if cluster.state.inventories.shared(other) is not None:
                cluster.faults[other] = "another node offers one of its GPUs as well"
    cluster.pods.update({note.uid: note for note in notes})
    cluster.state.replace_pods(notes)
    return cluster


def forbidden(error: ApiError) -> bool:
    """Whether the caller lacks the right to see the whole cluster."""
    return error.status == 403
