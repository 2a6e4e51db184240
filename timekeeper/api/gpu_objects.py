"""GPUNodes and GPUPods: read from Nodes and Pods, listed, and watched as in the Kubernetes API.

The annotation `fairgpu.io/inventory` states the GPUs of a node, the annotation `fairgpu.io/allocation` the parts that a
bound pod holds. The reasons why a pod waits are its scheduling gates; without gates, the messages of two conditions.
All else of a GPUPod follows from the pod's metadata, spec and phase.

`GET /apis/fairgpu.io/v1/gpunodes` and `gpupods` answer lists, and watches that can be resumed:
https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes

A resourceVersion is made of the API server's resourceVersions. For GPUPods it is that of the pods. For GPUNodes, which
follow from nodes and pods, it is `NODES.PODS`, that of the nodes and that of the pods. A watch that one worker began
can therefore go on at any other worker. A watch gets each changed object in its present state, and not each state in
between.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from sys import intern
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import orjson
import structlog

from fairgpu import allocation, inventory, names
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.cluster.reflector import Collection, reflect
from fairgpu.demand import is_native_sidecar, peak
from fairgpu.json_values import mapping, mappings
from fairgpu.keeping import Wait, start_thread
from fairgpu.names import POD_LABEL, POD_LABEL_VALUE
from fairgpu.serving.messages import Request, Response, Stream
from timekeeper.api.metrics import Measures
from timekeeper.api.models import is_namespace
from timekeeper.api.paging import refuse_unknown
from timekeeper.api.problems import ProblemError, invalid, not_found
from timekeeper.auth.access_control import AccessControl, Action, TooManyRequestsError, bearer_token, require

GPU_NODES = "gpunodes"
GPU_PODS = "gpupods"
KINDS = {GPU_NODES: "GPUNode", GPU_PODS: "GPUPod"}
API_VERSION = "fairgpu.io/v1"
PLACEABLE = "fairgpu.io/Placeable"


class Held(NamedTuple):
    """A pod's part of one GPU.

    Attributes:
        core_percent: the pod's part of the GPU's time, in percent.
        memory_mib: the pod's part of the GPU's memory, in MiB.
        containers: the largest number of the pod's containers that run on the GPU at one time.
    """

    core_percent: int
    memory_mib: int
    containers: int


@dataclass(frozen=True, slots=True)
class GPUPod:
    """A pod that asks for a part of a GPU.

    Attributes:
        uid, namespace, name: identify the pod.
        node: the name of the node on which the pod holds GPUs; empty if it holds none.
        held: keyed by the GPU's uuid, the pod's part of that GPU.
        body: the JSON document of the GPUPod without the API version, the kind and the resourceVersion.
    """

    uid: str
    namespace: str
    name: str
    node: str
    held: Mapping[str, Held]
    body: bytes


@dataclass(frozen=True, slots=True)
class GPUNode:
    """A node that offers GPUs.

    Attributes:
        name: the node's name.
        inventory: the node's GPUs, from the annotation that the node agent writes; None if the annotation is invalid.
        fault: the reason why the annotation is invalid; empty if it is valid.
    """

    name: str
    inventory: inventory.Inventory | None
    fault: str = ""


@dataclass(slots=True)
class _Shares:
    """The parts of one GPU that a pod's containers hold.

    Attributes:
        main: the parts of the main containers.
        init: the parts of the init containers in order, each with whether the container is a sidecar, which keeps
            running.
    """

    main: list[Held] = field(default_factory=list)
    init: list[tuple[Held, bool]] = field(default_factory=list)


def read_pod(item: Json) -> GPUPod:
    """Parses a Pod that has the label of GPU pods; `item` is the Pod as JSON."""
    metadata, spec, status = mapping(item.get("metadata")), mapping(item.get("spec")), mapping(item.get("status"))
    annotations = mapping(metadata.get("annotations"))
    node = str(spec.get("nodeName") or "")
    # The API server binds no pod that was deleted, though a finalizer may keep it for long.
    ended = status.get("phase") in names.TERMINAL_PHASES or (bool(metadata.get("deletionTimestamp")) and not node)
    allocated, fault = _allocation(annotations, node) if node and not ended else (None, "")
    document = {
        "metadata": {
            key: metadata[key] for key in ("name", "namespace", "uid", "creationTimestamp") if key in metadata
        },
        "status": {
            "stage": "ended" if ended else _stage(spec, node),
            "node": node or None,
            "containers": [] if allocated is None else [_container(one) for one in allocated.containers],
            "fault": fault or None,
            "waits": [] if node or ended else _waits(spec, status),
            "priorityClass": spec.get("priorityClassName"),
            "gang": annotations.get(names.GANG),
            "reclaimAt": annotations.get(names.RECLAIM_AT),
            "evictionAt": annotations.get(names.EVICTION_AT),
            "earmark": None if node or ended else annotations.get(names.EARMARK),
        },
    }
    return GPUPod(
        uid=str(metadata.get("uid", "")),
        namespace=intern(str(metadata.get("namespace", ""))),
        name=str(metadata.get("name", "")),
        node=intern(node) if allocated is not None else "",
        held={} if allocated is None else _held(allocated, spec),
        body=_encoded(document),
    )


def read_node(item: Json) -> GPUNode | None:
    """Parses a Node; returns None if no node agent has written which GPUs the node offers."""
    metadata = mapping(item.get("metadata"))
    text = mapping(metadata.get("annotations")).get(names.INVENTORY)
    if not isinstance(text, str):
        return None
    try:
        return GPUNode(str(metadata.get("name", "")), inventory.decode(text))
    except inventory.InventoryError as error:
        return GPUNode(str(metadata.get("name", "")), None, str(error))


def node_body(node: GPUNode, pods: Iterable[GPUPod]) -> bytes:
    """Returns the JSON document of a GPUNode without the API version, the kind and the resourceVersion.

    Args:
        pods: the pods that hold GPUs of the node.
    """
    offered = node.inventory
    holders = sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.uid))
    status: dict[str, Any] = {"fault": node.fault or None, "devices": []}
    if offered is not None:
        status |= {"vendor": offered.vendor, "driver": offered.driver, "slots": offered.slots}
        status["devices"] = [_device(device, holders) for device in offered.devices]
    return _encoded({"metadata": {"name": node.name}, "status": status})


def document(kind: str, body: bytes, version: str) -> bytes:
    """Returns the whole JSON document of a GPUNode or a GPUPod.

    Args:
        kind: gpunodes or gpupods.
        body: the document without the API version, the kind and the resourceVersion; it begins with the metadata.
        version: the resourceVersion that the document states.
    """
    head = b'{"apiVersion":"%b","kind":"%b",' % (API_VERSION.encode(), KINDS[kind].encode())
    return head + b'"metadata":{"resourceVersion":"%b",' % version.encode() + body.removeprefix(b'{"metadata":{')


def _encoded(document: Json) -> bytes:
    """Returns a document as JSON in as little memory as possible: orjson's own bytes would occupy a buffer of 4 KiB."""
    return bytes(memoryview(orjson.dumps(document)))


