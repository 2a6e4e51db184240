"""Decides which pods to release: from a budget's gate while its money suffices, and from the meter's finalizer."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from fairgpu.cluster.api import Json
from fairgpu.states import BudgetState
from timekeeper.controller.pod_writes import PodWrite, Progress, Step
from timekeeper.controller.state.accounts import Account
from timekeeper.controller.state.books import Books
from timekeeper.controller.state.commitments import commitment_of, committed
from timekeeper.controller.state.figures import Figures, how_to_give_more
from timekeeper.controller.state.sessions import MeteredSession
from timekeeper.domain.budgets import Budget
from timekeeper.domain.charges import cost, rate_now
from timekeeper.domain.money import display
from timekeeper.domain.pods import PodFacts
from timekeeper.domain.reservations import rate_at
from timekeeper.domain.state import Admission, Enforcement, OnExhausted
from timekeeper.domain.timestamps import MINUTE, format_instant
from timekeeper.sources.base import ObjectEvent, Source


@dataclass(frozen=True, slots=True)
class Claim:
    """A waiting pod, its rate in microGPU-seconds a second, and the amount that must be left for its release."""

    pod: PodFacts
    rate: int
    needed: int


def released(
    account: Account, found: Figures, waiting: Iterable[Claim], promised: int, failing: Container[str] = ()
) -> list[Claim]:
    """Returns the pods to release now, in order of creation.

    Args:
        account: the account that pays.
        found: its figures.
        waiting: the pods that the gate holds.
        promised: the amount that admitted pods may still spend: in their first minutes or, with safe admission, in all
            the time that they may run.
        failing: the uids of pods whose gate could not be removed; they come last and hold back no other pod.

    A pod that the money does not reach holds back those behind it, however small they are: else a large one would
    wait forever. A pod that costs more than a whole period's money waits for a grant, and holds back no other.
    """
    queue = sorted(in_order(waiting), key=lambda claim: claim.pod.uid in failing)
    if found.published is BudgetState.HELD:
        return []
    limits = found.limits
    never_holds = limits.on_exhausted is not OnExhausted.HOLD or account.budget.enforcement is Enforcement.OBSERVE
    if limits.available is None or never_holds:
        return queue
    safe = account.budget.admission is Admission.SAFE
    whole = limits.available + (0 if safe else limits.grace_amount or 0)
    left = whole - found.spent - promised
    chosen: list[Claim] = []
    for claim in queue:
        if claim.needed > whole:
            continue
        left -= claim.needed
        if left < 0:
            break
        chosen.append(claim)
    return chosen


def in_order(waiting: Iterable[Claim]) -> list[Claim]:
    """Returns claims in the order of their pods' creation."""
    return sorted(waiting, key=lambda claim: (claim.pod.created, claim.pod.namespace, claim.pod.name, claim.pod.uid))


def first_minutes(running: Sequence[tuple[int, int]], min_runtime: int, now: int) -> int:
    """Returns the amount that young sessions may still spend in their first minutes, in microGPU-seconds.

    Args:
        running: (rate, start) of the account's running sessions.
        min_runtime: the time that must be paid for before a pod is released, in nanoseconds.
        now: nanoseconds since 1970.
    """
    return sum(cost(rate, start + min_runtime - now) for rate, start in running if start + min_runtime > now)


AGAIN = 30 * MINUTE
"""The time until an event is written again: the API server keeps events for an hour by default (--event-ttl)."""
AT_ONCE = 10
"""The most events of one run: each takes a request, and thousands of pods may wait."""


@dataclass(frozen=True, slots=True)
class _Reported:
    """The instant of a pod's last event, and the amount that its budget had available then."""

    at: int
    available: int | None


@dataclass(slots=True)
class WaitReporter:
    """Chooses the events of waiting pods, and remembers for one term when each pod got its last."""

    source: Source
    books: Books
    _reported: dict[str, _Reported] = field(default_factory=dict)

    def notices(self, waiting: Iterable[tuple[str, Sequence[Claim]]], now: int) -> list[ObjectEvent]:
        """Returns events for waiting pods without a recent one, or whose budget got money that does not suffice.

        Args:
            waiting: for each account, the pods that stay behind its gate.
            now: nanoseconds since 1970.
        """
        self._reported = {
            uid: reported for uid, reported in self._reported.items() if reported.at <= now < reported.at + AGAIN
        }
        due = ((name, place, claim) for name, claims in waiting for place, claim in enumerate(in_order(claims)))
        notices: list[ObjectEvent] = []
        for name, place, claim in due:
            found, reported = self.books.figures.get(name), self._reported.get(claim.pod.uid)
            if found is None or (reported is not None and reported.available == found.limits.available):
                continue
            item = self.source.mirrors.pods.get(claim.pod.uid)
            if item is None:
                continue
            self._reported[claim.pod.uid] = _Reported(now, found.limits.available)
            message = why_it_waits(claim, self.books.accounts[name].budget, found, place)
            notices.append(ObjectEvent(item, "BudgetHoldsPod", message, warning=True))
            if len(notices) == AT_ONCE:
                break
        return notices


