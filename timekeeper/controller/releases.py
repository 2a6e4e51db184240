"""Decides which pods to release: from a budget's gate while its money suffices, and from the meter's finalizer."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Mapping, Sequence
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
from timekeeper.domain.money import SECOND, display
from timekeeper.domain.pods import PodFacts
from timekeeper.domain.reservations import rate_at
from timekeeper.domain.state import Admission, Enforcement, Limits, OnExhausted
from timekeeper.domain.timestamps import MINUTE, Instant, format_instant
from timekeeper.sources.base import ObjectEvent, Source

EVENT_REPEAT_INTERVAL = 30 * MINUTE
"""The time until an event is written again: the API server keeps events for an hour by default (--event-ttl)."""
GROUP_TIME = 60 * SECOND
"""The longest time between the creation of two pods of a group that are admitted or held together."""
MAX_EVENTS_PER_RUN = 10
"""The most events of one run: each takes a request, and thousands of pods may wait."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod that waits behind its budget's scheduling gate.

    Attributes:
        pod: the pod.
        rate: its rate, in microGPU-seconds a second.
        needed: the microGPU-seconds that the budget must have left before the pod is released.
    """

    pod: PodFacts
    rate: int
    needed: int


def pods_to_release(
    account: Account, figures: Figures, waiting: Iterable[Candidate], promised: int, failing: Container[str] = ()
) -> list[Candidate]:
    """Returns the pods to release from their budget's scheduling gate now, the oldest first.

    While the published state is `held`, no pod is released. In any other state, all pods are released if the budget
    has no limit or no gate. If the budget has both, its money decides; its grace counts as money unless admission is
    safe. A pod that costs more than the remaining money holds back all pods behind it, even small ones: they would use
    up the money, and the large pod would wait for ever. A pod that needs more than a whole period's money waits for a
    grant, and holds back no other. The pods of one group are released together, in the place of their first, or not at
    all.

    Args:
        figures: the account's figures.
        waiting: the pods that the gate holds.
        promised: the amount that admitted pods may still spend, in microGPU-seconds: in their first minutes or, with
            safe admission, in their whole run.
        failing: the uids of pods whose gate could not be removed; they come last and hold back no other pod.
    """
    queue = sorted(in_order(waiting), key=lambda candidate: candidate.pod.uid in failing)
    if figures.published is BudgetState.HELD:
        return []
    limits = figures.limits
    if limits.available is None or not _has_gate(account.budget, limits):
        return queue
    safe = account.budget.admission is Admission.SAFE
    whole = limits.available + (0 if safe else limits.grace_amount or 0)
    left = whole - figures.spent - promised
    chosen: list[Candidate] = []
    for unit in by_group(queue):
        needed = sum(candidate.needed for candidate in unit)
        if needed > whole:
            continue
        left -= needed
        if left < 0:
            break
        chosen += unit
    return chosen


def by_group(queue: Iterable[Candidate]) -> list[list[Candidate]]:
    """Returns one list of waiting pods for each group; the lists keep the order of their first pods in `queue`.

    A pod without a group gets a list of its own. The pods of a group are released together: if only some were
    released, they would hold devices while they wait for the rest of the group.
    """
    units: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in queue:
        pod = candidate.pod
        key = (pod.namespace, f"group {pod.group}" if pod.group else f"pod {pod.uid}")
        units.setdefault(key, []).append(candidate)
    return list(units.values())


def of_admitted_groups(waiting: Iterable[Candidate], admitted: Mapping[tuple[str, str], Sequence[int]]) -> set[str]:
    """Returns the uids of waiting pods whose group has pods that were admitted without a gate, while there was money.

    The budget was spent while the group's pods were being created. The caller releases the returned pods, so that the
    group runs whole. A pod that is created more than GROUP_TIME later belongs to a later batch, such as the next pod of
    a Job that runs its pods one after the other, and is left out.

    Args:
        waiting: the pods behind the scheduling gate.
        admitted: keyed by the namespace and name of a group, the instants of creation of its pods that were
            admitted without a gate, in nanoseconds since 1970.
    """
    return {
        candidate.pod.uid
        for candidate in waiting
        if candidate.pod.group
        for created in admitted.get((candidate.pod.namespace, candidate.pod.group), ())
        if abs(created - candidate.pod.created) <= GROUP_TIME
    }


def _has_gate(budget: Budget, limits: Limits) -> bool:
    """Whether new pods wait behind the budget's scheduling gate once its money is spent.

    False if the budget has no limit, only lowers the priority of new pods, or is merely observed.
    """
    acts = limits.on_exhausted is OnExhausted.HOLD and budget.enforcement is not Enforcement.OBSERVE
    return acts and limits.available is not None


def in_order(waiting: Iterable[Candidate]) -> list[Candidate]:
    """Returns waiting pods in the order of their creation."""
    return sorted(
        waiting,
        key=lambda candidate: (candidate.pod.created, candidate.pod.namespace, candidate.pod.name, candidate.pod.uid),
    )


def first_minutes(running: Sequence[tuple[int, int]], min_runtime: int, now: Instant) -> int:
    """Returns the amount that sessions younger than `min_runtime` spend until that age, in microGPU-seconds.

    Args:
        running: for each running session of the account, its rate (microGPU-seconds a second) and its start
            (nanoseconds since 1970).
        min_runtime: the time that must be paid for before a pod is released, in nanoseconds.
    """
    return sum(cost(rate, start + min_runtime - now) for rate, start in running if start + min_runtime > now)


@dataclass(frozen=True, slots=True)
class _Reported:
    """The instant of a waiting pod's last event, and the microGPU-seconds that its budget had available then.

    The amount is None for no limit. A pod gets another event once its budget has another amount available.
    """

    at: int
    available: int | None


@dataclass(slots=True)
class WaitReporter:
    """Chooses the events of pods that wait behind a scheduling gate, for one term of the leader.

    It remembers when each pod got its last event.

    Attributes:
        source: the cluster.
        books: the leader's state.
    """

    source: Source
    books: Books
    _reported: dict[str, _Reported] = field(default_factory=dict)

    def notices(self, waiting: Iterable[tuple[str, Sequence[Candidate]]], now: Instant) -> list[ObjectEvent]:
        """Returns events for the waiting pods that are due for one, at most MAX_EVENTS_PER_RUN.

        A pod is due if it had none for EVENT_REPEAT_INTERVAL, or if its budget has another amount available since. A
        returned event counts as one that the pod had. Accounts take turns, so that an account with many waiting pods
        does not use up the events of a run.

        Args:
            waiting: pairs of an account and the pods that stay behind its scheduling gate.
        """
        self._reported = {
            uid: reported
            for uid, reported in self._reported.items()
            if reported.at <= now < reported.at + EVENT_REPEAT_INTERVAL
        }
        by_account = (
            [(place, name, pod) for place, pod in enumerate(in_order(candidates)) if self._is_due(name, pod)]
            for name, candidates in waiting
        )
        notices: list[ObjectEvent] = []
        for place, name, candidate in heapq.merge(*by_account, key=lambda due: due[0]):
            figures = self.books.figures[name]
            item = self.source.mirrors.pods.get(candidate.pod.uid)
            if item is None:
                continue
            self._reported[candidate.pod.uid] = _Reported(now, figures.limits.available)
            message = why_it_waits(candidate, self.books.accounts[name].budget, figures, place)
            notices.append(ObjectEvent(item, "BudgetHoldsPod", message, warning=True))
            if len(notices) == MAX_EVENTS_PER_RUN:
                break
        return notices

    def _is_due(self, name: str, candidate: Candidate) -> bool:
        figures, reported = self.books.figures.get(name), self._reported.get(candidate.pod.uid)
        return figures is not None and (reported is None or reported.available != figures.limits.available)


def why_it_waits(candidate: Candidate, budget: Budget, figures: Figures, before: int) -> str:
    """Returns the text of a waiting pod's event: the amount that it needs, the amount left, and how to add money.

    Args:
        figures: the budget's figures.
        before: the number of the budget's waiting pods that are ahead of this one.
    """
    left = (
        f"{display(figures.remaining)} of {display(figures.limits.available or 0)} GPU-hours are left in {budget.name}"
    )
    # The pod has no devices yet, so this is the price of the dearest.
    needs = f"needs up to {display(candidate.needed)} to start and costs up to {display(candidate.rate * 3600)} an hour"
    queue = f" {before} of its pods wait in front of it." if before else ""
    ends = f"the next period begins at {format_instant(figures.period.end)}"
    return f"Waits for money: {left}; this pod {needs}.{queue} {how_to_give_more(budget)}; {ends}."


@dataclass(slots=True)
class Releaser:
    """Plans the removals of budgets' scheduling gates from pods, and the events of pods that continue to wait.

    It writes nothing itself: the pod writer does. The leader makes a new Releaser for each of its terms.

    Attributes:
        source: the cluster.
        books: the leader's state.
    """

    source: Source
    books: Books
    _reporter: WaitReporter = field(init=False)

    def __post_init__(self) -> None:
        """Creates the object that chooses the events of pods that still wait."""
        self._reporter = WaitReporter(self.source, self.books)

    def releases(
        self, now: Instant, surely_past: Instant, progress: Progress
    ) -> tuple[tuple[PodWrite, ...], list[ObjectEvent]]:
        """Returns the removals of scheduling gates that are due, and the events of pods that still wait.

        The removals come account by account: first the pods whose group has pods that were admitted without a gate,
        then the pods in the order of `pods_to_release`. The money of a period releases pods only once the period has
        begun by the store's clock, too. Accounts without figures, which cannot be read, are left out.

        Args:
            surely_past: the earlier of the local clock's time and the store's.
            progress: the outcome of earlier removals.
        """
        waiting: dict[str, list[Candidate]] = {}
        promised: dict[str, int] = {}
        admitted: dict[tuple[str, str], list[int]] = {}
        for facts in self.books.pods.facts.values():
            if facts.group and not facts.terminal and not facts.admitted_held:
                admitted.setdefault((facts.namespace, facts.group), []).append(facts.created)
            if facts.terminal or facts.bound or facts.gated_elsewhere or facts.reservation is None:
                continue
            if facts.deleted is not None:
                # It is never bound any more, though a finalizer may keep it for long.
                continue
            name = self.books.account_of(facts.namespace)
            candidate = self._candidate(facts, now)
            if facts.gated and facts.uid not in progress.released:
                waiting.setdefault(name, []).append(candidate)
            elif facts.gated or not self._safe(name):
                promised[name] = promised.get(name, 0) + candidate.needed
        chosen: dict[str, list[Candidate]] = {}
        for name, candidates in waiting.items():
            figures = self.books.figures.get(name)
            if figures is None:  # the account cannot be read
                continue
            begun = of_admitted_groups(candidates, admitted)
            others = [candidate for candidate in candidates if candidate.pod.uid not in begun]
            chosen[name] = [candidate for candidate in candidates if candidate.pod.uid in begun]
            account = self.books.accounts[name]
            if figures.period.start <= surely_past or not _has_gate(account.budget, figures.limits):
                spoken_for = promised.get(name, 0) + self._promised(name, now)
                chosen[name] += pods_to_release(account, figures, others, spoken_for, progress.failing)
        reported = self._reporter.notices(
            ((name, without(waiting[name], candidates)) for name, candidates in chosen.items()), now
        )
        return tuple(
            self._write(name, candidate) for name, candidates in chosen.items() for candidate in candidates
        ), reported

    def _safe(self, name: str) -> bool:
        return self.books.accounts[name].budget.admission is Admission.SAFE

    def _candidate(self, facts: PodFacts, now: Instant) -> Candidate:
        books, name = self.books, self.books.account_of(facts.namespace)
        assert facts.reservation is not None  # noqa: S101 - the caller has looked
        rate = rate_at(facts.reservation, books.prices, now, books.rules.charge)
        if self._safe(name):
            return Candidate(facts, rate, commitment_of(books, facts, now))
        return Candidate(facts, rate, cost(rate, books.accounts[name].budget.min_runtime))

    def _promised(self, name: str, now: Instant) -> int:
        """Returns the amount that admitted pods may still spend from the account `name`, in microGPU-seconds.

        With safe admission, it is the cost of the rest of their whole run. Without it, it is the amount that running
        pods spend until each has run for the budget's `min_runtime`.
        """
        account = self.books.accounts[name]
        if self._safe(name):
            return committed(self.books, [name], now)[name]
        running = [
            (rate_now(metered.session.tariff, now), metered.session.start)
            for metered in self.books.sessions_under([name])
            if metered.session.end is None and self.books.account_of(metered.session.namespace) == name
        ]
        return first_minutes(running, account.budget.min_runtime, now)

    def _write(self, name: str, candidate: Candidate) -> PodWrite:
        budget, figures, pod = self.books.accounts[name].budget, self.books.figures[name], candidate.pod
        events = partial(_events, candidate=candidate, budget=budget, figures=figures)
        return PodWrite(pod.uid, pod.namespace, pod.name, name, Step.RELEASE, events=events)


def _events(item: Json, candidate: Candidate, budget: Budget, figures: Figures) -> tuple[ObjectEvent, ...]:
    return (release_event(item, candidate, budget, figures),)


def without(candidates: list[Candidate], chosen: list[Candidate]) -> list[Candidate]:
    """Returns the waiting pods that are not among the chosen ones."""
    uids = {candidate.pod.uid for candidate in chosen}
    return [candidate for candidate in candidates if candidate.pod.uid not in uids]


def release_event(item: Json, candidate: Candidate, budget: Budget, figures: Figures) -> ObjectEvent:
    """Returns the event of a pod whose budget's scheduling gate was removed.

    Args:
        item: the pod (JSON).
        candidate: the same pod, with its rate and the amount that it needs.
    """
    price = f"It costs {display(candidate.rate * 3600)} GPU-hours an hour"
    if not _has_gate(budget, figures.limits):
        message = f"No budget holds this pod back any more. {price}."
        return ObjectEvent(item, "BudgetGateLifted", message, occasion="once")
    if figures.published is BudgetState.HELD:
        message = f"Other pods of its group {candidate.pod.group} were admitted while there was money. {price}."
        return ObjectEvent(item, "BudgetGateLifted", message, occasion="once")
    first = f"{display(cost(candidate.rate, budget.min_runtime))} for its first {time_in_words(budget.min_runtime)}"
    left = f"{display(figures.remaining)} GPU-hours are left in {budget.name}"
    message = f"There is money for this pod again: {left}. {price}, {first}."
    return ObjectEvent(item, "BudgetGateLifted", message, occasion="once")


def time_in_words(nanoseconds: int) -> str:
    """Returns a duration in words: in minutes, or in seconds if it is no whole number of minutes."""
    minutes, rest = divmod(nanoseconds, MINUTE)
    return f"{nanoseconds // SECOND} seconds" if rest else "1 minute" if minutes == 1 else f"{minutes} minutes"


def removals(books: Books) -> tuple[PodWrite, ...]:
    """Returns the removals of the meter's finalizer that are due: from pods for which `finalizer_removable` is True."""
    sessions, holds = books.pods.sessions, books.rules.holds_pods
    return tuple(
        PodWrite(pod.uid, pod.namespace, pod.name, books.account_of(pod.namespace), Step.FINALIZER)
        for pod in books.pods.facts.values()
        if pod.held and finalizer_removable(pod, sessions.get(pod.uid), holds=holds)
    )


def finalizer_removable(pod: PodFacts, metered: MeteredSession | None, *, holds: bool) -> bool:
    """Returns whether the meter's finalizer may be removed from a pod.

    This is so if the pod has ended, and its session is closed or it never had a session. It is so for any pod if the
    settings give pods no finalizer.

    Args:
        metered: the pod's session; None if the pod never held a device.
        holds: whether the settings give pods a finalizer.
    """
    if not holds:
        return True
    if not pod.terminal and not pod.removed:
        return False
    return metered is None or metered.acknowledged.closed
