"""A month of a busy cluster in one run, and the true spending of its accounts, computed without the ledger's code.

Pods stay until their last settlement is known to be stored, as with `end_proof: finalizer`. Then the spending is exact
to the microGPU-second, whatever happens to the store and to the leaders meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import redis

from tests.support.ledger.harness import MONTH, LedgerHarness
from tests.support.randomness import chance
from tests.support.waiting import FIRST_PAUSE_S, LIMIT_S, LONGEST_PAUSE_S
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.audit.cluster import read_cluster
from timekeeper.audit.difference import Difference
from timekeeper.controller.report.status_writer import StatusWriter
from timekeeper.domain.money import GPU_HOUR
from timekeeper.ledger import reading
from timekeeper.ledger.client import FencedError, StoreError

TEAMS = {"team-a": "a", "team-b": "b", "team-c": "namespace:team-c"}
"""The accounts that pay for the namespaces, keyed by namespace; no budget names the last namespace."""
MICRO_GPU_HOUR = GPU_HOUR // 10**6
Result = TypeVar("Result")


@dataclass
class Held:
    """The true reservation of a pod and its time: nanoseconds since 1970, microGPU-seconds a second."""

    namespace: str
    rate: int
    start: int
    end: int | None = None


class ChaosModel:
    """A cluster in which pods come, end and are removed, money is granted, spending corrected, and leaders change."""

    def __init__(self, harness: LedgerHarness, seed: int) -> None:
        self.harness = harness
        self.random = chance(seed)
        self.pods: dict[str, Held] = {}
        self.objects: dict[str, dict[str, Any]] = {}
        self.granted = dict.fromkeys(TEAMS.values(), 0)
        self.corrected = dict.fromkeys(TEAMS.values(), 0)
        self.writer: StatusWriter | None = None
        harness.budget("a", ["team-a"])
        harness.budget("b", ["team-b"])
        self.lead()

    def lead(self) -> None:
        """Starts a new leader, which knows only what it reads, and has it reconcile; no time passes meanwhile."""
        reconciler = persisted(self.harness.lead)
        self.writer = StatusWriter(self.harness.source, reconciler.books)
        self.reconcile()

    def reconcile(self) -> None:
        """Reconciles until one attempt succeeds: while the store is away, all fail."""
        persisted(self.harness.reconcile)

    def act(self) -> None:
        """Starts and ends some pods, may order something, and lets time pass."""
        for _ in range(self.random.randint(1, 3)):
            self._start(f"pod-{len(self.pods)}")
        running = [uid for uid, pod in self.pods.items() if pod.end is None]
        for uid in self.random.sample(running, len(running) // 3):
            self.harness.finish(self.objects[uid])
            self.pods[uid].end = self.harness.now
        self._order(f"order-{len(self.pods)}")
        self.harness.pass_time(self.random.choice([1, 7, 60, 600]))

    def live(self, steps: int) -> None:
        """Takes so many steps; in each, events happen and the leader settles them."""
        for _ in range(steps):
            self.act()
            self.reconcile()
            self.let_go()
            self.reconcile()

    def let_go(self) -> None:
        """Removes the pods whose last settlement is stored."""
        assert self.harness.reconciler is not None
        for uid in list(self.objects):
            metered = self.harness.reconciler.books.pods.sessions.get(uid)
            if metered is not None and metered.acknowledged.closed and self.random.random() < 0.7:
                self.harness.remove(uid)
                del self.objects[uid]
        self.harness.source.refresh()

    def checkpoint(self) -> None:
        """Writes the statuses of all budgets."""
        assert self.writer is not None
        self.writer.write(self.harness.now)
        while self.writer.waiting:
            self.writer.write(self.harness.now)

    def error(self, names: tuple[str, ...] = tuple(TEAMS.values())) -> dict[str, int]:
        """Returns the stored spending of accounts less the true one; where that is 0, the same difference of grants."""
        known = {name: reading.period_totals(self.harness.client, name, MONTH) for name in names}
        granted = {name: 0 if found is None else found.granted for name, found in known.items()}
        spent = {name: 0 if found is None else self.harness.spent(name) for name, found in known.items()}
        return {name: spent[name] - self.truth(name) or granted[name] - self.granted[name] for name in names}

    def differences(self) -> tuple[Difference, ...]:
        """Returns the differences that the auditor finds; it recomputes every figure with independent code."""
        harness = self.harness
        self.checkpoint()
        harness.source.refresh()
        around = AuditEnvironment(
            harness.client, lambda: read_cluster(harness.source.mirrors, None), lambda: harness.now, lambda _: False
        )
        return audit(around, AuditRequest(patience_seconds=0)).differences

    def truth(self, account: str) -> int:
        """Returns the true spending of an account, pod by pod."""
        held = (
            pod.rate * ((self.harness.now if pod.end is None else pod.end) - pod.start) // 10**9
            for pod in self.pods.values()
            if TEAMS[pod.namespace] == account
        )
        return sum(held) + self.corrected[account]

    def _order(self, name: str) -> None:
        """Grants money, corrects spending, or, most often, does neither."""
        kind, budget = self.random.choice(["grant", "correct", "", "", ""]), self.random.choice(["a", "b"])
        amount = self.random.choice([-5, 7, 1_000_000])
        if kind == "grant":
            self.harness.grant(name, budget, f"{amount / 10**6:.6f}")
            self.granted[budget] += amount * MICRO_GPU_HOUR
        elif kind == "correct":
            # Less than nothing cannot have been spent, where not all has been settled either.
            amount = abs(amount)
            self.harness.correct(name, budget, f"{amount / 10**6:.6f}", self.harness.now)
            self.corrected[budget] += amount * MICRO_GPU_HOUR

    def _start(self, uid: str) -> None:
        core, namespace = self.random.choice([1, 33, 100]), self.random.choice(sorted(TEAMS))
        self.objects[uid] = self.harness.pod(uid, namespace, core=core)
        self.pods[uid] = Held(namespace, core * 10**6 // 100, self.harness.now)


def persisted(attempt: Callable[[], Result]) -> Result:
    """Returns the result of a function that is called again while the store refuses or does not answer.

    Raises:
        FencedError: a later leader has taken over.
        StoreError, redis.RedisError: the store still refused or did not answer after LIMIT_S.
    """
    deadline = time.monotonic() + LIMIT_S
    pause = FIRST_PAUSE_S
    while True:
        try:
            return attempt()
        except FencedError:
            raise
        except (StoreError, redis.RedisError):
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)
