"""The leader's books: its state of ledger and cluster, its rules, and the periods and grants that are due."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import zip_longest

from fairgpu.charging import ChargeRules
from fairgpu.commands import CommandError
from fairgpu.faults import Fault, show
from fairgpu.states import BudgetState, NamespaceState
from timekeeper.controller.state.accounts import Account, Checkpoint, default_account, default_budget, periods_to_open
from timekeeper.controller.state.claims import ClaimView
from timekeeper.controller.state.figures import Figures, unused_with_amounts
from timekeeper.controller.state.observing import BudgetView, PodView
from timekeeper.controller.state.sessions import MeteredSession
from timekeeper.domain.budgets import OVERHEAD, Budget, BudgetError, parse_budget, unknown_fields, with_faults
from timekeeper.domain.charges import Assignments, sum_of_rates
from timekeeper.domain.holdings.claims import DRIVERS
from timekeeper.domain.holdings.listed import Listed
from timekeeper.domain.orders import Grant
from timekeeper.domain.periods import Period, PeriodRule
from timekeeper.domain.pricing import BY_WORDS, FOREVER, Bill, PricePoint, Prices
from timekeeper.domain.reservations import Tariff
from timekeeper.domain.sessions import MeterFrom
from timekeeper.domain.timestamps import SKEW, Instant, from_datetime
from timekeeper.domain.windows import Retention
from timekeeper.ledger.writing import Opening
from timekeeper.settings import MeteringSettings, TimekeeperSettings


def controller_rules(settings: TimekeeperSettings) -> ControllerRules:
    """Translates the settings into the rules by which the leader meters, prices and bills, and its default budget.

    Raises:
        CommandError: the settings of the default budget are invalid.
    """
    metering = settings.metering
    return ControllerRules(
        prices=_prices(metering),
        charge=ChargeRules(metering.best_effort_floor_percent, metering.unknown_device_mib),
        meter_from=metering.meter_from,
        bill=metering.bill,
        template=_template(metering),
        holds_pods=metering.end_proof == "finalizer",
        own_resources=settings.own_resources,
        overhead=settings.overhead_namespaces,
        drivers=DRIVERS | set(settings.other_stacks.drivers),
        gives_classes=settings.gives_classes,
        replica_wait_seconds=settings.redis.replica_wait_seconds,
        labels=settings.usage.labels,
        retention=Retention(settings.usage.hourly_days, settings.usage.months, settings.export.wanted),
    )


def _prices(settings: MeteringSettings) -> Prices:
    prices = {
        model: tuple(
            sorted(
                (PricePoint(from_datetime(point.effective_from), Fraction(point.price)) for point in points),
                key=lambda point: point.effective_from,
            )
        )
        for model, points in settings.prices.items()
    }
    return prices | {BY_WORDS: (PricePoint(0, Fraction(1)),)}


def _template(settings: MeteringSettings) -> Budget:
    if settings.default_budget is None:
        return Budget("default")
    faults = unknown_fields(settings.default_budget)
    if "namespaces" in settings.default_budget:
        given = show(settings.default_budget["namespaces"])
        faults += (Fault("spec.namespaces", given, "each namespace that no budget names", "nothing there"),)
    item = {"metadata": {"name": "default"}, "spec": {**settings.default_budget, "namespaces": ["default"]}}
    try:
        return parse_budget(with_faults(item, faults))
    except BudgetError as error:
        raise CommandError(f"timekeeper.metering.default_budget: {error}") from error


@dataclass(frozen=True, slots=True)
class ControllerRules:
    """The admin's rules for metering, billing and keeping records.

    Attributes:
        prices: the price of each model over time, as configured.
        charge: the rules for the cost of a reservation.
        meter_from: the event that starts a pod's meter.
        bill: whether reservations, usage or the larger of both is billed.
        template: the budget of a namespace that no budget names; without an allowance it limits nothing.
        holds_pods: whether a finalizer keeps pods on the API server until their end is in the ledger.
        own_resources: the extended resources of other stacks that the admin lists, keyed by name; None if pods of other
            stacks are not metered.
        overhead: the namespaces that are charged to the account overhead.
        drivers: the drivers of Dynamic Resource Allocation whose devices are charged.
        gives_classes: whether the settings let pods get the priority class of their budget's state; also True in the
            mode look, in which no pod gets one.
        replica_wait_seconds: the most seconds that the end of a session, or a grant, waits for a replica of the store
            to hold it.
        labels: the keys of the pod labels that usage is attributed to.
        retention: how long each kind of record is kept.
        unused_state: the state of a namespace that no budget names, as long as it has had no GPU pod.
        unused: `unused_state` with the amounts of a period in which nothing is spent yet, without the namespace's name,
            if the default budget has safe admission; None otherwise.
    """

    prices: Prices = field(default_factory=dict)
    charge: ChargeRules = field(default_factory=ChargeRules)
    meter_from: MeterFrom = MeterFrom.BIND
    bill: Bill = Bill.RESERVED
    template: Budget = field(default_factory=lambda: Budget("default"))
    holds_pods: bool = False
    own_resources: Mapping[str, Listed] | None = None
    overhead: frozenset[str] = frozenset()
    drivers: frozenset[str] = DRIVERS
    gives_classes: bool = True
    replica_wait_seconds: float = 1.0
    labels: tuple[str, ...] = ()
    retention: Retention = field(default_factory=Retention)
    unused_state: BudgetState = field(init=False)
    unused: NamespaceState | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "unused_state", self.template.unused_state())
        object.__setattr__(self, "unused", unused_with_amounts(self.template))


@dataclass(frozen=True, slots=True)
class RecoverySnapshot:
    """The leader's state before it read the store again; it is kept until the store holds all of that state again.

    Attributes:
        checkpoints: the totals of each account's latest period without the sessions that are computed again, keyed by
            account.
        metered: the uids of the sessions that are computed again: those that were metered or had ended shortly before.
    """

    checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict)
    metered: frozenset[str] = frozenset()


@dataclass(slots=True)
class Books:
    """The leader's state in memory; the ledger in the store is its source.

    Attributes:
        rules: the admin's rules for metering, billing and keeping records.
        budgets: the budgets, grants and corrections as last read.
        pods: the pods as last read, and all sessions.
        claims: the ResourceClaims as last read.
        accounts: the accounts, keyed by name.
        assignments: keyed by namespace, its payers.
        payers: keyed by namespace, the budget that names it and pays for it.
        paying: the budgets from which `payers` and `conflicts` were determined.
        conflicts: keyed by a budget's name and then by a namespace that it names but does not pay for, the name of the
            budget that pays.
        prices: the price of each model over time, as sessions are charged.
        since: the instant from which pods of other stacks are metered; 0 if they are not.
        figures: keyed by account, the figures that were last published.
        published: keyed by namespace, the state that was last published.
        finalized: pairs of an instant and a session that was finalized at that instant and that perhaps no
            checkpoint includes yet.
        in_memory_alone: the accounts that lack spending of finalized sessions, which only this leader remembers, in a
            store that returned to an earlier state; their restoration is not complete.
        snapshot: the state before the store was read again; None once it is not needed.
        unanswered: the namespaces whose payers were sent to the store without an answer. The store may hold other
            payers than `assignments`, so they are sent again.
        payers_unreadable: keyed by namespace, why its payers in the store are unreadable; its sessions are not settled.
        unreadable: keyed by account, why its data in the store was unreadable when it was last read.
        amounts_unreadable: keyed by account, why an amount of one of its sessions was unreadable when the store was
            last read.
        failed: keyed by account, why a step of this reconciliation failed. Later steps leave the account out: its
            figures in the store stay as they are.
        not_settled: keyed by account, why its last settlement or publication failed in part.
    """

    rules: ControllerRules
    budgets: BudgetView = field(default_factory=BudgetView)
    pods: PodView = field(default_factory=PodView)
    claims: ClaimView = field(default_factory=ClaimView)
    accounts: dict[str, Account] = field(default_factory=dict)
    assignments: dict[str, Assignments] = field(default_factory=dict)
    payers: dict[str, Budget] = field(default_factory=dict)
    paying: tuple[Budget, ...] = ()
    conflicts: dict[str, dict[str, str]] = field(default_factory=dict)
    prices: Prices = field(default_factory=dict)
    since: Instant = 0
    figures: dict[str, Figures] = field(default_factory=dict)
    published: dict[str, NamespaceState] = field(default_factory=dict)
    finalized: list[tuple[int, MeteredSession]] = field(default_factory=list)
    in_memory_alone: set[str] = field(default_factory=set)
    snapshot: RecoverySnapshot | None = None
    unanswered: set[str] = field(default_factory=set)
    payers_unreadable: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    amounts_unreadable: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    not_settled: dict[str, str] = field(default_factory=dict)

    def payers_since(self, namespace: str, instant: Instant) -> set[str]:
        """Returns the accounts that have paid for a namespace at any time since an instant."""
        assigned = self.assignments.get(namespace, ())
        ends = [since for since, _ in assigned[1:]]
        return {name for (_, name), end in zip_longest(assigned, ends) if end is None or end > instant}

    def account_of(self, namespace: str) -> str:
        """Returns the account that pays for a namespace now; before one is assigned, the account that is to pay."""
        assigned = self.assignments.get(namespace)
        return assigned[-1][1] if assigned else self.payer_named(namespace)

    def has_object(self, name: str) -> bool:
        """Returns whether the account's checkpoint belongs in the status of a GPUBudget.

        Only a budget's account has a GPUBudget. The built-in budget overhead has one only if an admin created it.
        """
        return self.accounts[name].is_budget and (name != OVERHEAD or name in self.budgets.objects)

    def payer_named(self, namespace: str) -> str:
        """Returns the account that should pay for a namespace according to the present budgets.

        The account is that of the budget that names the namespace, or else an account for this namespace alone.
        """
        return self.payers[namespace].name if namespace in self.payers else default_account(namespace)

    def namespaces_of(self) -> dict[str, list[str]]:
        """Returns, keyed by account, the namespaces that it pays for now."""
        by_account: dict[str, list[str]] = {}
        for namespace, assigned in self.assignments.items():
            by_account.setdefault(assigned[-1][1], []).append(namespace)
        return by_account

    def sessions_under(self, names: Iterable[str]) -> list[MeteredSession]:
        """Returns the sessions in all namespaces that any of these accounts pays for, or once paid for."""
        wanted = set(names)
        namespaces = [
            namespace
            for namespace in self.pods.sessions.namespaces()
            if any(account in wanted for _, account in self.assignments.get(namespace, ()))
        ]
        return self.pods.sessions.of_namespaces(namespaces)

    def running_rates(self, names: Iterable[str], now: Instant) -> dict[str, int]:
        """Returns, keyed by account, the sum of the rates of its running sessions, in microGPU-seconds a second.

        Args:
            names: the accounts. Those without an open period are left out.
            now: the instant of the prices.
        """
        tariffs: dict[str, list[Tariff]] = {name: [] for name in names if self.accounts[name].periods}
        for metered in self.sessions_under(tariffs):
            name = self.account_of(metered.session.namespace)
            if name in tariffs and metered.session.end is None:
                tariffs[name].append(metered.session.tariff)
        return {name: sum_of_rates(running, now) for name, running in tariffs.items()}

    def concerned(self, uids: Iterable[str]) -> set[str]:
        """Returns the accounts that pay for the sessions with these uids now, or that hold amounts of them.

        Amounts in final periods do not count. Uids of sessions that are not metered are left out. So are those of
        sessions whose end the store holds: the deletion of such a pod changes no figure, and the account's next
        settlement finalizes the session.
        """
        accounts: set[str] = set()
        for uid in uids:
            metered = self.pods.sessions.get(uid)
            if metered is not None and not metered.acknowledged.closed:
                accounts.add(self.account_of(metered.session.namespace))
                accounts |= {account for account, _ in metered.acknowledged.periods}
        return accounts

    def refresh_budgets(self) -> set[str]:
        """Sets the budget of each account to the version that was last read; returns the accounts whose budget changed.

        The account of a deleted budget keeps only the budget's rule for periods, and has no limit.
        """
        changed: set[str] = set()
        for name, account in self.accounts.items():
            if account.is_budget:
                budget = self.budgets.budgets.get(name)
                if budget is None:  # it was deleted; its period rule is kept
                    budget = Budget(name, period=self.budgets.last_rule(name) or PeriodRule())
            else:
                budget = default_budget(name.partition(":")[2], self.rules.template)
            if budget is not account.budget and budget != account.budget:
                account.budget = budget
                changed.add(name)
        return changed

    def paid_until(self, name: str) -> Instant:
        """Returns the instant until which an account pays for any namespace.

        The result is 0 for an account that never paid, and FOREVER for one that pays now.
        """
        ends = [0]
        for assigned in self.assignments.values():
            for index, (_, account) in enumerate(assigned):
                if account == name:
                    ends.append(assigned[index + 1][0] if index + 1 < len(assigned) else FOREVER)
        return max(ends)

    def ensure_accounts(self, names: Iterable[str]) -> None:
        """Adds to the leader's memory each of these accounts that is missing, at first with a budget without limits."""
        for name in names:
            if name not in self.accounts:
                self.accounts[name] = Account(name, Budget(name))


