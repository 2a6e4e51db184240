"""Accounts in the leader's memory: budget, periods, totals, credits, and the payers of namespaces that moved.

Checkpoints record the moves, too: in an emptied store, a session that began before a move would else be charged to the
later payer from its start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from timekeeper.domain.budgets import Budget
from timekeeper.domain.charges import Assignments
from timekeeper.domain.credits import OWN, Credit
from timekeeper.domain.forecast import BurnRecord
from timekeeper.domain.orders import OrderEntry
from timekeeper.domain.periods import Period, first_period, periods_until
from timekeeper.domain.timestamps import DAY, HOUR, TimeError, format_exact, parse_instant
from timekeeper.ledger.totals import PeriodTotals, Summary

Json = dict[str, Any]


def moves_by_account(assignments: Mapping[str, Assignments]) -> dict[str, dict[str, Assignments]]:
    """Returns the namespaces that have moved, with their payers, for each account that ever paid for them."""
    by_account: dict[str, dict[str, Assignments]] = {}
    for namespace, known in assignments.items():
        if len(known) > 1:
            for _, account in known:
                by_account.setdefault(account, {})[namespace] = known
    return by_account


def recorded_moves(moves: Mapping[str, Assignments], since: int) -> list[Json]:
    """Returns the moves after an instant as a checkpoint records them; earlier moves change no later period."""
    return [
        {"namespace": namespace, "payers": [{"account": name, "from": format_exact(at)} for at, name in known]}
        for namespace, known in sorted(moves.items())
        if known[-1][0] > since
    ]


def read_moves(budgets: Iterable[Json]) -> dict[str, Assignments]:
    """Reads the payers of moved namespaces from budgets' checkpoints; the checkpoint with the latest move counts."""
    latest: dict[str, Assignments] = {}
    for item in budgets:
        for move in ((item.get("status") or {}).get("checkpoint") or {}).get("moves") or ():
            try:
                known = tuple((parse_instant(payer["from"]), str(payer["account"])) for payer in move["payers"])
                namespace = str(move["namespace"])
            except (TimeError, KeyError, TypeError):
                continue
            if known and (namespace not in latest or known[-1] > latest[namespace][-1]):
                latest[namespace] = known
    return latest


DEFAULT_PREFIX = "namespace:"
"""The prefix of the account of a namespace that no budget names; no budget's name can begin with it."""

KEPT_PERIODS = 2
"""The number of latest periods whose totals an account keeps, however old they are."""
BURN_AGE = DAY + HOUR
"""The age up to which totals are kept for burn rates: the longest window of these, and an hour more."""


