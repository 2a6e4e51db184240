"""From what a period stands at to its state, to the figures for readers, and to when it must be looked at again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from fairgpu.states import BudgetState, NamespaceState, encode_state
from timekeeper.jobs.accounts import Account
from timekeeper.rules.burn import Burns, burns
from timekeeper.rules.periods import Period
from timekeeper.rules.pricing import FOREVER
from timekeeper.rules.state import Limits, exhaustion, next_change, published, state
from timekeeper.store.summaries import Summary

REFRESH_SHARE = 100
"""What remains is told again once it has changed by a hundredth of what is available."""


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

    @property
    def remaining(self) -> int:
        """What is left; negative once overspent, 0 where nothing limits it."""
        return 0 if self.limits.available is None else self.limits.available - self.spent


def figures(account: Account, rate: int, now: int) -> Figures:
    """An account's figures from what its present period stands at."""
    period = account.present(now)
    standing = account.standings[period.start]
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
            *(pot.expires for pot in account.expiring(period).values() if not pot.lapsed),
        ),
        burns=burns(account.burn, now, period.start, account.totals()),
    )


def summary(account: Account, found: Figures, namespaces: tuple[str, ...]) -> Summary:
    """The figures for readers."""
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
        spent=found.spent,
        rate=found.rate,
        exhausted_at=found.exhausted_at,
        computed=found.state,
        admission=account.budget.admission.value,
    )


def namespace_state(namespace: str, account: Account, found: Figures) -> NamespaceState:
    """What admission is told of a namespace."""
    return NamespaceState(
        namespace=namespace,
        budget=account.name if account.is_budget else "",
        state=found.published,
        available=found.limits.available or 0,
        remaining=found.remaining,
        rate=found.rate,
    )


def worth_telling(before: NamespaceState | None, after: NamespaceState) -> bool:
    """Whether waiting clients must hear of it: what remains changes all the time, and matters in steps."""
    if before is None:
        return True
    same = (before.budget, before.state, before.available, before.rate) == (
        after.budget,
        after.state,
        after.available,
        after.rate,
    )
    return not same or abs(before.remaining - after.remaining) * REFRESH_SHARE > after.available


def state_text(state_of_namespace: NamespaceState) -> str:
    """The state as the store holds it."""
    return json.dumps(encode_state(state_of_namespace), separators=(",", ":"))
