"""Writes the agent's Node: the inventory, the capacity beside the device plugin's slots, and the startup taint."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairgpu import names
from fairgpu.cluster.api import Json, KubernetesAPI
from fairgpu.inventory import Inventory
from nodeagent.mirror import Mirror
from nodeagent.node_patches import metadata_patch, status_patch, taint_patch


@dataclass(eq=False)
class NodeMirror(Mirror):
    """A mirror of the Node object of the agent's node."""

    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _node: Json | None = field(default=None, init=False)

    @property
    def node(self) -> Json | None:
        """The Node as last observed, as JSON; None before the first time, and if there is no such Node."""
        with self._lock:
            return self._node

    def replaced(self, items: list[Json]) -> None:
        """Stores the Node, in place of the one that was stored before.

        Args:
            items: the Node as JSON; empty if there is no such Node.
        """
        with self._lock:
            self._node = items[0] if items else None
        self.notify()

    def changed(self, kind: str, item: Json) -> None:
        """Stores or removes the Node.

        Args:
            kind: the type of the watch's event: ADDED, MODIFIED or DELETED.
            item: the Node as JSON.
        """
        with self._lock:
            self._node = None if kind == "DELETED" else item
        self.notify()


def read_node(node: Json) -> Json:
    """Returns a copy of a Node with only the fields that the agent reads.

    The other fields are large, and kubelets write them every few minutes.
    """
    metadata, status = node["metadata"], node.get("status") or {}
    annotations = metadata.get("annotations") or {}
    kept = {key: value for key, value in annotations.items() if key.startswith(names.ANNOTATION_PREFIX)}
    return {
        "metadata": {
            **{key: metadata.get(key) for key in ("name", "uid", "resourceVersion")},
            "annotations": kept,
        },
        "spec": {"taints": (node.get("spec") or {}).get("taints") or []},
        "status": {
            **{key: status.get(key) or {} for key in ("capacity", "allocatable")},
            "conditions": [each for each in status.get("conditions") or [] if each.get("type") == "Ready"],
        },
    }


def write_node(api: KubernetesAPI, node: Json, offered: Inventory, pods: Iterable[Mapping[str, Any]]) -> list[str]:
    """Writes the inventory and the capacity of a Node to the API server, and removes the startup taint, where needed.

    A call that writes the inventory or the capacity leaves the taint to the next call, since its writes have made
    another version of the Node.

    Args:
        node: the Node as JSON.
        offered: the node's GPUs.
        pods: the node's pods as JSON, including those that hold no GPU.

    Returns:
        The names of the parts that were written: `inventory`, `capacity`, `taint`.

    Raises:
        ApiError: the API server refuses or cannot be reached.
        InventoryError: the inventory's text is longer than `fairgpu.inventory.MAX_ENCODED_BYTES`.
    """
    path = f"/api/v1/nodes/{node['metadata']['name']}"
    written = []
    metadata = metadata_patch(node, offered)
    if metadata is not None:
        api.patch(path, metadata)
        written.append("inventory")
    status = status_patch(node, offered, pods)
    if status is not None:
        api.patch(f"{path}/status", status)
        written.append("capacity")
    taint = taint_patch(node)
    if taint is not None and not written:  # what was written just now made another version of the Node
        api.patch(path, taint)
        written.append("taint")
    return written
