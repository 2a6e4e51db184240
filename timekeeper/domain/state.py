"""The state of a budget, and the milestones that it reaches: pure functions of its limits, its spending and now.

Each milestone is announced once to people outside the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from fairgpu.states import BudgetState
from timekeeper.domain.timestamps import Instant


class OnExhausted(StrEnum):
    """The treatment of new pods after a budget's grace: they get a lower priority, or wait behind a scheduling gate."""

    DEPRIORITIZE = "deprioritize"
    HOLD = "hold"


class Enforcement(StrEnum):
    """The effect of a budget's state: shown only, applied to new pods, or to running pods too."""

    OBSERVE = "observe"
    ENFORCE = "enforce"
    EVICT = "evict"


class Admission(StrEnum):
    """The condition for a new pod: a budget that is not exhausted, or one that can pay for the pod's whole run."""

    SIMPLE = "simple"
    SAFE = "safe"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of spending in a period.

    Attributes:
        available: allowance and grants, in microGPU-seconds; None for no limit.
        grace_amount: the most by which spending may exceed `available`, in microGPU-seconds; None sets no limit.
        grace_duration: the length of grace after exhaustion, in nanoseconds; None sets no limit.
        on_exhausted: the treatment of new pods after grace.

    There is no grace at all if `grace_amount` and `grace_duration` are both None.
    """

    available: int | None
    grace_amount: int | None = None
    grace_duration: int | None = None
    on_exhausted: OnExhausted = OnExhausted.DEPRIORITIZE


def exhaustion(limits: Limits, spend: int, exhausted_at: int | None, now: int) -> int | None:
    """Returns the instant at which spending first reached the available amount.

    None while spending is below that amount, and without a limit. If a grant, a raised allowance or a correction brings
    the budget below it again, the instant is forgotten, and the next exhaustion starts a new grace. Instants are
    nanoseconds since 1970.

    Args:
        spend: microGPU-seconds spent in this period.
        exhausted_at: the instant as it was known before; None if spending was below.
        now: the instant to return if spending has reached the amount and `exhausted_at` is None.
    """
    if limits.available is None or spend < limits.available:
        return None
    return now if exhausted_at is None else exhausted_at


def state(limits: Limits, spend: int, exhausted_at: Instant | None, now: Instant) -> BudgetState:
    """Returns a budget's state at an instant, by its spending.

    A budget without a limit is unlimited, and one that is not exhausted is open. An exhausted budget is in grace first,
    if it has any. After grace it is held or over, as `limits.on_exhausted` says.

    Args:
        spend: microGPU-seconds spent in this period.
        exhausted_at: when spending first reached the available amount; None counts as now.
    """
    if limits.available is None:
        return BudgetState.UNLIMITED
    if spend < limits.available:
        return BudgetState.OPEN
    if _in_grace(limits, spend - limits.available, now - (now if exhausted_at is None else exhausted_at)):
        return BudgetState.GRACE
    return BudgetState.HELD if limits.on_exhausted is OnExhausted.HOLD else BudgetState.OVER


def published(true_state: BudgetState, enforcement: Enforcement) -> BudgetState:
    """Returns the state that admission acts on: a limited budget in `observe` counts as open.

    Args:
        true_state: the state that was computed from spending.
        enforcement: the effect that the budget's state has.
    """
    if enforcement is Enforcement.OBSERVE and true_state is not BudgetState.UNLIMITED:
        return BudgetState.OPEN
    return true_state


def next_change(limits: Limits, spend: int, rate: int, exhausted_at: int | None, now: Instant) -> int | None:
    """Returns the first instant after now at which a budget's state changes if the rate stays the same; None if never.

    Instants are nanoseconds since 1970.

    Args:
        spend: microGPU-seconds spent by now.
        rate: microGPU-seconds a second.
        exhausted_at: when spending reached the available amount; None counts as now.
    """
    if limits.available is None:
        return None
    if spend < limits.available:
        return _instant_spent(limits.available - spend, rate, now)
    if state(limits, spend, exhausted_at, now) is not BudgetState.GRACE:
        return None
    moments: list[int | None] = []
    if limits.grace_duration is not None:
        moments.append((now if exhausted_at is None else exhausted_at) + limits.grace_duration)
    if limits.grace_amount is not None:
        moments.append(_instant_spent(limits.available + limits.grace_amount - spend, rate, now))
    return min((moment for moment in moments if moment is not None), default=None)


class Assessment(NamedTuple):
    """A budget's state at an instant. Instants are nanoseconds since 1970.

    Attributes:
        exhausted_at: the instant at which spending first reached the available amount; None while it is below, and
            without a limit.
        computed: the state according to the spending.
        published: the state that admission acts on.
        next_change: the first instant after now at which the state changes if the rate stays the same; None if never.
    """

    exhausted_at: int | None
    computed: BudgetState
    published: BudgetState
    next_change: int | None


def assess(
    limits: Limits, enforcement: Enforcement, spend: int, rate: int, exhausted_at: int | None, now: Instant
) -> Assessment:
    """Returns a budget's state at an instant, when its money was spent, and when the state will change.

    Args:
        enforcement: the effect that the budget's state has.
        spend: microGPU-seconds spent in this period.
        rate: the rate of running sessions, in microGPU-seconds a second.
        exhausted_at: the instant at which spending first reached the available amount, as known before; None if it had
            not.
    """
    exhausted = exhaustion(limits, spend, exhausted_at, now)
    computed = state(limits, spend, exhausted, now)
    change = next_change(limits, spend, rate, exhausted, now)
    return Assessment(exhausted, computed, published(computed, enforcement), change)


def _in_grace(limits: Limits, overspent: int, elapsed: int) -> bool:
    if limits.grace_amount is None and limits.grace_duration is None:
        return False
    within_amount = limits.grace_amount is None or overspent < limits.grace_amount
    within_duration = limits.grace_duration is None or elapsed < limits.grace_duration
    return within_amount and within_duration


def _instant_spent(amount: int, rate: int, now: Instant) -> int | None:
    """Returns the instant by which `amount` microGPU-seconds more are spent at `rate` a second; None for the rate 0."""
    return now - (-amount * 10**9 // rate) if rate > 0 else None


class Milestone(StrEnum):
    """An event in a budget's period that is announced, such as that half is spent; the least weighty comes first."""

    HALF_SPENT = "HalfSpent"
    MOSTLY_SPENT = "MostlySpent"
    RUNS_OUT_EARLY = "RunsOutEarly"
    IN_GRACE = "BudgetInGrace"
    EXHAUSTED = "BudgetExhausted"
    HELD = "BudgetHeld"
    REOPENED = "BudgetReopened"


