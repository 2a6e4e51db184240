"""The figures of an account at one instant, and the states of its namespaces that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fairgpu.states import BudgetState, NamespaceState, SafeAdmission
from timekeeper.controller.state.accounts import DEFAULT_PREFIX, Account
from timekeeper.domain.budgets import Budget
from timekeeper.domain.credits import Credit
from timekeeper.domain.forecast import Burns, burns
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.periods import Period
from timekeeper.domain.pricing import FOREVER
from timekeeper.domain.state import (
    Admission,
    Enforcement,
    Limits,
    OnExhausted,
    assess,
)
from timekeeper.domain.timestamps import Instant
from timekeeper.ledger.totals import Summary


def how_to_give_more(budget: Budget) -> str:
    """Returns a sentence for people, without its full stop, that says how an admin gives a budget more money.

    It names the command for a grant. The default budget of a namespace has no GPUBudget object that a grant could name:
    for such a budget, the sentence says that a GPUBudget must name the namespace.
    """
    if budget.name.startswith(DEFAULT_PREFIX):
        namespace = budget.name.removeprefix(DEFAULT_PREFIX)
        return f"An admin of GPU budgets can give more: a GPUBudget that names the namespace {namespace}"
    return f"An admin of GPU budgets can give more: `fairgpu grant {budget.name} HOURS --reason WHY`"


REFRESH_SHARE = 100
"""The remaining amount is published again once it has changed by one part in this many of the available amount."""
PROMISED_SHARE = 1000
"""With safe admission, the uncommitted amount is published again once it has fallen by one part in this many of the
available amount.
"""


class Figures(NamedTuple):
    """The figures of an account at one instant; amounts in microGPU-seconds, instants in nanoseconds since 1970.

    Attributes:
        period: the present period.
        granted: the amount that grants and carried-over credits added to the period.
        limits: the available amount and the grace of the period.
        spent: the amount spent in the period.
        rate: the rate of the account's running sessions, in microGPU-seconds a second.
        exhausted_at: the instant at which spending first reached the available amount; None if it has not.
        state: the state that follows from the figures.
        published: the state that admission acts on; it differs from `state` if the budget's enforcement is observe.
        due: the instant by which the figures must be computed again: the next change of state, expiry of a grant, or
            end of the period, whichever is first.
        burns: the amounts spent over the last hour and the last day.
        committed: with safe admission, the amount that admitted pods may still spend.
        queued: with safe admission, the amount that the pods behind the scheduling gate need.
        overdue: the number of pods that have waited for a node longer than safe admission reserves money for them.
        credits: the period's credits but the rollover, also expired ones, sorted by the names of their grants.
        budget: the budget's name; empty for the account of a namespace that no budget names.
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
    credits: tuple[Credit, ...] = ()
    budget: str = ""

    @property
    def remaining(self) -> int:
        """The amount left of the available money, in microGPU-seconds; negative once overspent, 0 without a limit."""
        return 0 if self.limits.available is None else self.limits.available - self.spent


def figures(
    account: Account, rate: int, now: Instant, committed: int = 0, queued: int = 0, overdue: int = 0
) -> Figures:
    """Computes an account's figures from the totals of its present period.

    Args:
        rate: the rate of its running sessions, in microGPU-seconds a second.
        now: the instant of the figures.
        committed: with safe admission, the amount that admitted pods may still spend, in microGPU-seconds.
        queued: with safe admission, the amount that the pods behind the scheduling gate need, in microGPU-seconds.
        overdue: the number of pods that have waited for a node longer than safe admission reserves money for them.
    """
    period = account.present(now)
    totals, period_credits = account.period_totals[period.start], account.expiring(period)
    limits = account.budget.limits(totals.granted)
    assessed = assess(limits, account.budget.enforcement, totals.total, rate, totals.exhausted_at, now)
    return Figures(
        period=period,
        granted=totals.granted,
        limits=limits,
        spent=totals.total,
        rate=rate,
        exhausted_at=assessed.exhausted_at,
        state=assessed.computed,
        published=assessed.published,
        due=min(
            assessed.next_change or FOREVER,
            period.end if period.end > now else FOREVER,
            *(credit.expires for credit in period_credits.values() if not credit.expired),
        ),
        burns=burns(account.burn, now, period.start, account.totals()),
        committed=committed,
        queued=queued,
        overdue=overdue,
        credits=tuple(credit for _, credit in sorted(period_credits.items())),
        budget=account.name if account.is_budget else "",
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
        enforcement=account.budget.enforcement.value if figures.budget and account.budget.namespaces else "",
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
        credits=figures.credits,
        grace_amount=figures.limits.grace_amount,
        grace_duration=figures.limits.grace_duration,
    )


def changed_states(
    account: Account, figures: Figures, namespaces: Iterable[str], published: Mapping[str, NamespaceState]
) -> dict[str, NamespaceState]:
    """Returns the new states of an account's namespaces that must be published again, keyed by namespace.

    Args:
        figures: the account's present figures.
        namespaces: the namespaces that the account pays for now.
        published: keyed by namespace, the state that was last published.
    """
    safe = _safe(account, figures)
    available, remaining = figures.limits.available or 0, figures.remaining
    enforced = account.budget.enforcement is not Enforcement.OBSERVE
    states = {
        name: NamespaceState(
            namespace=name,
            budget=figures.budget,
            state=figures.published,
            available=available,
            remaining=remaining,
            rate=figures.rate,
            enforced=enforced,
            safe=safe,
        )
        for name in namespaces
    }
    return {name: each for name, each in states.items() if _must_publish(published.get(name), each)}


def _safe(account: Account, figures: Figures) -> SafeAdmission | None:
    """Returns the figures of safe admission; None if admission is simple or the budget is observed or unlimited."""
    budget = account.budget
    observed = budget.enforcement is Enforcement.OBSERVE
    if budget.admission is not Admission.SAFE or observed or figures.limits.available is None:
        return None
    # Pods behind the gate precede new ones: the amounts that they need are not free.
    promised = figures.committed + figures.queued
    return SafeAdmission(promised, budget.default_commit // SECOND, budget.on_exhausted is OnExhausted.HOLD)


def unused_with_amounts(template: Budget) -> NamespaceState | None:
    """Returns the state of a namespace that no budget names and that has had no GPU pod, without the namespace's name.

    It has the amounts of a period in which nothing is granted or spent yet, by which safe admission judges the first
    pods. It is None if the default budget has no safe admission, no allowance, or the enforcement observe.

    Args:
        template: the default budget.
    """
    available = template.allowance
    if template.admission is not Admission.SAFE or template.enforcement is Enforcement.OBSERVE or available is None:
        return None
    safe = SafeAdmission(0, template.default_commit // SECOND, template.on_exhausted is OnExhausted.HOLD)
    return NamespaceState("", "", template.unused_state(), available, available, 0, safe=safe)


def _must_publish(before: NamespaceState | None, after: NamespaceState) -> bool:
    """Returns whether a namespace's state differs enough from the published one to be published again.

    Another budget, state, available amount, rate, enforcement or rule of safe admission is always enough. Otherwise
    amounts decide:

    - Without safe admission, the remaining amount must have changed by more than 1 / REFRESH_SHARE of the available
      amount.
    - With safe admission, the uncommitted amount (remaining less `SafeAdmission.committed`) must have grown by more
      than a GPU-second, or fallen by more than 1 / PROMISED_SHARE of the available amount.

    Args:
        before: the state that was last published; None if none was: then the result is True.
        after: the present state.
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
