"""The interface to the objects that the timekeeper watches and writes, and the mirrors of watched collections."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import structlog

from fairgpu.cluster.api import ApiError, Json
from fairgpu.json_values import mapping
from fairgpu.keeping import Wait
from timekeeper.domain.timestamps import Instant

_log = structlog.get_logger()


class DepartureProof(StrEnum):
    """The evidence of an object's deletion: the watch delivered it, or a later list lacks the object."""

    DELETED = "deleted"
    """The watch delivered the object's deletion: the object was deleted at that moment."""
    MISSED = "missed"
    """A later list lacks the object: it was deleted at an unknown time after the mirror was last known to be current.
    """


@dataclass(frozen=True, slots=True)
class Departure:
    """The deletion of an object from a mirror.

    Attributes:
        item: the object in its last observed version.
        proof: the proof of its deletion.
        at: for DELETED, the instant at which the watch delivered the deletion; for MISSED, the instant at which the
            object was last known to exist.
    """

    item: Json
    proof: DepartureProof
    at: Instant


class Mirror:
    """The objects of one collection of the API server as last seen, kept by a watch.

    One thread writes the mirror, and any other thread reads it. Objects are replaced whole and never changed in place,
    so that a caller may keep an object that it has read.
    """

    def __init__(
        self, name: str, now: Callable[[], Instant], keep: Callable[[Json], bool] = lambda _item: True
    ) -> None:
        """Makes an empty mirror.

        Args:
            name: the collection's name in logs.
            now: returns the local time in nanoseconds since 1970.
            keep: returns whether the mirror holds an object; others are ignored. An object that the mirror holds stays
                until it is deleted, even if `keep` would refuse it later: a pod does not end because an annotation is
                removed.
        """
        self.name = name
        self._now = now
        self._keep = keep
        self._lock = threading.Lock()
        """Guards the four fields below."""
        self._items: dict[str, Json] = {}
        self._departures: list[Departure] = []
        self._confirmed_at: int | None = None
        self._unwatched_since: int | None = None
        self._changed = threading.Event()

    @property
    def confirmed_at(self) -> int | None:
        """The last instant at which the mirror was known to be current (ns since 1970); None before the first list."""
        with self._lock:
            return self._confirmed_at

    def items(self) -> list[Json]:
        """Returns all objects that the mirror holds."""
        with self._lock:
            return list(self._items.values())

    def by_uid(self) -> dict[str, Json]:
        """Returns all objects that the mirror holds, keyed by uid (see `uid_of`)."""
        with self._lock:
            return dict(self._items)

    def get(self, uid: str) -> Json | None:
        """Returns the object with this uid; None if the mirror holds none."""
        with self._lock:
            return self._items.get(uid)

    def take_departures(self) -> list[Departure]:
        """Returns the deletions since the last call and forgets them, so that the caller must handle each."""
        with self._lock:
            departures, self._departures = self._departures, []
            return departures

    def return_departures(self, departures: list[Departure]) -> None:
        """Takes back deletions that the caller could not handle; the next `take_departures` returns them first."""
        with self._lock:
            self._departures = [*departures, *self._departures]

    def take_by_uid(self) -> tuple[dict[str, Json], Instant | None]:
        """Returns the objects keyed by uid, and the instant since which objects may have changed unobserved.

        After a watch breaks, changes are unobserved until the mirror gets a whole list. The instant is the last one at
        which the mirror was current before the first such list since the previous call. It is None if no list came
        since the previous call, or only the first one of all.
        """
        with self._lock:
            since, self._unwatched_since = self._unwatched_since, None
            return dict(self._items), since

    def wait_for_change(self, seconds: float) -> bool:
        """Waits for a change since the last call that returned True; returns False if none comes in that many seconds.

        A change that comes later makes the next call return True at once.
        """
        changed = self._changed.wait(seconds)
        if changed:
            self._changed.clear()
        return changed

    def replaced(self, items: list[Json]) -> None:
        """Replaces the objects of the mirror by a whole list from the API server.

        Objects of the mirror that the list lacks count as deleted at an unknown time.
        """
        listed = {uid_of(item): item for item in items}
        with self._lock:
            present = {uid: item for uid, item in listed.items() if uid in self._items or self._keep(item)}
            last_seen = self._confirmed_at if self._confirmed_at is not None else self._now()
            for uid, item in self._items.items():
                if uid not in present:
                    self._departures.append(Departure(item, DepartureProof.MISSED, last_seen))
            self._items = present
            if self._unwatched_since is None:
                self._unwatched_since = self._confirmed_at
        self._changed.set()

    def changed(self, kind: str, item: Json) -> None:
        """Applies one event of a watch to the mirror.

        Args:
            kind: the type of the event: ADDED, MODIFIED or DELETED.
            item: the object of the event.
        """
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
        """Records that the mirror is current now."""
        with self._lock:
            self._confirmed_at = self._now()

    def failed(self, error: ApiError) -> None:
        """Logs that a request for the collection failed; the mirror keeps its objects."""
        _log.warning("collection not refreshed", collection=self.name, status=error.status, reason=error.reason)