_end = attrgetter("end")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The sum that deleted pods had spent in a period, from a budget's status; an emptied store starts again from it.

    `credits` holds the period's credits, `previous_spent` the amount that the preceding period had spent. `version`
    counts the account's changes: a store with a lower one has returned to an earlier state.
    """

    period: Period
    time: int
    amount: int
    exhausted_at: int | None = None
    credits: tuple[Credit, ...] = ()
    previous_spent: int | None = None
    version: int = 0


@dataclass(slots=True)
class Account:
    """An account in the leader's memory.

    `grants` and `corrections` are the orders that the store holds, by name; None for a grant whose period never opened.
    `refused` gives the reason for each correction that cannot be applied; `unconfirmed` names the grants that no
    replica was known to hold when they were last sent.

    `period_totals` and `credits` hold the totals and credits of each period as the store last answered them; `summary`
    the figures last published, less the amount spent; `burn` the samples of spending.
    """

    name: str
    budget: Budget
    periods: list[Period] = field(default_factory=list)
    period_totals: dict[int, PeriodTotals] = field(default_factory=dict)
    credits: dict[int, dict[str, Credit]] = field(default_factory=dict)
    grants: dict[str, OrderEntry | None] = field(default_factory=dict)
    unconfirmed: set[str] = field(default_factory=set)
    corrections: dict[str, OrderEntry] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    summary: Summary | None = None
    burn: BurnRecord | None = None

    @property
    def is_budget(self) -> bool:
        """Whether the account is that of a GPUBudget."""
        return not self.name.startswith(DEFAULT_PREFIX)

    @property
    def version(self) -> int:
        """The number of the account's changes, as the store last answered it."""
        return max((totals.version for totals in self.period_totals.values()), default=0)

    def holds_credit(self, name: str) -> bool:
        """Whether the grant is among the credits of any period."""
        return any(name in period_credits for period_credits in self.credits.values())

    def terms_before(self, following: Period) -> tuple[int, int]:
        """Returns the allowance of the preceding period and the most that it could roll over, as of its closing."""
        kept = self.period_totals[following.start].terms
        return kept if kept is not None else (self.budget.allowance or 0, self.budget.rollover)

    def own_money(self, period: Period, allowance: int | None = None) -> int:
        """Returns a period's money without its credits: the allowance, grants that expire with it, and the rollover."""
        period_credits = self.credits.get(period.start, {})
        beside = sum(credit.amount for name, credit in period_credits.items() if name != OWN)
        given = (self.budget.allowance or 0) if allowance is None else allowance
        return given + self.period_totals[period.start].granted - beside

    def expiring(self, period: Period) -> dict[str, Credit]:
        """Returns a period's credits without the rollover."""
        return {name: credit for name, credit in self.credits.get(period.start, {}).items() if name != OWN}

    def present(self, now: int) -> Period:
        """Returns the period that contains an instant; the latest one where none is open there."""
        period = self.period_at(now)
        return period if period is not None and period.start in self.period_totals else self.periods[-1]

    def lacks_present(self, now: int) -> bool:
        """Whether the totals of the period that contains an instant are not in memory, since a clock was ahead."""
        period = self.period_at(now)
        return period is not None and period.start not in self.period_totals

    def totals(self) -> dict[int, int]:
        """Returns the amount spent in each period in memory, by the period's start."""
        return {start: totals.total for start, totals in self.period_totals.items()}

    def forget_old_periods(self, now: int) -> None:
        """Drops the totals of old periods, except those that burn rates need.

        A new leader reads no more than these, too. The balances of the dropped periods must be closed.
        """
        if len(self.period_totals) <= KEPT_PERIODS:
            return
        kept = {period.start for period in self.periods[-KEPT_PERIODS:]}
        kept |= {period.start for period in self.periods_after(now - BURN_AGE)}
        self.period_totals = {start: value for start, value in self.period_totals.items() if start in kept}
        self.credits = {start: value for start, value in self.credits.items() if start in kept}

    def periods_after(self, instant: int) -> Sequence[Period]:
        """Returns the open periods that end after an instant, in order."""
        return self.periods[bisect_right(self.periods, instant, key=_end) :]

    def period_at(self, instant: int) -> Period | None:
        """Returns the open period that contains an instant; None where there is none."""
        index = bisect_right(self.periods, instant, key=_end)
        return self.periods[index] if index < len(self.periods) and self.periods[index].start <= instant else None


def default_account(namespace: str) -> str:
    """Returns the name of the account of a namespace that no budget names."""
    return f"{DEFAULT_PREFIX}{namespace}"


def default_budget(namespace: str, template: Budget) -> Budget:
    """Returns the budget of a default account, made from the admin's template."""
    return replace(template, name=default_account(namespace), namespaces=frozenset({namespace}))


def reassigned(
    assignments: Mapping[str, Assignments],
    payers: Mapping[str, Budget],
    namespaces: Iterable[str],
    now: int,
    latest: int,
) -> dict[str, Assignments]:
    """Returns the namespaces whose payer changes now, each with all its payers.

    A payer from a later instant than `latest` was assigned by a clock that was ahead: it pays from now on.

    Args:
        assignments: the payers of each namespace until now.
        payers: the budget that pays for each namespace that one names.
        namespaces: further namespaces that are metered.
        now: nanoseconds since 1970.
        latest: the latest instant that any clock says is now.
    """
    changed: dict[str, Assignments] = {}
    for namespace in {*payers, *namespaces, *assignments}:
        account = payers[namespace].name if namespace in payers else default_account(namespace)
        known = assignments.get(namespace, ())
        if not known:
            changed[namespace] = ((0, account),)
        elif known[-1][1] != account or known[-1][0] > latest:
            changed[namespace] = (*(entry for entry in known if entry[0] < now), (now, account))
    return changed


def periods_to_open(account: Account, now: int) -> list[Period]:
    """Returns the periods that must be open by an instant and are not, from the checkpoint's period on."""
    if account.periods:
        return list(periods_until(account.budget.period, account.periods[-1], now))
    checkpoint = account.checkpoint
    if checkpoint is None:
        return [first_period(account.budget.period, now)]
    if checkpoint.period.holds(now):
        return [checkpoint.period]
    return [checkpoint.period, *periods_until(account.budget.period, checkpoint.period, now)]
