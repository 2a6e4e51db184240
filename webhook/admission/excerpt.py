"""What is read of an AdmissionReview; all else in one is skipped without being made into objects.

Most of what an API server sends is never looked at: managedFields, which are as long as the pod itself, probes, the
status. Whatever a check is to look at stands here, or does not exist for it. `Any` is read as it comes. A
document in which something is of another type than here is read whole, so that every field means the same in it.

This module is not compiled: mypyc keeps no annotations, and the decoder is made of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypedDict

import msgspec

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Metadata(TypedDict, total=False):
    """Of an object's metadata: its names, and what people and controllers wrote on it."""

    name: Any
    generateName: Any
    annotations: Any
    labels: Any
    finalizers: Any
    ownerReferences: Any


class Resources(TypedDict, total=False):
    """Of a container's resources."""

    limits: Any
    requests: Any
    claims: Any


class Security(TypedDict, total=False):
    """Of a container's security context."""

    privileged: Any


class Container(TypedDict, total=False):
    """Of a main container. Init containers are compared as a whole with our own, and so are volumes.

    The environment stays the bytes that it is: few are looked into (see exposure).
    """

    name: Any
    resources: Resources | None
    volumeMounts: Any
    env: msgspec.Raw
    securityContext: Security | None


class Spec(TypedDict, total=False):
    """Of the spec of a pod, a workload or an order. What goes back into a patch has the type that the API gives it."""

    containers: list[Container]
    initContainers: Any
    ephemeralContainers: Any
    volumes: Any
    hostPID: Any
    nodeName: Any
    nodeSelector: Any
    os: Any
    schedulerName: str
    priorityClassName: str
    priority: Int64 | None
    preemptionPolicy: str | None
    schedulingGates: Any
    activeDeadlineSeconds: Any
    template: Any
    jobTemplate: Any
    requestedBy: Any


class Item(TypedDict, total=False):
    """Of an object: a pod, or what holds the template of pods."""

    metadata: Metadata
    spec: Spec
    template: Any


class Kind(TypedDict, total=False):
    """Of the kind of an object."""

    kind: Any


class User(TypedDict, total=False):
    """Of who asks."""

    username: Any


class Request(TypedDict, total=False):
    """Of the request that a review carries."""

    uid: Any
    kind: Kind
    subResource: Any
    operation: Any
    namespace: Any
    name: Any
    userInfo: User
    object: Item | None
    oldObject: Item | None


class Review(TypedDict, total=False):
    """Of an AdmissionReview."""

    apiVersion: Any
    kind: Any
    request: Request


DECODER: Final = msgspec.json.Decoder(Review)
