"""Whether to take, keep or leave a Lease: the rules, apart from the API server.

A Lease names its holder and when it was last renewed (coordination.k8s.io/v1). Its clock is somebody else's, so the
times in it are not compared with ours: a Lease counts as abandoned once it was seen unchanged for its whole duration,
by the observer's own monotonic clock, as client-go's leader election does it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What a Lease says.

    Attributes:
        holder: who holds it; empty where it was given up.
        term: how often it changed hands; the number of the holder's term.
        version: its resourceVersion: changes with every renewal.
    """

    holder: str
    term: int
    version: str


@dataclass(frozen=True, slots=True)
class Observation:
    """A Lease as it was first seen in its present version, on the observer's monotonic clock, in seconds."""

    record: LeaseRecord
    since: float


def observe(previous: Observation | None, record: LeaseRecord, now: float) -> Observation:
    """What is known after another look: a Lease that has not changed is as old as when it was first seen."""
    if previous is not None and previous.record.version == record.version:
        return previous
    return Observation(record, now)


def may_take(observation: Observation, identity: str, duration: float, now: float) -> bool:
    """Whether the Lease is free for `identity`: given up, abandoned, or its own from an earlier term.

    Args:
        observation: the Lease as it was observed.
        identity: who asks.
        duration: how long, in seconds, a Lease is the holder's after a renewal.
        now: the observer's monotonic clock, in seconds.
    """
    holder = observation.record.holder
    return not holder or holder == identity or now - observation.since >= duration


def next_term(record: LeaseRecord | None, floor: int) -> int:
    """The number of the term that begins by taking the Lease.

    It is above that of every term before, also where the Lease was deleted and begins to count anew: `floor` is the
    highest term that the store has seen.
    """
    return max(record.term if record else 0, floor) + 1
