"""The fields of pods and nodes that the scheduler reads; the decoder skips all others without making objects of them.

40,000 pods are 372 MB of JSON, most of it managedFields, probes, volumes and statuses that nothing here reads. A field
that is not listed does not exist for the scheduler. `Any` stands for a value of any type, with all that is in it. A
document with a value of another type than here is decoded whole, so that every field means the same in it.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from typing import Any, TypedDict

import msgspec


class Metadata(TypedDict, total=False):
    """An object's names and annotations."""

    name: Any
    namespace: Any
    uid: Any
    resourceVersion: Any
    creationTimestamp: Any
    deletionTimestamp: Any
    annotations: Any
    labels: Any


class Container(TypedDict, total=False):
    """A container of any kind."""

    name: Any
    resources: Any
    restartPolicy: Any


class Volume(TypedDict, total=False):
    """A volume that may bind its pod to some nodes."""

    persistentVolumeClaim: Any
    ephemeral: Any


class PodSpec(TypedDict, total=False):
    """A pod's spec."""

    nodeName: Any
    schedulerName: Any
    schedulingGates: Any
    priority: Any
    overhead: Any
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
    """A condition of a pod."""

    type: Any
    reason: Any
    message: Any
    lastTransitionTime: Any


class PodStatus(TypedDict, total=False):
    """A pod's status."""

    phase: Any
    conditions: list[Condition]


class NodeSpec(TypedDict, total=False):
    """A node's spec."""

    taints: Any
    unschedulable: Any


class NodeStatus(TypedDict, total=False):
    """The part of a node's status that the scheduler reads."""

    allocatable: Any


class PodObject(TypedDict, total=False):
    """A pod, or the Status that ends a watch; only a Status has the last three fields."""

    metadata: Metadata
    spec: PodSpec
    status: PodStatus
    code: Any
    reason: Any
    message: Any


class NodeObject(TypedDict, total=False):
    """A node; or the Status that ends a watch."""

    metadata: Metadata
    spec: NodeSpec
    status: NodeStatus
    code: Any
    reason: Any
    message: Any


ListMetadata = TypedDict("ListMetadata", {"resourceVersion": Any, "continue": Any}, total=False)
"""A list's metadata."""


class PodList(TypedDict, total=False):
    """A page of pods."""

    metadata: ListMetadata
    items: list[PodObject]


class NodeList(TypedDict, total=False):
    """A page of nodes."""

    metadata: ListMetadata
    items: list[NodeObject]


class PodEvent(TypedDict, total=False):
    """An event of a watch of pods."""

    type: Any
    object: PodObject


class NodeEvent(TypedDict, total=False):
    """An event of a watch of nodes."""

    type: Any
    object: NodeObject


def excerpt(kind: type) -> Callable[[bytes], Any]:
    """Returns a decoder of documents that keeps the fields of `kind` alone.

    The decoder raises ValueError where a document is no JSON.
    """
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)

    def decode(data: bytes) -> Any:
        # All objects that the decoder makes are in use: a garbage collection would free none, and take longer than it.
        collects = gc.isenabled()
        gc.disable()
        try:
            return decoder.decode(data)
        except msgspec.DecodeError:
            return json.loads(data)
        finally:
            if collects:
                gc.enable()

    return decode
