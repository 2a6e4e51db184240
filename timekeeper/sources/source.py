"""What the timekeeper needs of the world around it, whether that is an API server or a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fairgpu.cluster.api import Json
from timekeeper.sources.mirror import Mirror, uid_of

CHECKPOINT_SHARDS = 16
"""How many objects hold the checkpoints of namespaces without a GPUBudget; the timekeeper's Role names each."""

MAX_TERMINATION_SECONDS = 600
"""After its notice no pod of a spent budget runs on for longer, whatever its author wrote."""


class SourceError(RuntimeError):
    """The world could not be written to, and the same write may be tried again. None of those below: it is away."""


class ChangedMeanwhileError(SourceError):
    """The object is not any more what the write was decided on, or is gone."""


class RefusedError(SourceError):
    """This one write is not allowed, by a schema, a policy or a webhook; others may be."""


class NotWrittenError(SourceError):
    """The API server is there, and failed at this one object or did not answer in time: others may be written.

    Of a write that was not answered nobody knows whether it was done.
    """


class BlockedError(SourceError):
    """A PodDisruptionBudget keeps the pod for now."""


class ExistsError(SourceError):
    """An object of that name is there already."""


@dataclass(frozen=True, slots=True)
class Mirrors:
    """The collections that the timekeeper watches.

    Attributes:
        pods: pods that ask for a GPU in canonical form or carry an allocation.
        nodes: Node objects.
        node_leases: the Leases that kubelets renew, in kube-node-lease; their names are the nodes'.
        namespaces: Namespace objects.
        budgets: GPUBudget objects.
        grants: GPUGrant objects.
        corrections: GPUCorrection objects.
    """

    pods: Mirror
    nodes: Mirror
    node_leases: Mirror
    namespaces: Mirror
    budgets: Mirror
    grants: Mirror
    corrections: Mirror


@dataclass(frozen=True, slots=True)
class Notice:
    """An event for people to see beside an object.

    Attributes:
        regarding: the object.
        reason: one word in CamelCase.
        message: what happened, and what to do.
        warning: whether somebody should look.
        occasion: what tells this from another of the same reason at the same object: told again, by a leader who
            follows, it is the same event. Empty where each is one of its own.
    """

    regarding: Json
    reason: str
    message: str
    warning: bool = False
    occasion: str = ""

    @property
    def id(self) -> str:
        """The same for the same occasion; empty where there is none."""
        if not self.occasion:
            return ""
        parts = (uid_of(self.regarding), self.reason, self.occasion)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


class Source(Protocol):
    """The world. Reads are from mirrors in memory; each write is one request and raises SourceError if it failed.

    Every method may be called from any thread.
    """

    @property
    def mirrors(self) -> Mirrors:
        """The collections; filled once `start` was called."""

    def start(self, wait: Callable[[float], bool]) -> None:
        """Keeps the mirrors current in threads of its own until `wait` says that everything is to end."""

    def lift_gate(self, pod: Json) -> None:
        """Takes the budget gate off a pod that still carries it.

        Raises:
            ChangedMeanwhileError: the pod is gone, or has changed since it was read.
            RefusedError: a policy or a webhook forbids it.
            NotWrittenError: the API server failed at this pod.
        """

    def remove_finalizer(self, pod: Json) -> None:
        """Takes the meter's finalizer off a pod that still carries it.

        Raises:
            ChangedMeanwhileError: the pod is gone, or has changed since it was read.
            RefusedError: a policy or a webhook forbids it.
            NotWrittenError: the API server failed at this pod.
        """

    def announce_eviction(self, pod: Json, at: str | None) -> None:
        """Writes on a pod when it will be evicted; None takes that back.

        Raises:
            ChangedMeanwhileError: the pod is gone.
            RefusedError: a policy or a webhook forbids it.
            NotWrittenError: the API server failed at this pod.
        """

    def evict(self, pod: Json) -> None:
        """Asks for a pod's eviction, which PodDisruptionBudgets may put off.

        Raises:
            BlockedError: one does.
            ChangedMeanwhileError: the pod is gone.
            RefusedError: a policy or a webhook forbids it.
            NotWrittenError: the API server failed at this pod.
        """

    def write_budget_status(self, name: str, status: Json, version: str = "") -> None:
        """Replaces a GPUBudget's status, where a resourceVersion is named only in that version of the object.

        Raises:
            ChangedMeanwhileError: it is gone, or in another version: a write that was given up and came late after all
                must not put an older status in the place of a newer one.
        """

    def read_checkpoints(self) -> dict[str, Json]:
        """The checkpoints of accounts without a GPUBudget, by the account's name; each as in a GPUBudget's status."""

    def write_checkpoints(self, shard: int, checkpoints: dict[str, Json]) -> None:
        """Replaces those of one shard, from 0 to CHECKPOINT_SHARDS - 1."""

    def write_grant_status(self, name: str, status: Json) -> None:
        """Replaces a GPUGrant's status."""

    def write_correction_status(self, name: str, status: Json) -> None:
        """Replaces a GPUCorrection's status."""

    def create_grant(self, grant: Json) -> Json:
        """Creates a GPUGrant.

        Raises:
            ExistsError: there is one of that name.
        """

    def tell(self, notice: Notice) -> None:
        """Writes an event; one that cannot be written is logged and forgotten."""
