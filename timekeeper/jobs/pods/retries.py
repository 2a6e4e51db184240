"""When a pod that could not be written is tried again, and from when on that counts as a fault of the pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from timekeeper.jobs.pods.writes import PodWrite, Step
from timekeeper.sources.source import (
    BlockedError,
    ChangedMeanwhileError,
    NotWrittenError,
    RefusedError,
    SourceError,
)

BLOCKED_SECONDS: Final = 10.0
"""A pod that a PodDisruptionBudget keeps is asked for again after so long, as docs/budgets.md says."""
LONGEST_SECONDS: Final = 120.0
"""No pod waits longer for its next try: whatever was wrong with it may have been mended."""
FAILING_AFTER: Final = 3
"""So many failures in a row are a fault of the pod, and no longer one of the moment."""


class Failure(StrEnum):
    """Why a pod was not written."""

    CHANGED = "changed"
    """It is another one than was seen, or gone: the watch tells soon."""
    BLOCKED = "blocked"
    """A PodDisruptionBudget keeps it."""
    REFUSED = "refused"
    """A schema, a policy or a webhook forbids it."""
    FAILED = "failed"
    """The API server failed at it, or did not answer in time."""


_FAILURES: Final[Mapping[type[SourceError], Failure]] = {
    ChangedMeanwhileError: Failure.CHANGED,
    BlockedError: Failure.BLOCKED,
    RefusedError: Failure.REFUSED,
    NotWrittenError: Failure.FAILED,
}
FIRST_SECONDS: Final = {Failure.CHANGED: 1.0, Failure.REFUSED: 5.0, Failure.FAILED: 5.0}
"""Seconds before the first retry, by failure; each further retry waits twice as long."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A write that fails. Times are seconds of a monotonic clock.

    Attributes:
        step: the write that was decided on.
        since: when it first failed.
        until: when it is tried again.
        failures: how often it failed in a row.
        blocked: how often of these a PodDisruptionBudget kept the pod.
    """

    step: Step
    since: float
    until: float
    failures: int = 0
    blocked: int = 0

    @property
    def failing(self) -> bool:
        """Whether the pod cannot be written, as far as its last writes tell."""
        return self.failures - self.blocked >= FAILING_AFTER


def failure_of(error: SourceError) -> Failure | None:
    """Why one pod was not written; None where the error is no pod's: the API server is away for everybody."""
    return next((failure for kind, failure in _FAILURES.items() if isinstance(error, kind)), None)


def after_failure(known: Trouble | None, step: Step, failure: Failure, now: float) -> Trouble:
    """A pod's trouble after one more failure.

    Args:
        known: what was known before; None after a success.
        step: the write that failed.
        failure: why.
        now: seconds of a monotonic clock.
    """
    before = known if known is not None and known.step is step else Trouble(step, now, now)
    if failure is Failure.BLOCKED:
        return replace(before, until=now + BLOCKED_SECONDS, failures=before.failures + 1, blocked=before.blocked + 1)
    doublings = min(before.failures - before.blocked, 10)
    pause = min(FIRST_SECONDS[failure] * 2**doublings, LONGEST_SECONDS)
    return replace(before, until=now + pause, failures=before.failures + 1)


def due_write(write: PodWrite, trouble: Trouble | None, now: float) -> PodWrite:
    """The write that is to be tried now: the one that was decided on, or what replaces it after too long a failure."""
    if write.instead is None or trouble is None or trouble.step is not write.step:
        return write
    return write.instead if now - trouble.since >= write.instead_seconds else write
