"""The interface to the objects that the timekeeper watches and writes, and the mirrors of watched collections."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import structlog

from fairgpu.cluster.api import ApiError, Json
from fairgpu.json_values import mapping

_log = structlog.get_logger()


class DepartureProof(StrEnum):
    """The proof that an object was deleted."""

    DELETED = "deleted"
    """The watch delivered its deletion: the object was deleted at that moment."""
    MISSED = "missed"
    """A later list lacks it: the object was deleted at an unknown time after the last confirmation."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A deleted object.

    Attributes:
        item: the object in its last observed version.
        proof: the proof of its deletion.
        at: the time at which its deletion was received, or the last one at which it existed; nanoseconds since 1970.
    """

    item: Json
    proof: DepartureProof
    at: int


class Mirror:
    """The mirror of one collection: one thread writes it as a reflector's view, and any other thread reads it.

    Objects are replaced whole and never changed in place, so that a caller may keep what it has read.
    """

    def __init__(self, name: str, now: Callable[[], int], keep: Callable[[Json], bool] = lambda _item: True) -> None:
        """Makes an empty mirror.

        Args:
            name: the collection's name in logs.
            now: a clock, in nanoseconds since 1970.
            keep: whether to hold an object; others are ignored. An object that was held stays until it is deleted,
                whatever becomes of it: a removed annotation is not the end of what it stood for.
        """
        self.name = name
        self._now = now
        self._keep = keep
        self._lock = threading.Lock()
        """Guards the three fields below."""
        self._items: dict[str, Json] = {}
        self._departures: list[Departure] = []
        self._confirmed_at: int | None = None
        self._changed = threading.Event()

    @property
    def confirmed_at(self) -> int | None:
        """The last time at which the mirror was confirmed to be current (ns since 1970); None before the first list."""
        with self._lock:
            return self._confirmed_at

    def items(self) -> list[Json]:
        """Returns all objects that the mirror holds."""
        with self._lock:
            return list(self._items.values())

    def by_uid(self) -> dict[str, Json]:
        """Returns all objects that the mirror holds, by `uid_of`."""
        with self._lock:
            return dict(self._items)

    def get(self, uid: str) -> Json | None:
        """Returns the object with this uid; None where the mirror holds none."""
        with self._lock:
            return self._items.get(uid)

    def take_departures(self) -> list[Departure]:
        """Returns the objects that were deleted since the last call; the caller becomes responsible for them."""
        with self._lock:
            departures, self._departures = self._departures, []
            return departures

    def return_departures(self, departures: list[Departure]) -> None:
        """Gives back deletions that could not be handled; the next call of `take_departures` returns them first."""
        with self._lock:
            self._departures = [*departures, *self._departures]

    def wait_for_change(self, seconds: float) -> bool:
        """Waits until the mirror has changed since the last wait; returns False where the time passed first.

        A change that comes as the time passes is found by the next wait.
        """
        changed = self._changed.wait(seconds)
        if changed:
            self._changed.clear()
        return changed

    def replaced(self, items: list[Json]) -> None:
        """Replaces the mirror by a whole list; objects that the list lacks were deleted without being observed."""
        listed = {uid_of(item): item for item in items}
        with self._lock:
            present = {uid: item for uid, item in listed.items() if uid in self._items or self._keep(item)}
            last_seen = self._confirmed_at if self._confirmed_at is not None else self._now()
            for uid, item in self._items.items():
                if uid not in present:
                    self._departures.append(Departure(item, DepartureProof.MISSED, last_seen))
            self._items = present
        self._changed.set()

    def changed(self, kind: str, item: Json) -> None:
        """Applies one event of a watch."""
        uid = uid_of(item)
        with self._lock:
            before = self._items.pop(uid, None)
            if kind != "DELETED":
                if before is not None or self._keep(item):
                    self._items[uid] = item
            elif before is not None or self._keep(item):
                self._departures.append(Departure(item, DepartureProof.DELETED, self._now()))
        self._changed.set()

    def confirmed(self) -> None:
        """Records that the mirror is current."""
        with self._lock:
            self._confirmed_at = self._now()

    def failed(self, error: ApiError) -> None:
        """Logs that a request to the API server failed; the mirror stays as it is."""
        _log.warning("collection not refreshed", collection=self.name, status=error.status, reason=error.reason)


def name_of(item: Json) -> str:
    """Returns the name of an object; empty where it has none."""
    return str(mapping(item.get("metadata")).get("name", ""))


def namespace_of(item: Json) -> str:
    """Returns the namespace of an object; empty for one without."""
    return str(mapping(item.get("metadata")).get("namespace", ""))


def uid_of(item: Json) -> str:
    """Returns the uid of an object, which no later object of that name shares; its name where it has no uid."""
    metadata = item.get("metadata") or {}
    return str(metadata.get("uid") or f"{metadata.get('namespace', '')}/{metadata.get('name', '')}")


CHECKPOINT_SHARDS = 16
"""The number of objects with the checkpoints of namespaces without a GPUBudget. The timekeeper's Role names each."""

MAX_TERMINATION_SECONDS = 600
"""The longest termination grace period of an evicted pod, in seconds, whatever its author wrote."""


class SourceError(RuntimeError):
    """A write failed and may be tried again. Unless a subclass says more, the API server failed or did not answer."""