@dataclass(slots=True)
class ObservedUntil:
    """The instants up to which a collection has been observed, by the local clock and the store's; in ns since 1970.

    A local clock that has stepped back stamps deletions with instants at which the objects still existed. A clock that
    is ahead stamps them with future instants. These bounds correct both, so that no charge is taken back or added.

    Attributes:
        deletions: the instant at which deletions were last taken from the mirror. An object existed at this instant if
            its deletion is taken from the mirror later.
        seen: the latest instant at which the mirror was known to be current.
    """

    deletions: Instant = 0
    seen: Instant = 0
    _adopted: Instant = 0
    """The mirror's `confirmed_at` from which `seen` was last set."""
    _ahead: bool = False
    """Whether that instant turned out to be in the future, as the local clock was ahead."""

    def advance(self, confirmed: Instant, past: Instant, now: Instant) -> None:
        """Sets `deletions` to `past`, and raises `seen` to `confirmed`, after all deletions were taken from the mirror.

        Args:
            confirmed: the last instant at which the mirror was known to be current before its deletions were taken.
                Objects existed at this instant if only a later list lacks them.
            past: the present by the local clock or, if earlier, by the store's. `seen` becomes no later than this.
            now: the present by the local clock.
        """
        if confirmed != self._adopted:
            self.seen, self._adopted, self._ahead = max(self.seen, confirmed), confirmed, False
        self._ahead |= self._adopted > now
        self.deletions, self.seen = past, min(past, self.seen)

    def advance_to(self, watched: Instant) -> None:
        """Raises `deletions` and `seen` to an instant; an instant that is later already stays.

        Args:
            watched: the instant up to which an earlier leader observed the collection.
        """
        self.deletions, self.seen = max(self.deletions, watched), max(self.seen, watched)

    def bounded(self, departures: Iterable[Departure], now: Instant) -> list[Departure]:
        """Returns deletions with corrected instants, none of them after `now`.

        A deletion that the watch delivered is no earlier than `deletions`, and a missed one no earlier than `seen`.

        Args:
            departures: the deletions as the mirror stamped them, by the local clock.
            now: the present by the local clock or, if later, by the store's, read after the deletions were taken from
                the mirror.
        """
        return [replace(each, at=min(self._at(each), now)) for each in departures]

    def last_seen(self, confirmed: Instant) -> Instant:
        """Returns the last instant at which an object was surely still unchanged, if the watch missed its change.

        Args:
            confirmed: the last instant at which the mirror was current before the change, as the mirror stamped it by
                the local clock.
        """
        return self.seen if self._ahead and confirmed == self._adopted else max(confirmed, self.seen)

    def _at(self, departure: Departure) -> Instant:
        if departure.proof is DepartureProof.DELETED:
            return max(departure.at, self.deletions)
        return self.last_seen(departure.at)


def name_of(item: Json) -> str:
    """Returns the name of a Kubernetes object (JSON); empty if it has none."""
    return str(mapping(item.get("metadata")).get("name", ""))


def namespace_of(item: Json) -> str:
    """Returns the namespace of a Kubernetes object (JSON); empty if it has none."""
    return str(mapping(item.get("metadata")).get("namespace", ""))


def uid_of(item: Json) -> str:
    """Returns the uid of a Kubernetes object (JSON), or NAMESPACE/NAME if the object has no uid.

    The API server gives no later object of the same name the same uid.
    """
    metadata = mapping(item.get("metadata"))
    return str(metadata.get("uid") or f"{metadata.get('namespace', '')}/{metadata.get('name', '')}")


CHECKPOINT_SHARDS = 16
"""The number of ConfigMaps with checkpoint documents that belong to no GPUBudget. The timekeeper's Role names each."""

MAX_TERMINATION_SECONDS = 600
"""The longest termination grace period of an evicted pod, in seconds, whatever its author wrote."""


class SourceError(RuntimeError):
    """A request to the API server failed; it may be tried again.

    Unless a subclass says more, the API server failed or did not answer.
    """


class ChangedMeanwhileError(SourceError):
    """The object of a write was changed or deleted since the write was decided."""


class RefusedError(SourceError):
    """A schema, a policy or a webhook forbids a write; other writes may be allowed."""


class NotWrittenError(SourceError):
    """The API server failed to carry out a write, or did not answer it in time.

    Writes to other objects may succeed, so the caller goes on with them. The API server may have carried out a write
    that it did not answer.
    """


class BlockedError(SourceError):
    """A PodDisruptionBudget forbids an eviction for now."""


class ExistsError(SourceError):
    """An object cannot be created, since another object has its name."""


OBSERVED_TO_THE_END = ("pods", "claims")
"""The collections whose deletions end sessions. Deletions from the other collections are not used."""


