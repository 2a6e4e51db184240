"""The API server as a source: its watches, its writes, and the fields of objects that are kept in memory.

Kueue's LocalQueues are watched to find the ClusterQueue of a pod that names only its LocalQueue: Kueue writes the
ClusterQueue on pods only from version 0.17 on. The queues change no charge.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final, Protocol

import structlog

from fairgpu import names
from fairgpu.cluster import resource_claims
from fairgpu.cluster.api import JSON_PATCH, MERGE_PATCH, ApiError, Json, KubernetesAPI
from fairgpu.cluster.optional_groups import KUEUE, OptionalGroup
from fairgpu.cluster.reflector import FIRST_RETRY_SECONDS, Collection, View, reflect
from fairgpu.json_values import list_of, mapping, mappings
from fairgpu.keeping import Wait, start_thread
from timekeeper.domain.attribution import TEMPLATE_HASH
from timekeeper.domain.holdings import deciding
from timekeeper.domain.holdings.claims import ATTRIBUTES, DRIVERS, results_of
from timekeeper.domain.holdings.listed import Listed
from timekeeper.domain.pods import GROUP_ANNOTATIONS, GROUP_LABELS, OUR_GATE
from timekeeper.domain.timestamps import Instant, instant_or_none
from timekeeper.sources.base import (
    CHECKPOINT_SHARDS,
    MAX_TERMINATION_SECONDS,
    BlockedError,
    ChangedMeanwhileError,
    ExistsError,
    Mirror,
    Mirrors,
    NotWrittenError,
    ObjectEvent,
    RefusedError,
    SourceError,
    name_of,
    namespace_of,
    uid_of,
)

KIND: Final = ("apiVersion", "kind")
METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
ANNOTATIONS: Final = (*names.RESERVED_ANNOTATIONS, names.CORE_POLICY, names.TASK_PRIORITY)
STACKS_ANNOTATIONS: Final = (*deciding.ANNOTATIONS, *GROUP_ANNOTATIONS)
OWNER: Final = ("kind", "name", "controller")
SPEC: Final = ("nodeName", "activeDeadlineSeconds", "terminationGracePeriodSeconds")
STATUS: Final = ("phase", "startTime", "extendedResourceClaimStatus")
CONDITION: Final = ("type", "status", "lastTransitionTime")
STATES: Final = {"running": ("startedAt",), "terminated": ("startedAt", "finishedAt")}
"""The states of a container that are read, with the fields of each."""
MOST_SHARED: Final = 8192
"""The most values in the cache that lets pods with equal fields share memory: labels, owners, lists of at most FEW
containers."""
NONE: Final[Json] = {}
FEW: Final = 8
MOST_INTERNED: Final = 64
SOME_CLAIMS: Final[list[Json]] = [{}]
"""Stands for the claims in a pod's spec. Only their presence counts, since each claim names the pods that reserve it.
"""
RESULT: Final = ("driver", "pool", "device", "adminAccess", "consumedCapacity")
SLICE: Final = ("driver", "pool", "nodeName", "sharedCounters")
MOST_GROUPS: Final = 16
"""The most of KAI's labels that are kept of a pod: one for each GPU of the largest node."""
OwnResources = Mapping[str, Listed] | None
"""The extended resources of other stacks that the admin lists, keyed by name; None if pods of other stacks are not
metered.
"""
OTHER_GATE: Final[Json] = {"name": ""}
"""Stands for each scheduling gate but FairGPU's own, so that FairGPU's gate keeps its index in the list."""


def is_metered(pod: Json) -> bool:
    """Returns whether a pod requests a part of a GPU in FairGPU's own resources.

    Such requests cannot change after the pod is created. Annotations and finalizers alone do not count, since anybody
    may write them on a pod without a GPU. Any JSON is tolerated: a pod that did not pass admission must not stop
    metering.
    """
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return False
    return any(_asks(container) for key in ("containers", "initContainers") for container in mappings(spec.get(key)))


def may_hold(pod: Json, own: OwnResources) -> bool:
    """Returns whether a pod may hold a part of a GPU by another stack: by an extended resource, by a claim, or by KAI.

    The mirror of pods keeps such a pod; `deciding.decide` says later what the pod holds. KAI's pods are recognised by
    KAI's annotations or by the name of their scheduler. A pod for whose extended resource kube-scheduler made a claim
    counts whatever the name of the resource is: a DeviceClass chooses that name.

    Args:
        own: the extended resources of other stacks that the admin lists, keyed by name; None if pods of other stacks
            are not metered: the result is then False.
    """
    spec, metadata = mapping(pod.get("spec")), mapping(pod.get("metadata"))
    if own is None:
        return False
    annotations = mapping(metadata.get("annotations"))
    if not annotations.keys().isdisjoint(deciding.ASKING_ANNOTATIONS):
        return True
    if any(map(deciding.is_of_a_container, annotations)):
        return True
    if spec.get("resourceClaims") or mapping(pod.get("status")).get("extendedResourceClaimStatus"):
        return True
    if spec.get("schedulerName") in deciding.ASKING_SCHEDULERS:
        return True
    return any(
        deciding.is_accelerator(resource, own)
        for key in ("containers", "initContainers")
        for container in mappings(spec.get(key))
        for resource in mapping(mapping(container.get("resources")).get("limits"))
    )


