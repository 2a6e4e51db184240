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
    """The cluster as the API server showed it once.

    Attributes:
        state: the nodes with their GPUs, the parts that pods hold or that are kept for them, and the waiting pods; not
            the nodes' labels and taints.
        pods: the facts about each pod, keyed by the pod's uid.
        faults: why the inventory of a node is not used, keyed by the node's name; only for nodes with such a fault.
    """

    state: State
    pods: dict[str, PodNote] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


def read_cluster(api: KubernetesAPI) -> Cluster:
    """Reads all nodes and pods of the cluster from the API server, once.

    Raises:
        ApiError: the API server refuses, or cannot be reached.
    """
    nodes, _ = list_collection(api, NODES)
    pods, _ = list_collection(api, PODS)
    return cluster_of(nodes, [item[NOTE] for item in pods])


def cluster_of(nodes: list[Json], notes: list[PodNote]) -> Cluster:
    """Returns the cluster that consists of the given nodes and pods.

    A node without an inventory is left out. A node whose inventory is invalid is left out, too, and is in `faults`.

    Args:
        nodes: the nodes as JSON objects of the API server.
        notes: the facts about the pods.
    """
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
    """Returns whether an error of the API server says that the caller has no right to what it asked for."""
    return error.status == 403