@dataclass(frozen=True, slots=True)
class Mirrors:
    """The mirrors of all collections that the timekeeper watches.

    Attributes:
        pods: pods that ask for a GPU in FairGPU's resources; if pods of other stacks are metered, these too.
        nodes: Node objects.
        node_leases: the Leases that kubelets renew, in kube-node-lease; their names are the nodes'.
        namespaces: Namespace objects.
        budgets: GPUBudget objects.
        grants: GPUGrant objects.
        corrections: GPUCorrection objects.
        claims: ResourceClaim objects; none if pods of other stacks are not metered.
        slices: ResourceSlice objects; none if pods of other stacks are not metered.
        quotas: ResourceQuota objects that count FairGPU's own resources; none in the modes share and look.
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
        """Whether every mirror but `quotas` has been read once; no bill depends on quotas."""
        return all(getattr(self, name).confirmed_at is not None for name in self.__slots__ if name != "quotas")

    def drop_unused_departures(self) -> None:
        """Drops the recorded deletions of collections whose deletions end no session, since no caller takes them."""
        for name in self.__slots__:
            if name not in OBSERVED_TO_THE_END:
                getattr(self, name).take_departures()


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """An Event that Kubernetes shows people beside an object.

    Attributes:
        regarding: the object.
        reason: one word in CamelCase.
        message: a text for people about what happened and what to do.
        warning: whether the event is of the type Warning; otherwise it is Normal.
        occasion: a text that identifies the event among the object's events of this reason. A later leader that records
            the same occasion creates no second event. Empty if each call is to create an event.
    """

    regarding: Json
    reason: str
    message: str
    warning: bool = False
    occasion: str = ""

    @property
    def id(self) -> str:
        """The event's id, equal for equal objects, reasons and occasions; empty without an occasion."""
        if not self.occasion:
            return ""
        parts = (uid_of(self.regarding), self.reason, self.occasion)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


class Source(Protocol):
    """The objects of a cluster: mirrors to read, and one request for each write, which may raise SourceError.

    Any thread may call every method.
    """

    @property
    def mirrors(self) -> Mirrors:
        """The mirrors of the watched collections, which are filled after `start` was called."""

    def start(self, wait: Wait) -> None:
        """Keeps the mirrors current in separate threads, until `wait` returns that the process ends.

        Args:
            wait: sleeps for a number of seconds; returns whether the process ends.
        """

    def lift_gate(self, pod: Json) -> None:
        """Removes the budget's scheduling gate from a pod that still carries it.

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

    def label_gpu_pod(self, pod: Json) -> None:
        """Gives a pod the label of GPU pods, and removes its reserved annotations.

        Policies guard these annotations only on a pod with the label, so anybody may have written them before.

        Raises:
            ChangedMeanwhileError: the pod is deleted.
            RefusedError: a policy or a webhook forbids it.
            NotWrittenError: the API server failed at this pod.
        """

    def announce_eviction(self, pod: Json, at: str | None) -> None:
        """Writes the time of a pod's eviction to its annotation, or removes the annotation.

        Args:
            at: the time as an RFC 3339 timestamp; None removes the annotation.

        Raises:
            ChangedMeanwhileError: the pod is deleted.
            RefusedError: a policy or a webhook forbids it.
            NotWrittenError: the API server failed at this pod.
        """

    def evict(self, pod: Json) -> None:
        """Evicts a pod.

        Raises:
            BlockedError: a PodDisruptionBudget forbids the eviction for now.
            ChangedMeanwhileError: the pod is deleted.
            RefusedError: a policy or a webhook forbids it.
            NotWrittenError: the API server failed at this pod.
        """

    def write_budget_status(self, name: str, status: Json, version: str = "") -> None:
        """Replaces the status of the GPUBudget with this name.

        Args:
            status: the whole new status.
            version: the resourceVersion in which the object must still be; empty for any.

        Raises:
            ChangedMeanwhileError: the budget was deleted, or has another version than `version`. The version prevents
                that a delayed write replaces a newer status.
        """

    def read_checkpoints(self) -> dict[str, Json]:
        """Returns the checkpoint documents that the API server holds outside GPUBudgets, keyed by name.

        An account without a GPUBudget has a document under its name, in the form of a GPUBudget's status. The other
        documents hold further figures of the books, such as prices.

        Raises:
            SourceError: the API server refuses, fails or does not answer.
        """

    def write_checkpoints(self, shard: int, checkpoints: dict[str, Json]) -> None:
        """Replaces the checkpoint documents of one shard, an object of the API server that holds a part of them.

        Args:
            shard: the shard's number, from 0 to CHECKPOINT_SHARDS - 1.
            checkpoints: the shard's documents, keyed by name.
        """

    def write_grant_status(self, name: str, status: Json) -> None:
        """Replaces the status of the GPUGrant with this name."""

    def write_correction_status(self, name: str, status: Json) -> None:
        """Replaces the status of the GPUCorrection with this name."""

    def record_event(self, event: ObjectEvent) -> None:
        """Writes an Event for people; a failure is logged and not raised."""
