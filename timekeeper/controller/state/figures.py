"""An account's figures at one instant, and the state of its namespaces that follows from them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

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
from timekeeper.ledger.totals import Summary


def how_to_give_more(budget: Budget) -> str:
    """The text that says how a budget gets more money: a sentence without its full stop.

    A grant names a GPUBudget; the default budget of a namespace has none.
    """
    if budget.name.startswith(DEFAULT_PREFIX):
        namespace = budget.name.removeprefix(DEFAULT_PREFIX)
        return f"Whoever hands out GPU budgets can give more: a GPUBudget that names the namespace {namespace}"
    return f"Whoever hands out GPU budgets can give more: `fairgpu grant {budget.name} HOURS --reason WHY`"


REFRESH_SHARE = 100
"""The remaining amount is published again once it has changed by this fraction of what is available."""
PROMISED_SHARE = 1000
"""With safe admission, the uncommitted amount is published again once it has fallen by this fraction."""


@dataclass(frozen=True, slots=True)
class Figures:
    """An account at one instant.

    Attributes:
        period: the present period.
        granted: what grants added to it.
        limits: what may be spent in the present period.
        spent: spent in it.
        rate: what its running sessions spend, in microGPU-seconds a second.
        exhausted_at: when spending first reached what is available, or None.
        state: its true state.
        published: the state that admission acts on.
        burns: what was spent over the last hour and the last day.
        due: when it must be looked at again at the latest: a change of its state, a grant's expiry, or its period's
            end, where that is still to come.
        committed: what pods that were let in may still spend, where admission is safe.
        queued: what the pods behind the gate need there.
        lapsed: how many pods wait for a node for longer than money is kept for them.
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
    burns: Burns = field(default_factory=Burns)
    committed: int = 0
    queued: int = 0
    lapsed: int = 0

    @property
    def remaining(self) -> int:
        """The amount that is left; negative once overspent, 0 without a limit."""
        return 0 if self.limits.available is None else self.limits.available - self.spent


def figures(account: Account, rate: int, now: int, committed: int = 0, queued: int = 0, lapsed: int = 0) -> Figures:
    """An account's figures from what its present period stands at.

    Args:
        account: the account.
        rate: what its running sessions spend, in microGPU-seconds a second.
        now: nanoseconds since 1970.
        committed: what the pods that were let in may still spend.
        queued: what the pods behind the gate need.
        lapsed: how many pods wait for a node for longer than money is kept for them.
    """
    period = account.present(now)
    standing, pots = account.standings[period.start], account.expiring(period)
    limits = account.budget.limits(standing.granted)
    exhausted_at = exhaustion(limits, standing.total, standing.exhausted_at, now)
    true_state = state(limits, standing.total, exhausted_at, now)
    change = next_change(limits, standing.total, rate, exhausted_at, now)
    return Figures(
        period=period,
        granted=standing.granted,
        limits=limits,
        spent=standing.total,
        rate=rate,
        exhausted_at=exhausted_at,
        state=true_state,
        published=published(true_state, account.budget.enforcement),
        due=min(
            change or FOREVER,
            period.end if period.end > now else FOREVER,
            *(pot.expires for pot in pots.values() if not pot.expired),
        ),
        burns=burns(account.burn, now, period.start, account.totals()),
        committed=committed,
        queued=queued,
        lapsed=lapsed,
    )


def summary(account: Account, found: Figures, namespaces: tuple[str, ...]) -> Summary:
    """The figures for readers, with 0 as spent: each settlement writes that amount to where they read it."""
    return Summary(
        name=account.name,
        namespaces=namespaces,
        state=found.published,
        # A budget that was deleted has no namespaces any more.
        enforcement=account.budget.enforcement.value if account.is_budget and account.budget.namespaces else "",
        period_start=found.period.start,
        period_end=found.period.end,
        granted=found.granted,
        available=found.limits.available,
        spent=0,
        rate=found.rate,
        exhausted_at=found.exhausted_at,
        computed=found.state,
        admission=account.budget.admission.value,
        committed=found.committed,
        own=account.own_money(found.period),
        credits=tuple(pot for _, pot in sorted(account.expiring(found.period).items())),
        grace_amount=found.limits.grace_amount,
        grace_duration=found.limits.grace_duration,
    )


def namespace_state(namespace: str, account: Account, found: Figures) -> NamespaceState:
    """The state of a namespace that admission acts on."""
    return NamespaceState(
        namespace=namespace,
        budget=account.name if account.is_budget else "",
        state=found.published,
        available=found.limits.available or 0,
        remaining=found.remaining,
        rate=found.rate,
        enforced=account.budget.enforcement is not Enforcement.OBSERVE,
        safe=_safe(account, found),
    )


def _safe(account: Account, found: Figures) -> SafeAdmission | None:
    """The figures of safe admission; None where the budget is only observed or has no limit."""
    budget = account.budget
    observed = budget.enforcement is Enforcement.OBSERVE
    if budget.admission is not Admission.SAFE or observed or found.limits.available is None:
        return None
    # Pods at the gate come before new ones: the amounts that they need are not free.
    taken = found.committed + found.queued
    return SafeAdmission(taken, budget.default_commit // SECOND, budget.on_exhausted is OnExhausted.HOLD)


def must_publish(before: NamespaceState | None, after: NamespaceState) -> bool:
    """Whether a state is to be published: the remaining amount changes all the time, and matters only in steps."""
    if before is None:
        return True
    if _lasting(before) != _lasting(after):
        return True
    if after.safe is not None:
        freed = _uncommitted(after) - _uncommitted(before)
        # Freed money may admit the next pod; commitments that are not published let pods in beyond what is left.
        return freed > GPU_SECOND or -freed * PROMISED_SHARE > after.available
    return abs(before.remaining - after.remaining) * REFRESH_SHARE > after.available


def _lasting(told: NamespaceState) -> tuple[object, ...]:
    terms = None if told.safe is None else (told.safe.default_commit_seconds, told.safe.hold)
    return told.budget, told.state, told.available, told.rate, told.enforced, terms


def _uncommitted(told: NamespaceState) -> int:
    return told.remaining - (0 if told.safe is None else told.safe.committed)


def state_text(state_of_namespace: NamespaceState) -> str:
    """The state as the store holds it."""
    return json.dumps(encode_state(state_of_namespace), separators=(",", ":"))