def _device(device: inventory.Device, holders: Iterable[GPUPod]) -> dict[str, Any]:
    parts = [(pod, pod.held[device.uuid]) for pod in holders if device.uuid in pod.held]
    return {
        "uuid": device.uuid,
        "model": device.model,
        "memoryMiB": device.memory_mib,
        "numa": device.numa,
        "pci": device.pci,
        "health": device.health.value,
        "why": device.why or None,
        "held": _figures(Held(*(sum(held[at] for _, held in parts) for at in range(len(Held._fields))))),
        "pods": [
            {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, **_figures(held)} for pod, held in parts
        ],
    }


def _figures(held: Held) -> dict[str, int]:
    return {"corePercent": held.core_percent, "memoryMiB": held.memory_mib, "containers": held.containers}


def _allocation(annotations: Json, node: str) -> tuple[allocation.Allocation | None, str]:
    """Returns the allocation in a pod's annotations, and the allocation's fault, as a text.

    The allocation is None if it is absent, or if it is faulty: it cannot be read, or it is for another node. The fault
    is empty for an absent allocation and for a valid one.

    Args:
        annotations: the pod's annotations.
        node: the name of the node to which the pod is bound.
    """
    text = annotations.get(names.ALLOCATION)
    if not isinstance(text, str):
        return None, ""
    try:
        allocated = allocation.decode(text)
    except allocation.AllocationError as error:
        return None, str(error)
    if allocated.node != node:
        return None, f"the allocation is of node {allocated.node}, and the pod is bound to {node}"
    return allocated, ""


def _container(container_allocation: allocation.ContainerAllocation) -> dict[str, Any]:
    return {
        "name": container_allocation.name,
        "devices": [
            {
                "uuid": device.uuid,
                "model": device.model,
                "corePercent": device.core_percent,
                "memoryMiB": device.memory_mib,
            }
            for device in container_allocation.devices
        ],
    }


