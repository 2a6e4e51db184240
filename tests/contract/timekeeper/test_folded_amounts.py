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
def stage(stage: LedgerHarness) -> LedgerHarness:
    stage.budget("a", ["team-a"], 1000)
    stage.lead()
    for uid in ("running", "ended", "gone"):
        stage.pod(uid, "team-a", core=10)
    stage.round()
    stage.pass_time(3600)
    stage.finish(stage.source_pod("ended"))
    stage.remove("gone")
    stage.round()
    return stage


def archive(stage: LedgerHarness) -> None:
    """What the leader does within an hour."""
    assert stage.keeper is not None
    Archivist(stage.client, stage.source, stage.keeper.books, stage.keeper.epoch, Retention()).archive(stage.now)


def pass_days(stage: LedgerHarness, days: int) -> None:
    for _ in range(days * 24):
        stage.round(3600)
        assert stage.keeper is not None
        stage.keeper.books.finalized = []  # checkpoints are written
        archive(stage)


def differences(stage: LedgerHarness) -> list[Difference]:
    around = AuditEnvironment(stage.client, lambda: None, lambda: stage.now, lambda _: False)
    return [*audit(around, AuditRequest(patience_seconds=0)).differences]


def sums(stage: LedgerHarness, period: int = MONTH) -> tuple[int, int, int]:
    """What a period has as gone, as folded, and as passed."""
    found = stage.client.hmget(KEYS.period(period), ["gone", "folded", "passed"])
    gone, folded, passed = (int(text or 0) for text in found)
    return gone, folded, passed


def test_the_amount_of_a_pod_that_is_gone_for_a_day_is_part_of_a_sum(stage: LedgerHarness) -> None:
    pass_days(stage, 1)
    assert {*stage.client.hkeys(KEYS.amounts(MONTH))} == {b"running", b"ended", b"gone"}
    pass_days(stage, 1)
    assert {*stage.client.hkeys(KEYS.amounts(MONTH))} == {b"running", b"ended"}
    cost = HOUR // 10**9 * 100_000
    assert sums(stage) == (cost, cost, 0)
    assert stage.spent("a") == 2 * cost + 49 * cost
    assert differences(stage) == []


def test_a_pod_that_is_still_there_keeps_its_amount_however_long_ago_it_ended(stage: LedgerHarness) -> None:
    pass_days(stage, 5)
    assert b"ended" in stage.client.hkeys(KEYS.amounts(MONTH))
    stage.remove("ended")
    stage.round(60)
    pass_days(stage, 2)
    assert stage.client.hkeys(KEYS.amounts(MONTH)) == [b"running"]
    stage.finish(stage.source_pod("running"))
    stage.round(60)
    assert differences(stage) == []


def test_a_pod_that_only_seemed_to_be_gone_goes_on_where_it_was(stage: LedgerHarness) -> None:
    hidden = stage.source_pod("running")
    stage.remove("running")
    stage.round(60)
    pass_days(stage, 1)
    assert b"@" in (stage.client.hget(KEYS.amounts(MONTH), "running") or b"")
    stage.write_pod(hidden)
    stage.lead()
    stage.round(60)
    stage.round(2 * 3600)
    assert b"@" not in (stage.client.hget(KEYS.amounts(MONTH), "running") or b"")
    pass_days(stage, 2)
    assert b"running" in stage.client.hkeys(KEYS.amounts(MONTH))
    lives = (stage.now - parse_start(stage)) // 10**9 * 100_000
    assert reading.stored_amounts(stage.client, "a", MONTH)["running"].amount == lives
    assert differences(stage) == []


def parse_start(stage: LedgerHarness) -> int:
    """When the running pod's session began."""
    assert stage.keeper is not None
    metered = stage.keeper.books.pods.sessions.get("running")
    assert metered is not None
    return metered.session.start


def test_sessions_that_went_on_when_a_period_ended_are_folded_in_it_once_they_are_over(stage: LedgerHarness) -> None:
    pass_days(stage, 20)
    february = MONTH + 31 * DAY
    stage.remove("running")
    stage.remove("ended")
    stage.round(60)
    pass_days(stage, 3)
    assert stage.client.hlen(KEYS.amounts(MONTH)) == 0
    assert stage.client.hlen(KEYS.amounts(february)) == 0
    gone, folded, passed = sums(stage)
    total = reading.period_totals(stage.client, "a", MONTH)
    assert total is not None
    assert (gone, folded + passed) == (folded, total.total)
    assert passed > 0
    assert differences(stage) == []


def test_the_next_leader_goes_on_with_what_was_noted_and_folds_once(stage: LedgerHarness) -> None:
    pass_days(stage, 1)
    stage.lead()
    stage.round(60)
    pass_days(stage, 1)
    before = sums(stage)
    stage.lead()
    stage.round(60)
    pass_days(stage, 1)
    assert sums(stage) == before
    assert before[1] > 0
    assert differences(stage) == []


@pytest.mark.parametrize("off", [1, 10**6])
@pytest.mark.parametrize("field", ["folded", "passed", "gone", "total"])
def test_a_sum_that_is_wrong_is_named(stage: LedgerHarness, field: str, off: int) -> None:
    pass_days(stage, 2)
    assert sums(stage)[1] > 0
    stage.client.hset(KEYS.period(MONTH), field, int(stage.client.hget(KEYS.period(MONTH), field) or 0) + off)
    figures = {found.figure for found in differences(stage)}
    assert figures & {Figure.FOLDED, Figure.GONE, Figure.SPENT}


def test_an_entry_that_is_wrong_is_named_whose_session_is_folded(stage: LedgerHarness) -> None:
    pass_days(stage, 2)
    fields = {"k": "close", "p": str(MONTH), "a": "1", "t": "1", "u": "gone", "n": "", "d": "", "x": ""}
    stage.client.xadd(KEYS.ledger, fields)
    assert Figure.FOLDED in {found.figure for found in differences(stage)}
