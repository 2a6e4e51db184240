"""Gives notice to running pods of spent budgets and evicts them, where the admin wants that."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from prometheus_client import Counter

from fairgpu.cluster.api import Json
from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.memory.figures import Figures
from timekeeper.jobs.memory.remedies import how_to_give_more
from timekeeper.jobs.pods.evictions import Due, Step, due
from timekeeper.jobs.pods.turns import TURN_SECONDS, in_turns
from timekeeper.metering.pods import PodFacts
from timekeeper.rules.budgets import Budget
from timekeeper.rules.money import SECOND, display
from timekeeper.rules.state import Enforcement
from timekeeper.rules.timestamps import format_exact, format_instant
from timekeeper.sources.source import BlockedError, ChangedMeanwhileError, Notice, RefusedError, Source

AGAIN = 10 * SECOND
"""A pod that a PodDisruptionBudget keeps, or whose eviction is refused, is tried again after this long."""
FRESH = 30 * SECOND
"""Figures that are older are no ground to end anything: the money may have come back since."""

_log = structlog.get_logger()


@dataclass(slots=True)
class Evictor:
    """Remembers whom it tried in vain, in one term of leadership. Notices stand on the pods themselves."""

    source: Source
    books: Books
    counter: Counter
    clock: Callable[[], float] = time.monotonic
    _again: dict[str, int] = field(default_factory=dict)
    _told_blocked: set[str] = field(default_factory=set)
    _done: dict[str, tuple[Step, int]] = field(default_factory=dict)

    def evict(self, settled_at: int, now: int) -> int:
        """Does what pods are due, as far as its turn lasts; how many steps it took.

        Args:
            settled_at: when the books were last brought up to date, in nanoseconds since 1970.
            now: the present, likewise.

        Raises:
            SourceError: the API server does not answer; what is left is done the next time.
        """
        if now - settled_at > FRESH:
            return 0
        until, count = self.clock() + TURN_SECONDS, 0
        accounts, figures = self.books.accounts, self.books.figures
        steps = {
            name: due(accounts[name].budget, figures[name], facts, settled_at)
            for name, facts in self._pods_by_account().items()
            if name in figures
        }
        for name, step in in_turns(steps):
            if self.clock() >= until:
                break
            count += self._take(step, accounts[name].budget, figures[name], now)
        return count

    def _pods_by_account(self) -> dict[str, list[PodFacts]]:
        """The pods of accounts that evict, and those that were told by one that does not any more."""
        facts = self.books.pods.facts
        self._again = {uid: until for uid, until in self._again.items() if uid in facts}
        self._done = {uid: done for uid, done in self._done.items() if uid in facts}
        self._told_blocked &= facts.keys()
        found: dict[str, list[PodFacts]] = {}
        for pod in facts.values():
            name = self.books.account_of(pod.namespace)
            account = self.books.accounts.get(name)
            if account is not None and (account.budget.enforcement is Enforcement.EVICT or pod.evict_at is not None):
                found.setdefault(name, []).append(pod)
        return found

    def _take(self, step: Due, budget: Budget, found: Figures, now: int) -> bool:
        uid = step.pod.uid
        item = self.source.mirrors.pods.get(uid)
        last, at = self._done.get(uid, (None, 0))
        done = last is step.step and now < at + AGAIN  # the mirror may not show it yet
        if item is None or done or now < self._again.get(uid, 0):
            return False
        told = {"uid": uid, "namespace": step.pod.namespace, "pod": step.pod.name, "budget": budget.name}
        try:
            self._act(step, item)
        except ChangedMeanwhileError as error:
            _log.info("pod changed before its eviction", **told, step=step.step, error=str(error))
            return False
        except BlockedError as error:
            self._again[uid] = now + AGAIN
            self.counter.labels("blocked").inc()
            if uid not in self._told_blocked:
                self._told_blocked.add(uid)
                message = f"Evicting it has to wait: {error}"
                self.source.tell(Notice(item, "BudgetEvictionBlocked", message, warning=True))
            return False
        except RefusedError as error:
            self._again[uid] = now + AGAIN
            self.counter.labels("refused").inc()
            _log.warning("eviction refused", **told, step=step.step, error=str(error))
            return False
        self._done[uid] = step.step, now
        self.counter.labels(step.step.value).inc()
        self.source.tell(notice_of(item, step, budget, found))
        _log.info("pod of a spent budget", **told, step=step.step)
        return True

    def _act(self, step: Due, item: Json) -> None:
        if step.step is Step.EVICT:
            self.source.evict(item)
        else:
            self.source.announce_eviction(item, format_exact(step.at) if step.step is Step.NOTICE else None)


def notice_of(item: Json, step: Due, budget: Budget, found: Figures) -> Notice:
    """The event that stands beside the pod."""
    available = display(found.limits.available or 0)
    spent = f"{display(found.spent)} of {available} GPU-hours of {budget.name} are spent"
    if step.step is Step.NOTICE:
        message = (
            f"{spent}: this pod is evicted at {format_instant(step.at)} unless there is money by then. Save what it "
            f"has done. {how_to_give_more(budget)}."
        )
        return Notice(item, "BudgetEvictionNotice", message, warning=True, occasion=format_exact(step.at))
    if step.step is Step.EVICT:
        message = f"{spent}, and the notice is over: this pod is evicted."
        return Notice(item, "BudgetEviction", message, warning=True, occasion=format_exact(step.at))
    return Notice(item, "BudgetEvictionCalledOff", f"This pod goes on: {budget.name} lets it run again.")
