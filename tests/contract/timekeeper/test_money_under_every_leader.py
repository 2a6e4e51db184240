"""Grants, expiries and money that is carried over come out the same, whichever leaders come, die and stay away.

Two timekeepers see the same cluster. One has a leader that reconciles every few minutes. The other's leaders die, lose
their connection, and let several periods pass.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.contract.timekeeper.test_settled_as_received import FailingRedis
from tests.support.ledger.harness import LedgerHarness
from tests.support.ledger.steps import KilledError
from tests.support.randomness import chance
from tests.support.servers.redis_server import DRIVER, RedisServer
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import format_instant
from timekeeper.ledger import reading
from timekeeper.ledger.client import StoreUnavailableError

SEEDS = range(20 if os.environ.get("CI") == "true" else 4)
STEPS = ("load", "assign", "open", "grant", "close", "settle", "remove", "index", "publish", "watched")
OFTEN = 300
"""The seconds between two reconciliations of the leader that is always there."""


class Story:
    """Events in a cluster with one budget, which two harnesses see alike."""

    def __init__(self, steady: LedgerHarness, troubled: LedgerHarness, client: FailingRedis, seed: int) -> None:
        self.steady, self.troubled, self.client, self.random = steady, troubled, client, chance(seed)
        self.running: list[str] = []
        self.count = 0
        self.dies_at = ""
        for harness in (steady, troubled):
            harness.budget("a", ["team-a"], "0.5", period={"every": "hour"}, rollover={"gpuHours": 4})
        self.steady.lead()
        self.lead()
        self.both_reconcile()

    def lead(self) -> None:
        self.troubled.lead(step=self.step)

    def step(self, name: str) -> None:
        if name == self.dies_at:
            self.dies_at = ""
            raise KilledError

    def both_reconcile(self) -> None:
        self.steady.reconcile()
        self.troubled.reconcile()

    def happen(self) -> None:
        """Pods come and end, and a grant may be made that expires; then time passes without the troubled leader."""
        self.count += 1
        grant = (self.random.choice(["0.2", "1", "5"]), self.random.choice([30, 1000, 5000, 10_000, 40_000]))
        grants, core = self.random.random() < 0.4, self.random.choice([1, 33, 100])
        ends = self.running and self.random.random() < 0.5
        ended = self.running.pop(self.random.randrange(len(self.running))) if ends else None
        for harness in (self.steady, self.troubled):
            harness.pod(f"p{self.count}", "team-a", core=core)
            if ended is not None:
                harness.finish(harness.source_pod(ended))
            if grants:
                expires = format_instant(harness.now + grant[1] * SECOND)
                harness.grant(f"g{self.count}", "a", grant[0], expires=expires)
            harness.refresh()
        self.running.append(f"p{self.count}")
        self.steady.reconcile()
        self.trouble()
        self.let_time_pass(self.random.choice([1, 59, 600, 1800, 3600, 5000, 9000]))

    def trouble(self) -> None:
        """The troubled leader reconciles, dies while it does, loses its connection, or does nothing."""
        kind = self.random.choice(["away", "away", "works", "another", "dies", "loses its connection"])
        if kind in {"another", "dies"}:
            self.lead()
        self.dies_at = self.random.choice(STEPS) if kind == "dies" else ""
        if kind == "loses its connection":
            self.client.breaks_in = self.random.randint(1, 12)
            self.client.sent = self.random.choice([Fraction(0), Fraction(1, 2), Fraction(1)])
        if kind != "away":
            with suppress(KilledError, StoreUnavailableError):
                self.troubled.reconcile()
        self.client.breaks_in = -1
        if kind == "dies":
            self.dies_at = ""
            self.lead()

    def let_time_pass(self, seconds: int) -> None:
        for passed in range(0, seconds, OFTEN):
            self.steady.reconcile(min(OFTEN, seconds - passed))
        self.troubled.pass_time(seconds)


def periods(harness: LedgerHarness) -> list[Any]:
    """Returns what the store holds of each period: its spending, its money and its credits."""
    (account,) = reading.load_accounts(harness.client, ["a"], latest_periods=1000)
    found = []
    for period in account.periods:
        sums = account.totals[period.start]
        money = reading.credits_of(harness.client, "a", period.start)
        found.append((period, sums.total, sums.granted, sums.previous_spent, sums.terms, money))
    return found


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    folders = [tmp_path / name for name in ("redis-steady", "redis-troubled", "steady", "troubled")]
    for folder in folders:
        folder.mkdir()
    with RedisServer(folders[0]) as steady, RedisServer(folders[1]) as troubled:
        yield steady, troubled


@pytest.mark.parametrize("seed", SEEDS)
def test_the_money_of_each_period_is_the_same_whatever_leaders_came(
    servers: tuple[RedisServer, RedisServer], tmp_path: Path, seed: int
) -> None:
    client = FailingRedis(port=servers[1].port, driver_info=DRIVER)
    with servers[0].client() as other:
        steady, troubled = LedgerHarness(tmp_path / "steady", other), LedgerHarness(tmp_path / "troubled", client)
        story = Story(steady, troubled, client, seed)
        for _ in range(20):
            story.happen()
        for _ in range(2):
            story.both_reconcile()
        assert periods(troubled) == periods(steady)
    client.close()
