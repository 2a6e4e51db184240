"""Keeps the state current by two watches: of nodes, whose inventories are offered, and of pods, which hold devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

import structlog

from fairgpu.cluster.api import ApiError, Json
from fairgpu.cluster.reflector import Collection
from fairgpu.cluster.warning_events import About, Creating, post, warning_event
from fairgpu.inventory import InventoryError
from fairgpu.json_values import mapping
from fairgpu.names import ALLOCATION, INVENTORY
from scheduler.cluster.acting import mark_of
from scheduler.cluster.excerpts import NodeEvent, NodeList, PodEvent, PodList, excerpt, excerpt_of_list
from scheduler.cluster.objects import PodNote, read_node, read_note, read_site
from scheduler.cluster.state import State

_log = structlog.get_logger(__name__)

NOTE, MARK = "note", "mark"
REFUSED = "InventoryRefused"
"""The reason of events about a Node whose inventory is not used."""

IGNORED = "AllocationIgnored"
"""The reason of events about a Pod whose allocation is not counted, or names a GPU that its node does not offer."""
OVERLAP = "AllocationsOverlap"
"""The reason of events about a Pod that was given more of a GPU than the pods bound before it have left."""
MAX_WARNED = 100
"""The most pods with a fault of one kind that have an event; the log names the others."""

Warn = Callable[[str, str, str, str], None]
WarnOfPod = Callable[[PodNote, str, str], None]
SOURCE = {"component": "fairgpu-scheduler"}
"""The EventSource of the scheduler's events."""


def _noted(item: Json) -> Json:
    """Returns a pod reduced to its facts (PodNote) and its mark: a list of whole pods would not fit into memory."""
    return {NOTE: read_note(item), MARK: mark_of(item)}


def _slim(item: Json) -> Json:
    metadata, status, spec = item.get("metadata") or {}, item.get("status") or {}, item.get("spec") or {}
    kept = {key: metadata.get(key) for key in ("name", "uid", "annotations", "labels", "resourceVersion")}
    return {
        "metadata": kept,
        "spec": {key: spec.get(key) for key in ("taints", "unschedulable")},
        "status": {"allocatable": status.get("allocatable")},
    }


PODS = Collection("/api/v1/pods", {}, _noted, excerpt_of_list(PodList), excerpt(PodEvent))
NODES = Collection("/api/v1/nodes", {}, _slim, excerpt_of_list(NodeList), excerpt(NodeEvent))


def _digest(value: Any) -> bytes:
    """Returns 16 bytes that stand for a JSON value: an inventory may have 64 KiB."""
    return blake2b(repr(value).encode("utf-8", "backslashreplace"), digest_size=16).digest()


class AllocationFaults:
    """Reports bound pods whose allocation is not counted, names a GPU that their node does not offer, or exceeds a GPU.

    Each pod is reported once while its fault lasts: in the log, and by an event about the pod. If MAX_WARNED pods are
    faulty already, a further one is only logged. Any thread may call the methods, except `look_for_overlaps`: one
    thread alone calls that method.
    """

    def __init__(self, state: State, warn: WarnOfPod = lambda *_: None) -> None:
        """Stores the scheduler's state, and the function that writes a warning event about a pod.

        Args:
            state: gives the pods and nodes.
            warn: writes the event: it takes the pod's facts, a reason and a message.
        """
        self._state = state
        self._warn = warn
        # Guards the set. One thread watches pods, another nodes: each look reads the state under it, so the last look
        # at a pod is at the newest facts.
        self._lock = threading.Lock()
        self._faulty: set[str] = set()
        self._overlapping: set[str] = set()

    def look(self, uid: str) -> None:
        """Checks the allocation of the pod with this uid, and reports its fault if the pod was not faulty before.

        A pod whose allocation is sound again is forgotten, so that a later fault is reported.
        """
        with self._lock:
            note = self._state.note(uid)
            fault = "" if note is None else note.fault or self._state.not_offered(note)
            if note is None or not fault:
                self._faulty.discard(uid)
                return
            if uid in self._faulty:
                return
            self._faulty.add(uid)
            count = len(self._faulty)
        _log.warning("allocation ignored", pod=f"{note.namespace}/{note.name}", uid=uid, error=fault)
        if count <= MAX_WARNED:
            self._warn(note, IGNORED, f"the scheduler does not count what {ALLOCATION} names: {fault}")

    def look_at_node(self, name: str) -> None:
        """Checks the allocations of all pods on the node of this name, whose devices may have changed."""
        for note in self._state.notes_on(name):
            self.look(note.uid)

    def look_for_overlaps(self) -> None:
        """Reports each bound pod whose part of a GPU, added to the parts of the pods bound before it, exceeds the GPU.

        A pod is reported once while that lasts: in the log, and by an event about the pod. With more than MAX_WARNED
        such pods, the further ones are only logged.
        """
        found = {note.uid: (note, overlap) for note, overlap in reversed(self._state.overlaps())}
        count = len(self._overlapping & found.keys())
        for note, overlap in (found[uid] for uid in found.keys() - self._overlapping):
            count += 1
            pod = f"{note.namespace}/{note.name}"
            _log.error("allocations overlap", pod=pod, uid=note.uid, gpu=overlap.gpu, held=overlap.excess)
            if count <= MAX_WARNED:
                text = (
                    f"the allocations of pods exceed the GPU {overlap.gpu}: with this pod, bound after the others, "
                    f"{overlap.excess}. The node agent starts no container beyond that. If the pod does not run, "
                    "delete it: its controller makes another, which has a place of its own"
                )
                self._warn(note, OVERLAP, text)
        self._overlapping = set(found)

    def keep(self, uids: Iterable[str]) -> None:
        """Forgets the faults of all pods but those with these uids."""
        with self._lock:
            self._faulty.intersection_update(uids)


