"""Which held pods the money releases: first in, first out, as far as it pays for each one's first minutes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairgpu.states import BudgetState
from timekeeper.jobs.accounts import Account
from timekeeper.jobs.figures import Figures
from timekeeper.metering.pods import PodFacts
from timekeeper.rules.money import cost
from timekeeper.rules.state import Enforcement, OnExhausted


@dataclass(frozen=True, slots=True)
class Claim:
    """A pod, and what it will cost a second."""

    pod: PodFacts
    rate: int


def released(
    account: Account, found: Figures, waiting: Iterable[Claim], committed: Iterable[tuple[int, int]]
) -> list[Claim]:
    """The pods to release now, in the order in which they came.

    Args:
        account: who pays.
        found: its figures.
        waiting: the pods that the gate holds.
        committed: (rate, nanoseconds) of what pods released before may still take of their first minutes.

    A pod that the money does not reach holds back those behind it, however small they are: else a large one would
    wait forever. One that a whole period's money does not pay for waits for a grant, and holds back nobody.
    """
    queue = sorted(waiting, key=lambda claim: (claim.pod.created, claim.pod.namespace, claim.pod.name, claim.pod.uid))
    if found.published is BudgetState.HELD:
        return []
    limits = found.limits
    never_holds = limits.on_exhausted is not OnExhausted.HOLD or account.budget.enforcement is Enforcement.OBSERVE
    if limits.available is None or never_holds:
        return queue
    whole = limits.available + (limits.grace_amount or 0)
    left = whole - found.spent
    left -= sum(cost(rate, duration) for rate, duration in committed)
    chosen: list[Claim] = []
    for claim in queue:
        needed = cost(claim.rate, account.budget.min_runtime)
        if needed > whole:
            continue
        left -= needed
        if left < 0:
            break
        chosen.append(claim)
    return chosen


def commitments(running: Sequence[tuple[int, int]], min_runtime: int, now: int) -> list[tuple[int, int]]:
    """(rate, nanoseconds) that young sessions may still take of their first minutes.

    Args:
        running: (rate, start) of the account's running sessions.
        min_runtime: how long a released pod is paid for, in nanoseconds.
        now: nanoseconds since 1970.
    """
    return [(rate, start + min_runtime - now) for rate, start in running if start + min_runtime > now]
