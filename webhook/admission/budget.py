"""The effect of a namespace's budget on a new pod: its priority class, a gate, and a warning for its author."""

from __future__ import annotations

import math
from typing import Final, Literal

from fairgpu import names
from fairgpu.faults import Fault
from fairgpu.pod import PodReading
from fairgpu.states import BudgetState, NamespaceState, SafeAdmission
from webhook.admission.cost import highest_rate, hourly_cost
from webhook.admission.knowledge import BudgetStates

UGPU_SECONDS_PER_HOUR = 3_600_000_000
"""uGPU·s in a GPU-hour."""
WARN_WITHIN_SECONDS = 86_400
_CONSEQUENCES = {
    BudgetState.OVER: f"gets the class {names.OVER_BUDGET_CLASS} and yields to pods within budget",
    BudgetState.HELD: f"waits behind the gate {names.BUDGET_GATE} until there is money",
}
UNKNOWN: Final = "unknown"


class BudgetRequest:
    """The GPU request of a new pod, from which admission computes the pod's cost.

    Attributes:
        reading: the GPU requests of the pod's containers.
        deadline_seconds: the longest time that the pod runs; None if it sets no deadline.
    """

    def __init__(self, reading: PodReading, deadline_seconds: int | None) -> None:
        self.reading: Final = reading
        self.deadline_seconds: Final = deadline_seconds

    def highest(self, states: BudgetStates) -> int:
        """Returns the highest cost of the pod, in microGPU-seconds a second.

        The timekeeper charges this much while the pod has no allocation.
        """
        return highest_rate(self.reading, states.prices, states.charge)

    def price(self, states: BudgetStates) -> str:
        """Returns the hourly price of the pod for a warning, in GPU-hours, as `about 0.5` or `about 0.5 to 2`.

        Two figures are the lowest and the highest cost before the pod's devices are chosen.
        """
        low, high = hourly_cost(self.reading, states.prices, states.charge)
        return f"about {low:.3g}" if low == high else f"about {low:.3g} to {high:.3g}"

    def consequence(self, met: BudgetState) -> str:
        """Returns the effect of a budget's state on the pod, as the end of a sentence that begins with `the pod`.

        Args:
            met: the state of the pod's budget, OVER or HELD.
        """
        return _CONSEQUENCES[met]


class BudgetVerdict:
    """The effect of a budget's state on a new pod.

    Attributes:
        state: the value of the pod's annotation `fairgpu.io/budget-state`: the state that decides on the pod, or
            `unknown` if the timekeeper has never answered.
        over: whether the pod gets the priority class of pods over budget.
        held: whether the pod waits behind the scheduling gate of its budget.
        warnings: lines for the pod's author.
        faults: the reason for the pod's refusal, if the settings refuse pods of an unknown state; else empty.
        stale_seconds: the age of the known states, if it is above the setting `stale_after_seconds`; else None.
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


def evaluate_budget(
    namespace: str,
    states: BudgetStates | None,
    request: BudgetRequest,
    when_unknown: Literal["in-budget", "over-budget", "refuse"],
    stale_after_seconds: float,
    now: float,
) -> BudgetVerdict:
    """Returns the effect of a namespace's budget on a new pod.

    The last known state of the budget counts, whatever its age. With safe admission, a pod for whose whole run the
    money does not suffice is over budget or is held, as the budget says.

    Args:
        namespace: the pod's namespace.
        states: the states of all budgets; None if the timekeeper has never answered.
        request: the pod's GPU request, from which its cost follows.
        when_unknown: the treatment of the pod where `states` is None.
        stale_after_seconds: the age of the states above which the verdict states their age, for the audit log.
        now: the present time, in seconds of the monotonic clock.
    """
    if states is None:
        return _unknown(when_unknown)
    state = states.state_of(namespace)
    age = now - states.confirmed_at
    shortfall = _shortfall(state, request, states)
    met = state.state if shortfall is None or state.safe is None else _unfit(state.safe)
    return BudgetVerdict(
        state=str(met),
        over=met is BudgetState.OVER,
        held=met is BudgetState.HELD,
        warnings=_warnings(state, request, states) if shortfall is None else (shortfall,),
        stale_seconds=age if age > stale_after_seconds else None,
    )


def _unfit(safe: SafeAdmission) -> BudgetState:
    return BudgetState.HELD if safe.hold else BudgetState.OVER


def _shortfall(state: NamespaceState, request: BudgetRequest, states: BudgetStates) -> str | None:
    """Returns a warning if the budget uses safe admission and has too little money for the pod's whole run; else None.

    The money that counts is what remains, less what is committed to other pods. A pod without a deadline counts as
    running for the budget's `defaultCommit`. A budget whose state is neither `open` nor `grace` gives no such warning.
    """
    if state.safe is None or state.state not in {BudgetState.OPEN, BudgetState.GRACE}:
        return None
    seconds = state.safe.default_commit_seconds if request.deadline_seconds is None else request.deadline_seconds
    needed = request.highest(states) * seconds
    if needed <= state.remaining - state.safe.committed:
        return None
    runs = "its activeDeadlineSeconds" if request.deadline_seconds is not None else "defaultCommit"
    left = f"{_hours(state.remaining)} less {_hours(state.safe.committed)} committed are left"
    payer = f'GPU budget "{state.budget[:40]}"' if state.budget else "The namespace's GPU budget"
    consequence = f"{payer}: the pod {request.consequence(_unfit(state.safe))}."
    return f"{consequence} It may spend {_hours(needed)} GPU-hours ({runs}), and {left}."


def _unknown(when_unknown: Literal["in-budget", "over-budget", "refuse"]) -> BudgetVerdict:
    if when_unknown != "refuse":
        return BudgetVerdict(state=UNKNOWN, over=when_unknown == "over-budget")
    fault = Fault(
        path="metadata.namespace",
        given="a namespace whose budget's state is not known yet",
        allowed="GPU pods once the timekeeper has answered, as the setting when_unknown has it",
        instead="the same again in a moment; if this lasts, a cluster admin looks at fairgpu-timekeeper",
    )
    return BudgetVerdict(state=UNKNOWN, faults=(fault,))


def _warnings(state: NamespaceState, request: BudgetRequest, states: BudgetStates) -> tuple[str, ...]:
    what = _consequence(state, request) if state.enforced else None
    if what is None:
        return ()
    price = request.price(states)
    if not state.budget:  # a state that is only supposed, as `fairgpu admit --state` does
        return (f"The namespace's GPU budget: {what}; this pod costs {price} GPU-hours an hour.",)
    line = f'GPU budget "{state.budget}": {what}. {_balance(state)}; this pod costs {price} GPU-hours an hour.'
    return (line,)


def _balance(state: NamespaceState) -> str:
    if state.remaining < 0:
        return f"It is {_hours(-state.remaining)} GPU-hours over its {_hours(state.available)}"
    return f"{_hours(state.remaining)} of {_hours(state.available)} GPU-hours are left"


def _hours(amount: int) -> str:
    """Formats an amount in microGPU-seconds as GPU-hours, rounded up, so that an amount above 0 never reads as 0."""
    hours = amount / UGPU_SECONDS_PER_HOUR
    places = 2 if hours >= 1 else 6
    rounded = math.ceil(hours * 10**places) / 10**places
    return f"{rounded:.{places}f}".rstrip("0").rstrip(".")


def _consequence(state: NamespaceState, request: BudgetRequest) -> str | None:
    if state.state is BudgetState.GRACE:
        return "spent, and in its grace"
    if state.state in {BudgetState.OVER, BudgetState.HELD}:
        return f"spent; the pod {request.consequence(state.state)}"
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
