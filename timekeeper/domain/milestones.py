"""Milestones of a budget's spending, each announced once to people outside the cluster: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fairgpu.states import BudgetState


class Milestone(StrEnum):
    """An event in a budget's period; in order of weight, the lightest first."""

    HALF_SPENT = "HalfSpent"
    MOSTLY_SPENT = "MostlySpent"
    RUNS_OUT_EARLY = "RunsOutEarly"
    IN_GRACE = "BudgetInGrace"
    EXHAUSTED = "BudgetExhausted"
    HELD = "BudgetHeld"
    REOPENED = "BudgetReopened"


WEIGHT: Mapping[Milestone, int] = {milestone: weight for weight, milestone in enumerate(Milestone)}
EXHAUSTION = frozenset({Milestone.IN_GRACE, Milestone.EXHAUSTED, Milestone.HELD})
_STATES: Mapping[BudgetState, Milestone] = {
    BudgetState.GRACE: Milestone.IN_GRACE,
    BudgetState.OVER: Milestone.EXHAUSTED,
    BudgetState.HELD: Milestone.HELD,
}


@dataclass(frozen=True, slots=True)
class Announced:
    """The milestones of a budget that were announced, and the period and money for which they were.

    Attributes:
        period: the start of the period, in nanoseconds since 1970.
        available: the amount that could be spent in it, in microGPU-seconds; None for no limit.
        milestones: the milestones that were announced.
    """

    period: int
    available: int | None
    milestones: frozenset[Milestone] = frozenset()


def reached(state: BudgetState, spent: int, available: int | None, *, early: bool) -> frozenset[Milestone]:
    """Returns the milestones that a budget has reached in its present period; amounts are microGPU-seconds.

    Args:
        state: the budget's computed state.
        available: the amount that may be spent in it; None for no limit, and then no milestones.
        early: whether the money runs out before the period's end.
    """
    if available is None:
        return frozenset()
    milestones = {
        milestone
        for milestone, percent in ((Milestone.HALF_SPENT, 50), (Milestone.MOSTLY_SPENT, 80))
        if spent * 100 >= available * percent
    }
    if early:
        milestones.add(Milestone.RUNS_OUT_EARLY)
    if state in _STATES:
        milestones.add(_STATES[state])
    return frozenset(milestones)


def next_announced(
    before: Announced | None, period: int, available: int | None, holding: frozenset[Milestone]
) -> tuple[Announced, Milestone | None]:
    """Returns the milestones that count as announced from now on, and the one to announce; None for no announcement.

    Where several milestones are new, the weightiest is announced and all count as announced: a budget that is first
    observed as exhausted need not announce that it is half spent. A forecast that comes and goes is announced once, as
    long as the money is the same.

    Args:
        before: the milestones announced so far; None where there were none.
        period: the start of the present period, in nanoseconds since 1970.
        available: the amount that may be spent in it, in microGPU-seconds; None for no limit.
        holding: the milestones that are reached at present.
    """
    announced = before.milestones if before is not None else frozenset()
    kept = announced
    if before is not None and (before.period, before.available) != (period, available):
        # In another period, or with other money, a milestone that no longer holds may be announced again.
        kept = announced & holding if before.period == period else frozenset()
    if announced & EXHAUSTION and not holding & EXHAUSTION:
        return Announced(period, available, (kept - EXHAUSTION) | holding), Milestone.REOPENED
    new = holding - kept
    return Announced(period, available, kept | holding), heaviest(new) if new else None


def heaviest(milestones: Iterable[Milestone]) -> Milestone:
    """Returns the weightiest of the milestones, of which there is at least one."""
    return max(milestones, key=WEIGHT.__getitem__)
