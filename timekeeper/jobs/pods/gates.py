"""Which held pods the money releases: first in, first out, as far as it pays for what each one needs."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from fairgpu.states import BudgetState
from timekeeper.jobs.memory.accounts import Account
from timekeeper.jobs.memory.figures import Figures
from timekeeper.metering.pods import PodFacts
from timekeeper.rules.money import cost
from timekeeper.rules.state import Admission, Enforcement, OnExhausted


@dataclass(frozen=True, slots=True)
class Claim:
    """A pod, what it will cost a second, and what the money must pay for before it is released."""

    pod: PodFacts
    rate: int
    needed: int


def released(
    account: Account, found: Figures, waiting: Iterable[Claim], promised: int, failing: Container[str] = ()
) -> list[Claim]:
    """The pods to release now, in the order in which they came.

    Args:
        account: who pays.
        found: its figures.
        waiting: the pods that the gate holds.
        promised: what pods that were let in before may still take: of their first minutes, or where admission is safe
            of all that they may run.
        failing: uids of pods whose gate cannot be taken off: they come last, so that their money keeps nobody waiting.

    A pod that the money does not reach holds back those behind it, however small they are: else a large one would
    wait forever. One that a whole period's money does not pay for waits for a grant, and holds back nobody.
    """
    queue = sorted(in_order(waiting), key=lambda claim: claim.pod.uid in failing)
    if found.published is BudgetState.HELD:
        return []
    limits = found.limits
    never_holds = limits.on_exhausted is not OnExhausted.HOLD or account.budget.enforcement is Enforcement.OBSERVE
    if limits.available is None or never_holds:
        return queue
    safe = account.budget.admission is Admission.SAFE
    whole = limits.available + (0 if safe else limits.grace_amount or 0)
    left = whole - found.spent - promised
    chosen: list[Claim] = []
    for claim in queue:
        if claim.needed > whole:
            continue
        left -= claim.needed
        if left < 0:
            break
        chosen.append(claim)
    return chosen


def in_order(waiting: Iterable[Claim]) -> list[Claim]:
    """First come, first served."""
    return sorted(waiting, key=lambda claim: (claim.pod.created, claim.pod.namespace, claim.pod.name, claim.pod.uid))


def first_minutes(running: Sequence[tuple[int, int]], min_runtime: int, now: int) -> int:
    """What young sessions may still take of their first minutes, in microGPU-seconds.

    Args:
        running: (rate, start) of the account's running sessions.
        min_runtime: how long a released pod is paid for, in nanoseconds.
        now: nanoseconds since 1970.
    """
    return sum(cost(rate, start + min_runtime - now) for rate, start in running if start + min_runtime > now)