def _held(pod_allocation: allocation.Allocation, spec: Json) -> dict[str, Held]:
    """Returns a pod's part of each GPU, keyed by uuid: the most that the pod holds of the GPU at any time of its life.

    Args:
        pod_allocation: the pod's allocation, with the devices of each container.
        spec: the pod's spec, which says which containers are init containers.
    """
    init = {str(one.get("name")): is_native_sidecar(one) for one in mappings(spec.get("initContainers"))}
    shares: dict[str, _Shares] = {}
    for container in pod_allocation.containers:
        for device in container.devices:
            one = Held(device.core_percent, device.memory_mib, 1)
            of_device = shares.setdefault(intern(device.uuid), _Shares())
            if container.name in init:
                of_device.init.append((one, init[container.name]))
            else:
                of_device.main.append(one)
    return {
        uuid: Held(
            *(
                peak([one[at] for one in each.main], [(one[at], keeps) for one, keeps in each.init])
                for at in range(len(Held._fields))
            )
        )
        for uuid, each in shares.items()
    }


def _stage(spec: Json, node: str) -> str:
    """Returns the stage of a pod that has not ended: `placed` on a node, `gated`, or `waits` for a node without a gate.

    Args:
        spec: the pod's spec.
        node: the name of its node; empty if it is not bound.
    """
    if node:
        return "placed"
    return "gated" if spec.get("schedulingGates") else "waits"


def _waits(spec: Json, status: Json) -> list[dict[str, str]]:
    """Returns the reasons for which a pod waits, as maps with `by` and `why`.

    The reasons are the pod's scheduling gates or, without gates, the messages of kube-scheduler and of FairGPU's
    extender.
    """
    gates = [str(gate.get("name")) for gate in mappings(spec.get("schedulingGates"))]
    if gates:
        return [{"by": "gate", "why": gate} for gate in gates]
    conditions = {str(one.get("type")): one for one in mappings(status.get("conditions"))}
    said = (("kube-scheduler", conditions.get("PodScheduled")), ("fairgpu", conditions.get(PLACEABLE)))
    return [{"by": who, "why": str(one["message"])} for who, one in said if one is not None and one.get("message")]


MAX_CHANGES = 20_000
"""The most changes of each kind that are remembered, so that watches can be resumed."""
GATHER_SECONDS = 0.1
"""The seconds for which changes are gathered before watches are woken."""
CATCH_UP_SECONDS = 3.0
"""The most seconds that a request waits until this worker has read the objects up to the client's resourceVersion."""
BOOKMARK_SECONDS = 15.0
LINES_AT_ONCE = 500
NODES, PODS = "nodes", "pods"
SOURCES = {GPU_NODES: (NODES, PODS), GPU_PODS: (PODS,)}
"""The collections of the API server from which the objects of a kind follow."""

Loop = Callable[[], asyncio.AbstractEventLoop]
"""Returns the event loop of the worker."""

_log = structlog.get_logger()


class ExpiredError(ValueError):
    """This worker does not know all changes after a resourceVersion; the client must list again."""


class VersionError(ValueError):
    """A text is no resourceVersion of the kind of objects that was asked for."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of a GPUNode or a GPUPod.

    Attributes:
        number: the number of the change among the changes of the same kind of objects.
        source, version: the API server's collection, nodes or pods, whose change caused this one, and the
            resourceVersion of the collection's change.
        key: the name of the changed node, or the uid of the changed pod.
        deleted: the namespace and the JSON of an object that was deleted; None for any other change.
    """

    number: int
    source: str
    version: int
    key: str
    deleted: tuple[str, bytes] | None = None


@dataclass(slots=True)
class _Changes:
    """The latest changes of one kind of objects, gpunodes or gpupods.

    Attributes:
        number: the number of the last change, counted from 1; 0 before the first change.
        floor: keyed by collection, nodes or pods, the least resourceVersion from which a watch can continue: `recent`
            has every later change. A client with an earlier resourceVersion must list again.
        recent: the latest changes, oldest first.
        born: for each present object, the number of the change that added it, keyed by the node's name or the pod's
            uid. A watch that continues from an earlier change gets the object as ADDED, any other as MODIFIED.
    """

    number: int = 0
    floor: dict[str, int] = field(default_factory=dict)
    recent: deque[_Change] = field(default_factory=deque)
    born: dict[str, int] = field(default_factory=dict)

    def add(self, source: str, version: int, key: str, deleted: tuple[str, bytes] | None = None) -> None:
        """Adds a change; drops the oldest one if there are more than MAX_CHANGES.

        Args:
            source: the API server's collection, nodes or pods, whose change caused this one.
            version: the resourceVersion of the collection's change.
            key: the name of the changed node, or the uid of the changed pod.
            deleted: the namespace and the JSON of an object that was deleted; None for any other change.
        """
        self.number += 1
        if deleted is None:
            self.born.setdefault(key, self.number)
        self.recent.append(_Change(self.number, source, version, key, deleted))
        if len(self.recent) > MAX_CHANGES:
            oldest = self.recent.popleft()
            self.floor[oldest.source] = max(self.floor.get(oldest.source, 0), oldest.version)


