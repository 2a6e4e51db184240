"""Accounts in the leader's memory: budget, periods, totals, credits, and the payers of namespaces that moved.

A namespace moves if another budget begins to pay for it. Checkpoints record the moves, too: otherwise a session that
began before a move would, once the store was emptied, be charged to the later payer from its start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from timekeeper.domain.budgets import Budget
from timekeeper.domain.charges import Assignments
from timekeeper.domain.credits import OWN, Credit
from timekeeper.domain.forecast import BurnRecord
from timekeeper.domain.orders import OrderEntry
from timekeeper.domain.periods import Period, first_period, periods_until
from timekeeper.domain.timestamps import DAY, HOUR, Instant, TimeError, format_exact, parse_instant
from timekeeper.ledger.totals import PeriodTotals, Summary

Json = dict[str, Any]


def moves_by_account(assignments: Mapping[str, Assignments]) -> dict[str, dict[str, Assignments]]:
    """Returns, for each account, the namespaces that it ever paid for and that have changed their payer.

    Args:
        assignments: keyed by namespace, its payers.

    Returns:
        Keyed by account and then by namespace, all payers of the namespace, in the form of `assignments`.
    """
    by_account: dict[str, dict[str, Assignments]] = {}
    for namespace, known in assignments.items():
        if len(known) > 1:
            for _, account in known:
                by_account.setdefault(account, {})[namespace] = known
    return by_account


def recorded_moves(moves: Mapping[str, Assignments], since: Instant) -> list[Json]:
    """Returns the changes of namespaces' payers as a budget's checkpoint records them, sorted by namespace.

    Args:
        moves: keyed by namespace, its payers in order of time.
        since: an instant; namespaces whose last change is not later are left out, since such changes do not affect
            later periods.
    """
    return [
        {"namespace": namespace, "payers": [{"account": name, "from": format_exact(at)} for at, name in known]}
        for namespace, known in sorted(moves.items())
        if known[-1][0] > since
    ]


def read_moves(budgets: Iterable[Json]) -> dict[str, Assignments]:
    """Returns the changes of namespaces' payers that checkpoints in the statuses of GPUBudgets record.

    The result holds all payers of each namespace, in order of time, keyed by namespace. If several checkpoints record a
    namespace, the checkpoint with the latest change counts. Unreadable records are skipped.
    """
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
"""The time after a period's end for which its totals stay in memory, in nanoseconds.

Burn rates need them: it is the longest window of a burn rate, and an hour more.
"""


_start, _end = attrgetter("start"), attrgetter("end")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The figures of one period of an account, from which the leader restores the account once the store has lost it.

    The leader keeps them on the API server, and in memory while it reads the store again.

    Attributes:
        period: the period that the figures describe.
        time: the instant of the figures; 0 in a RecoverySnapshot.
        amount: the amount that finalized sessions had spent in the period, in microGPU-seconds.
        exhausted_at: the instant at which spending first reached the available amount; None if it has not.
        credits: the period's credits.
        previous_spent: the amount that the preceding period had spent; None if it is not known.
        version: the number of changes of the account when the checkpoint was taken. A store with a lower number has
            returned to an earlier state.
        previous_corrected: the part of `previous_spent` that is from corrections; None if it is not known.
    """

    period: Period
    time: Instant
    amount: int
    exhausted_at: Instant | None = None
    credits: tuple[Credit, ...] = ()
    previous_spent: int | None = None
    version: int = 0
    previous_corrected: int | None = None


class Restored(NamedTuple):
    """A period that was restored from a checkpoint, and the spending of the period before it.

    Attributes:
        start: the restored period's start.
        previous_spent: the amount that the period before had spent by the checkpoint, in microGPU-seconds. The store
            forgets that amount with each grant of the earlier period.
        corrected: the part of `previous_spent` that is from corrections; None if it is not known.
    """

    start: Instant
    previous_spent: int
    corrected: int | None = None


