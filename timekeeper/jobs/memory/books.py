"""All that the leader keeps in memory: it can be rebuilt from the store, the mirrors and the checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from fairgpu.charging import ChargeRules
from fairgpu.states import NamespaceState
from timekeeper.jobs.memory.accounts import Account, Checkpoint, default_account, default_budget
from timekeeper.jobs.memory.figures import Figures
from timekeeper.jobs.memory.metered import Metered
from timekeeper.jobs.memory.observing import BudgetView, PodView
from timekeeper.metering.bill import Bill
from timekeeper.metering.segments import Assignments
from timekeeper.metering.sessions import MeterFrom
from timekeeper.rules.budgets import Budget
from timekeeper.rules.periods import PeriodRule
from timekeeper.rules.pricing import FOREVER, Prices
from timekeeper.usage.retention import Retention


@dataclass(frozen=True, slots=True)
class KeeperRules:
    """What the admin decides.

    Attributes:
        prices: the price of each model over time, as configured.
        charge: what a reservation costs.
        meter_from: what starts the meter.
        bill: what of a reservation is charged.
        template: the budget of a namespace that none names; without an allowance it limits nothing.
        labels: the labels of pods that are kept with their use.
        retention: how long what is kept.
        holds_pods: whether a finalizer keeps pods on the API server until their end is in the ledger.
        replica_wait_seconds: how long closes and grants wait for a replica of the store, where there is one.
    """

    prices: Prices = field(default_factory=dict)
    charge: ChargeRules = field(default_factory=ChargeRules)
    meter_from: MeterFrom = MeterFrom.BIND
    bill: Bill = Bill.RESERVED
    template: Budget = field(default_factory=lambda: Budget("default"))
    holds_pods: bool = False
    replica_wait_seconds: float = 1.0
    labels: tuple[str, ...] = ()
    retention: Retention = field(default_factory=Retention)


@dataclass(frozen=True, slots=True)
class Memory:
    """What was known of the store before it was read anew, kept until all of it is there again.

    Attributes:
        checkpoints: what each account stood at, without the sessions that are computed again.
        metered: the uids of the sessions that are computed again: on the meter then, or left shortly before.
    """

    checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict)
    metered: frozenset[str] = frozenset()


@dataclass(slots=True)
class Books:
    """What is known.

    Attributes:
        assignments: who pays for each namespace from when on.
        payers: the budget that pays for each namespace that one names.
        conflicts: for each budget, the namespaces that it names and another one pays for.
        prices: as they are charged.
        figures: each account's, as last published.
        told: each namespace's state, as last published.
        left: sessions whose pods are gone, and when the store was told, until a checkpoint holds them.
        memory: what was known before the store was read anew; None while there is no need to.
        unreadable: accounts whose data in the store could not be read when it was read last, and why.
        failed: accounts with which a step of the present round failed, and why: the steps after it leave them out, and
            what the store and readers hold of them stays as it is.
        not_settled: accounts of which something was not settled or published when that was last tried, and why.
    """

    rules: KeeperRules
    budgets: BudgetView = field(default_factory=BudgetView)
    pods: PodView = field(default_factory=PodView)
    accounts: dict[str, Account] = field(default_factory=dict)
    assignments: dict[str, Assignments] = field(default_factory=dict)
    payers: dict[str, Budget] = field(default_factory=dict)
    conflicts: dict[str, dict[str, str]] = field(default_factory=dict)
    prices: Prices = field(default_factory=dict)
    figures: dict[str, Figures] = field(default_factory=dict)
    told: dict[str, NamespaceState] = field(default_factory=dict)
    left: list[tuple[int, Metered]] = field(default_factory=list)
    memory: Memory | None = None
    unreadable: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    not_settled: dict[str, str] = field(default_factory=dict)

    def payers_since(self, namespace: str, instant: int) -> set[str]:
        """Who has paid for a namespace from an instant on."""
        known = self.assignments.get(namespace, ())
        ends = [since for since, _ in known[1:]]
        return {name for (_, name), end in zip_longest(known, ends) if end is None or end > instant}

    def account_of(self, namespace: str) -> str:
        """Who pays for a namespace now."""
        known = self.assignments.get(namespace)
        return known[-1][1] if known else default_account(namespace)

    def namespaces_of(self) -> dict[str, list[str]]:
        """The namespaces that each account pays for now."""
        found: dict[str, list[str]] = {}
        for namespace, known in self.assignments.items():
            found.setdefault(known[-1][1], []).append(namespace)
        return found

    def sessions_under(self, names: Iterable[str]) -> list[Metered]:
        """The sessions of the namespaces that these accounts pay for, or once did."""
        wanted = set(names)
        return [
            metered
            for namespace in self.pods.sessions.namespaces()
            if any(account in wanted for _, account in self.assignments.get(namespace, ()))
            for metered in self.pods.sessions.of_namespace(namespace)
        ]

    def concerned(self, uids: Iterable[str]) -> set[str]:
        """The accounts that sessions are or were under."""
        found: set[str] = set()
        for uid in uids:
            metered = self.pods.sessions.get(uid)
            if metered is not None:
                found.add(self.account_of(metered.session.namespace))
                found |= {account for account, _ in metered.acknowledged.periods}
        return found

    def refresh_budgets(self) -> set[str]:
        """Gives each account the budget that is behind it now; the accounts whose budget changed."""
        changed: set[str] = set()
        for name, account in self.accounts.items():
            if account.is_budget:
                # Of one that is gone it is still known when its periods began.
                gone = Budget(name, period=self.budgets.last_rule(name) or PeriodRule())
                budget = self.budgets.budgets.get(name, gone)
            else:
                budget = default_budget(name.partition(":")[2], self.rules.template)
            if budget != account.budget:
                account.budget = budget
                changed.add(name)
        return changed

    def paid_until(self, name: str) -> int:
        """Until when an account pays, or paid, for any namespace; 0 where it never did."""
        ends = [0]
        for known in self.assignments.values():
            for index, (_, account) in enumerate(known):
                if account == name:
                    ends.append(known[index + 1][0] if index + 1 < len(known) else FOREVER)
        return max(ends)

    def ensure_accounts(self, names: Iterable[str]) -> None:
        """Makes the accounts that are not known yet."""
        for name in names:
            if name not in self.accounts:
                self.accounts[name] = Account(name, Budget(name))
