"""What each pod that a budget's gate holds is told that it waits for: `kubectl describe pod` shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.memory.figures import Figures
from timekeeper.jobs.memory.remedies import how_to_give_more
from timekeeper.jobs.pods.gates import Claim, in_order
from timekeeper.rules.budgets import Budget
from timekeeper.rules.money import display
from timekeeper.rules.timestamps import MINUTE, format_instant
from timekeeper.sources.source import Notice, Source

AGAIN = 30 * MINUTE
"""How long what was told is let stand: the API server keeps events for an hour by default (--event-ttl)."""
AT_ONCE = 10
"""Pods that are told in one round: each takes a request, and thousands may wait."""


@dataclass(frozen=True, slots=True)
class _Told:
    """When a pod was told, and how much its budget had then."""

    at: int
    available: int | None


@dataclass(slots=True)
class WaitTeller:
    """Remembers, in one term of leadership, which pods were told when."""

    source: Source
    books: Books
    _told: dict[str, _Told] = field(default_factory=dict)

    def notices(self, waiting: Iterable[tuple[str, Sequence[Claim]]], now: int) -> list[Notice]:
        """The events of those that wait and were not told lately, or were given money that does not suffice.

        Args:
            waiting: for each account, the pods that its gate goes on holding.
            now: nanoseconds since 1970.
        """
        self._told = {uid: told for uid, told in self._told.items() if told.at <= now < told.at + AGAIN}
        due = ((name, place, claim) for name, claims in waiting for place, claim in enumerate(in_order(claims)))
        notices: list[Notice] = []
        for name, place, claim in due:
            found, told = self.books.figures.get(name), self._told.get(claim.pod.uid)
            if found is None or (told is not None and told.available == found.limits.available):
                continue
            item = self.source.mirrors.pods.get(claim.pod.uid)
            if item is None:
                continue
            self._told[claim.pod.uid] = _Told(now, found.limits.available)
            message = why_it_waits(claim, self.books.accounts[name].budget, found, place)
            notices.append(Notice(item, "BudgetHoldsPod", message, warning=True))
            if len(notices) == AT_ONCE:
                break
        return notices


def why_it_waits(claim: Claim, budget: Budget, found: Figures, before: int) -> str:
    """What a pod waits for, what there is, and who can change it.

    Args:
        claim: the pod, and what must be there for it.
        budget: who is to pay for it.
        found: how that stands.
        before: how many pods of the budget wait in front of it.
    """
    left = f"{display(found.remaining)} of {display(found.limits.available or 0)} GPU-hours are left in {budget.name}"
    # Which devices it gets is not known yet, so that this is what the dearest would cost.
    needs = f"needs up to {display(claim.needed)} to start and costs up to {display(claim.rate * 3600)} an hour"
    queue = f" {before} of its pods wait in front of it." if before else ""
    ends = f"the next period begins at {format_instant(found.period.end)}"
    return f"Waits for money: {left}; this pod {needs}.{queue} {how_to_give_more(budget)}; {ends}."
