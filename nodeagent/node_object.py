"""Writes the agent's Node: the inventory, and the resources beside the device plugin's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fairgpu import names
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.inventory import Inventory
from nodeagent.node_patches import metadata_patch, status_patch, taint_patch


class NodeView:
    """A view of the agent's own Node, kept current by `fairgpu.cluster.reflector.reflect`."""

    def __init__(
        self,
        changed: Callable[[], None],
        failed: Callable[[ApiError], None],
        current: Callable[[], None] = lambda: None,
    ) -> None:
        self._changed = changed
        self._failed = failed
        self._current = current
        self._lock = threading.Lock()
        self._node: Json | None = None

    @property
    def node(self) -> Json | None:
        """The Node as last observed; None before that, and where there is none."""
        with self._lock:
            return self._node

    def replaced(self, items: list[Json]) -> None:
        """Replaces the view by a whole list, of one Node or none, and notifies the agent."""
        with self._lock:
            self._node = items[0] if items else None
        self._changed()

    def changed(self, kind: str, item: Json) -> None:
        """Applies an event of the watch (ADDED, MODIFIED, DELETED) to the view, and notifies the agent."""
        with self._lock:
            self._node = None if kind == "DELETED" else item
        self._changed()

    def confirmed(self) -> None:
        """Passes on that the view is current; no decision depends on its age."""
        self._current()

    def failed(self, error: ApiError) -> None:
        """Passes on that the API server did not answer."""
        self._failed(error)


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
