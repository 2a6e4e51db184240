"""Decisions about writes to pods: their kinds, when one is retried, and when failures count as the pod's own fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from fairgpu.cluster.api import Json
from timekeeper.sources.base import (
    BlockedError,
    ChangedMeanwhileError,
    NotWrittenError,
    ObjectEvent,
    RefusedError,
    SourceError,
)

BLOCKED_SECONDS: Final = 10.0
"""The seconds until an eviction is retried that a PodDisruptionBudget blocked; see docs/budgets.md."""
LONGEST_SECONDS: Final = 120.0
"""The most seconds between two attempts to write to a pod: the cause of the failure may have been corrected."""
FAILING_AFTER: Final = 3
"""The number of failures in a row from which a pod counts as failing."""


class Failure(StrEnum):
    """The reason why a write to a pod failed: a change of the pod, a block, a refusal, or a failing API server."""

    CHANGED = "changed"
    """The pod was changed or deleted since it was observed; the watch delivers the change soon."""
    BLOCKED = "blocked"
    """A PodDisruptionBudget forbids the pod's eviction at the moment."""
    REFUSED = "refused"
    """A schema, a policy or a webhook forbids the write."""
    FAILED = "failed"
    """The API server failed to carry out the write, or did not answer in time."""


_FAILURES: Final[Mapping[type[SourceError], Failure]] = {
    ChangedMeanwhileError: Failure.CHANGED,
    BlockedError: Failure.BLOCKED,
    RefusedError: Failure.REFUSED,
    NotWrittenError: Failure.FAILED,
}
FIRST_SECONDS: Final = {Failure.CHANGED: 1.0, Failure.REFUSED: 5.0, Failure.FAILED: 5.0}
"""Seconds before the first retry, by failure; each further retry waits twice as long, up to LONGEST_SECONDS."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The failures in a row of one kind of write to a pod. Times are seconds of a monotonic clock.

    Attributes:
        step: the kind of the planned write.
        since: the time of the first failure.
        until: the time of the next attempt.
        failures: the number of failures in a row.
        blocked: the number of these that were due to a PodDisruptionBudget.
    """

    step: Step
    since: float
    until: float
    failures: int = 0
    blocked: int = 0

    @property
    def failing(self) -> bool:
        """Whether the last writes failed so often that the pod itself counts as the cause."""
        return self.failures - self.blocked >= FAILING_AFTER


def failure_of(error: SourceError) -> Failure | None:
    """Returns the reason why a write to a pod failed, by the error's type.

    Returns None for an error of another type: the API server is overloaded, unavailable or unreachable, or refuses the
    timekeeper's token, so that a write to any other pod would fail, too.
    """
    return next((failure for kind, failure in _FAILURES.items() if isinstance(error, kind)), None)


def after_failure(trouble: Trouble | None, step: Step, failure: Failure, now: float) -> Trouble:
    """Returns the record of a pod's failing write after one more failure.

    Args:
        trouble: the record so far; None if this is the first failure in a row. A record of another step is dropped.
        step: the kind of the write that failed.
        failure: the reason why it failed, which decides how long the next attempt waits.
        now: seconds of a monotonic clock.
    """
    before = trouble if trouble is not None and trouble.step is step else Trouble(step, now, now)
    if failure is Failure.BLOCKED:
        return replace(before, until=now + BLOCKED_SECONDS, failures=before.failures + 1, blocked=before.blocked + 1)
    doublings = min(before.failures - before.blocked, 10)
    pause = min(FIRST_SECONDS[failure] * 2**doublings, LONGEST_SECONDS)
    return replace(before, until=now + pause, failures=before.failures + 1)


def due_write(write: PodWrite, trouble: Trouble | None, now: float) -> PodWrite:
    """Returns the write to attempt now: `write`, or its `instead` once `write` has failed for `instead_seconds`.

    Args:
        trouble: the failures of the pod's write so far; None if the last attempt succeeded.
        now: seconds of a monotonic clock.
    """
    if write.instead is None or trouble is None or trouble.step is not write.step:
        return write
    return write.instead if now - trouble.since >= write.instead_seconds else write


Events = Callable[[Json], tuple[ObjectEvent, ...]]
"""Returns the events to record after a write, from the pod (JSON) as it was observed before the write."""


class Step(StrEnum):
    """The kind of a write to one pod.

    The kinds are a label, a notice, an eviction, and the removal of a notice, of a gate or of the finalizer.
    """

    LABEL = "label"
    """Gives the pod the label of GPU pods."""

    NOTICE = "notice"
    """Writes the instant of the pod's eviction on the pod."""
    EVICT = "evict"
    """Evicts the pod."""
    CALL_OFF = "call-off"
    """Removes the notice, as the budget got money."""
    RELEASE = "release"
    """Removes the budget's scheduling gate."""
    FINALIZER = "finalizer"
    """Removes the meter's finalizer."""


EVICTION_STEPS = (Step.NOTICE, Step.EVICT, Step.CALL_OFF)


class Plan(StrEnum):
    """A task of the leader that decides on writes to pods; each decision of a task replaces the task's earlier one.

    The writes of one namespace are done in this order: labels, evictions, finalizers, scheduling gates. Labels come
    first, since no pod is evicted without the label. Finalizers come after evictions, since a user who creates and
    deletes pods all the time causes finalizers without end; running pods limit the number of evictions.
    """

    LABELS = "label"
    EVICTIONS = "evict"
    FINALIZERS = "remove_finalizers"
    RELEASES = "release"


@dataclass(frozen=True, slots=True)
class PodWrite:
    """A planned write to one pod.

    Attributes:
        uid: the pod's uid.
        namespace: the pod's namespace.
        pod: the pod's name.
        budget: the account that pays for the pod.
        step: the kind of write.
        eviction_at: the instant of eviction for the pod's annotation, as text; empty if the step is no notice.
        events: returns the events to record once this write has succeeded, from the pod as it was observed before.
        instead: the write to do in place of this one once this one has failed for `instead_seconds`; None to try this
            one for ever.
        instead_seconds: the seconds from the first failure after which `instead` is done.
    """

    uid: str
    namespace: str
    pod: str
    budget: str
    step: Step
    eviction_at: str = ""
    events: Events = lambda _pod: ()
    instead: PodWrite | None = None
    instead_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The outcomes of a plan's earlier writes to pods, on which the leader's next decisions are based.

    Attributes:
        released: the uids of pods whose scheduling gate was just removed; perhaps the mirror does not show it yet.
        failing: the uids of pods whose writes keep failing.
    """

    released: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
