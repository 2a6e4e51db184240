from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.ledger.harness import NOON, LedgerHarness
from tests.support.ledger.steps import KilledError
from tests.support.randomness import chance
from tests.support.waiting import LIMIT_S
from timekeeper.controller.report.status_writer import StatusWriter
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger import reading
from timekeeper.ledger.client import FencedError, StoreEmptyError

ROUNDS = 12


@dataclass
class Reserved:
    """The true life of a pod, recorded apart from the ledger."""

    namespace: str
    rate: int
    start: int
    end: int | None = None


def truth(pods: list[Reserved], payers: list[tuple[int, dict[str, str]]], now: int) -> dict[tuple[str, int], int]:
    """Returns the true spending of each budget in each hour, pod by pod and piece by piece, from the events alone."""
    spent: dict[tuple[str, int], int] = {}
    for pod in pods:
        end = now if pod.end is None else pod.end
        for index, (since, paying) in enumerate(payers):
            until = payers[index + 1][0] if index + 1 < len(payers) else end
            low, high = max(pod.start, since if index else 0), min(end, until)
            while low < high:
                hour = low - low % HOUR
                piece = min(high, hour + HOUR) - low
                key = (paying[pod.namespace], hour)
                spent[key] = spent.get(key, 0) + pod.rate * piece // SECOND
                low += piece
    return spent