class GPUFeed:
    """The GPUNodes and GPUPods of a cluster as last seen, and their recent changes. Thread-safe.

    The changes of each kind, gpunodes and gpupods, are numbered from 1.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        """Makes an empty feed; each call of `reach` calls `wake`, in any thread."""
        self._wake = wake
        self._lock = threading.Lock()
        self._nodes: dict[str, GPUNode] = {}
        self._pods: dict[str, GPUPod] = {}
        self._on: dict[str, dict[str, GPUPod]] = {}
        self._bodies: dict[str, bytes] = {}
        self._reached: dict[str, int] = {}
        self._last_pod_version = 0
        self._changes = {kind: _Changes() for kind in KINDS}

    # Changes that the API server reports.

    def reach(self, source: str, version: int) -> None:
        """Records that the nodes or the pods of the API server were read up to a resourceVersion.

        Args:
            source: the collection: nodes or pods.
            version: the resourceVersion as a number.
        """
        with self._lock:
            if source not in self._reached:
                for changes in self._changes.values():
                    changes.floor[source] = max(changes.floor.get(source, 0), version)
            self._reached[source] = max(self._reached.get(source, 0), version)
        self._wake()

    def put_node(self, name: str, node: GPUNode | None, version: int) -> None:
        """Stores a node as last seen.

        Args:
            name: the node's name.
            node: the node; None if it offers no GPUs, or is deleted.
            version: the node's resourceVersion as a number.
        """
        with self._lock:
            if node == self._nodes.get(name):
                return
            if node is not None:
                new = name not in self._nodes
                self._nodes[name] = node
                self._note_node(name, NODES, version)
                if new:
                    # Pods may have come to this node or left it before its Node was seen; a client may know the Node
                    # from a worker that had not seen those pods.
                    self._note_node(name, PODS, self._last_pod_version)
                return
            deleted = self._body(name)
            del self._nodes[name]
            self._bodies.pop(name, None)
            changes = self._changes[GPU_NODES]
            changes.born.pop(name, None)
            changes.add(NODES, version, name, ("", deleted))

    def put_pod(self, uid: str, pod: GPUPod | None, version: int) -> None:
        """Stores a GPU pod as last seen.

        Args:
            uid: the pod's uid.
            pod: the pod; None if it is deleted.
            version: the pod's resourceVersion as a number.
        """
        with self._lock:
            before = self._pods.get(uid)
            if pod == before:
                return
            self._last_pod_version = max(self._last_pod_version, version)
            changes = self._changes[GPU_PODS]
            if pod is not None:
                self._pods[uid] = pod
                changes.add(PODS, version, uid)
            elif before is not None:
                del self._pods[uid]
                changes.born.pop(uid, None)
                changes.add(PODS, version, uid, (before.namespace, before.body))
            self._hold(before, pod, version)

    def replace_nodes(self, nodes: Iterable[GPUNode], version: int) -> None:
        """Replaces all nodes by a list from the API server.

        Args:
            nodes: the nodes that offer GPUs.
            version: the resourceVersion of the list as a number.
        """
        nodes_by_name = {node.name: node for node in nodes}
        for name in self._nodes.keys() - nodes_by_name.keys():
            self.put_node(name, None, version)
        for name, node in nodes_by_name.items():
            self.put_node(name, node, version)

    def replace_pods(self, pods: Iterable[GPUPod], version: int) -> None:
        """Replaces all GPU pods by a list from the API server.

        Args:
            pods: all GPU pods.
            version: the resourceVersion of the list as a number.
        """
        pods_by_uid = {pod.uid: pod for pod in pods}
        for uid in self._pods.keys() - pods_by_uid.keys():
            self.put_pod(uid, None, version)
        for uid, pod in pods_by_uid.items():
            self.put_pod(uid, pod, version)

    def _hold(self, before: GPUPod | None, pod: GPUPod | None, version: int) -> None:
        """Stores on which node a pod holds GPUs now, and adds a change for each node whose holders have changed.

        `before` is the pod as it was; None for a new one. `pod` is the pod now; None if it was deleted. `version` is
        the resourceVersion of the pod's change.
        """
        if before is not None and pod is not None and (before.node, before.held) == (pod.node, pod.held):
            if pod.node:
                self._on[pod.node][pod.uid] = pod
            return
        for one, there in ((before, False), (pod, True)):
            if one is None or not one.node:
                continue
            holders = self._on.setdefault(one.node, {})
            if there:
                holders[one.uid] = one
            else:
                holders.pop(one.uid, None)
            if not holders:
                del self._on[one.node]
            if one.node in self._nodes:
                self._note_node(one.node, PODS, version)

    def _note_node(self, name: str, source: str, version: int) -> None:
        self._bodies.pop(name, None)
        self._changes[GPU_NODES].add(source, version, name)

    def _body(self, name: str) -> bytes:
        body = self._bodies.get(name)
        if body is None:
            body = self._bodies[name] = node_body(self._nodes[name], self._on.get(name, {}).values())
        return body

    # Questions of clients.

    def is_known(self) -> bool:
        """Returns whether both the nodes and the pods have been read at least once."""
        with self._lock:
            return {NODES, PODS} <= self._reached.keys()

    def listed(self, kind: str, namespace: str = "") -> bytes:
        """Returns the JSON document that lists the objects of a kind, sorted by namespace and name.

        Args:
            kind: gpunodes or gpupods.
            namespace: the namespace of the objects; empty for all.
        """
        with self._lock:
            version = self._version(kind)
            bodies = [body for _, body in sorted(self._present(kind, namespace))]
        head = orjson.dumps(
            {"apiVersion": API_VERSION, "kind": f"{KINDS[kind]}List", "metadata": {"resourceVersion": version}}
        )
        items = b",".join(document(kind, body, version) for body in bodies)
        return head[:-1] + b',"items":[' + items + b"]}"

    def version(self, kind: str) -> str:
        """Returns the present resourceVersion of a kind of objects, gpunodes or gpupods."""
        with self._lock:
            return self._version(kind)

    def position(self, kind: str, version: str) -> int | None:
        """Returns the number of the last change that a resourceVersion includes, after which a watch continues.

        Args:
            kind: gpunodes or gpupods.
            version: the resourceVersion from an earlier answer.

        Returns:
            None if this worker has not yet read the API server's objects up to that version.

        Raises:
            VersionError: the text is no resourceVersion of this kind.
            ExpiredError: not all changes after that resourceVersion are known.
        """
        sources = SOURCES[kind]
        parts = version.split(".")
        if len(parts) != len(sources) or not all(_is_number(part) for part in parts):
            raise VersionError(f"a resourceVersion of {kind} from an earlier answer")
        asked = dict(zip(sources, map(int, parts), strict=True))
        with self._lock:
            changes = self._changes[kind]
            if any(number > self._reached.get(source, 0) for source, number in asked.items()):
                return None
            if any(number < changes.floor.get(source, 0) for source, number in asked.items()):
                raise ExpiredError(f"changes of {kind} since {version} are not known any more: list again")
            later = (change for change in changes.recent if change.version > asked[change.source])
            first = next(later, None)
            return changes.number if first is None else first.number - 1

    def since(self, kind: str, number: int | None, namespace: str = "") -> tuple[int, list[tuple[str, bytes]], str]:
        """Returns the changes of a kind of objects that follow the change with a given number.

        An object that changed several times appears once, at its last change.

        Args:
            kind: gpunodes or gpupods.
            number: the number of the change; None for all present objects, each as ADDED.
            namespace: the namespace of the objects; empty for all.

        Returns:
            The number of the last change; for each changed object, the type of the change (such as ADDED) and the
            object's document; and the present resourceVersion.

        Raises:
            ExpiredError: some of these changes are not remembered any more.
        """
        with self._lock:
            changes, version = self._changes[kind], self._version(kind)
            if number is None:
                return changes.number, [("ADDED", body) for _, body in self._present(kind, namespace)], version
            if changes.number == number:
                return number, [], version
            if changes.recent[0].number > number + 1:
                raise ExpiredError("the watch is too far behind: list again")
            # If an object changed twice, only its last change counts, at its place in the order.
            last: dict[str, _Change] = {}
            for change in islice(reversed(changes.recent), changes.number - number):
                last.setdefault(change.key, change)
            events = [self._event(kind, change, number, namespace) for change in reversed(last.values())]
            return changes.number, [event for event in events if event is not None], version

    def _event(self, kind: str, change: _Change, number: int, namespace: str) -> tuple[str, bytes] | None:
        """Returns the type and the object's JSON of the event that a watch gets for an object's last change.

        Args:
            kind: gpunodes or gpupods.
            change: the object's last change.
            number: the number of the change after which the watch continues: an object that came later is ADDED.
            namespace: the namespace that is watched; empty for all.

        Returns:
            The type and the JSON; None if the object is in a namespace that is not watched.
        """
        if change.deleted is not None:
            return None if namespace not in ("", change.deleted[0]) else ("DELETED", change.deleted[1])
        if kind == GPU_PODS:
            pod = self._pods[change.key]
            if namespace not in ("", pod.namespace):
                return None
            body = pod.body
        else:
            body = self._body(change.key)
        return ("ADDED" if self._changes[kind].born[change.key] > number else "MODIFIED", body)

    def _present(self, kind: str, namespace: str) -> list[tuple[tuple[str, ...], bytes]]:
        if kind == GPU_NODES:
            return [((name,), self._body(name)) for name in self._nodes]
        pods = self._pods.values()
        return [((pod.namespace, pod.name, pod.uid), pod.body) for pod in pods if namespace in ("", pod.namespace)]

    def _version(self, kind: str) -> str:
        return ".".join(str(self._reached.get(source, 0)) for source in SOURCES[kind])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


class _View:
    """A view of the API server's nodes or pods; it passes the objects and each new resourceVersion on to a GPUFeed."""

    def __init__(self, feed: GPUFeed, source: str) -> None:
        self._feed = feed
        self._source = source
        self._version = 0

    def decode(self, data: bytes) -> Json:
        """Decodes a page of a list or an event of a watch from JSON, and remembers its resourceVersion for the feed."""
        body: Json = orjson.loads(data)
        metadata = mapping(mapping(body.get("object")).get("metadata")) or mapping(body.get("metadata"))
        version = str(metadata.get("resourceVersion") or "")
        if _is_number(version):
            self._version = int(version)
        return body

    def read(self, item: Json) -> Json:
        """Returns a map with two keys: KEY has a Node's name or a Pod's uid, READ the GPUNode or GPUPod parsed from it.

        READ is None for a node that offers no GPUs.

        Args:
            item: the Node or the Pod as JSON.
        """
        metadata = mapping(item.get("metadata"))
        key = metadata.get("uid") if self._source == PODS else metadata.get("name")
        value = read_pod(item) if self._source == PODS else read_node(item)
        return {KEY: str(key or ""), READ: value}

    def replaced(self, items: list[Json]) -> None:
        """Replaces all nodes or pods of the feed; `items` are the answers of `read`."""
        values = [item[READ] for item in items if item[READ] is not None]
        replace = self._feed.replace_pods if self._source == PODS else self._feed.replace_nodes
        replace(values, self._version)

    def changed(self, kind: str, item: Json) -> None:
        """Applies an event of the watch (ADDED, MODIFIED or DELETED) to the feed; `item` is the answer of `read`."""
        value = None if kind == "DELETED" else item[READ]
        put = self._feed.put_pod if self._source == PODS else self._feed.put_node
        put(item[KEY], value, self._version)

    def confirmed(self) -> None:
        """Records in the feed that all changes up to the resourceVersion read last are known."""
        self._feed.reach(self._source, self._version)

    def failed(self, error: ApiError) -> None:
        _log.warning("collection not refreshed", collection=self._source, status=error.status, reason=error.reason)


