"""The figures of an account at one instant, and the states of its namespaces that follow from them."""

from __future__ import annotations

from typing import NamedTuple

from fairgpu.states import BudgetState, NamespaceState, SafeAdmission, encode_state
from timekeeper.controller.state.accounts import DEFAULT_PREFIX, Account
from timekeeper.domain.budgets import Budget
from timekeeper.domain.forecast import Burns, burns
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.periods import Period
from timekeeper.domain.pricing import FOREVER
from timekeeper.domain.state import (
    Admission,
    Enforcement,
    Limits,
    OnExhausted,
    exhaustion,
    next_change,
    published,
    state,
)
from timekeeper.ledger.codec import compact
from timekeeper.ledger.totals import Summary


def how_to_give_more(budget: Budget) -> str:
    """Returns a sentence for people, without its full stop, that says how an admin gives a budget more money.

    It names the command for a grant. The default budget of a namespace has no GPUBudget object that a grant could name.
    """
    if budget.name.startswith(DEFAULT_PREFIX):
        namespace = budget.name.removeprefix(DEFAULT_PREFIX)
        return f"An admin of GPU budgets can give more: a GPUBudget that names the namespace {namespace}"
    return f"An admin of GPU budgets can give more: `fairgpu grant {budget.name} HOURS --reason WHY`"


REFRESH_SHARE = 100
"""The remaining amount is published again once it has changed by this fraction of the available amount."""
PROMISED_SHARE = 1000
"""With safe admission, the uncommitted amount is published again once it has fallen by this fraction."""


class Figures(NamedTuple):
    """The figures of an account at one instant; amounts in microGPU-seconds, instants in nanoseconds since 1970.

    Attributes:
        period: the present period.
        granted: the amount that grants added to the period.
        limits: the available amount and the grace of the period.
        spent: the amount spent in the period.
        rate: the rate of the account's running sessions, in microGPU-seconds a second.
        exhausted_at: the instant at which spending first reached the available amount; None if it has not.
        state: the state by the figures.
        published: the state that admission acts on; it differs where the budget's limit is only observed.
        due: the instant by which the figures must be computed again: the next change of state, the expiry of a grant,
            or the end of the period.
        burns: the amounts spent over the last hour and the last day.
        committed: with safe admission, the amount that admitted pods may still spend.
        queued: with safe admission, the amount that the pods behind the scheduling gate need.
        overdue: the number of pods that have waited for a node longer than safe admission reserves money for them.
    """

    period: Period
    granted: int
    limits: Limits
    spent: int
    rate: int
    exhausted_at: int | None
    state: BudgetState
    published: BudgetState
    due: int
    burns: Burns = Burns()
    committed: int = 0
    queued: int = 0
    overdue: int = 0

    @property
    def remaining(self) -> int:
        """The amount left of the available money, in microGPU-seconds; negative once overspent, 0 without a limit."""
        return 0 if self.limits.available is None else self.limits.available - self.spent


def figures(account: Account, rate: int, now: int, committed: int = 0, queued: int = 0, overdue: int = 0) -> Figures:
    """Computes an account's figures from the totals of its present period.

    Args:
        rate: the rate of its running sessions, in microGPU-seconds a second.
        now: nanoseconds since 1970.
        committed: with safe admission, the amount that admitted pods may still spend, in microGPU-seconds.
        queued: the amount that the pods behind the scheduling gate need, in microGPU-seconds.
        overdue: the number of pods that have waited for a node longer than safe admission reserves money for them.
    """
    period = account.present(now)
    totals, period_credits = account.period_totals[period.start], account.expiring(period)
    limits = account.budget.limits(totals.granted)
    exhausted_at = exhaustion(limits, totals.total, totals.exhausted_at, now)
    true_state = state(limits, totals.total, exhausted_at, now)
    change = next_change(limits, totals.total, rate, exhausted_at, now)
    return Figures(
        period=period,
        granted=totals.granted,
        limits=limits,
        spent=totals.total,
        rate=rate,
        exhausted_at=exhausted_at,
        state=true_state,
        published=published(true_state, account.budget.enforcement),
        due=min(
            change or FOREVER,
            period.end if period.end > now else FOREVER,
            *(credit.expires for credit in period_credits.values() if not credit.expired),
        ),
        burns=burns(account.burn, now, period.start, account.totals()),
        committed=committed,
        queued=queued,
        overdue=overdue,
    )