class ChangedMeanwhileError(SourceError):
    """The object was changed or deleted since the write was decided."""


class RefusedError(SourceError):
    """This one write is not allowed, by a schema, a policy or a webhook; others may be."""


class NotWrittenError(SourceError):
    """The API server failed on this one object, or did not answer in time; other objects may be written.

    A write that was not answered may have been done or not.
    """


class BlockedError(SourceError):
    """A PodDisruptionBudget forbids the eviction for now."""


class ExistsError(SourceError):
    """An object of that name exists already."""


@dataclass(frozen=True, slots=True)
class Mirrors:
    """The collections that the timekeeper watches.

    Attributes:
        pods: pods that ask for a GPU in canonical form or carry an allocation, and those of other stacks.
        nodes: Node objects.
        node_leases: the Leases that kubelets renew, in kube-node-lease; their names are the nodes'.
        namespaces: Namespace objects.
        budgets: GPUBudget objects.
        grants: GPUGrant objects.
        corrections: GPUCorrection objects.
        claims: ResourceClaim objects; none where pods of other stacks are not metered.
        slices: ResourceSlice objects, as above.
        quotas: ResourceQuota objects that count FairGPU's own resources; none where pods of other stacks are not
            metered, or where the cluster is only looked at.
    """

    pods: Mirror
    nodes: Mirror
    node_leases: Mirror
    namespaces: Mirror
    budgets: Mirror
    grants: Mirror
    corrections: Mirror
    claims: Mirror
    slices: Mirror
    quotas: Mirror

    @property
    def all_read(self) -> bool:
        """Whether each collection that bills depend on has been read once. `quotas` only gives advice."""
        return all(getattr(self, name).confirmed_at is not None for name in self.__slots__ if name != "quotas")


OBSERVED_TO_THE_END = ("pods", "claims")
"""The collections whose deletions end sessions; those of others are not used."""


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """An Event that Kubernetes shows people beside an object.

    Attributes:
        regarding: the object.
        reason: one word in CamelCase.
        message: what happened, and what to do.
        warning: whether somebody should look.
        occasion: the key that distinguishes events of one reason at one object. The next leader that records the same
            occasion again records the same event. Empty where each event is new.
    """

    regarding: Json
    reason: str
    message: str
    warning: bool = False
    occasion: str = ""

    @property
    def id(self) -> str:
        """The event's id, equal for equal occasions; empty without an occasion."""
        if not self.occasion:
            return ""
        parts = (uid_of(self.regarding), self.reason, self.occasion)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


class Source(Protocol):
    """The objects of a cluster. Reads come from mirrors in memory; each write is one request and may raise SourceError.

    Every method may be called from any thread.
    """

    @property
    def mirrors(self) -> Mirrors:
        """The collections, which are filled after `start` was called."""

    def start(self, wait: Callable[[float], bool]) -> None:
        """Keeps the mirrors current in separate threads, until `wait` returns true."""

    def lift_gate(self, pod: Json) -> None:
        """Removes the budget gate from a pod that still carries it.

        Raises:
            ChangedMeanwhileError: the pod is deleted, or has changed since it was read.
            RefusedError: a policy or a webhook forbids it.
            NotWrittenError: the API server failed at this pod.
        """

    def remove_finalizer(self, pod: Json) -> None:
        """Removes the meter's finalizer from a pod that still carries it.

        Raises:
            ChangedMeanwhileError: the pod is deleted, or has changed since it was read.
            RefusedError: a policy or a webhook forbids it.
            NotWrittenError: the API server failed at this pod.
        """

    def announce_eviction(self, pod: Json, at: str | None) -> None:
        """Writes the time of its eviction to a pod's annotation; None removes the annotation.

        Raises:
            ChangedMeanwhileError: the pod is deleted.
            RefusedError: a policy or a webhook forbids it.
            NotWrittenError: the API server failed at this pod.
        """

    def evict(self, pod: Json) -> None:
        """Evicts a pod, unless a PodDisruptionBudget delays that.

        Raises:
            BlockedError: a PodDisruptionBudget forbids the eviction for now.
            ChangedMeanwhileError: the pod is deleted.
            RefusedError: a policy or a webhook forbids it.
            NotWrittenError: the API server failed at this pod.
        """

    def write_budget_status(self, name: str, status: Json, version: str = "") -> None:
        """Replaces a GPUBudget's status; where a resourceVersion is given, only in that version of the object.

        Raises:
            ChangedMeanwhileError: it was deleted, or has another version: a write that was given up and arrives
                late must not replace a newer status.
        """

    def read_checkpoints(self) -> dict[str, Json]:
        """Returns the checkpoints of accounts without a GPUBudget, by name; each as in a GPUBudget's status."""

    def write_checkpoints(self, shard: int, checkpoints: dict[str, Json]) -> None:
        """Replaces the checkpoints of one shard, from 0 to CHECKPOINT_SHARDS - 1."""

    def write_grant_status(self, name: str, status: Json) -> None:
        """Replaces a GPUGrant's status."""

    def write_correction_status(self, name: str, status: Json) -> None:
        """Replaces a GPUCorrection's status."""

    def record_event(self, event: ObjectEvent) -> None:
        """Writes an event; a failure is logged and not raised."""