class PodsView:
    """Stores the cluster's pods in the scheduler's state, as `fairgpu.cluster.reflector.reflect` reads them.

    It also hands the mark in a condition of this replica's own pod to `show`: once the watch has delivered the mark,
    the state is as new as the write of the mark (scheduler.cluster.acting).
    """

    def __init__(
        self,
        state: State,
        own: str = "",
        show: Callable[[str], None] = lambda _: None,
        faults: AllocationFaults | None = None,
        stored: Callable[[], None] = lambda: None,
    ) -> None:
        """Stores the scheduler's state, and the functions that are called for the pods.

        Args:
            state: takes the pods.
            own: the namespace and name of this replica's own pod, as NAMESPACE/NAME.
            show: takes the mark on this replica's own pod.
            faults: checks the pods' allocations.
            stored: called once all pods of a list are stored.
        """
        self._state = state
        self._faults = faults or AllocationFaults(state)
        self._own = own
        self._show = show
        self._stored = stored

    def replaced(self, items: list[Json]) -> None:
        """Stores all pods of the cluster, in place of those that were stored before.

        Args:
            items: the pods, each reduced to its facts (PodNote) and the mark that a replica wrote on it (`mark_of`).
        """
        notes = [item[NOTE] for item in items]
        self._state.replace_pods(notes)
        self._faults.keep(note.uid for note in notes)
        for note in notes:
            self._faults.look(note.uid)
        self._stored()
        self._state.listed("pods")
        for item in items:
            self._look_for_mark(item)

    def changed(self, kind: str, item: Json) -> None:
        """Stores or removes one pod.

        Args:
            kind: the type of the watch's event: ADDED, MODIFIED or DELETED.
            item: the pod, reduced to its facts (PodNote) and the mark that a replica wrote on it (`mark_of`).
        """
        note: PodNote = item[NOTE]
        if kind == "DELETED":
            self._state.remove_pod(note.uid)
        else:
            self._state.put_pod(note)
            self._look_for_mark(item)
        self._faults.look(note.uid)

    def confirmed(self) -> None:
        """Notes that the watch of pods is current, so that the ends of pods are seen."""
        self._state.blind = False

    def failed(self, error: ApiError) -> None:
        """Logs the error of a request for the cluster's pods, and notes that ends of pods are not seen meanwhile.

        The stored pods stay as they are.
        """
        self._state.blind = True
        _log.warning("pods cannot be watched", error=str(error))

    def _look_for_mark(self, item: Json) -> None:
        note: PodNote = item[NOTE]
        if self._own and f"{note.namespace}/{note.name}" == self._own and item[MARK]:
            self._show(item[MARK])