def due_openings(books: Books, names: Iterable[str], now: Instant) -> list[tuple[Account, Period, Opening]]:
    """Returns the periods that these accounts must open by now: the account, the period, and the request to the store.

    They are sorted by account and then by time. A period for which the account has a checkpoint is opened with the
    checkpoint's figures. The account of a deleted budget opens further periods only up to the instant until which it
    pays for a namespace.

    Args:
        names: the accounts; those that failed in this reconciliation are left out.
    """
    openings = []
    for account in (books.accounts[name] for name in sorted(names) if name not in books.failed):
        until = now
        ended = bool(account.periods) and account.periods[-1].end <= now
        if ended and account.is_budget and account.name not in books.budgets.budgets:  # the budget was deleted
            until = min(now, books.paid_until(account.name) - 1)  # it pays while a namespace is assigned to it
        checkpoint, was_stored = account.checkpoint, bool(account.periods)
        limited = books.budgets.budgets.get(account.name, account.budget).allowance is not None
        for number, period in enumerate(periods_to_open(account, until)):
            carries = limited and (was_stored or number > 0)
            opening = Opening(account.name, period.start, period.end, was_stored=was_stored, carries=carries)
            if checkpoint is not None and checkpoint.period.start == period.start:
                opening = replace(
                    opening,
                    checkpoint=checkpoint.amount,
                    exhausted_at=checkpoint.exhausted_at,
                    version=checkpoint.version,
                )
            openings.append((account, period, opening))
    return openings