def metered_pod(
    pod: Json, kept_labels: Iterable[str] = (), own: OwnResources = None, *, known: bool = False
) -> Json | None:
    """Returns the fields of a pod that metering reads; None for a pod that is not metered.

    Other fields are dropped to save memory: volumes, commands and environments are most of a pod, and a large cluster
    has tens of thousands of pods. Fields whose size the author chooses are dropped, too: the API server accepts 1.5 MiB
    of labels.

    FairGPU's annotations are read only on a pod with the label of GPU pods, since no policy guards them without it. A
    pod without the label is metered by its request once it is bound.

    Args:
        pod: the pod as the API server has it.
        kept_labels: the keys of the labels that are kept with usage.
        own: the extended resources of other stacks that the admin lists, keyed by name; None if pods of other stacks
            are not metered.
        known: whether the pod was metered before. It then stays metered, even if an annotation by which another stack
            gives it GPUs was removed since.
    """
    elsewhere = may_hold(pod, own)
    if not is_metered(pod) and not elsewhere and not known:
        return None
    metadata, spec, status = (mapping(pod.get(key)) for key in ("metadata", "spec", "status"))
    read_spec = _interned(spec, SPEC)
    if "schedulingGates" in spec:
        # Our gate is removed by its index.
        gates = mappings(spec["schedulingGates"])
        read_spec["schedulingGates"] = [OUR_GATE if gate == OUR_GATE else OTHER_GATE for gate in gates]
    if elsewhere:
        read_spec |= _claims_and_scheduler(spec)
    for key in ("containers", "initContainers"):
        if key in spec:
            read_spec[key] = _containers(mappings(spec[key]), own)
    read_metadata = _metadata(metadata, kept_labels, elsewhere=elsewhere)
    return {**_chosen(pod, KIND), "metadata": read_metadata, "spec": read_spec, "status": _status(status)}


def _metadata(metadata: Json, kept_labels: Iterable[str], *, elsewhere: bool) -> Json:
    read = _interned(metadata, METADATA)
    annotations, labels = _read_keys(mapping(metadata.get("labels")), elsewhere=elsewhere)
    if elsewhere:
        own = [key for key in mapping(metadata.get("annotations")) if deciding.is_of_a_container(key)]
        annotations = (*annotations, *own[: deciding.MOST_OF_CONTAINERS + 1])
    for key, wanted in (("annotations", annotations), ("labels", (*labels, *kept_labels))):
        if key in metadata:
            chosen = _chosen(mapping(metadata[key]), wanted)
            read[key] = _shared(json.dumps(chosen))[0] if len(chosen) <= FEW and key == "labels" else chosen or NONE
    if "finalizers" in metadata:
        # The meter's finalizer is removed by its index.
        read["finalizers"] = [name if name == names.METER_FINALIZER else "" for name in list_of(metadata["finalizers"])]
    if "ownerReferences" in metadata:
        references = mappings(metadata["ownerReferences"])
        controllers = [reference for reference in references if reference.get("controller") is True]
        read["ownerReferences"] = _shared(*(json.dumps(_chosen(owner, OWNER)) for owner in controllers[:1]))
    return read


def _status(status: Json) -> Json:
    """Returns the fields of a pod's status that metering reads: a tenth of the status."""
    read = _interned(status, STATUS)
    conditions = mappings(status.get("conditions"))
    if conditions:
        first = [one for one in conditions if one.get("type") == "PodScheduled"]
        order = [*first, *conditions]
        latest = max(order, key=lambda one: instant_or_none(one.get("lastTransitionTime")) or 0)
        read["conditions"] = [
            _interned(one, CONDITION) for one in (*(one for one in first if one is not latest), latest)
        ]
    began = instant_or_none(status.get("startTime"))
    for key in ("containerStatuses", "initContainerStatuses"):
        if status.get(key):
            kept = [_container_status(one, began) for one in mappings(status[key])]
            read[key] = _shared(*map(json.dumps, kept)) if len(kept) <= FEW and _is_common(kept) else kept
    return read


def _is_common(statuses: list[Json]) -> bool:
    """Whether statuses of containers equal those of many other pods, so that these pods can share one object in memory.

    That is the case if each container runs or states nothing, and no start and no earlier run of a container is kept.
    """
    return all(set(one) <= {"name", "state"} and one.get("state") in ({"running": {}}, None) for one in statuses)


def _interned(item: Json, keys: Iterable[str]) -> Json:
    """Returns those fields of an object that `keys` names; equal short texts of all objects share memory."""
    return {
        key: sys.intern(value) if type(value) is str and len(value) < MOST_INTERNED else value
        for key, value in _chosen(item, keys).items()
    }


def _container_status(status: Json, began: int | None) -> Json:
    """Returns the fields of a container's status that metering reads.

    A container's start is kept only if it is earlier than `began`, or if `began` is None. Only then is the start the
    first proof that the kubelet had the pod.

    Args:
        began: the pod's startTime, at which the kubelet took up the pod, in nanoseconds since 1970; None if the pod
            states none.
    """
    read = _chosen(status, ("name",))
    for key in ("state", "lastState"):
        state = mapping(status.get(key))
        states = {kind: _chosen(mapping(state[kind]), fields) for kind, fields in STATES.items() if kind in state}
        for given in states.values():
            started = instant_or_none(given.get("startedAt"))
            if began is not None and started is not None and started >= began:
                del given["startedAt"]
        if states:
            read[key] = states
    return read


