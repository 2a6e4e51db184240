"""Finds other offers of this node's GPUs, by other device plugins' resources or by ResourceSlices.

A GPU that is offered in two ways would be given out twice.

NVIDIA's driver for Dynamic Resource Allocation offers a node's GPUs by ResourceSlices that name the node
(https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.cluster.reflector import Collection
from fairgpu.cluster.resource_claims import GROUP
from nodeagent.mirror import Mirror

RESOURCES: Final = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
    "volcano.sh/gpu-memory",
    "volcano.sh/gpu-number",
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-count",
    "tencent.com/vcuda-core",
    "tencent.com/vcuda-memory",
)
RESOURCE_PREFIXES: Final = ("nvidia.com/mig-",)
DRIVER: Final = "gpu.nvidia.com"


def foreign_resources(node: Mapping[str, Any]) -> list[str]:
    """Returns, sorted, the names of the extended resources by which another device plugin offers this node's GPUs.

    Only the resources in RESOURCES, and those that begin with one of RESOURCE_PREFIXES, are known as such.
    """
    said = (node.get("status") or {}).get("capacity") or {}
    return sorted(
        name
        for name, amount in said.items()
        if (name in RESOURCES or name.startswith(RESOURCE_PREFIXES)) and str(amount) != "0"
    )


def slices_of(api: KubernetesAPI, node: str) -> Collection | None:
    """Returns the collection of the ResourceSlices that offer this node's GPUs; None if the cluster has no such API.

    Raises:
        ApiError: the API server does not say whether it has the API.
    """
    try:
        version = str(api.get(GROUP)["preferredVersion"]["version"])
    except ApiError as error:
        if error.not_found:
            return None
        raise
    selectors = {"fieldSelector": f"spec.nodeName={node},spec.driver={DRIVER}"}
    return Collection(f"{GROUP}/{version}/resourceslices", selectors, _read)


def _read(item: Json) -> Json:
    return {"metadata": {"name": item["metadata"]["name"]}}


@dataclass(eq=False)
class ForeignSlices(Mirror):
    """A mirror of the ResourceSlices by which another driver offers this node's GPUs.

    Attributes:
        known: set once all ResourceSlices were read, or the cluster turned out to have none.
    """

    known: threading.Event = field(default_factory=threading.Event, init=False)
    _names: frozenset[str] = field(default=frozenset(), init=False)

    @property
    def offers(self) -> list[str]:
        """A list of one text, which says that ResourceSlices offer this node's GPUs; an empty list if none do."""
        return [f"ResourceSlices of {DRIVER}"] if self._names else []

    def replaced(self, items: list[Json]) -> None:
        """Stores all ResourceSlices of the node's GPUs, given as JSON, in place of those that were stored before."""
        self._names = frozenset(item["metadata"]["name"] for item in items)
        self.known.set()
        self.notify()

    def changed(self, kind: str, item: Json) -> None:
        """Stores or removes one ResourceSlice.

        Args:
            kind: the type of the watch's event: ADDED, MODIFIED or DELETED.
            item: the ResourceSlice as JSON, reduced to its name.
        """
        name = frozenset({item["metadata"]["name"]})
        self._names = self._names - name if kind == "DELETED" else self._names | name
        self.notify()