WEIGHT: Mapping[Milestone, int] = {milestone: weight for weight, milestone in enumerate(Milestone)}
EXHAUSTION = frozenset({Milestone.IN_GRACE, Milestone.EXHAUSTED, Milestone.HELD})
_OF_STATES: Mapping[BudgetState, Milestone] = {
    BudgetState.GRACE: Milestone.IN_GRACE,
    BudgetState.OVER: Milestone.EXHAUSTED,
    BudgetState.HELD: Milestone.HELD,
}


@dataclass(frozen=True, slots=True)
class Announced:
    """The milestones of a budget that were announced for one period and one amount of available money.

    Attributes:
        period: the start of the period.
        available: the amount that could be spent in it, in microGPU-seconds; None for no limit.
        milestones: the milestones that were announced.
    """

    period: Instant
    available: int | None
    milestones: frozenset[Milestone] = frozenset()


def reached(state: BudgetState, spent: int, available: int | None, *, early: bool) -> frozenset[Milestone]:
    """Returns the milestones that a budget has reached in its present period; amounts are microGPU-seconds.

    Args:
        state: the budget's computed state.
        spent: the amount that was spent in the period.
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
    if state in _OF_STATES:
        milestones.add(_OF_STATES[state])
    return frozenset(milestones)


def next_announced(
    before: Announced | None, period: Instant, available: int | None, holding: frozenset[Milestone]
) -> tuple[Announced, Milestone | None]:
    """Returns the milestones that count as announced from now on, and the one to announce; None for no announcement.

    If several milestones are new, only the weightiest is announced, and all count as announced. So no message says that
    half of a budget is spent when all of it is. A milestone that holds, ceases to hold and holds again is announced
    once, as long as period and available amount stay the same. But once no milestone of EXHAUSTION holds any more,
    REOPENED is announced, and the milestones of EXHAUSTION can be announced again.

    Args:
        before: the milestones announced so far; None if there were none.
        period: the start of the present period.
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