def _containers(given: list[Json], own: OwnResources) -> list[Json]:
    """Returns the fields of containers that metering reads; other pods share the result, so no caller may change it."""
    texts = (json.dumps(_container(container, own)) for container in given)
    return _shared(*texts) if len(given) <= FEW else [json.loads(text) for text in texts]


@lru_cache(MOST_SHARED)
def _shared(*containers: str) -> list[Json]:
    return [json.loads(text) for text in containers]


def _claims_and_scheduler(spec: Json) -> Json:
    """Returns the further fields of a pod's spec that are read if it may hold a part of a GPU by another stack.

    `resourceClaims` is SOME_CLAIMS, whatever claims the pod has; it is absent if the pod has none. `schedulerName` is
    present if it is one of `deciding.ASKING_SCHEDULERS`. Without both fields the result is empty.

    Args:
        spec: the pod's spec, as JSON.
    """
    kept: Json = {"resourceClaims": SOME_CLAIMS} if spec.get("resourceClaims") else {}
    if spec.get("schedulerName") in deciding.ASKING_SCHEDULERS:
        kept["schedulerName"] = spec["schedulerName"]
    return kept


def _read_keys(labels: Json, *, elsewhere: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the keys of the annotations and of the labels that metering reads of a pod with these labels.

    `elsewhere` says whether the pod may hold a part of a GPU by another stack.
    """
    guarded = labels.get(names.POD_LABEL) == names.POD_LABEL_VALUE
    annotations = (*(ANNOTATIONS if guarded else ()), *(STACKS_ANNOTATIONS if elsewhere else ()))
    gpus = [key for key in labels if key.startswith(deciding.LABEL)][:MOST_GROUPS]
    return annotations, (names.POD_LABEL, TEMPLATE_HASH, *((*GROUP_LABELS, *gpus) if elsewhere else ()))


def _container(container: Json, own: OwnResources) -> Json:
    given = mapping(mapping(container.get("resources")).get("limits"))
    limits = _chosen(given, names.CANONICAL_RESOURCES)
    if own is not None:
        limits |= {name: value for name, value in given.items() if deciding.is_read(name, own)}
    asked: Json = {"resources": {"limits": limits}} if limits else {}
    return _chosen(container, ("name", "restartPolicy")) | asked


def keeps(own: OwnResources) -> Callable[[Json], bool]:
    """Returns the filter of the mirror of pods: a function that returns whether the mirror holds a pod (JSON).

    The mirror holds pods that request GPUs in FairGPU's resources. If pods of other stacks are metered, it also holds
    the pods that may hold GPUs by these stacks.

    Args:
        own: the extended resources of other stacks that the admin lists, keyed by name; None if pods of other stacks
            are not metered.
    """
    return lambda pod: is_metered(pod) or may_hold(pod, own)


def _chosen(item: Json, keys: Iterable[str]) -> Json:
    return {key: item[key] for key in keys if key in item}


def read_claim_object(claim: Json, kept_labels: Iterable[str] = ()) -> Json:
    """Returns the fields of a ResourceClaim that metering reads.

    Args:
        claim: the ResourceClaim as the API server has it.
        kept_labels: the keys of the labels that are kept with usage.
    """
    metadata, status = mapping(claim.get("metadata")), mapping(claim.get("status"))
    read_metadata = _chosen(metadata, METADATA)
    if "labels" in metadata:
        read_metadata["labels"] = _chosen(mapping(metadata["labels"]), kept_labels)
    if "ownerReferences" in metadata:
        owners = [_chosen(owner, ("kind", "uid")) for owner in mappings(metadata["ownerReferences"])]
        read_metadata["ownerReferences"] = [owner for owner in owners if owner.get("kind") == "Pod"][:1]
    read_status: Json = {}
    if "reservedFor" in status:
        read_status["reservedFor"] = [_chosen(item, ("resource", "uid")) for item in mappings(status["reservedFor"])]
    results = results_of(claim)
    if results:
        read_status["allocation"] = {"devices": {"results": [_chosen(item, RESULT) for item in results]}}
    return {"metadata": read_metadata, "status": read_status}


def read_slice_object(item: Json) -> Json:
    """Returns the fields of a ResourceSlice (JSON) that metering reads."""
    spec = mapping(item.get("spec"))
    read = _chosen(spec, SLICE)
    if "devices" in spec:
        read["devices"] = [_device(device) for device in mappings(spec["devices"])]
    return {"metadata": _chosen(mapping(item.get("metadata")), METADATA), "spec": read}


def _read_slice_of(drivers: frozenset[str], item: Json) -> Json | None:
    return read_slice_object(item) if mapping(item.get("spec")).get("driver") in drivers else None


def _device(device: Json) -> Json:
    fields = mapping(device.get("basic")) or device
    read = _chosen(fields, ("nodeName", "capacity", "consumesCounters", "allowMultipleAllocations"))
    attributes = mapping(fields.get("attributes"))
    kept = {key: value for key, value in attributes.items() if key.rpartition("/")[2] in ATTRIBUTES}
    return {"name": device.get("name"), **read, "attributes": kept}


def counts_own_resources(quota: Json) -> bool:
    """Returns whether a ResourceQuota counts FairGPU's own resources, such as `requests.fairgpu.io/gpu-core`."""
    return any(names.ANNOTATION_PREFIX in key for key in mapping(mapping(quota.get("spec")).get("hard")))


def _read_quota(quota: Json) -> Json | None:
    return slim(quota) if counts_own_resources(quota) else None


def slim(item: Json) -> Json:
    """Returns a copy of a Kubernetes object without managedFields; of a node, also without the list of its images.

    Args:
        item: the object as the API server has it.
    """
    read = dict(item)
    metadata, status = item.get("metadata"), item.get("status")
    if isinstance(metadata, dict):
        read["metadata"] = {key: value for key, value in metadata.items() if key != "managedFields"}
    if isinstance(status, dict):
        read["status"] = {key: value for key, value in status.items() if key != "images"}
    return read


def _asks(container: Json) -> bool:
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    return isinstance(limits, dict) and any(resource in limits for resource in names.CANONICAL_RESOURCES)


BUDGETS = f"/apis/{names.BUDGET_API}/gpubudgets"
GRANTS = f"/apis/{names.BUDGET_API}/gpugrants"
CORRECTIONS = f"/apis/{names.BUDGET_API}/gpucorrections"
COLLECTIONS = {
    "pods": "/api/v1/pods",
    "nodes": "/api/v1/nodes",
    "node_leases": "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
    "namespaces": "/api/v1/namespaces",
    "budgets": BUDGETS,
    "grants": GRANTS,
    "corrections": CORRECTIONS,
}

QUOTAS = "/api/v1/resourcequotas"

POD_WRITE_SECONDS = 5
"""The seconds that the API server may take for a write to a pod, and that the client waits for its answer.

The API server gives up by itself then: k8s.io/apiserver/pkg/endpoints/filters/request_deadline.go reads `timeout`.
"""
_POD_WRITE = {"timeout": f"{POD_WRITE_SECONDS}s"}

ASK_AGAIN_SECONDS: Final = 30.0
"""The seconds after which an API server without Dynamic Resource Allocation, or without Kueue, is asked for it again.
"""
FIRST_QUEUES_SECONDS: Final = 5.0
"""The most seconds that the first list of pods waits for the first list of Kueue's LocalQueues."""
FORBIDDEN: Final = 403
REFUSALS: Final = frozenset({400, FORBIDDEN, 413, 422})
"""The statuses of answers by which a schema, a policy, a webhook or a limit forbids one write."""

_TOO_LARGE = "request is too large"
"""The text of etcd's error for more than 1.5 MiB (https://etcd.io/docs/v3.6/dev-guide/limit/), answered as 500."""

CONFIG_MAPS = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/configmaps"
CHECKPOINTS_KEY = "checkpoints.json"

_log = structlog.get_logger()


class ConfirmedView(View, Protocol):
    """A view of a collection that also states when it was last known to be current."""

    @property
    def confirmed_at(self) -> int | None:
        """The last instant at which the collection was known to be current (ns since 1970); None before any list."""


class OptionalView:
    """A view of a collection that the cluster may lack; it passes each object on to a mirror.

    If the API server does not have the collection, or forbids it, a mirror that was not read before counts as read and
    empty.
    """

    def __init__(self, mirror: ConfirmedView) -> None:
        self._mirror = mirror
        self.not_served = False
        """Whether the API server does not have the collection, at least in the version that was asked for."""

    def replaced(self, items: list[Json]) -> None:
        """Passes the whole collection on to the mirror."""
        self._mirror.replaced(items)

    def changed(self, kind: str, item: Json) -> None:
        """Passes one event of a watch on to the mirror.

        Args:
            kind: the type of the event: ADDED, MODIFIED or DELETED.
        """
        self._mirror.changed(kind, item)

    def confirmed(self) -> None:
        """Records that the mirror is current now."""
        self._mirror.confirmed()

    def failed(self, error: ApiError) -> None:
        """Makes the mirror empty if the collection is missing or forbidden, and was never read.

        Every error is logged, except that the collection is missing.
        """
        self.not_served = error.not_found
        if error.not_found or error.status == FORBIDDEN:
            self.absent()
        if not error.not_found:
            self._mirror.failed(error)

    def absent(self) -> None:
        """Makes the mirror empty and current if the collection was never read; otherwise it does nothing."""
        if self._mirror.confirmed_at is None:
            self._mirror.replaced([])
            self._mirror.confirmed()


@dataclass(frozen=True, slots=True)
class OptionalCollection:
    """A collection of an API group that a cluster may lack.

    Attributes:
        group: the API group.
        kind: the collection's name in paths, such as `resourceclaims`.
        read: returns the fields of an object that the mirror keeps; None for an object that the mirror does not keep.
    """

    group: OptionalGroup
    kind: str
    read: Callable[[Json], Json | None]


def follow_optional(
    api: KubernetesAPI,
    collection: OptionalCollection,
    view: OptionalView,
    wait: Wait,
    random: Callable[[], float],
) -> None:
    """Keeps a mirror current until the process ends; the cluster may lack the mirrored collection.

    At the start, the API server is asked which version of the collection's group it serves. It is asked again once it
    no longer serves that version.

    Args:
        collection: the collection, its API group, and the fields that the mirror keeps.
        view: receives the list and each change, and puts them into the mirror.
        wait: sleeps for a number of seconds; returns whether the process ends.
        random: returns a number in [0, 1), by which retries are spread.
    """
    while not wait(0):
        try:
            version = collection.group.served_version(api)
        except ApiError as error:
            view.failed(error)
            if wait(ASK_AGAIN_SECONDS if error.not_found else FIRST_RETRY_SECONDS * (1 + random())):
                return
            continue
        if not version:
            view.absent()
        else:
            view.not_served = False
            served = Collection(f"{collection.group.path}/{version}/{collection.kind}", {}, collection.read)
            reflect(api, served, view, lambda seconds: view.not_served or wait(seconds), random)
        if wait(ASK_AGAIN_SECONDS if view.not_served or not version else 0):
            return


QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
"""The label in which a pod's author names the LocalQueue, of the same namespace, that the pod is to wait in."""
CLUSTER_QUEUE: Final = "kueue.x-k8s.io/cluster-queue-name"
"""The label that names the ClusterQueue that admitted the pod."""


def read_local_queue(item: Json) -> Json:
    """Returns only the fields of a LocalQueue of Kueue that are used: its namespace, its name and its ClusterQueue."""
    metadata = {"namespace": namespace_of(item), "name": name_of(item)}
    return {"metadata": metadata, "spec": {"clusterQueue": mapping(item.get("spec")).get("clusterQueue")}}


def with_cluster_queue(pod: Json, cluster_queue: Callable[[str, str], str]) -> Json:
    """Returns a pod with the label that names its ClusterQueue, added if the pod names only its LocalQueue.

    Args:
        pod: the pod as the API server has it; it stays unchanged.
        cluster_queue: returns the ClusterQueue of the LocalQueue with this namespace and name; empty if it is unknown.
    """
    metadata = mapping(pod.get("metadata"))
    labels = mapping(metadata.get("labels"))
    queue = labels.get(QUEUE_NAME)
    if not isinstance(queue, str) or CLUSTER_QUEUE in labels:
        return pod
    found = cluster_queue(namespace_of(pod), queue)
    return {**pod, "metadata": {**metadata, "labels": {**labels, CLUSTER_QUEUE: found}}} if found else pod


class LocalQueues:
    """Kueue's LocalQueues of a cluster as last seen. One thread writes them, and any other thread reads them."""

    def __init__(self, now: Callable[[], Instant]) -> None:
        """Makes an empty view; `now` is a clock, in nanoseconds since 1970."""
        self._now = now
        self._lock = threading.Lock()
        """Guards the two fields below."""
        self._cluster_queues: dict[tuple[str, str], str] = {}
        self._confirmed_at: int | None = None
        self._answered = threading.Event()

    @property
    def confirmed_at(self) -> int | None:
        """The last instant at which the queues were known to be current (ns since 1970); None before the first list."""
        with self._lock:
            return self._confirmed_at

    def cluster_queue(self, namespace: str, queue: str) -> str:
        """Returns the ClusterQueue of a LocalQueue; empty if there is no such LocalQueue, or it names none.

        Args:
            queue: the LocalQueue's name.
        """
        with self._lock:
            return self._cluster_queues.get((namespace, queue), "")

    def wait_for_an_answer(self, seconds: float) -> bool:
        """Waits until a first request for LocalQueues has succeeded or failed; returns whether one has.

        Args:
            seconds: the longest wait.
        """
        return self._answered.wait(seconds)

    def replaced(self, items: list[Json]) -> None:
        """Replaces all LocalQueues by a list from the API server."""
        found = {(namespace_of(item), name_of(item)): _cluster_queue(item) for item in items}
        with self._lock:
            self._cluster_queues = found

    def changed(self, kind: str, item: Json) -> None:
        """Applies one event of the watch of LocalQueues.

        Args:
            kind: the type of the event: ADDED, MODIFIED or DELETED.
        """
        key = (namespace_of(item), name_of(item))
        with self._lock:
            if kind == "DELETED":
                self._cluster_queues.pop(key, None)
            else:
                self._cluster_queues[key] = _cluster_queue(item)

    def confirmed(self) -> None:
        """Records that the LocalQueues are current now."""
        with self._lock:
            self._confirmed_at = self._now()
        self._answered.set()

    def failed(self, error: ApiError) -> None:
        """Logs that a request for LocalQueues failed, and ends `wait_for_an_answer`; the queues stay as they are."""
        _log.warning("collection not refreshed", collection="localqueues", status=error.status, reason=error.reason)
        self._answered.set()


def _cluster_queue(item: Json) -> str:
    name = mapping(item.get("spec")).get("clusterQueue")
    return name if isinstance(name, str) else ""


class KubernetesSource:
    """Watches and writes objects of an API server, with the timekeeper's service account."""

    def __init__(
        self,
        api: KubernetesAPI,
        now: Callable[[], Instant],
        random: Callable[[], float],
        kept_labels: Sequence[str] = (),
        own: OwnResources = None,
        drivers: frozenset[str] = DRIVERS,
    ) -> None:
        """Makes a source that watches nothing yet.

        Args:
            now: returns the local time in nanoseconds since 1970.
            random: returns a number in [0, 1), by which retries are spread.
            kept_labels: the keys of the pods' labels that are kept with usage.
            own: the extended resources of other stacks that the admin lists, keyed by name; None if pods of other
                stacks are not metered.
            drivers: the drivers of Dynamic Resource Allocation whose claims are metered.
        """
        self.api = api
        self._drivers = None if own is None else drivers
        self._read_claim = partial(read_claim_object, kept_labels=tuple(kept_labels))
        self._pods = api.within(POD_WRITE_SECONDS)
        self._kept_labels, self._own = tuple(kept_labels), own
        self._random = random
        self._queues = LocalQueues(now) if CLUSTER_QUEUE in kept_labels else None
        keeping = {
            "pods": keeps(own),
            "slices": lambda item: mapping(item.get("spec")).get("driver") in drivers,
            "quotas": counts_own_resources,
        }
        self._mirrors = Mirrors(**{name: Mirror(name, now, keeping.get(name, _all)) for name in Mirrors.__slots__})

    @property
    def mirrors(self) -> Mirrors:
        """The mirrors of the watched collections."""
        return self._mirrors

    def start(self, wait: Wait) -> None:
        """Watches each collection in a separate thread, until `wait` returns that the process ends."""
        self.watch_queues(wait)
        for name, path in COLLECTIONS.items():
            self.watch(name, path, wait)
        self.watch_claims(wait)
        if self._own is None:
            self.leave_empty(self._mirrors.quotas)
        else:
            self.reflect("quotas", Collection(QUOTAS, {}, _read_quota), OptionalView(self._mirrors.quotas), wait)

    def leave_empty(self, *mirrors: Mirror) -> None:
        """Marks mirrors as read and empty, since their collections are not watched."""
        for mirror in mirrors:
            mirror.replaced([])
            mirror.confirmed()

    def watch_claims(self, wait: Wait) -> None:
        """Watches ResourceClaims and ResourceSlices in a thread each, until `wait` returns that the process ends.

        If pods of other stacks are not metered, nothing is watched, and both mirrors count as read and empty.
        """
        if self._drivers is None:
            self.leave_empty(self._mirrors.claims, self._mirrors.slices)
            return
        for kind, mirror, read in (
            ("resourceclaims", self._mirrors.claims, self._read_claim),
            ("resourceslices", self._mirrors.slices, partial(_read_slice_of, self._drivers)),
        ):
            self._follow(OptionalCollection(resource_claims.RESOURCE, kind, read), mirror, wait)

    def watch_queues(self, wait: Wait) -> None:
        """Watches Kueue's LocalQueues in a thread, if the ClusterQueue of pods is kept with usage.

        LocalQueues add a label to pods and change no charge. Only the first list of pods waits for them, for at most
        FIRST_QUEUES_SECONDS. The thread ends once `wait` returns True.
        """
        if self._queues is not None:
            self._follow(OptionalCollection(KUEUE, "localqueues", read_local_queue), self._queues, wait)

    def _follow(self, collection: OptionalCollection, view: ConfirmedView, wait: Wait) -> None:
        follow = partial(follow_optional, self.api, collection, OptionalView(view), wait, self._random)
        start_thread(f"watch-{collection.kind}", follow, wait)

    def _read_pod(self, pod: Json) -> Json | None:
        known = self._mirrors.pods.get(uid_of(pod)) is not None
        if self._queues is not None:
            pod = with_cluster_queue(pod, self._queues.cluster_queue)
        return metered_pod(pod, self._kept_labels, self._own, known=known)

    def watch(self, name: str, path: str, wait: Wait) -> None:
        """Watches a collection in a thread of its own, until `wait` returns that the process ends.

        Args:
            name: the name of the collection's mirror in `Mirrors`, such as pods.
            path: the collection's path at the API server.
        """
        mirror: Mirror = getattr(self._mirrors, name)
        if name != "pods":
            self.reflect(name, Collection(path, {}, slim), mirror, wait)
            return
        collection = Collection(path, {}, self._read_pod)
        start_thread("watch-pods", partial(self._reflect_pods, collection, wait), wait)

    def _reflect_pods(self, collection: Collection, wait: Wait) -> None:
        """Keeps the mirror of pods current; first waits for an answer about Kueue's queues.

        That wait takes at most FIRST_QUEUES_SECONDS.
        """
        if self._queues is not None:
            self._queues.wait_for_an_answer(FIRST_QUEUES_SECONDS)
        reflect(self.api, collection, self._mirrors.pods, wait, self._random)

    def reflect(self, name: str, collection: Collection, view: View, wait: Wait) -> None:
        """Keeps a view of a collection current in a thread of its own, until `wait` returns that the process ends.

        Args:
            name: the rest of the thread's name, after `watch-`.
            collection: the path, and the fields of each object that are kept.
            view: receives each list and each change.
        """
        start_thread(f"watch-{name}", partial(reflect, self.api, collection, view, wait, self._random), wait)

    def lift_gate(self, pod: Json) -> None:
        """Removes the budget's scheduling gate from a pod.

        The API server refuses the write if the pod has another uid now than when it was read, or no longer has the gate
        at the same index.

        Raises:
            ChangedMeanwhileError: the pod as it was read has no such gate, the pod is deleted, or the API server
                refuses for this reason.
            SourceError: the write failed for another reason.
        """
        metadata = pod["metadata"]
        gates = (pod.get("spec") or {}).get("schedulingGates") or []
        index = next((index for index, gate in enumerate(gates) if gate.get("name") == names.BUDGET_GATE), None)
        if index is None:
            raise ChangedMeanwhileError(f"pod {metadata['namespace']}/{metadata['name']} has no budget gate")
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
            {"op": "test", "path": f"/spec/schedulingGates/{index}/name", "value": names.BUDGET_GATE},
            {"op": "remove", "path": f"/spec/schedulingGates/{index}"},
        ]
        self._patch_pod(metadata, patch, JSON_PATCH)

    def remove_finalizer(self, pod: Json) -> None:
        """Removes the meter's finalizer from a pod.

        The API server refuses the write if the pod has another uid now than when it was read, or no longer has the
        finalizer at the same index.

        Raises:
            ChangedMeanwhileError: the pod as it was read has no such finalizer, the pod is deleted, or the API server
                refuses for this reason.
            SourceError: the write failed for another reason.
        """
        metadata = pod["metadata"]
        finalizers = metadata.get("finalizers") or []
        if names.METER_FINALIZER not in finalizers:
            raise ChangedMeanwhileError(f"pod {metadata['namespace']}/{metadata['name']} has no finalizer of the meter")
        index = finalizers.index(names.METER_FINALIZER)
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
            {"op": "test", "path": f"/metadata/finalizers/{index}", "value": names.METER_FINALIZER},
            {"op": "remove", "path": f"/metadata/finalizers/{index}"},
        ]
        self._patch_pod(metadata, patch, JSON_PATCH)

    def label_gpu_pod(self, pod: Json) -> None:
        """Gives a pod the label of GPU pods, and removes its reserved annotations.

        Policies guard these annotations only on a pod with the label, so anybody may have written them before. The
        patch contains the pod's uid, which cannot change: a new pod of the same name is not written.
        """
        metadata = pod["metadata"]
        given = {
            "uid": metadata["uid"],
            "labels": {names.POD_LABEL: names.POD_LABEL_VALUE},
            "annotations": dict.fromkeys(names.RESERVED_ANNOTATIONS),
        }
        self._patch_pod(metadata, {"metadata": given}, MERGE_PATCH)

    def announce_eviction(self, pod: Json, at: str | None) -> None:
        """Writes the time of a pod's eviction to its annotation, or removes the annotation.

        The patch contains the pod's uid, which cannot change: a new pod of the same name is not written.

        Args:
            at: the time as an RFC 3339 timestamp; None removes the annotation.
        """
        metadata = pod["metadata"]
        patch = {"metadata": {"uid": metadata["uid"], "annotations": {names.EVICTION_AT: at}}}
        self._patch_pod(metadata, patch, MERGE_PATCH)

    def evict(self, pod: Json) -> None:
        """Evicts a pod by posting an Eviction (https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/).

        The pod gets its terminationGracePeriodSeconds, but no more than MAX_TERMINATION_SECONDS. The Eviction carries
        the pod's label, without which the policy fairgpu-eviction refuses it.
        """
        metadata = pod["metadata"]
        label = (metadata.get("labels") or {}).get(names.POD_LABEL)
        options: Json = {"preconditions": {"uid": metadata["uid"]}}
        seconds = _termination_seconds(pod)
        if seconds is not None:
            options["gracePeriodSeconds"] = seconds
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                **({"labels": {names.POD_LABEL: label}} if label else {}),
            },
            "deleteOptions": options,
        }
        try:
            self._post_eviction(metadata, eviction)
        except ApiError as error:
            raise _eviction_error(error) from error

    def _post_eviction(self, metadata: Json, eviction: Json) -> None:
        """Posts an Eviction of a pod; if the pod has grown to etcd's limit, clears its managedFields and posts again.

        An eviction writes a condition into the pod. The API server clears managedFields by itself if a patch does not
        fit, but answers an error if an eviction does not. The managedFields are the only part of a pod that its author
        can make grow without bound after its creation: each field manager that applies a field is listed with the field
        (https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields).
        """
        path = _path_of(metadata)
        try:
            self._pods.create(f"{path}/eviction", eviction, _POD_WRITE)
        except ApiError as error:
            if _TOO_LARGE not in error.message:
                raise
            _log.warning("managed fields cleared", namespace=metadata["namespace"], name=metadata["name"])
            cleared = {"metadata": {"uid": metadata["uid"], "managedFields": [{}]}}
            self._pods.patch(path, cleared, MERGE_PATCH, _POD_WRITE)
            self._pods.create(f"{path}/eviction", eviction, _POD_WRITE)

    def write_budget_status(self, name: str, status: Json, version: str = "") -> None:
        """Replaces the status of a GPUBudget; fields that are not given are removed.

        Args:
            version: the resourceVersion in which the object must still be; empty for any.
        """
        self.request(lambda: self._replace_status(f"{BUDGETS}/{name}", status, version))

    def read_checkpoints(self) -> dict[str, Json]:
        """Returns the checkpoint documents in the ConfigMaps of all shards, keyed by name.

        A missing or unreadable ConfigMap counts as empty.

        Raises:
            SourceError: the API server refuses, fails or does not answer.
        """
        checkpoints: dict[str, Json] = {}
        for shard in range(CHECKPOINT_SHARDS):
            try:
                checkpoints |= _checkpoints(self.request(partial(self.api.get, _shard_path(shard))))
            except ChangedMeanwhileError:
                continue  # nothing was ever written there
        return checkpoints

    def write_checkpoints(self, shard: int, checkpoints: dict[str, Json]) -> None:
        """Replaces the ConfigMap that holds the checkpoint documents of one shard, or creates it."""
        data = {CHECKPOINTS_KEY: json.dumps(checkpoints, separators=(",", ":"), sort_keys=True)}
        try:
            self.request(lambda: self.api.patch(_shard_path(shard), {"data": data}))
        except ChangedMeanwhileError:
            name = _shard_path(shard).rpartition("/")[2]
            document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
            self.request(lambda: self.api.create(CONFIG_MAPS, document))

    def write_grant_status(self, name: str, status: Json) -> None:
        """Replaces the status of a GPUGrant; fields that are not given are removed."""
        self.request(lambda: self._replace_status(f"{GRANTS}/{name}", status))

    def write_correction_status(self, name: str, status: Json) -> None:
        """Replaces the status of a GPUCorrection; fields that are not given are removed."""
        self.request(lambda: self._replace_status(f"{CORRECTIONS}/{name}", status))

    def record_event(self, event: ObjectEvent) -> None:
        """Writes an Event into the namespace of its object; into `default` for an object without a namespace.

        Of a longer message, the first 1024 characters are written. A failure is logged and not raised.
        """
        metadata = event.regarding.get("metadata") or {}
        namespace = metadata.get("namespace") or "default"
        try:
            self._pods.create(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", _event(event, namespace))
        except ApiError as error:
            if event.id and error.reason == "AlreadyExists":
                return  # an earlier leader has recorded it
            _log.warning("event not written", reason=event.reason, name=metadata.get("name"), error=str(error))

    def _replace_status(self, path: str, status: Json, version: str = "") -> Json:
        unchanged = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}] if version else []
        operations = [*unchanged, {"op": "add", "path": "/status", "value": status}]
        return self.api.patch(f"{path}/status", operations, JSON_PATCH)

    def _patch_pod(self, metadata: Json, patch: Any, content_type: str) -> None:
        try:
            self._pods.patch(_path_of(metadata), patch, content_type, _POD_WRITE)
        except ApiError as error:
            raise _pod_error(error) from error

    def request(self, request: Callable[[], Json]) -> Json:
        """Sends a request to the API server and returns its answer; errors of the API server become SourceErrors.

        Args:
            request: sends the request; may raise ApiError.

        Raises:
            ChangedMeanwhileError: there is no such object, it has another version, or a test of a JSON Patch fails.
            ExistsError: an object of that name exists.
            RefusedError: a schema, a policy or a webhook refuses this write.
            SourceError: the API server failed or did not answer.
        """
        try:
            return request()
        except ApiError as error:
            if error.reason == "AlreadyExists":
                raise ExistsError(error.message) from error
            if error.outdated:
                raise ChangedMeanwhileError(error.message) from error
            if error.status in REFUSALS:
                raise RefusedError(str(error)) from error
            raise SourceError(str(error)) from error