def summary(account: Account, figures: Figures, namespaces: tuple[str, ...]) -> Summary:
    """Returns an account's figures in the form that the store holds for readers.

    The amount spent is 0 in it: each settlement writes that amount separately.

    Args:
        namespaces: the namespaces that it pays for now.
    """
    return Summary(
        name=account.name,
        namespaces=namespaces,
        state=figures.published,
        # A budget that was deleted has no namespaces any more.
        enforcement=account.budget.enforcement.value if account.is_budget and account.budget.namespaces else "",
        period_start=figures.period.start,
        period_end=figures.period.end,
        granted=figures.granted,
        available=figures.limits.available,
        spent=0,
        rate=figures.rate,
        exhausted_at=figures.exhausted_at,
        computed=figures.state,
        admission=account.budget.admission.value,
        committed=figures.committed,
        own=account.own_money(figures.period),
        credits=tuple(credit for _, credit in sorted(account.expiring(figures.period).items())),
        grace_amount=figures.limits.grace_amount,
        grace_duration=figures.limits.grace_duration,
    )


def namespace_state(namespace: str, account: Account, figures: Figures) -> NamespaceState:
    """Returns the state of a namespace on which admission acts."""
    return NamespaceState(
        namespace=namespace,
        budget=account.name if account.is_budget else "",
        state=figures.published,
        available=figures.limits.available or 0,
        remaining=figures.remaining,
        rate=figures.rate,
        enforced=account.budget.enforcement is not Enforcement.OBSERVE,
        safe=_safe(account, figures),
    )


def _safe(account: Account, figures: Figures) -> SafeAdmission | None:
    """Returns the figures of safe admission; None where the budget is only observed or has no limit."""
    budget = account.budget
    observed = budget.enforcement is Enforcement.OBSERVE
    if budget.admission is not Admission.SAFE or observed or figures.limits.available is None:
        return None
    # Pods behind the gate precede new ones: the amounts that they need are not free.
    promised = figures.committed + figures.queued
    return SafeAdmission(promised, budget.default_commit // SECOND, budget.on_exhausted is OnExhausted.HOLD)


def must_publish(before: NamespaceState | None, after: NamespaceState) -> bool:
    """Returns whether a namespace's state differs enough from the published one to be published again.

    The remaining amount counts only once it has changed by a certain share of the available amount.

    Args:
        before: the state that was last published; None where none was.
    """
    if before is None:
        return True
    if _lasting(before) != _lasting(after):
        return True
    if after.safe is not None:
        freed = _uncommitted(after) - _uncommitted(before)
        # Freed money may admit the next pod; unpublished commitments would admit pods beyond the money that is left.
        return freed > GPU_SECOND or -freed * PROMISED_SHARE > after.available
    return abs(before.remaining - after.remaining) * REFRESH_SHARE > after.available


def _lasting(sent: NamespaceState) -> tuple[object, ...]:
    terms = None if sent.safe is None else (sent.safe.default_commit_seconds, sent.safe.hold)
    return sent.budget, sent.state, sent.available, sent.rate, sent.enforced, terms


def _uncommitted(sent: NamespaceState) -> int:
    return sent.remaining - (0 if sent.safe is None else sent.safe.committed)


def state_text(state_of_namespace: NamespaceState) -> str:
    """Returns a namespace's state as the JSON text that the store holds."""
    return compact(encode_state(state_of_namespace))
