"""Takes the gate off pods that their budget can pay for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from fairgpu.cluster.api import Json
from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.memory.committing import commitment_of, committed
from timekeeper.jobs.memory.figures import Figures
from timekeeper.jobs.pods.gates import Claim, first_minutes, released
from timekeeper.jobs.pods.turns import TURN_SECONDS, in_turns
from timekeeper.jobs.pods.waiting import WaitTeller
from timekeeper.metering.pods import PodFacts
from timekeeper.metering.reservations import rate_at
from timekeeper.metering.segments import rate_now
from timekeeper.rules.budgets import Budget
from timekeeper.rules.money import SECOND, cost, display
from timekeeper.rules.state import Admission, OnExhausted
from timekeeper.rules.timestamps import MINUTE
from timekeeper.sources.source import ChangedMeanwhileError, Notice, RefusedError, Source

REFUSED = 30 * SECOND
"""A pod whose release is refused, by a policy or a webhook, is tried again after this long."""

_log = structlog.get_logger()


@dataclass(slots=True)
class Releaser:
    """Remembers whom it released, in one term of leadership, until the mirror shows it; tells the others why not."""

    source: Source
    books: Books
    clock: Callable[[], float] = time.monotonic
    _lifted: set[str] = field(default_factory=set)
    _refused: dict[str, int] = field(default_factory=dict)
    _teller: WaitTeller = field(init=False)

    def __post_init__(self) -> None:
        """Begins to tell, too."""
        self._teller = WaitTeller(self.source, self.books)

    def release(self, now: int) -> int:
        """Releases whom the money reaches, as far as its turn lasts; how many.

        Raises:
            SourceError: the API server does not answer; who is left is released the next time.
        """
        waiting: dict[str, list[Claim]] = {}
        promised: dict[str, int] = {}
        self._lifted &= self.books.pods.facts.keys()
        self._refused = {uid: since for uid, since in self._refused.items() if since <= now < since + REFUSED}
        for facts in self.books.pods.facts.values():
            if facts.terminal or facts.bound or facts.gated_elsewhere or facts.reservation is None:
                continue
            name = self.books.account_of(facts.namespace)
            claim = self._claim(facts, now)
            if facts.gated and facts.uid not in self._lifted:
                waiting.setdefault(name, []).append(claim)
            elif facts.gated or not self._safe(name):
                promised[name] = promised.get(name, 0) + claim.needed
        chosen = {name: self._chosen(name, claims, promised.get(name, 0), now) for name, claims in waiting.items()}
        until, count = self.clock() + TURN_SECONDS, 0
        for name, claim in in_turns(chosen):
            count += self._lift(name, claim, now)
            if self.clock() >= until:
                break
        self._teller.tell(((name, without(claims, chosen[name])) for name, claims in waiting.items()), now)
        return count

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

    def _chosen(self, name: str, claims: list[Claim], promised: int, now: int) -> list[Claim]:
        found = self.books.figures.get(name)
        if found is None:
            return []
        return released(self.books.accounts[name], found, claims, promised + self._promised(name, now))

    def _lift(self, name: str, claim: Claim, now: int) -> bool:
        item, pod = self.source.mirrors.pods.get(claim.pod.uid), claim.pod
        if item is None or pod.uid in self._refused:
            return False
        told = {"uid": pod.uid, "namespace": pod.namespace, "pod": pod.name, "budget": name}
        try:
            self.source.lift_gate(item)
        except ChangedMeanwhileError as error:
            _log.info("pod changed before it was released", **told, error=str(error))
            return False
        except RefusedError as error:
            self._refused[pod.uid] = now
            _log.warning("pod's release refused", **told, error=str(error))
            return False
        self._lifted.add(pod.uid)
        self.source.tell(released_pod(item, claim, self.books.accounts[name].budget, self.books.figures[name]))
        _log.info("pod released", **told)
        return True


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
