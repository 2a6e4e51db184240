"""The fields of an AdmissionReview that admission reads; the decoder skips all others without making objects of them.

No check reads most of what an API server sends: managedFields, which are as long as the pod itself, probes, the status.
A field that is not listed here does not exist for any check (tests/unit/webhook/test_excerpt.py compares the list with
the fields that the checks read). `Any` stands for a value of any type, with all that is in it. If a value in a document
has another type than its field here, the document is decoded whole: the checks then see every value as it is.

mypyc does not compile this module, since compiled classes keep no annotations, of which the decoder is made.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypedDict

import msgspec

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Metadata(TypedDict, total=False):
    """The metadata of an object: its names, and the metadata that people and controllers wrote."""

    name: Any
    generateName: Any
    annotations: Any
    labels: Any
    finalizers: Any
    ownerReferences: Any


class Resources(TypedDict, total=False):
    """A container's resources: limits and requests keyed by resource name, and the claims that the container uses."""

    limits: Any
    requests: Any
    claims: Any


class Security(TypedDict, total=False):
    """A container's security context, in the fields that admission reads."""

    privileged: Any
    capabilities: Any


class Container(TypedDict, total=False):
    """A main container, in the fields that admission reads. Init containers are decoded whole.

    The environment and the command line stay JSON bytes: `undecoded` decodes them for the few pods for which they
    matter.
    """

    name: Any
    image: Any
    command: msgspec.Raw
    args: msgspec.Raw
    resources: Resources | None
    volumeMounts: Any
    env: msgspec.Raw
    securityContext: Security | None


class Spec(TypedDict, total=False):
    """The spec of a pod, a workload or an order, in the fields that admission reads.

    The fields that admission copies into a patch have the type of the Kubernetes API.
    """

    containers: list[Container]
    initContainers: Any
    ephemeralContainers: Any
    volumes: Any
    resources: Any
    hostPID: Any
    securityContext: Any
    readinessGates: Any
    resourceClaims: Any
    nodeName: Any
    runtimeClassName: Any
    nodeSelector: Any
    os: Any
    schedulerName: str
    priorityClassName: str
    priority: Int64 | None
    preemptionPolicy: str | None
    schedulingGates: Any
    tolerations: Any
    activeDeadlineSeconds: Any
    template: Any
    jobTemplate: Any
    replicatedJobs: Any
    leaderWorkerTemplate: Any
    pytorchReplicaSpecs: Any
    mpiReplicaSpecs: Any
    requestedBy: Any


class Item(TypedDict, total=False):
    """The object of a review, in the fields that admission reads: a pod, an object with pod templates, or an order."""

    metadata: Metadata
    spec: Spec
    template: Any


class Kind(TypedDict, total=False):
    """The kind of an object in a review."""

    kind: Any


class User(TypedDict, total=False):
    """The user that sent the request of a review."""

    username: Any


class Request(TypedDict, total=False):
    """The request of an AdmissionReview, in the fields that admission reads."""

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
    """An AdmissionReview, in the fields that admission reads."""

    apiVersion: Any
    kind: Any
    request: Request


DECODER: Final = msgspec.json.Decoder(Review)