def why_it_waits(claim: Claim, budget: Budget, found: Figures, before: int) -> str:
    """Returns the text of a waiting pod's event: the amount it needs, the amount left, and how to add money.

    Args:
        claim: the pod, and the amount that it needs.
        budget: the budget that pays for it.
        found: the budget's figures.
        before: the number of the budget's pods that wait in front of it.
    """
    left = f"{display(found.remaining)} of {display(found.limits.available or 0)} GPU-hours are left in {budget.name}"
    # The pod has no devices yet, so this is the price of the dearest.
    needs = f"needs up to {display(claim.needed)} to start and costs up to {display(claim.rate * 3600)} an hour"
    queue = f" {before} of its pods wait in front of it." if before else ""
    ends = f"the next period begins at {format_instant(found.period.end)}"
    return f"Waits for money: {left}; this pod {needs}.{queue} {how_to_give_more(budget)}; {ends}."


@dataclass(slots=True)
class Releaser:
    """Decides on releases for one term, and on the events of the pods that continue to wait."""

    source: Source
    books: Books
    _reporter: WaitReporter = field(init=False)

    def __post_init__(self) -> None:
        """Creates the reporter."""
        self._reporter = WaitReporter(self.source, self.books)

    def releases(self, now: int, progress: Progress) -> tuple[tuple[PodWrite, ...], list[ObjectEvent]]:
        """Returns the releases that are due, in order, and the events of the pods that continue to wait.

        Args:
            now: nanoseconds since 1970.
            progress: the outcome of earlier releases.
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
        reported = self._reporter.notices(
            ((name, without(claims, chosen[name])) for name, claims in waiting.items()), now
        )
        return tuple(self._write(name, claim) for name, claims in chosen.items() for claim in claims), reported

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
        """Returns the amount that running pods, and pods admitted under safe admission, may still spend."""
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


def _events(item: Json, claim: Claim, budget: Budget, found: Figures) -> tuple[ObjectEvent, ...]:
    return (released_pod(item, claim, budget, found),)


def without(claims: list[Claim], chosen: list[Claim]) -> list[Claim]:
    """Returns the claims that were not chosen."""
    uids = {claim.pod.uid for claim in chosen}
    return [claim for claim in claims if claim.pod.uid not in uids]


def released_pod(item: Json, claim: Claim, budget: Budget, found: Figures) -> ObjectEvent:
    """Returns the event of a pod that the budget's gate released."""
    price = f"It costs {display(claim.rate * 3600)} GPU-hours an hour"
    if found.limits.available is None or found.limits.on_exhausted is not OnExhausted.HOLD:
        message = f"No budget holds this pod back any more. {price}."
        return ObjectEvent(item, "BudgetGateLifted", message, occasion="once")
    first = f"{display(cost(claim.rate, budget.min_runtime))} for its first {budget.min_runtime // MINUTE} minutes"
    left = f"{display(found.remaining)} GPU-hours are left in {budget.name}"
    message = f"There is money for this pod again: {left}. {price}, {first}."
    return ObjectEvent(item, "BudgetGateLifted", message, occasion="once")


def removals(books: Books) -> tuple[PodWrite, ...]:
    """Returns the removals of finalizers that are due."""
    sessions, holds = books.pods.sessions, books.rules.holds_pods
    return tuple(
        PodWrite(pod.uid, pod.namespace, pod.name, books.account_of(pod.namespace), Step.FINALIZER)
        for pod in books.pods.facts.values()
        if pod.held and may_go(pod, sessions.get(pod.uid), holds=holds)
    )


def may_go(pod: PodFacts, metered: MeteredSession | None, *, holds: bool) -> bool:
    """Whether a pod's finalizer may be removed: the pod has ended and its session is closed, or it never had one.

    Args:
        pod: a pod with the finalizer.
        metered: its session; None where it never held a device.
        holds: whether the settings give pods a finalizer at all; if not, leftover ones are removed.
    """
    if not holds:
        return True
    if not pod.terminal and not pod.removed:
        return False
    return metered is None or metered.acknowledged.closed