class History:
    """Hours of a cluster in one sitting: pods come, finish and are removed, a namespace moves, grants come."""

    def __init__(self, harness: LedgerHarness, seed: int) -> None:
        self.harness = harness
        self.random = chance(seed)
        self.pods: dict[str, Reserved] = {}
        self.objects: dict[str, dict[str, Any]] = {}
        self.payers: list[tuple[int, dict[str, str]]] = [(0, {"team-a": "a", "team-b": "b"})]
        self.granted = 0
        harness.budget("a", ["team-a"], period={"every": "hour"})
        harness.budget("b", ["team-b"], period={"every": "hour"})
        # An account charges nothing from before the period in which a leader first sees it.
        harness.reconcile()

    def step(self, number: int) -> None:
        """Lets something happen, then time pass."""
        for _ in range(self.random.randint(0, 2)):
            self.start(f"pod-{number}-{len(self.pods)}")
        running = [uid for uid, pod in self.pods.items() if pod.end is None]
        if running and self.random.random() < 0.6:
            self.finish(self.random.choice(running))
        ended = [uid for uid in self.objects if (self.pods[uid].end or self.harness.now) < self.harness.now]
        if ended and self.random.random() < 0.5:
            uid = self.random.choice(ended)
            self.harness.remove(uid)
            del self.objects[uid]
        if number == 3:
            self.harness.grant("more", "a", 1)
        if number == 5:
            self.harness.budget("a", ["nobody"], period={"every": "hour"})
            self.harness.budget("b", ["team-b", "team-a"], period={"every": "hour"})
        self.harness.pass_time(self.random.choice([1, 17, 600, 1800, 4000]))
        if number == 5:
            self.payers.append((self.harness.now, {"team-a": "b", "team-b": "b"}))

    def start(self, uid: str) -> None:
        core = self.random.choice([1, 33, 100])
        namespace = self.random.choice(["team-a", "team-b"])
        self.objects[uid] = self.harness.pod(uid, namespace, core=core)
        self.pods[uid] = Reserved(namespace, core * GPU_SECOND // 100, self.harness.now)

    def finish(self, uid: str) -> None:
        self.harness.finish(self.objects[uid])
        self.pods[uid].end = self.harness.now

    def check(self) -> None:
        """Holds the store to what really happened."""
        expected = truth(list(self.pods.values()), self.payers, self.harness.now)
        assert expected
        for (account, hour), amount in expected.items():
            assert self.harness.spent(account, hour) == amount


def steps_of(harness: LedgerHarness, rounds: int) -> int:
    """Returns the number of steps of a history that runs to its end."""
    count = 0

    def step(_name: str) -> None:
        nonlocal count
        count += 1

    history = History(harness, 1)
    harness.lead(step=step)
    for number in range(rounds):
        history.step(number)
        harness.reconcile()
    history.check()
    return count


def test_a_leader_killed_before_any_step_of_any_reconciliation_leaves_the_next_one_the_same_spend(
    harness: LedgerHarness, tmp_path_factory: pytest.TempPathFactory
) -> None:
    total = steps_of(harness, ROUNDS)
    assert total > ROUNDS
    stride = 1 if os.environ.get("CI") == "true" else 5
    for killed_at in range(0, total, stride):
        harness.client.flushall()
        other = LedgerHarness(tmp_path_factory.mktemp("folder"), harness.client)
        history = History(other, 1)
        killed_in_round(other, history, killed_at)
        history.check()


def killed_in_round(harness: LedgerHarness, history: History, killed_at: int) -> None:
    count = 0

    def step(_name: str) -> None:
        nonlocal count
        count += 1
        if count == killed_at + 1:
            raise KilledError

    harness.lead(step=step)
    for number in range(ROUNDS):
        history.step(number)
        try:
            harness.reconcile()
        except KilledError:
            harness.lead()
            harness.reconcile()


@pytest.mark.parametrize("paused_at", ["assign", "open", "settle", "index", "publish", "watched"])
def test_a_leader_that_was_paused_past_its_term_changes_nothing_when_it_goes_on(
    harness: LedgerHarness, paused_at: str
) -> None:
    history = History(harness, 2)
    history.step(0)
    history.start("runs-on")
    harness.reconcile()
    reached, go_on = threading.Event(), threading.Event()
    refused: list[Exception] = []

    def step(name: str) -> None:
        if name == paused_at and harness.now > NOON + 4000 * SECOND:
            reached.set()
            assert go_on.wait(LIMIT_S)

    def round_of_the_paused() -> None:
        try:
            paused.reconcile(paused_now)
        except FencedError as error:
            refused.append(error)

    paused = harness.lead(step=step)
    harness.reconcile()
    harness.pass_time(8000)
    paused_now = harness.now
    thread = threading.Thread(target=round_of_the_paused)
    thread.start()
    assert reached.wait(LIMIT_S)
    harness.lead()
    harness.reconcile(3600)
    history.finish("runs-on")
    harness.reconcile()
    before = {key: harness.client.dump(key) for key in harness.client.scan_iter("fairgpu:{a}*")}
    go_on.set()
    thread.join(LIMIT_S)
    assert {key: harness.client.dump(key) for key in harness.client.scan_iter("fairgpu:{a}*")} == before
    assert refused or paused_at in {"index", "watched", "publish"}
    history.check()


@pytest.mark.parametrize("seed", range(20 if os.environ.get("CI") == "true" else 4))
def test_an_emptied_redis_is_filled_again_by_the_running_leader_to_the_last_unit(
    harness: LedgerHarness, seed: int
) -> None:
    history = History(harness, seed)
    reconciler = harness.lead()
    writer = StatusWriter(harness.source, reconciler.books)
    random = chance(seed)
    for number in range(5):
        history.step(number)
        harness.reconcile()
        if random.random() < 0.7:
            writer.write(harness.now)
    hour = harness.now - harness.now % HOUR
    harness.client.flushall()
    with pytest.raises(StoreEmptyError):
        harness.reconcile(1)
    harness.reconcile(1)
    expected = truth(list(history.pods.values()), history.payers, harness.now)
    for account in ("a", "b"):
        if (account, hour) in expected and harness.now < hour + HOUR:
            assert harness.spent(account, hour) == expected[account, hour]
    assert reading.period_totals(harness.client, "a", harness.now - harness.now % HOUR) is not None


def test_a_grant_survives_an_emptied_redis(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.grant("more", "a", 1)
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.client.flushall()
    with pytest.raises(StoreEmptyError):
        harness.reconcile(1)
    harness.reconcile(1)
    standing = reading.period_totals(harness.client, "a", NOON - (NOON - 1767225600 * SECOND))
    assert standing is not None
    assert (standing.granted, standing.total) == (GPU_HOUR, 2 * GPU_SECOND)