@dataclass(slots=True)
class Account:
    """An account in the leader's memory.

    Attributes:
        name: the account's name.
        budget: the budget whose rules the account follows.
        periods: all periods that were opened for it and are not deleted yet, also ended ones, in order of time.
        period_totals: keyed by the start of a period, its totals as the store last answered them.
        credits: keyed by the start of a period, its credits, keyed by the name of the grant.
        grants: keyed by name, the grants that the store holds; None for a grant whose period never opened.
        unconfirmed: the names of the grants that no replica of the store was known to hold when they were last sent.
        corrections: keyed by name, the corrections that the store holds.
        refused: the reasons for which corrections cannot be applied, keyed by the correction's name.
        refused_grants: the reasons for which the store refused grants, keyed by the grant's name.
        checkpoint: the account's checkpoint as this leader last wrote it. While a term begins, it is the checkpoint
            from which to restore the account. None if there is neither.
        restoring: the start of the latest period that the store had when a leader began to restore the account, 0 for
            none; None if no restoration is under way. The head of the stored account has it, too.
        restored: the period that was restored from the checkpoint, while the spending of the period before it still has
            to be restored; None once nothing waits for that. The head of the stored account has it, too.
        summary: the figures that were last published, without the amount spent; None before this leader published any.
        burn: the samples of spending from which burn rates are computed; None before the first sample.
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
    refused_grants: dict[str, str] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    restoring: Instant | None = None
    restored: Restored | None = None
    summary: Summary | None = None
    burn: BurnRecord | None = None

    @property
    def is_budget(self) -> bool:
        """Whether the account belongs to a budget; any other account pays for one namespace that no budget names."""
        return not self.name.startswith(DEFAULT_PREFIX)

    @property
    def version(self) -> int:
        """The number of changes of the account, as the store last answered it; 0 before the first."""
        return max((totals.version for totals in self.period_totals.values()), default=0)

    def holds_credit(self, name: str) -> bool:
        """Returns whether a grant of this name is among the credits of any period in memory."""
        return any(name in period_credits for period_credits in self.credits.values())

    def terms_before(self, following: Period) -> tuple[int, int]:
        """Returns the allowance of the period before `following`, and the most money that it could roll over.

        Both are in microGPU-seconds. They are the terms that the totals of `following` record from the closing of the
        period before. Without such a record, they are those of the present budget.

        Args:
            following: a period whose totals are in memory.
        """
        kept = self.period_totals[following.start].terms
        return kept if kept is not None else (self.budget.allowance or 0, self.budget.rollover)

    def own_money(self, period: Period, allowance: int | None = None) -> int:
        """Returns the money of a period that ends with the period, in microGPU-seconds.

        It is the sum of the allowance, the grants without a later expiry, and the amount that was rolled over from the
        preceding period.

        Args:
            allowance: the allowance in microGPU-seconds; None for the present budget's allowance.
        """
        period_credits = self.credits.get(period.start, {})
        beside = sum(credit.amount for name, credit in period_credits.items() if name != OWN)
        given = (self.budget.allowance or 0) if allowance is None else allowance
        return given + self.period_totals[period.start].granted - beside

    def expiring(self, period: Period) -> dict[str, Credit]:
        """Returns the period's credits but the rollover, also expired ones, keyed by the name of their grant."""
        return {name: credit for name, credit in self.credits.get(period.start, {}).items() if name != OWN}

    def present(self, now: Instant) -> Period:
        """Returns the open period that contains an instant and has totals in memory; without one, the latest period."""
        period = self.period_at(now)
        return period if period is not None and period.start in self.period_totals else self.periods[-1]

    def lacks_present(self, now: Instant) -> bool:
        """Returns whether the period that contains an instant is open but its totals are not in memory.

        That happens if a clock was ahead and the leader read only the totals of later periods.
        """
        period = self.period_at(now)
        return period is not None and period.start not in self.period_totals

    def totals(self) -> dict[int, int]:
        """Returns the amount spent in each period in memory, in microGPU-seconds, keyed by the period's start."""
        return {start: totals.total for start, totals in self.period_totals.items()}

    def forget_old_periods(self, now: Instant) -> None:
        """Drops from memory the totals and credits of old periods that are not needed any more.

        Kept are the latest KEPT_PERIODS that have begun, and all periods that have not begun: a clock that was ahead
        opened these. Kept are also the periods that ended within BURN_AGE, and those whose balances are still to be
        closed, each with the period after it.

        Args:
            now: the earlier of the local clock's time and the store's.
        """
        if len(self.period_totals) <= KEPT_PERIODS:
            return
        to_come = len(self.periods) - bisect_right(self.periods, now, key=_start)
        kept = {period.start for period in self.periods[-KEPT_PERIODS - to_come :]}
        kept |= {period.start for period in self.periods_after(now - BURN_AGE)} | self._unclosed()
        self.period_totals = {start: value for start, value in self.period_totals.items() if start in kept}
        self.credits = {start: value for start, value in self.credits.items() if start in kept}

    def _unclosed(self) -> set[Instant]:
        """Returns the starts of the periods whose balances are still to be closed, and of the period after each.

        Only periods with totals in memory count. The result is empty if the budget has no allowance.
        """
        if self.budget.allowance is None:
            return set()
        latest = self.periods[-len(self.period_totals) :]
        due = [
            (period.start, following.start)
            for period, following in pairwise(latest)
            if (totals := self.period_totals.get(following.start)) is not None and totals.previous_spent is None
        ]
        return {start for pair in due for start in pair}

    def periods_after(self, instant: Instant) -> Sequence[Period]:
        """Returns the open periods that end after an instant, in order of time."""
        return self.periods[bisect_right(self.periods, instant, key=_end) :]

    def period_before(self, start: Instant) -> Period | None:
        """Returns the open period that ends where another one starts; None if there is none."""
        return next((period for period in reversed(self.periods) if period.end == start), None)

    def corrected_before(self, start: Instant) -> int:
        """Returns the sum of the corrections of the period that ends where another one starts, in microGPU-seconds."""
        before = self.period_before(start)
        return (
            0
            if before is None
            else sum(each.amount for each in self.corrections.values() if each.period == before.start)
        )

    def period_at(self, instant: Instant) -> Period | None:
        """Returns the open period that contains an instant; None if there is none."""
        index = bisect_right(self.periods, instant, key=_end)
        return self.periods[index] if index < len(self.periods) and self.periods[index].start <= instant else None


