"""What a namespace's budget earns a pod: its priority class, a gate, and a line for its author."""

from __future__ import annotations

import math
from typing import Final, Literal

from fairgpu import names
from fairgpu.faults import Fault
from fairgpu.pod import PodReading
from fairgpu.states import BudgetState, NamespaceState, SafeAdmission
from webhook.admission.cost import highest_rate, hourly_cost
from webhook.admission.knowledge import States

UGPU_SECONDS_PER_HOUR = 3_600_000_000
"""uGPU·s in a GPU-hour."""
WARN_WITHIN_SECONDS = 86_400
_FATES = {
    BudgetState.OVER: f"gets the class {names.OVER_BUDGET_CLASS} and yields to pods within budget",
    BudgetState.HELD: f"waits behind the gate {names.BUDGET_GATE} until there is money",
}
UNKNOWN: Final = "unknown"


class Asked:
    """What a pod asks of its budget: GPUs, and for how long at most (None where it does not say)."""

    def __init__(self, reading: PodReading, deadline_seconds: int | None) -> None:
        self.reading: Final = reading
        self.deadline_seconds: Final = deadline_seconds


class Standing:
    """What the budget's state means for a pod that is created now.

    Attributes:
        state: as `fairgpu.io/budget-state` has it.
        over: whether it gets the class of those over budget.
        held: whether it waits behind the gate.
        warnings: what its author should know.
        faults: why it is not let in, where an unknown state is to be refused.
        stale_seconds: how old the states are, where that is too old.
    """

    def __init__(
        self,
        *,
        state: str,
        over: bool = False,
        held: bool = False,
        warnings: tuple[str, ...] = (),
        faults: tuple[Fault, ...] = (),
        stale_seconds: float | None = None,
    ) -> None:
        self.state: Final = state
        self.over: Final = over
        self.held: Final = held
        self.warnings: Final = warnings
        self.faults: Final = faults
        self.stale_seconds: Final = stale_seconds


def stand(
    namespace: str,
    states: States | None,
    asked: Asked,
    when_unknown: Literal["in-budget", "over-budget", "refuse"],
    stale_after_seconds: float,
    now: float,
) -> Standing:
    """Where a pod stands; a state once known counts however old it is.

    Args:
        namespace: the pod's.
        states: what is known of budgets; nothing where nothing ever was.
        asked: the pod's requests, for what it will cost.
        when_unknown: what holds where nothing is known.
        stale_after_seconds: from which age on the audit log says so.
        now: monotonic seconds.
    """
    if states is None:
        return _unknown(when_unknown)
    state = states.of(namespace)
    age = now - states.confirmed_at
    lacking = _lacking(state, asked, states)
    met = state.state if lacking is None or state.safe is None else _unfit(state.safe)
    return Standing(
        state=met.value,
        over=met is BudgetState.OVER,
        held=met is BudgetState.HELD,
        warnings=_warnings(state, asked.reading, states) if lacking is None else (lacking,),
        stale_seconds=age if age > stale_after_seconds else None,
    )


def _unfit(safe: SafeAdmission) -> BudgetState:
    return BudgetState.HELD if safe.hold else BudgetState.OVER


def _lacking(state: NamespaceState, asked: Asked, states: States) -> str | None:
    """Why safe admission does not let a pod in as within budget; None where it does.

    The pod counts itself: what is left, less what others may still spend, must pay for all that it may run.
    """
    if state.safe is None or state.state not in {BudgetState.OPEN, BudgetState.GRACE}:
        return None
    seconds = state.safe.default_commit_seconds if asked.deadline_seconds is None else asked.deadline_seconds
    needed = highest_rate(asked.reading, states.prices, states.charge) * seconds
    if needed <= state.remaining - state.safe.committed:
        return None
    runs = "its activeDeadlineSeconds" if asked.deadline_seconds is not None else "defaultCommit"
    left = f"{_hours(state.remaining)} less {_hours(state.safe.committed)} committed are left"
    fate = f'GPU budget "{state.budget[:40]}": the pod {_FATES[_unfit(state.safe)]}.'
    return f"{fate} It may spend {_hours(needed)} GPU-hours ({runs}), and {left}."


def _unknown(when_unknown: Literal["in-budget", "over-budget", "refuse"]) -> Standing:
    if when_unknown != "refuse":
        return Standing(state=UNKNOWN, over=when_unknown == "over-budget")
    fault = Fault(
        path="metadata.namespace",
        given="a namespace whose budget's state is not known yet",
        allowed="GPU pods once the timekeeper has answered, as the setting when_unknown has it",
        instead="the same again in a moment; if this lasts, a cluster admin looks at fairgpu-timekeeper",
    )
    return Standing(state=UNKNOWN, faults=(fault,))


def _warnings(state: NamespaceState, reading: PodReading, states: States) -> tuple[str, ...]:
    what = _consequence(state) if state.enforced else None
    if what is None:
        return ()
    low, high = hourly_cost(reading, states.prices, states.charge)
    price = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    line = f'GPU budget "{state.budget}": {what}. {_balance(state)}; this pod costs about {price} GPU-hours an hour.'
    return (line,)


def _balance(state: NamespaceState) -> str:
    if state.remaining < 0:
        return f"It is {_hours(-state.remaining)} GPU-hours over its {_hours(state.available)}"
    return f"{_hours(state.remaining)} of {_hours(state.available)} GPU-hours are left"


def _hours(amount: int) -> str:
    """GPU-hours as people read them, rounded up, so that what is not nothing never reads as 0."""
    hours = amount / UGPU_SECONDS_PER_HOUR
    places = 2 if hours >= 1 else 6
    rounded = math.ceil(hours * 10**places) / 10**places
    return f"{rounded:.{places}f}".rstrip("0").rstrip(".")


def _consequence(state: NamespaceState) -> str | None:
    if state.state is BudgetState.GRACE:
        return "spent, and in its grace"
    if state.state in {BudgetState.OVER, BudgetState.HELD}:
        return f"spent; the pod {_FATES[state.state]}"
    if state.state is BudgetState.OPEN and state.rate > 0:
        seconds = state.remaining / state.rate
        if seconds < WARN_WITHIN_SECONDS:
            return f"runs out in about {_span(seconds)} at the present rate"
    return None


def _span(seconds: float) -> str:
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.0f} hours"
    minutes = max(round(seconds / 60), 1)
    return "1 minute" if minutes == 1 else f"{minutes} minutes"
