"""What of a budget people outside the cluster are told, once each: pure functions on plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fairgpu.states import BudgetState


class Milestone(StrEnum):
    """What a budget has come to; in order of weight, the lightest first."""

    HALF_SPENT = "HalfSpent"
    MOSTLY_SPENT = "MostlySpent"
    RUNS_OUT_EARLY = "RunsOutEarly"
    IN_GRACE = "BudgetInGrace"
    EXHAUSTED = "BudgetExhausted"
    HELD = "BudgetHeld"
    REOPENED = "BudgetReopened"


WEIGHT: Mapping[Milestone, int] = {milestone: weight for weight, milestone in enumerate(Milestone)}
SPENT_UP = frozenset({Milestone.IN_GRACE, Milestone.EXHAUSTED, Milestone.HELD})
_STATES: Mapping[BudgetState, Milestone] = {
    BudgetState.GRACE: Milestone.IN_GRACE,
    BudgetState.OVER: Milestone.EXHAUSTED,
    BudgetState.HELD: Milestone.HELD,
}


@dataclass(frozen=True, slots=True)
class Told:
    """What was told of a budget, and what it stood at then: other money is another story.

    Attributes:
        period: the start of the period.
        available: what could be spent in it; None for no limit.
        milestones: what was told.
    """

    period: int
    available: int | None
    milestones: frozenset[Milestone] = frozenset()


def reached(state: BudgetState, spent: int, available: int | None, *, early: bool) -> frozenset[Milestone]:
    """The milestones that hold; amounts in microGPU-seconds.

    Args:
        state: the budget's true state.
        spent: spent in the period.
        available: what may be spent in it; None for no limit.
        early: whether it runs out before the period's end.
    """
    if available is None:
        return frozenset()
    found = {
        milestone
        for milestone, percent in ((Milestone.HALF_SPENT, 50), (Milestone.MOSTLY_SPENT, 80))
        if spent * 100 >= available * percent
    }
    if early:
        found.add(Milestone.RUNS_OUT_EARLY)
    if state in _STATES:
        found.add(_STATES[state])
    return frozenset(found)


def next_told(
    before: Told | None, period: int, available: int | None, holding: frozenset[Milestone]
) -> tuple[Told, Milestone | None]:
    """What is to count as told from now on, and what is to be told; None for nothing.

    Of several that are new the weightiest is told, and all count as told: a budget that is first seen spent up has no
    need to say that it is half spent. A forecast that comes and goes is told once, as long as the money is the same.

    Args:
        before: what was told; None where nothing ever was.
        period: the start of the present period.
        available: what may be spent in it.
        holding: the milestones that hold.
    """
    known = before.milestones if before is not None else frozenset()
    kept = known
    if before is not None and (before.period, before.available) != (period, available):
        # In another period, or with other money, what does not hold any more may come again.
        kept = known & holding if before.period == period else frozenset()
    if known & SPENT_UP and not holding & SPENT_UP:
        return Told(period, available, (kept - SPENT_UP) | holding), Milestone.REOPENED
    new = holding - kept
    return Told(period, available, kept | holding), heaviest(new) if new else None


def heaviest(milestones: Iterable[Milestone]) -> Milestone:
    """The weightiest of some milestones."""
    return max(milestones, key=WEIGHT.__getitem__)