def default_account(namespace: str) -> str:
    """Returns the name of the account that pays for a namespace that no budget names."""
    return f"{DEFAULT_PREFIX}{namespace}"


def default_budget(namespace: str, template: Budget) -> Budget:
    """Returns the budget of the account that pays for a namespace that no budget names.

    Args:
        template: the default budget in the admin's settings.
    """
    return replace(template, name=default_account(namespace), namespaces=frozenset({namespace}))


def reassigned(
    assignments: Mapping[str, Assignments],
    payers: Mapping[str, Budget],
    namespaces: Iterable[str],
    now: Instant,
    latest: Instant,
) -> dict[str, Assignments]:
    """Returns the new payers of each namespace whose payer changes now, keyed by namespace; others are left out.

    The default account pays for a namespace that no budget names. The first payer of a namespace is assigned from 0 on,
    any later one from `now` on. Payers that were assigned from `now` or later on are dropped.

    A payer that was assigned from an instant after `latest` on was assigned by a clock that was ahead. Such a payer is
    assigned from `now` on instead.

    Args:
        assignments: keyed by namespace, its payers until now. The namespaces in it are examined, too.
        payers: keyed by namespace, the budget that names it and pays for it.
        namespaces: further namespaces to examine: those that are metered.
        latest: the later of the local clock's time and the store's.
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


def periods_to_open(account: Account, now: Instant) -> list[Period]:
    """Returns the periods that must be open by an instant and are not open yet, in order of time.

    An account without periods begins with the period of its checkpoint, or else with the period that contains the
    instant.
    """
    if account.periods:
        return list(periods_until(account.budget.period, account.periods[-1], now))
    checkpoint = account.checkpoint
    if checkpoint is None:
        return [first_period(account.budget.period, now)]
    if checkpoint.period.holds(now):
        return [checkpoint.period]
    return [checkpoint.period, *periods_until(account.budget.period, checkpoint.period, now)]