class NodeWarnings:
    """Writes warning events about nodes and pods to the API server."""

    def __init__(self, api: Creating, stamp: Callable[[], str]) -> None:
        """Stores the client of the API server, and a function that returns the present time in RFC 3339."""
        self._api = api
        self._stamp = stamp

    def warn(self, node: str, uid: str, reason: str, message: str) -> None:
        """Writes a warning event about a node; a failure is logged.

        If another replica has written the same event, no second one is made.
        """
        try:
            post(self._api, warning_event(About("Node", node, uid), reason, message, self._stamp(), SOURCE))
        except ApiError as error:
            _log.warning("warning of a node not written", node=node, reason=reason, error=str(error))

    def warn_of_pod(self, note: PodNote, reason: str, message: str) -> None:
        """Writes a warning event about a pod; a failure is logged."""
        about = About("Pod", note.name, note.uid, note.namespace)
        try:
            post(self._api, warning_event(about, reason, message, self._stamp(), SOURCE))
        except ApiError as error:
            _log.warning("event of a pod not written", pod=f"{note.namespace}/{note.name}", error=str(error))


class NodesView:
    """Stores the cluster's nodes in the scheduler's state, as `fairgpu.cluster.reflector.reflect` reads them."""

    def __init__(self, state: State, warn: Warn = lambda *_: None, faults: AllocationFaults | None = None) -> None:
        """Stores the scheduler's state, and the functions that are called for a faulty or changed node.

        Args:
            state: takes the nodes.
            warn: writes a warning event: it takes the node's name and uid, a reason and a message.
            faults: checks the pods of a node that has changed.
        """
        self._state = state
        self._warn = warn
        self._faults = faults or AllocationFaults(state)
        # All nodes of the API server, also those without an inventory, or with a refused one.
        self._written: dict[str, Any] = {}
        self._uids: dict[str, str] = {}

    def replaced(self, items: list[Json]) -> None:
        """Stores all nodes of the cluster, in place of those that were stored before.

        Args:
            items: the nodes, each reduced to the fields that the scheduler reads.
        """
        names = {item["metadata"]["name"] for item in items}
        for name in self._written.keys() - names:
            self._drop(name)
        for item in items:
            self._put(item)
        self._state.listed("nodes")

    def changed(self, kind: str, item: Json) -> None:
        """Stores or removes one node.

        Args:
            kind: the type of the watch's event: ADDED, MODIFIED or DELETED.
            item: the node, reduced to the fields that the scheduler reads.
        """
        if kind == "DELETED":
            self._drop(item["metadata"]["name"])
        else:
            self._put(item)

    def confirmed(self) -> None:
        """Does nothing when the API server confirms the nodes: no decision depends on their age."""

    def failed(self, error: ApiError) -> None:
        """Logs the error of a request for the cluster's nodes; the stored nodes stay as they are."""
        _log.warning("nodes cannot be watched", error=str(error))

    def _put(self, item: Json) -> None:
        """Stores a node's `Site` and, if its inventory or allocatable cpu or memory has changed, its devices.

        It reports an invalid inventory, and a device that another node offers as well, in the log and by an event.
        Other fields change all the time, such as the times of a kubelet's conditions, and have no effect.
        """
        name = item["metadata"]["name"]
        self._state.put_site(read_site(item))
        offered = mapping(item["status"]["allocatable"])
        inventory = mapping(item["metadata"].get("annotations")).get(INVENTORY)
        written = _digest(inventory), offered.get("cpu"), offered.get("memory")
        if self._written.get(name) == written:
            return
        self._written[name] = written
        self._uids[name] = str(item["metadata"].get("uid") or "")
        try:
            node = read_node(item)
        except InventoryError as error:
            _log.error("inventory refused", node=name, error=str(error))
            self._look_at(self._state.refuse_node(name))
            text = f"the annotation {INVENTORY} cannot be used, so no GPU pod is placed here: {error}"
            self._warn(name, self._uids[name], REFUSED, text)
            return
        if node is None:
            self._look_at(self._state.remove_node(name))
            return
        touched = self._state.put_node(node)
        for other in sorted(touched):
            uuid = self._state.inventories.shared(other)
            if uuid is not None:
                _log.error("device on two nodes", node=other, uuid=uuid)
                text = f"another node offers the GPU {uuid} as well, so no GPU pod is placed on either"
                self._warn(other, self._uids.get(other, ""), REFUSED, text)
        self._look_at(touched)

    def _drop(self, name: str) -> None:
        self._written.pop(name, None)
        self._uids.pop(name, None)
        self._state.remove_site(name)
        self._look_at(self._state.remove_node(name))

    def _look_at(self, touched: set[str]) -> None:
        """Checks the allocations of all pods on the nodes of these names, which may offer other devices than before."""
        for name in sorted(touched):
            self._faults.look_at_node(name)
