"""Who pays: accounts with their budgets and periods, and which of them a namespace belongs to from when on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from timekeeper.metering.segments import Assignments
from timekeeper.rules.budgets import Budget
from timekeeper.rules.burn import BurnRecord
from timekeeper.rules.orders import Taken
from timekeeper.rules.periods import Period, first_period, periods_until
from timekeeper.rules.pots import OWN, Pot
from timekeeper.rules.timestamps import DAY, HOUR
from timekeeper.store.standing import Standing
from timekeeper.store.summaries import Summary

DEFAULT_PREFIX = "namespace:"
"""The account of a namespace that no budget names; no budget can be called so."""

KEPT_STANDINGS = 2
"""Of how many of its latest periods an account knows what they stand at, however old they are."""
TOLD_OF = DAY + HOUR
"""How far back what was spent is told by the rate at which it was, and a little more."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a budget's status says was spent in a period by pods that are gone: where an emptied store starts again.

    `pots` is the money that the period had beside its own, `struck` what the period before it had spent. `version` is
    how often the account had been changed: a store that knows of less went back to an earlier state.
    """

    period: Period
    time: int
    amount: int
    exhausted_at: int | None = None
    pots: tuple[Pot, ...] = ()
    struck: int | None = None
    version: int = 0


@dataclass(slots=True)
class Account:
    """One account as the leader knows it.

    `grants` and `corrections` are those that the store has, by name, None for a grant whose period was never metered;
    `refused` is why corrections cannot be applied, `unconfirmed` the grants that no replica was known to hold when they
    were last sent.
    `standings` and `pots` hold what the store last answered, by period; `summary` what readers were last told, less
    what is spent; `burn` what had been spent by when.
    """

    name: str
    budget: Budget
    periods: list[Period] = field(default_factory=list)
    standings: dict[int, Standing] = field(default_factory=dict)
    pots: dict[int, dict[str, Pot]] = field(default_factory=dict)
    grants: dict[str, Taken | None] = field(default_factory=dict)
    unconfirmed: set[str] = field(default_factory=set)
    corrections: dict[str, Taken] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    summary: Summary | None = None
    burn: BurnRecord | None = None

    @property
    def is_budget(self) -> bool:
        """Whether a GPUBudget stands behind it."""
        return not self.name.startswith(DEFAULT_PREFIX)

    @property
    def version(self) -> int:
        """How often it had been changed when the store last answered."""
        return max((standing.version for standing in self.standings.values()), default=0)

    def holds_pot(self, name: str) -> bool:
        """Whether a grant is among the pots of a period."""
        return any(name in pots for pots in self.pots.values())

    def terms_before(self, following: Period) -> tuple[int, int]:
        """The allowance of the period before one and how much could be rolled over, as they were when it was struck."""
        kept = self.standings[following.start].terms
        return kept if kept is not None else (self.budget.allowance or 0, self.budget.rollover)

    def own_money(self, period: Period, allowance: int | None = None) -> int:
        """What a period has beside its pots: the allowance, grants that lapse with it, and what was rolled over."""
        pots = self.pots.get(period.start, {})
        beside = sum(pot.amount for name, pot in pots.items() if name != OWN)
        given = (self.budget.allowance or 0) if allowance is None else allowance
        return given + self.standings[period.start].granted - beside

    def expiring(self, period: Period) -> dict[str, Pot]:
        """A period's pots, without what was rolled over."""
        return {name: pot for name, pot in self.pots.get(period.start, {}).items() if name != OWN}

    def present(self, now: int) -> Period:
        """The period that holds an instant; the latest one where none is open there."""
        found = self.period_at(now)
        return found if found is not None and found.start in self.standings else self.periods[-1]

    def totals(self) -> dict[int, int]:
        """What each known period stands at, by its start."""
        return {start: standing.total for start, standing in self.standings.items()}

    def forget_what_is_over(self, now: int) -> None:
        """Drops what old periods stand at: a store that is read anew tells of the latest alone, too.

        The last day's stay, since what was spent over it is told. To be called once what they leave to each other is
        struck.
        """
        if len(self.standings) <= KEPT_STANDINGS:
            return
        kept = {period.start for period in self.periods[-KEPT_STANDINGS:]}
        kept |= {period.start for period in self.periods_after(now - TOLD_OF)}
        self.standings = {start: found for start, found in self.standings.items() if start in kept}
        self.pots = {start: found for start, found in self.pots.items() if start in kept}

    def periods_after(self, instant: int) -> Sequence[Period]:
        """The periods that end after an instant, in order."""
        return self.periods[bisect_right(self.periods, instant, key=lambda period: period.end) :]

    def period_at(self, instant: int) -> Period | None:
        """The period that holds an instant."""
        return next((period for period in self.periods_after(instant) if period.holds(instant)), None)


def default_account(namespace: str) -> str:
    """The account of a namespace that no budget names."""
    return f"{DEFAULT_PREFIX}{namespace}"


def default_budget(namespace: str, template: Budget) -> Budget:
    """The budget behind that account."""
    return replace(template, name=default_account(namespace), namespaces=frozenset({namespace}))


def reassigned(
    assignments: Mapping[str, Assignments], payers: Mapping[str, Budget], namespaces: Iterable[str], now: int
) -> dict[str, Assignments]:
    """The namespaces whose payer is another one from now on, with all that they belonged to.

    Args:
        assignments: what is known.
        payers: the budget that pays for each namespace that one names.
        namespaces: further namespaces that are metered.
        now: nanoseconds since 1970.
    """
    changed: dict[str, Assignments] = {}
    for namespace in {*payers, *namespaces, *assignments}:
        account = payers[namespace].name if namespace in payers else default_account(namespace)
        known = assignments.get(namespace, ())
        if not known:
            changed[namespace] = ((0, account),)
        elif known[-1][1] != account:
            changed[namespace] = (*(entry for entry in known if entry[0] < now), (now, account))
    return changed


def periods_to_open(account: Account, now: int) -> list[Period]:
    """The periods that must be open at an instant and are not; the first one from the checkpoint if it is of now."""
    if account.periods:
        return list(periods_until(account.budget.period, account.periods[-1], now))
    checkpoint = account.checkpoint
    if checkpoint is None:
        return [first_period(account.budget.period, now)]
    if checkpoint.period.holds(now):
        return [checkpoint.period]
    return [checkpoint.period, *periods_until(account.budget.period, checkpoint.period, now)]