def _path_of(metadata: Json) -> str:
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _termination_seconds(pod: Json) -> int | None:
    """Returns the grace period that an eviction must name, in seconds; None if the API server would choose the same.

    For a pod that is being deleted already, the result is never None: its deletion may have set a longer grace period,
    which only an eviction with a shorter one changes.
    """
    own = int((pod.get("spec") or {}).get("terminationGracePeriodSeconds") or 0)
    if pod["metadata"].get("deletionTimestamp") is not None:
        return max(1, min(own, MAX_TERMINATION_SECONDS))
    return MAX_TERMINATION_SECONDS if own > MAX_TERMINATION_SECONDS else None


def _eviction_error(error: ApiError) -> SourceError:
    # Of a pod under two PodDisruptionBudgets the API server answers 500, whatever they allow
    # (https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/#how-api-initiated-eviction-works).
    if error.status == 429 or (error.status == 500 and "more than one PodDisruptionBudget" in error.message):
        return BlockedError(error.message)
    return _pod_error(error)


def _pod_error(error: ApiError) -> SourceError:
    """Returns the error to raise for a failed write to a pod.

    An error that may concern this pod alone becomes a subclass of SourceError:

    - ChangedMeanwhileError: the pod was changed or deleted.
    - RefusedError: the pod's size or validation, a policy or a webhook forbids the write.
    - NotWrittenError: no answer came in time, or one with a status from 500 on other than 503.

    Any other error becomes a plain SourceError, since the API server serves no request of this leader: it answers 401
    (the credentials), 429 (too many requests) or 503, or takes no connection.
    """
    if error.outdated:
        return ChangedMeanwhileError(error.message)
    if error.status in REFUSALS:
        return RefusedError(str(error))
    if error.unanswered or (error.status >= 500 and error.status != 503):
        return NotWrittenError(str(error))
    return SourceError(str(error))


