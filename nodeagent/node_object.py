"""Writes the agent's Node: the inventory, and the resources beside the device plugin's."""

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
    """A mirror of the agent's own Node."""

    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _node: Json | None = field(default=None, init=False)

    @property
    def node(self) -> Json | None:
        """The Node as last observed; None before that, and where there is none."""
        with self._lock:
            return self._node

    def replaced(self, items: list[Json]) -> None:
        """Takes the whole list, of one Node or none."""
        with self._lock:
            self._node = items[0] if items else None
        self.notify()

    def changed(self, kind: str, item: Json) -> None:
        """Takes one event: ADDED, MODIFIED or DELETED."""
        with self._lock:
            self._node = None if kind == "DELETED" else item
        self.notify()


def read_node(node: Json) -> Json:
    """Returns the parts of the Node that the agent reads; kubelets write the large rest every few minutes."""
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
    """Writes the changed parts of the Node; returns their names (`inventory`, `capacity`, `taint`).

    Raises:
        ApiError: the API server refuses or cannot be reached.
        InventoryError: the inventory is too large for an annotation.
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
