"""Wherever the writes of one reconciliation break off, and its leader with them, the next leader charges all of a pod.

Each test breaks the connection after every number of commands in turn, so that each write is once the last one taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.ledger.harness import NOON, LedgerHarness, report
from tests.support.servers.redis_server import DRIVER, RedisServer
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.audit.cluster import read_cluster
from timekeeper.audit.difference import Figure
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.pricing import Bill
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger import reading
from timekeeper.ledger.client import StoreUnavailableError

HOURLY = {"every": "hour"}


class CutRedis(redis.Redis):
    """A client whose connection breaks after a number of commands in pipelines; None for never."""

    left: int | None = None

    def pipeline(self, *arguments: Any, **options: Any) -> Any:
        found: Any = super().pipeline(*arguments, **options)
        found.execute = partial(self._execute, found, found.execute)
        return found

    def _execute(self, pipeline: Any, execute: Callable[..., Any], **options: Any) -> Any:
        if self.left is None:
            return execute(**options)
        sent = len(pipeline.command_stack)
        if sent <= self.left:
            self.left -= sent
            return execute(**options)
        pipeline.command_stack = pipeline.command_stack[: self.left]
        self.left = 0
        execute(**options)
        raise redis.ConnectionError("the connection broke")


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[CutRedis]:
    with CutRedis(port=redis_server.port, driver_info=DRIVER) as client:
        yield client


def stages_cut(
    client: CutRedis, folder: Path, prepare: Callable[[LedgerHarness], object]
) -> Iterator[tuple[int, LedgerHarness]]:
    """Prepares a harness and cuts its next reconciliation after 0, 1, 2 ... commands, until it is whole."""
    for commands in range(200):
        client.flushall()
        place = folder / str(commands)
        place.mkdir()
        harness = LedgerHarness(place, client)
        prepare(harness)
        client.left = commands
        try:
            harness.reconcile()
        except StoreUnavailableError:
            whole = False
        else:
            whole = True
        finally:
            client.left = None
        yield commands, harness
        if whole:
            return
    raise AssertionError("the reconciliation is never whole")


def check_books(harness: LedgerHarness, expected: dict[tuple[str, int], int]) -> None:
    """Holds the store to what each period costs, once no pod is on the meter any more."""
    for (account, period), seconds in expected.items():
        amount = seconds * GPU_SECOND
        assert harness.spent(account, period) == amount
        standing = reading.period_totals(harness.client, account, period)
        assert standing is not None
        assert standing.finalized == amount
    assert reading.open_sessions(harness.client, "", 9) == []
    around = AuditEnvironment(
        harness.client, lambda: read_cluster(harness.source.mirrors, None), lambda: harness.now, bool
    )
    differences = audit(around, AuditRequest(patience_seconds=0)).differences
    assert [each for each in differences if each.figure is not Figure.STATUS] == []


def test_a_pod_that_left_is_charged_in_both_of_its_periods_or_until_it_was_last_seen(
    client: CutRedis, tmp_path: Path
) -> None:
    def prepare(harness: LedgerHarness) -> None:
        harness.budget("a", ["team-a"], period=HOURLY)
        harness.pod("p1", "team-a")
        harness.reconcile(10)
        harness.remove("p1")
        harness.pass_time(5390)

    found = set()
    for _, harness in stages_cut(client, tmp_path, prepare):
        harness.lead()
        harness.reconcile()
        harness.reconcile(60)
        amounts = harness.spent("a", NOON) // GPU_SECOND, harness.spent("a", NOON + HOUR) // GPU_SECOND
        found.add(amounts)
        check_books(harness, {("a", NOON): amounts[0], ("a", NOON + HOUR): amounts[1]})
    assert found == {(10, 0), (3600, 1800)}


def test_a_pod_whose_namespace_moves_is_charged_to_both_payers_where_it_leaves_unseen(
    client: CutRedis, tmp_path: Path
) -> None:
    def prepare(harness: LedgerHarness) -> None:
        harness.budget("a", ["team-a"])
        harness.budget("b", ["nobody"])
        harness.pod("p1", "team-a")
        harness.reconcile(10)
        harness.budget("a", ["nobody"])
        harness.budget("b", ["team-a"])
        harness.pass_time(10)

    for _, harness in stages_cut(client, tmp_path, prepare):
        harness.pass_time(2980)
        report(harness, "p1", 1, 1)
        harness.remove("p1")
        harness.pass_time(600)
        harness.lead()
        harness.reconcile()
        harness.reconcile(60)
        moved = (reading.assignments(client)["team-a"][-1][0] - NOON) // SECOND
        month = reading.period_at(client, "a", NOON)
        assert month is not None
        first = min(moved, 3000)
        check_books(harness, {("a", month.start): first, ("b", month.start): 3000 - first})


def test_a_pod_that_left_after_its_namespace_moved_is_charged_to_both_payers(client: CutRedis, tmp_path: Path) -> None:
    def prepare(harness: LedgerHarness) -> None:
        harness.budget("a", ["team-a"])
        harness.budget("b", ["nobody"])
        harness.pod("p1", "team-a")
        harness.reconcile(10)
        harness.budget("a", ["nobody"])
        harness.budget("b", ["team-a"])
        harness.reconcile(10)
        report(harness, "p1", 1, 1)
        harness.remove("p1")
        harness.pass_time(20)

    found = set()
    for _, harness in stages_cut(client, tmp_path, prepare):
        harness.lead()
        harness.reconcile()
        harness.reconcile(60)
        month = reading.period_at(client, "a", NOON)
        assert month is not None
        amount = harness.spent("b", month.start) // GPU_SECOND
        found.add(amount)
        check_books(harness, {("a", month.start): 20, ("b", month.start): amount})
    assert found == {0, 20}


def test_a_pod_that_ended_before_its_namespace_moved_costs_the_next_payer_nothing_though_the_leader_stays(
    client: CutRedis, tmp_path: Path
) -> None:
    def prepare(harness: LedgerHarness) -> None:
        away: list[str] = []

        def step(name: str) -> None:
            if name in away:
                away.clear()
                raise StoreUnavailableError("the connection broke")

        for account in "abcd":
            harness.budget(account, [f"team-{account}"])
            harness.pod(f"of-{account}", f"team-{account}")
        harness.pod("p1", "team-a")
        harness.lead(step=step)
        harness.reconcile(10)
        harness.budget("a", ["nobody"])
        harness.budget("b", ["team-b", "team-a"])
        harness.pass_time(10)
        away.append("settle")  # the move is written, and nothing after it
        with pytest.raises(StoreUnavailableError):
            harness.reconcile()
        harness.pass_time(10)

    for _, harness in stages_cut(client, tmp_path, prepare):
        harness.finish(harness.source_pod("p1"), 15)
        harness.reconcile()
        harness.remove("p1")
        harness.reconcile(10)
        month = reading.period_at(client, "b", NOON)
        assert month is not None
        found = reading.stored_amounts(client, "b", month.start).get("p1")
        assert found is None or found.amount == 0
        assert ("p1", "b") not in reading.open_sessions(client, "", 9)
        assert not client.hexists("fairgpu:{b}:sessions", "p1")


def test_use_before_a_period_is_not_billed_again_where_the_namespace_moves_at_its_very_start(
    client: CutRedis, tmp_path: Path
) -> None:
    def prepare(harness: LedgerHarness) -> None:
        harness.lead(ControllerRules(bill=Bill.USED))
        harness.budget("a", ["team-a"], period=HOURLY)
        harness.budget("b", ["nobody"])
        harness.pod("p1", "team-a")
        harness.reconcile(1000)
        report(harness, "p1", 1, 100)
        harness.reconcile(2540)
        report(harness, "p1", 2, 600)
        harness.reconcile(60)
        harness.budget("a", ["nobody"], period=HOURLY)
        harness.budget("b", ["team-a"])

    for _, harness in stages_cut(client, tmp_path, prepare):
        report(harness, "p1", 3, 600)
        harness.reconcile(600)
        harness.reconcile(10)
        month = reading.period_at(client, "b", NOON)
        assert month is not None
        found = reading.stored_amounts(client, "a", NOON), reading.stored_amounts(client, "b", month.start)
        assert [amounts["p1"].amount // GPU_SECOND for amounts in found] == [600, 0]


def test_pods_that_ended_are_billed_by_their_reports_though_the_leader_stays(client: CutRedis, tmp_path: Path) -> None:
    names = ["p1", "p2", "p3"]

    def prepare(harness: LedgerHarness) -> None:
        harness.lead(ControllerRules(bill=Bill.USED))
        harness.budget("a", ["team-a"], period=HOURLY)
        for uid in names:
            harness.pod(uid, "team-a")
        harness.reconcile()
        harness.pass_time(1000)
        for uid in names:
            report(harness, uid, 1, 100)
            harness.finish(harness.source_pod(uid))

    for _, harness in stages_cut(client, tmp_path, prepare):
        harness.reconcile()
        harness.reconcile(10)
        amounts = reading.stored_amounts(client, "a", NOON)
        assert {uid: amounts[uid].amount // GPU_SECOND for uid in names} == dict.fromkeys(names, 100)


@pytest.mark.parametrize("follows", [False, True])
def test_a_pod_whose_namespace_moves_back_after_a_broken_settlement_stays_on_record(
    client: CutRedis, tmp_path: Path, *, follows: bool
) -> None:
    def prepare(harness: LedgerHarness) -> None:
        harness.budget("a", ["team-a"])
        harness.budget("b", ["nobody"])
        harness.pod("p1", "team-a")
        harness.reconcile(10)
        harness.budget("a", ["nobody"])
        harness.budget("b", ["team-a"])
        harness.pass_time(10)

    for _, harness in stages_cut(client, tmp_path, prepare):
        harness.budget("a", ["team-a"])
        harness.budget("b", ["nobody"])
        harness.reconcile(10)
        account = next(account for account in reading.load_accounts(client, ["a"]) if account.name == "a")
        assert [session.uid for session in account.sessions] == ["p1"]
        if follows:
            harness.lead()
        harness.reconcile(30)
        harness.remove("p1")
        harness.reconcile(40)
        month = reading.period_at(client, "a", NOON)
        assert month is not None
        others = harness.spent("b", month.start) // GPU_SECOND
        check_books(harness, {("a", month.start): 100 - others, ("b", month.start): others})
