"""Amounts of sessions that are over for good are folded into sums of their period, also of the open one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.ledger.harness import MONTH, LedgerHarness
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.audit.difference import Figure
from timekeeper.controller.archive import Archivist
from timekeeper.domain.timestamps import DAY, HOUR
from timekeeper.domain.windows import Retention
from timekeeper.ledger import keys, reading

if TYPE_CHECKING:
    from timekeeper.audit.difference import Difference

KEYS = keys.AccountKeys("a")


@pytest.fixture
def harness(harness: LedgerHarness) -> LedgerHarness:
    harness.budget("a", ["team-a"], 1000)
    harness.lead()
    for uid in ("running", "ended", "gone"):
        harness.pod(uid, "team-a", core=10)
    harness.reconcile()
    harness.pass_time(3600)
    harness.finish(harness.source_pod("ended"))
    harness.remove("gone")
    harness.reconcile()
    return harness


def archive(harness: LedgerHarness) -> None:
    """Runs the leader's hourly archiving."""
    assert harness.reconciler is not None
    Archivist(
        harness.client, harness.source, harness.reconciler.books, harness.reconciler.fencing_token, Retention()
    ).archive(harness.now)


def pass_days(harness: LedgerHarness, days: int) -> None:
    for _ in range(days * 24):
        harness.reconcile(3600)
        assert harness.reconciler is not None
        harness.reconciler.books.finalized = []  # checkpoints are written
        archive(harness)


def differences(harness: LedgerHarness) -> list[Difference]:
    around = AuditEnvironment(harness.client, lambda: None, lambda: harness.now, lambda _: False)
    return [*audit(around, AuditRequest(patience_seconds=0)).differences]


def sums(harness: LedgerHarness, period: int = MONTH) -> tuple[int, int, int]:
    """Returns a period's stored sums `gone`, `folded` and `passed`."""
    found = harness.client.hmget(KEYS.period(period), ["gone", "folded", "passed"])
    gone, folded, passed = (int(text or 0) for text in found)
    return gone, folded, passed


def test_the_amount_of_a_pod_that_is_gone_for_a_day_is_part_of_a_sum(harness: LedgerHarness) -> None:
    pass_days(harness, 1)
    assert {*harness.client.hkeys(KEYS.amounts(MONTH))} == {b"running", b"ended", b"gone"}
    pass_days(harness, 1)
    assert {*harness.client.hkeys(KEYS.amounts(MONTH))} == {b"running", b"ended"}
    cost = HOUR // 10**9 * 100_000
    assert sums(harness) == (cost, cost, 0)
    assert harness.spent("a") == 2 * cost + 49 * cost
    assert differences(harness) == []


def test_a_pod_that_is_still_there_keeps_its_amount_however_long_ago_it_ended(harness: LedgerHarness) -> None:
    pass_days(harness, 5)
    assert b"ended" in harness.client.hkeys(KEYS.amounts(MONTH))
    harness.remove("ended")
    harness.reconcile(60)
    pass_days(harness, 2)
    assert harness.client.hkeys(KEYS.amounts(MONTH)) == [b"running"]
    harness.finish(harness.source_pod("running"))
    harness.reconcile(60)
    assert differences(harness) == []


def test_a_pod_that_only_seemed_to_be_gone_goes_on_where_it_was(harness: LedgerHarness) -> None:
    hidden = harness.source_pod("running")
    harness.remove("running")
    harness.reconcile(60)
    pass_days(harness, 1)
    assert b"@" in (harness.client.hget(KEYS.amounts(MONTH), "running") or b"")
    harness.write_pod(hidden)
    harness.lead()
    harness.reconcile(60)
    harness.reconcile(2 * 3600)
    assert b"@" not in (harness.client.hget(KEYS.amounts(MONTH), "running") or b"")
    pass_days(harness, 2)
    assert b"running" in harness.client.hkeys(KEYS.amounts(MONTH))
    lives = (harness.now - parse_start(harness)) // 10**9 * 100_000
    assert reading.stored_amounts(harness.client, "a", MONTH)["running"].amount == lives
    assert differences(harness) == []


def parse_start(harness: LedgerHarness) -> int:
    """The instant at which the running pod's session began."""
    assert harness.reconciler is not None
    metered = harness.reconciler.books.pods.sessions.get("running")
    assert metered is not None
    return metered.session.start


def test_sessions_that_went_on_when_a_period_ended_are_folded_in_it_once_they_are_over(harness: LedgerHarness) -> None:
    pass_days(harness, 20)
    february = MONTH + 31 * DAY
    harness.remove("running")
    harness.remove("ended")
    harness.reconcile(60)
    pass_days(harness, 3)
    assert harness.client.hlen(KEYS.amounts(MONTH)) == 0
    assert harness.client.hlen(KEYS.amounts(february)) == 0
    gone, folded, passed = sums(harness)
    total = reading.period_totals(harness.client, "a", MONTH)
    assert total is not None
    assert (gone, folded + passed) == (folded, total.total)
    assert passed > 0
    assert differences(harness) == []


def test_the_next_leader_goes_on_with_what_was_noted_and_folds_once(harness: LedgerHarness) -> None:
    pass_days(harness, 1)
    harness.lead()
    harness.reconcile(60)
    pass_days(harness, 1)
    before = sums(harness)
    harness.lead()
    harness.reconcile(60)
    pass_days(harness, 1)
    assert sums(harness) == before
    assert before[1] > 0
    assert differences(harness) == []


@pytest.mark.parametrize("off", [1, 10**6])
@pytest.mark.parametrize("field", ["folded", "passed", "gone", "total"])
def test_a_sum_that_is_wrong_is_named(harness: LedgerHarness, field: str, off: int) -> None:
    pass_days(harness, 2)
    assert sums(harness)[1] > 0
    harness.client.hset(KEYS.period(MONTH), field, int(harness.client.hget(KEYS.period(MONTH), field) or 0) + off)
    figures = {found.figure for found in differences(harness)}
    assert figures & {Figure.FOLDED, Figure.FINALIZED, Figure.SPENT}


def test_an_entry_that_is_wrong_is_named_whose_session_is_folded(harness: LedgerHarness) -> None:
    pass_days(harness, 2)
    fields = {"k": "close", "p": str(MONTH), "a": "1", "t": "1", "u": "gone", "n": "", "d": "", "x": ""}
    harness.client.xadd(KEYS.ledger, fields)
    assert Figure.FOLDED in {found.figure for found in differences(harness)}