def due_grants(
    books: Books, names: Container[str], now: Instant, latest: Instant
) -> tuple[list[tuple[Grant, Period]], list[tuple[Account, str]]]:
    """Returns the grants that are due and that the store does not hold, and the grants whose period never opened.

    If a grant was created after `now`, in a period that is not open yet, it waits until that period opens: the local
    clock is behind, and the period that is open by this clock has ended. A grant that was created more than SKEW after
    `latest` counts as created now.

    If a grant's period is not open and the grant outlives it, the grant goes to the first later period that begins
    before its expiry. A grant that was applied before is not applied again in this way: its remainder is among the
    credits that were carried over.

    Left out are refused grants, and grants whose GPUBudget does not exist or was never valid.

    Args:
        names: the accounts whose grants are wanted.
        latest: the later of the local clock's time and the store's.

    Returns:
        Pairs of a due grant and its period; and, for each grant whose period never opened, its account and its name.
    """
    due: list[tuple[Grant, Period]] = []
    without_period: list[tuple[Account, str]] = []
    for grant in books.budgets.grants.values():
        account = books.accounts.get(grant.budget) if grant.budget in names else None
        if account is None or not account.is_budget or grant.budget not in books.budgets.budgets:
            continue
        is_stored = account.holds_credit(grant.name) and grant.name not in account.unconfirmed
        if grant.refused or is_stored or grant.name in account.grants or grant.name in account.refused_grants:
            continue
        instant = grant.created or now
        believed = instant < latest + SKEW
        period = account.period_at(instant if believed else now)
        if period is None and believed and now < instant:
            continue  # the period opens once our clock reaches it
        if period is None and grant.expires is not None and not grant.applied:
            later = next(iter(account.periods_after(instant)), None)
            period = later if later is not None and later.start < grant.expires else None
        if period is None:
            without_period.append((account, grant.name))
            continue
        due.append((grant, period))
    return due, without_period
