"""Writes to pods as values: the leader's thread decides on them, and the threads of the pod writer carry them out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from fairgpu.cluster.api import Json
from timekeeper.sources.source import Notice

Events = Callable[[Json], tuple[Notice, ...]]
"""From a pod as it was when it was written to the events that tell of it."""


class Step(StrEnum):
    """One write to one pod."""

    NOTICE = "notice"
    """It is told when it will be evicted."""
    EVICT = "evict"
    """Its time has come."""
    CALL_OFF = "call-off"
    """It was told, and the money came back."""
    RELEASE = "release"
    """The budget's gate is taken off."""
    FINALIZER = "finalizer"
    """The meter's finalizer is taken off."""


EVICTION_STEPS = (Step.NOTICE, Step.EVICT, Step.CALL_OFF)


class Plan(StrEnum):
    """A job of the leader that decides on writes, and replaces with each run what it decided before.

    In this order the writes of one namespace are done: evictions are as many as pods run, while somebody who creates
    and deletes pods without a pause makes finalizers without end.
    """

    EVICTIONS = "evict"
    FINALIZERS = "let_go"
    RELEASES = "release"


@dataclass(frozen=True, slots=True)
class PodWrite:
    """A write to one pod, with all that it takes.

    Attributes:
        uid: the pod's.
        budget: the account that pays for it.
        step: the write.
        eviction_at: when the pod is to be evicted, as its annotation says; empty where the step is no notice.
        events: the events of a write that succeeded.
        instead: what is done once the write has failed for too long; None where it is tried for ever.
        instead_seconds: how long that is, from the first failure on.
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
    """The outcome of earlier writes, on which the next decisions rest.

    Attributes:
        released: uids of pods whose gate was taken off moments ago: what is seen of them may not show it yet.
        failing: uids of pods of which writes fail again and again.
    """

    released: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
