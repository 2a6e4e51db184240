"""The fields of pods and nodes that the scheduler reads; the decoder skips all others without making objects of them.

40,000 pods are 372 MB of JSON, most of it managedFields, probes, volumes and statuses that the scheduler does not read.
A field that is not listed here does not exist for the scheduler. `Any` stands for a value of any type, with all that is
in it. If a value in a document has another type than its field here, the document is decoded whole: the functions that
read it then see the value as it is.
"""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable
from typing import Any, TypedDict

import msgspec


class Metadata(TypedDict, total=False):
    """The fields of an object's metadata that the scheduler reads."""

    name: Any
    namespace: Any
    uid: Any
    resourceVersion: Any
    creationTimestamp: Any
    deletionTimestamp: Any
    annotations: Any
    labels: Any


class Container(TypedDict, total=False):
    """The fields of a container, main or init, that the scheduler reads."""

    name: Any
    resources: Any
    restartPolicy: Any
    ports: Any


class Volume(TypedDict, total=False):
    """The fields of a pod's volume by which the volume may limit the pod to some nodes."""

    persistentVolumeClaim: Any
    ephemeral: Any


class PodSpec(TypedDict, total=False):
    """The fields of a pod's spec that the scheduler reads."""

    nodeName: Any
    schedulerName: Any
    schedulingGates: Any
    priority: Any
    overhead: Any
    resources: Any
    nodeSelector: Any
    tolerations: Any
    volumes: list[Volume]
    resourceClaims: Any
    hostNetwork: Any
    affinity: Any
    topologySpreadConstraints: Any
    containers: list[Container]
    initContainers: list[Container]
    ephemeralContainers: Any


class Condition(TypedDict, total=False):
    """The fields of a pod's condition that the scheduler reads."""

    type: Any
    reason: Any
    message: Any
    lastTransitionTime: Any


class PodStatus(TypedDict, total=False):
    """The fields of a pod's status that the scheduler reads."""

    phase: Any
    conditions: list[Condition]


class NodeSpec(TypedDict, total=False):
    """The fields of a node's spec that the scheduler reads."""

    taints: Any
    unschedulable: Any


class NodeStatus(TypedDict, total=False):
    """The fields of a node's status that the scheduler reads."""

    allocatable: Any


class PodObject(TypedDict, total=False):
    """The fields of a pod that the scheduler reads, or of the `Status` object that ends a watch.

    Only a `Status` has `code`, `reason` and `message`.
    """

    metadata: Metadata
    spec: PodSpec
    status: PodStatus
    code: Any
    reason: Any
    message: Any


class NodeObject(TypedDict, total=False):
    """The fields of a node that the scheduler reads, or of the `Status` object that ends a watch.

    Only a `Status` has `code`, `reason` and `message`.
    """

    metadata: Metadata
    spec: NodeSpec
    status: NodeStatus
    code: Any
    reason: Any
    message: Any


ListMetadata = TypedDict("ListMetadata", {"resourceVersion": Any, "continue": Any}, total=False)
"""A list's metadata."""


class PodList(TypedDict, total=False):
    """One page of a list of pods, as the API server answers it."""

    metadata: ListMetadata
    items: list[PodObject]


class NodeList(TypedDict, total=False):
    """One page of a list of nodes, as the API server answers it."""

    metadata: ListMetadata
    items: list[NodeObject]


class PodEvent(TypedDict, total=False):
    """One event of a watch of pods; its type is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: Any
    object: PodObject


class NodeEvent(TypedDict, total=False):
    """One event of a watch of nodes; its type is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: Any
    object: NodeObject


def excerpt(kind: type) -> Callable[[bytes], Any]:
    """Returns a function that decodes JSON and keeps only the fields that a TypedDict lists.

    A document in which a field has another type than in the TypedDict is decoded with all its fields. The function
    raises ValueError for bytes that are not JSON, and RecursionError for JSON that is nested too deeply.

    Args:
        kind: the TypedDict, such as `PodList`.
    """
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)

    def decode(data: bytes) -> Any:
        try:
            return decoder.decode(data)
        except msgspec.DecodeError:
            return json.loads(data)

    return decode


def excerpt_of_list(kind: type) -> Callable[[bytes], Any]:
    """Returns the function that `excerpt` returns, which keeps garbage collections away while it decodes a long list.

    All objects that the decoder makes are in use: a garbage collection would free none, and take longer than decoding.

    Args:
        kind: the TypedDict, such as `PodList`.
    """
    decoded = excerpt(kind)

    def decode(data: bytes) -> Any:
        with _COLLECTIONS:
            gc.disable()
            try:
                return decoded(data)
            finally:
                gc.enable()

    return decode


_COLLECTIONS = threading.Lock()
"""Held while garbage collections are off: of two threads that decode lists, one would leave them off for good."""
