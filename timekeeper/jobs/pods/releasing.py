"""Decides which held pods their budget can pay for, and what those that wait on are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from fairgpu.cluster.api import Json
from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.memory.committing import commitment_of, committed
from timekeeper.jobs.memory.figures import Figures
from timekeeper.jobs.pods.gates import Claim, first_minutes, released
from timekeeper.jobs.pods.waiting import WaitTeller
from timekeeper.jobs.pods.writes import PodWrite, Progress, Step
from timekeeper.metering.pods import PodFacts
from timekeeper.metering.reservations import rate_at
from timekeeper.metering.segments import rate_now
from timekeeper.rules.budgets import Budget
from timekeeper.rules.money import cost, display
from timekeeper.rules.state import Admission, OnExhausted
from timekeeper.rules.timestamps import MINUTE
from timekeeper.sources.source import Notice, Source


@dataclass(slots=True)
class Releaser:
    """Decides on releases in one term of leadership, and remembers which pods were told that they wait."""

    source: Source
    books: Books
    _teller: WaitTeller = field(init=False)

    def __post_init__(self) -> None:
        """Begins to tell, too."""
        self._teller = WaitTeller(self.source, self.books)

    def releases(self, now: int, progress: Progress) -> tuple[tuple[PodWrite, ...], list[Notice]]:
        """The pods whose gate the money takes off, in order; and events of those that wait on.

        Args:
            now: nanoseconds since 1970.
            progress: what became of the releases that were decided on before.
        """
        waiting: dict[str, list[Claim]] = {}
        promised: dict[str, int] = {}
        for facts in self.books.pods.facts.values():
            if facts.terminal or facts.bound or facts.gated_elsewhere or facts.reservation is None:
                continue
            name = self.books.account_of(facts.namespace)
            claim = self._claim(facts, now)
            if facts.gated and facts.uid not in progress.released:
                waiting.setdefault(name, []).append(claim)
            elif facts.gated or not self._safe(name):
                promised[name] = promised.get(name, 0) + claim.needed
        chosen = {
            name: self._chosen(name, claims, promised.get(name, 0), progress, now) for name, claims in waiting.items()
        }
        told = self._teller.notices(((name, without(claims, chosen[name])) for name, claims in waiting.items()), now)
        return tuple(self._write(name, claim) for name, claims in chosen.items() for claim in claims), told

    def _safe(self, name: str) -> bool:
        return self.books.accounts[name].budget.admission is Admission.SAFE

    def _claim(self, facts: PodFacts, now: int) -> Claim:
        books, name = self.books, self.books.account_of(facts.namespace)
        assert facts.reservation is not None  # noqa: S101 - the caller has looked
        rate = rate_at(facts.reservation, books.prices, now, books.rules.charge)
        if self._safe(name):
            return Claim(facts, rate, commitment_of(books, facts, now))
        return Claim(facts, rate, cost(rate, books.accounts[name].budget.min_runtime))

    def _promised(self, name: str, now: int) -> int:
        """What those that are on the meter, or were let in under safe admission, may still take."""
        account = self.books.accounts[name]
        if self._safe(name):
            return committed(self.books, [name], now)[name]
        running = [
            (rate_now(metered.session.tariff, now), metered.session.start)
            for metered in self.books.sessions_under([name])
            if metered.session.end is None and self.books.account_of(metered.session.namespace) == name
        ]
        return first_minutes(running, account.budget.min_runtime, now)

    def _chosen(self, name: str, claims: list[Claim], promised: int, progress: Progress, now: int) -> list[Claim]:
        found = self.books.figures.get(name)
        if found is None:
            return []
        promised += self._promised(name, now)
        return released(self.books.accounts[name], found, claims, promised, progress.failing)

    def _write(self, name: str, claim: Claim) -> PodWrite:
        budget, found, pod = self.books.accounts[name].budget, self.books.figures[name], claim.pod
        events = partial(_events, claim=claim, budget=budget, found=found)
        return PodWrite(pod.uid, pod.namespace, pod.name, name, Step.RELEASE, events=events)


def _events(item: Json, claim: Claim, budget: Budget, found: Figures) -> tuple[Notice, ...]:
    return (released_pod(item, claim, budget, found),)


def without(claims: list[Claim], chosen: list[Claim]) -> list[Claim]:
    """Those that wait on."""
    let_go = {claim.pod.uid for claim in chosen}
    return [claim for claim in claims if claim.pod.uid not in let_go]


def released_pod(item: Json, claim: Claim, budget: Budget, found: Figures) -> Notice:
    """The event of a pod that the budget's gate held."""
    price = f"It costs {display(claim.rate * 3600)} GPU-hours an hour"
    if found.limits.available is None or found.limits.on_exhausted is not OnExhausted.HOLD:
        message = f"No budget holds this pod back any more. {price}."
        return Notice(item, "BudgetGateLifted", message, occasion="once")
    first = f"{display(cost(claim.rate, budget.min_runtime))} for its first {budget.min_runtime // MINUTE} minutes"
    left = f"{display(found.remaining)} GPU-hours are left in {budget.name}"
    message = f"There is money for this pod again: {left}. {price}, {first}."
    return Notice(item, "BudgetGateLifted", message, occasion="once")