def _shard_path(shard: int) -> str:
    return f"{CONFIG_MAPS}/fairgpu-timekeeper-checkpoints-{shard}"


def _checkpoints(config_map: Json) -> dict[str, Json]:
    try:
        checkpoints = json.loads((config_map.get("data") or {}).get(CHECKPOINTS_KEY, "{}"))
    except ValueError as error:
        _log.error("checkpoints cannot be read", name=config_map["metadata"]["name"], error=str(error))
        return {}
    return checkpoints if isinstance(checkpoints, dict) else {}


def _all(_item: Json) -> bool:
    return True


def _event(event: ObjectEvent, namespace: str) -> Json:
    metadata = event.regarding.get("metadata") or {}
    regarding = {
        "apiVersion": event.regarding.get("apiVersion", "v1"),
        "kind": event.regarding.get("kind", "Pod"),
        **{key: metadata[key] for key in ("name", "namespace", "uid") if metadata.get(key)},
    }
    named = {"name": f"fairgpu-{event.id}"} if event.id else {"generateName": "fairgpu-"}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {**named, "namespace": namespace},
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "action": event.reason,
        "note": event.message[:1024],
        "regarding": regarding,
        "reportingController": "fairgpu.io/timekeeper",
        "reportingInstance": names.TIMEKEEPER_ACCOUNT,
    }