KEY, READ = "key", "read"
COLLECTIONS: dict[str, tuple[str, dict[str, str]]] = {
    NODES: ("/api/v1/nodes", {}),
    PODS: ("/api/v1/pods", {"labelSelector": f"{POD_LABEL}={POD_LABEL_VALUE}"}),
}


class GPUWatches:
    """Answers the watches of GPUNodes and GPUPods that a worker serves, in the worker's event loop.

    No node or pod is read from the API server before a first client asks.
    """

    def __init__(self, api: KubernetesAPI, wait: Wait, random: Callable[[], float], loop: Loop) -> None:
        """Makes watches that follow nothing yet.

        Args:
            wait: sleeps that many seconds, or until the process ends; returns whether it ends.
            random: returns a number in [0, 1), which varies the waits between requests to the API server.
            loop: returns the event loop of the worker.
        """
        self._api = api
        self._wait = wait
        self._random = random
        self._loop = loop
        self._started = False
        self._ending = False
        self._changed = asyncio.Event()
        self._ringing = False
        self.feed = GPUFeed(self._note_change)

    async def has_caught_up(self) -> bool:
        """Waits until nodes and pods have been read, for CATCH_UP_SECONDS at most; returns whether they have been read.

        The first call begins to watch them.
        """
        if not self._started:
            self._started = True
            for source, (path, selectors) in COLLECTIONS.items():
                view = _View(self.feed, source)
                collection = Collection(path, selectors, view.read, view.decode, view.decode)
                follow = partial(reflect, self._api, collection, view, self._wait, self._random)
                start_thread(f"watch-gpu-{source}", follow, self._wait)
        await self._until(self.feed.is_known, CATCH_UP_SECONDS)
        return self.feed.is_known()

    async def position(self, kind: str, version: str) -> int:
        """Returns the number of the change after which a watch continues.

        Args:
            kind: gpunodes or gpupods.
            version: the resourceVersion from which the client continues.

        Raises:
            VersionError: the text is no resourceVersion of this kind.
            ExpiredError: not all changes after that resourceVersion are known, or this worker has not read the objects
                up to it within CATCH_UP_SECONDS.
        """
        await self._until(lambda: self.feed.position(kind, version) is not None, CATCH_UP_SECONDS)
        position = self.feed.position(kind, version)
        if position is None:
            raise ExpiredError(f"{version} is of no time that this worker knows: list again")
        return position

    async def lines(
        self, kind: str, number: int | None, version: str, namespace: str, seconds: float, *, bookmarks: bool
    ) -> AsyncGenerator[bytes]:
        """Yields the events of a watch, one or more lines of JSON at a time, until the time is up or the worker ends.

        Each event is one line. If some changes are not remembered any more, the watch ends with an event ERROR.

        Events that are sent together are a batch. All events of a batch but the last have the resourceVersion from
        before the batch, so that a client whose watch breaks in the middle of a batch gets the whole batch again.

        Args:
            kind: gpunodes or gpupods.
            number: the number of the change after which the watch begins; None to begin with all objects.
            version: the resourceVersion at which the watch begins.
            namespace: the namespace of the objects; empty for all.
            seconds: the longest duration of the watch.
            bookmarks: whether to send a bookmark, an event that carries only a resourceVersion, every BOOKMARK_SECONDS.
        """
        loop = asyncio.get_running_loop()
        until, next_bookmark = loop.time() + seconds, loop.time() + BOOKMARK_SECONDS
        while True:
            changed = self._changed
            try:
                number, events, reached = self.feed.since(kind, number, namespace)
            except ExpiredError as error:
                yield _line("ERROR", orjson.dumps(_expired(str(error))))
                return
            for start in range(0, len(events), LINES_AT_ONCE):
                some = events[start : start + LINES_AT_ONCE]
                last = start + len(some) == len(events)
                ends = [version] * (len(some) - 1) + [reached if last else version]
                yield b"".join(
                    _line(change, document(kind, body, end)) for (change, body), end in zip(some, ends, strict=True)
                )
            version = reached
            if bookmarks and loop.time() >= next_bookmark and not events:
                yield _line("BOOKMARK", document(kind, b'{"metadata":{"name":""}}', reached))
                next_bookmark = loop.time() + BOOKMARK_SECONDS
            if self._ending or loop.time() >= until:
                return
            await _set(changed, min(until, next_bookmark) if bookmarks else until)

    def end(self) -> None:
        """Ends all watches of GPUNodes and GPUPods now, since the worker ends."""
        self._ending = True
        self._wake()

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while not (condition() or self._ending) and asyncio.get_running_loop().time() < deadline:
            await _set(self._changed, deadline)

    def _note_change(self) -> None:
        """Wakes the watches after GATHER_SECONDS, in which further changes gather; may be called in any thread."""
        with suppress(RuntimeError):  # the loop of a worker that ends is closed
            self._loop().call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        if not self._ringing:
            self._ringing = True
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._wake)

    def _wake(self) -> None:
        self._ringing = False
        self._changed.set()
        self._changed = asyncio.Event()


