from __future__ import annotations

from typing import Any

from tests.support.ledger.harness import NOON, LedgerHarness, published
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.audit.cluster import read_cluster
from timekeeper.controller.report.order_answers import OrderAnswers
from timekeeper.controller.report.status_writer import StatusWriter
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger import reading
from timekeeper.ledger.usage import accounts_usage


def corrections(stage: LedgerHarness) -> list[tuple[int, str, str, int, str]]:
    page = reading.ledger_page(stage.client, "a", "", 1000)
    return [
        (entry.period, entry.pod, entry.namespace, entry.amount, entry.note)
        for entry in page
        if entry.kind == "correction"
    ]


def status(stage: LedgerHarness, name: str) -> dict[str, Any]:
    assert stage.keeper is not None
    OrderAnswers(stage.source, stage.keeper.books).write(stage.now)
    stage.source.refresh()
    (item,) = [item for item in stage.source.mirrors.corrections.items() if item["metadata"]["name"] == name]
    found: dict[str, Any] = item.get("status") or {}
    return found


def test_a_correction_sets_right_what_the_present_period_has_spent_and_says_who_and_why(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], "0.01")
    stage.pod("p1", "team-a")
    stage.round()
    stage.round(36)
    assert published(stage, "a").state == "over"
    stage.correct("refund", "a", "-0.004", stage.now, namespace="team-a", requestedBy="finance")
    stage.round(0, full=False)
    month = published(stage, "a").period_start
    assert stage.spent("a") == 36 * GPU_SECOND - GPU_HOUR * 4 // 1000
    assert published(stage, "a").state == "open"
    assert corrections(stage) == [(month, "refund", "team-a", -GPU_HOUR * 4 // 1000, "the node had failed (finance)")]
    shown = status(stage, "refund")
    assert (shown["applied"], shown["microGPUSeconds"]) == (True, str(-GPU_HOUR * 4 // 1000))
    assert shown["period"] == "2026-01-01T00:00:00Z"


def test_a_correction_of_a_closed_period_leaves_the_present_one_alone_but_for_what_it_was_left(
    stage: LedgerHarness,
) -> None:
    stage.budget("a", ["team-a"], 1, period={"every": "hour"}, rollover={"gpuHours": 1})
    stage.pod("p1", "team-a")
    stage.round()
    stage.round(3600)
    stage.round(1800)
    assert published(stage, "a").granted == 0
    stage.correct("refund", "a", "-0.5", NOON)
    stage.round(1)
    stage.round(1)
    assert stage.spent("a", NOON) == GPU_HOUR // 2
    assert stage.spent("a", NOON + HOUR) == 1802 * GPU_SECOND
    assert published(stage, "a").granted == GPU_HOUR // 2
    stage.round(2 * 3600)
    stage.correct("again", "a", "0.25", NOON)
    stage.round(1)
    assert stage.spent("a", NOON) == GPU_HOUR * 3 // 4
    assert [entry[0] for entry in corrections(stage)] == [NOON, NOON]


def test_a_correction_is_made_once_under_every_leader_and_again_where_the_store_was_lost(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.round()
    stage.correct("extra", "a", 2, stage.now)
    stage.round(1)
    stage.lead()
    stage.round(1)
    assert stage.spent("a") == 2 * GPU_HOUR
    stage.client.flushall()
    stage.lead()
    stage.round(1)
    assert stage.spent("a") == 2 * GPU_HOUR


def test_what_cannot_be_corrected_says_why_and_stops_nobody(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.round()
    stage.correct("before", "a", 1, NOON - 400 * 24 * HOUR)
    stage.correct("too-much", "a", -3, stage.now)
    stage.correct("nonsense", "a", 0, stage.now)
    stage.correct("elsewhere", "a", 1, stage.now, namespace="taem-a")
    stage.correct("good", "a", 1, stage.now)
    stage.correct("of-nobody", "b", 1, stage.now)
    stage.round(1)
    stage.round(1)
    said = {name: status(stage, name) for name in ("before", "too-much", "nonsense", "elsewhere")}
    assert not any(found["applied"] for found in said.values())
    reasons = {name: found["conditions"][0]["message"] for name, found in said.items()}
    assert "no period of this budget" in reasons["before"]
    assert reasons["too-much"] == "spec.gpuHours: no less than -1, as no more was spent in this period"
    assert "spec.gpuHours" in reasons["nonsense"]
    assert "a has never paid for the namespace 'taem-a'" in reasons["elsewhere"]
    assert status(stage, "good")["applied"] is True
    assert status(stage, "of-nobody") == {}


def test_a_session_that_ended_earlier_than_was_charged_gives_back_what_a_correction_had_given_back_before(
    stage: LedgerHarness,
) -> None:
    stage.budget("a", ["team-a"])
    pod = stage.pod("p1", "team-a")
    stage.round()
    stage.round(36)
    stage.correct("refund", "a", "-0.01", stage.now)
    stage.round()
    assert stage.spent("a") == 0
    stage.finish(pod, seconds_ago=20)
    stage.round()
    assert stage.spent("a") == -20 * GPU_SECOND
    assert published(stage, "a").spent == -20 * GPU_SECOND
    stage.remove("p1")
    stage.pod("p2", "team-a")
    stage.round(30)
    assert stage.spent("a") == 10 * GPU_SECOND
    around = AuditEnvironment(stage.client, lambda: None, lambda: stage.now, lambda _: False)
    assert audit(around, AuditRequest(patience_seconds=0)).differences == ()


def test_spending_below_nothing_is_shown_as_it_is_and_the_auditor_agrees(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], 1, period={"every": "hour"}, rollover={"gpuHours": 1})
    pod = stage.pod("p1", "team-a")
    stage.round()
    stage.round(36)
    stage.correct("refund", "a", "-0.01", stage.now)
    stage.round()
    stage.finish(pod, seconds_ago=20)
    stage.round()
    keeper = stage.keeper
    assert keeper is not None
    StatusWriter(stage.source, keeper.books).write(stage.now)
    stage.source.refresh()
    (shown,) = [item["status"] for item in stage.source.mirrors.budgets.items()]
    assert shown["spent"] == {"gpuHours": "-0.005556", "microGPUSeconds": str(-20 * GPU_SECOND)}
    assert shown["remaining"]["microGPUSeconds"] == str(GPU_HOUR + 20 * GPU_SECOND)
    around = AuditEnvironment(
        stage.client, lambda: read_cluster(stage.source.mirrors, None), lambda: stage.now, lambda _: False
    )
    assert audit(around, AuditRequest(patience_seconds=0)).differences == ()
    stage.round(3600)
    assert published(stage, "a").granted == GPU_HOUR


def test_one_that_was_applied_is_applied_again_where_the_store_was_lost_before_anything_is_settled(
    stage: LedgerHarness,
) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.round()
    stage.round(3600)
    stage.correct("refund", "a", "-0.5", stage.now)
    stage.round(0)
    assert status(stage, "refund")["applied"] is True
    stage.client.flushall()
    stage.lead()
    stage.round(1)
    assert stage.spent("a") == GPU_HOUR // 2 + GPU_SECOND


def test_one_that_a_leader_has_refused_is_refused_by_those_who_follow_whatever_is_spent_since(
    stage: LedgerHarness,
) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.round()
    stage.correct("too-much", "a", -1, stage.now)
    stage.round(10)
    assert status(stage, "too-much")["conditions"][0]["reason"] == "Refused"
    stage.round(7200)
    stage.lead()
    stage.round(1)
    assert stage.spent("a") == 7211 * GPU_SECOND
    assert status(stage, "too-much")["applied"] is False


def test_a_closed_period_that_is_corrected_leaves_what_its_own_allowance_left(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], 1, period={"every": "hour"}, rollover={"gpuHours": 1})
    stage.pod("p1", "team-a")
    stage.round()
    stage.round(1800)
    stage.remove("p1")
    stage.round()
    stage.round(1801)
    assert published(stage, "a").granted == GPU_HOUR // 2
    stage.budget("a", ["team-a"], 10, period={"every": "hour"}, rollover={"gpuHours": 20})
    stage.round(1)
    stage.lead()
    stage.correct("refund", "a", "-0.25", NOON)
    stage.round(1)
    stage.round(1)
    assert published(stage, "a").granted == GPU_HOUR * 3 // 4


def test_what_an_ended_pod_cost_counts_once_in_the_balance_of_a_period_that_is_corrected(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], 10, period={"every": "hour"}, rollover={"gpuHours": 20})
    stage.pod("p1", "team-a")
    stage.round()
    stage.round(3600)
    stage.round(600)
    stage.finish(stage.source_pod("p1"))
    stage.round()
    stage.correct("refund", "a", "-0.5", NOON)
    stage.round()
    stage.round(60)
    assert stage.spent("a", NOON) == GPU_HOUR // 2
    assert published(stage, "a").granted == GPU_HOUR * 19 // 2


def test_usage_and_the_audit_count_it(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.round()
    stage.correct("extra", "a", 2, stage.now, namespace="team-a")
    stage.round(10)
    stage.remove("p1")
    stage.round(1)
    (usage,) = accounts_usage(stage.client, ["a"], {})
    rows = [row for row in usage.rows() if row.dimensions.namespace == "team-a"]
    assert sum(row.figures.billed for row in rows) == 2 * GPU_HOUR + 11 * GPU_SECOND
    around = AuditEnvironment(stage.client, lambda: None, lambda: stage.now, lambda _: False)
    assert audit(around, AuditRequest(patience_seconds=0)).differences == ()


def test_one_of_a_time_to_come_waits_for_it(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.round()
    stage.correct("later", "a", 1, stage.now + HOUR)
    stage.round(1)
    assert corrections(stage) == []
    stage.round(3600)
    assert len(corrections(stage)) == 1