async def _set(event: asyncio.Event, until: float) -> None:
    """Waits until an event is set, or until a time of the event loop's clock, in seconds."""
    try:
        async with asyncio.timeout_at(until):
            await event.wait()
    except TimeoutError:
        pass


def _line(change: str, body: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (change.encode(), body)


def _expired(message: str) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": "Expired",
        "code": 410,
    }


PREFIX = "/apis/fairgpu.io/v1/"
JSON_LINES = b"application/json;stream=watch"
"""The content type of a watch, as the Kubernetes API answers it."""
PARAMETERS = ("watch", "resourceVersion", "timeoutSeconds", "allowWatchBookmarks")
DEFAULT_SECONDS, MAX_SECONDS = 300, 600
"""The duration of a watch in seconds, by default and at most. A watch must end, since rights are checked only when it
begins.
"""
MAX_WATCHES = 200
"""The most watches that a worker answers at a time, for each of the two kinds of objects."""
UNKNOWN_YET = "nodes and pods are not read yet; try again"


class GPURoute:
    """The route that answers lists and watches of GPUNodes or of GPUPods."""

    def __init__(
        self,
        kind: str,
        watches: GPUWatches | None,
        access: AccessControl,
        measures: Measures,
        threads: ThreadPoolExecutor,
    ) -> None:
        """Makes the route of one kind of objects.

        Args:
            kind: gpunodes or gpupods.
            watches: the watches; None without a cluster: a valid request is then answered with the status 404.
            access: authenticates callers and checks their rights.
            measures: the worker's metrics.
            threads: the threads that authenticate callers and make lists.
        """
        self._kind = kind
        self._watches = watches
        self._access = access
        self._threads = threads
        self._watching = measures.gpu_watches
        self._count = 0

    async def __call__(self, request: Request) -> Response | Stream:
        """Answers with a list, or with a watch line by line.

        Before, it waits until nodes and pods have been read once, for CATCH_UP_SECONDS at most. If it cannot answer, it
        raises an error, from which `guarded` makes the answer.
        """
        query = parse_qs(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        namespace = query.get("namespace", [""])[-1] if self._kind == GPU_PODS else ""
        watch = _flag("watch", query)
        action = Action("watch" if watch else "list", self._kind, namespace)
        token, origin = bearer_token(request.text_header(b"authorization")), (request.scope.get("client") or ("",))[0]
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, require, self._access, token, action, origin)
        refuse_unknown(query, (*PARAMETERS, "namespace") if self._kind == GPU_PODS else PARAMETERS)
        if namespace and not is_namespace(namespace):
            raise invalid("namespace", namespace, "the name of a namespace: a DNS label of at most 63 characters")
        seconds, bookmarks = _seconds(query), _flag("allowWatchBookmarks", query)
        version = query.get("resourceVersion", [""])[-1]
        if self._watches is None:
            raise not_found("this timekeeper serves a folder and no cluster, so it knows no GPUs")
        if not await self._watches.has_caught_up():
            raise ProblemError(503, "unavailable", UNKNOWN_YET, headers={"Retry-After": "1"})
        if not watch:
            body = await loop.run_in_executor(self._threads, self._watches.feed.listed, self._kind, namespace)
            return Response(200, body, headers=((b"cache-control", b"no-store"),))
        return await self._watch(self._watches, version, namespace, seconds, bookmarks=bookmarks)

    async def _watch(
        self, watches: GPUWatches, version: str, namespace: str, seconds: float, *, bookmarks: bool
    ) -> Stream:
        number: int | None = None
        if version not in ("", "0"):
            try:
                number = await watches.position(self._kind, version)
            except VersionError as error:
                raise invalid("resourceVersion", version, str(error)) from error
            except ExpiredError as error:
                raise ProblemError(410, "expired", str(error)) from error
        if self._count >= MAX_WATCHES:
            raise TooManyRequestsError(f"{MAX_WATCHES} watches are open; try again in 5 s", 5)
        lines = watches.lines(self._kind, number, version or "0", namespace, seconds, bookmarks=bookmarks)
        return Stream(self._counted(lines), JSON_LINES, ((b"cache-control", b"no-store"),))

    async def _counted(self, lines: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        self._count += 1
        try:
            with self._watching.track_inprogress():
                async with aclosing(lines):
                    async for line in lines:
                        yield line
        finally:
            self._count -= 1


def _flag(name: str, query: dict[str, list[str]]) -> bool:
    text = query.get(name, ["false"])[-1]
    if text not in ("true", "false", "1", "0", ""):
        raise invalid(name, text, "true or false")
    return text in ("true", "1")


def _seconds(query: dict[str, list[str]]) -> float:
    text = query.get("timeoutSeconds", [str(DEFAULT_SECONDS)])[-1]
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text) > 0):
        raise invalid("timeoutSeconds", text, f"whole seconds from 1; more than {MAX_SECONDS} count as {MAX_SECONDS}")
    return float(min(int(text), MAX_SECONDS))
