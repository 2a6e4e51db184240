from __future__ import annotations

from typing import Any

from tests.support.ledger.harness import NOON, LedgerHarness, published
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.audit.cluster import read_cluster
from timekeeper.controller.report.status_writer import OrderAnswers, StatusWriter
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.domain.timestamps import HOUR, parse_instant
from timekeeper.ledger import reading
from timekeeper.ledger.usage import accounts_usage


def corrections(harness: LedgerHarness) -> list[tuple[int, str, str, int, str]]:
    page = reading.ledger_page(harness.client, "a", "", 1000)
    return [
        (entry.period, entry.pod, entry.namespace, entry.amount, entry.note)
        for entry in page
        if entry.kind == "correction"
    ]


def status(harness: LedgerHarness, name: str) -> dict[str, Any]:
    assert harness.reconciler is not None
    OrderAnswers(harness.source, harness.reconciler.books).write(harness.now)
    harness.source.refresh()
    (item,) = [item for item in harness.source.mirrors.corrections.items() if item["metadata"]["name"] == name]
    found: dict[str, Any] = item.get("status") or {}
    return found


def test_a_correction_sets_right_what_the_present_period_has_spent_and_says_who_and_why(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], "0.01")
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(36)
    assert published(harness, "a").state == "over"
    harness.correct("refund", "a", "-0.004", harness.now, namespace="team-a", requestedBy="finance")
    harness.reconcile(0, full=False)
    month = published(harness, "a").period_start
    assert harness.spent("a") == 36 * GPU_SECOND - GPU_HOUR * 4 // 1000
    assert published(harness, "a").state == "open"
    assert corrections(harness) == [(month, "refund", "team-a", -GPU_HOUR * 4 // 1000, "the node had failed (finance)")]
    shown = status(harness, "refund")
    assert (shown["applied"], shown["microGPUSeconds"]) == (True, str(-GPU_HOUR * 4 // 1000))
    assert shown["period"] == "2026-01-01T00:00:00Z"


def test_a_date_is_its_midnight_in_utc_which_lies_in_the_period_before_where_the_zone_is_west_of_it(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], 100, period={"every": "day", "timeZone": "America/New_York"})
    harness.pod("p1", "team-a")
    harness.reconcile()
    for _ in range(20):
        harness.reconcile(3600)
    harness.correct("of-16-january", "a", "-1", parse_instant("2026-01-16T00:00:00Z"))
    harness.correct("of-its-first-hour", "a", "-1", parse_instant("2026-01-16T05:00:00Z"))
    harness.reconcile(1)
    assert status(harness, "of-16-january")["period"] == "2026-01-15T05:00:00Z"
    assert status(harness, "of-its-first-hour")["period"] == "2026-01-16T05:00:00Z"


def test_a_correction_is_compared_with_what_running_pods_have_spent_after_the_store_was_emptied(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(7200)
    harness.client.flushall()
    harness.correct("refund", "a", -1, harness.now)
    harness.correct("too-much", "a", -9, harness.now)
    harness.lead()
    harness.reconcile()
    harness.reconcile()
    assert harness.spent("a") == GPU_HOUR
    assert status(harness, "refund")["applied"] is True
    assert "no less than -1," in status(harness, "too-much")["conditions"][0]["message"]


def test_a_correction_of_a_closed_period_leaves_the_present_one_alone_but_for_what_it_was_left(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], 1, period={"every": "hour"}, rollover={"gpuHours": 1})
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(3600)
    harness.reconcile(1800)
    assert published(harness, "a").granted == 0
    harness.correct("refund", "a", "-0.5", NOON)
    harness.reconcile(1)
    harness.reconcile(1)
    assert harness.spent("a", NOON) == GPU_HOUR // 2
    assert harness.spent("a", NOON + HOUR) == 1802 * GPU_SECOND
    assert published(harness, "a").granted == GPU_HOUR // 2
    harness.reconcile(2 * 3600)
    harness.correct("again", "a", "0.25", NOON)
    harness.reconcile(1)
    assert harness.spent("a", NOON) == GPU_HOUR * 3 // 4
    assert [entry[0] for entry in corrections(harness)] == [NOON, NOON]


def test_a_correction_is_made_once_under_every_leader_and_again_where_the_store_was_lost(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    harness.reconcile()
    harness.correct("extra", "a", 2, harness.now)
    harness.reconcile(1)
    harness.lead()
    harness.reconcile(1)
    assert harness.spent("a") == 2 * GPU_HOUR
    harness.client.flushall()
    harness.lead()
    harness.reconcile(1)
    assert harness.spent("a") == 2 * GPU_HOUR


def test_a_correction_that_cannot_be_applied_says_why_and_stops_no_other(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.reconcile()
    harness.correct("before", "a", 1, NOON - 400 * 24 * HOUR)
    harness.correct("too-much", "a", -3, harness.now)
    harness.correct("nonsense", "a", 0, harness.now)
    harness.correct("elsewhere", "a", 1, harness.now, namespace="taem-a")
    harness.correct("good", "a", 1, harness.now)
    harness.correct("of-nobody", "b", 1, harness.now)
    harness.reconcile(1)
    harness.reconcile(1)
    said = {name: status(harness, name) for name in ("before", "too-much", "nonsense", "elsewhere")}
    assert not any(found["applied"] for found in said.values())
    reasons = {name: found["conditions"][0]["message"] for name, found in said.items()}
    assert "no period of this budget" in reasons["before"]
    assert reasons["too-much"] == "spec.gpuHours: no less than -1, as no more was spent in this period"
    assert "spec.gpuHours" in reasons["nonsense"]
    assert "a has never paid for the namespace 'taem-a'" in reasons["elsewhere"]
    assert status(harness, "good")["applied"] is True
    assert status(harness, "of-nobody") == {}


def test_a_session_that_ended_earlier_than_was_charged_gives_back_what_a_correction_had_given_back_before(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    pod = harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(36)
    harness.correct("refund", "a", "-0.01", harness.now)
    harness.reconcile()
    assert harness.spent("a") == 0
    harness.finish(pod, seconds_ago=20)
    harness.reconcile()
    assert harness.spent("a") == -20 * GPU_SECOND
    assert published(harness, "a").spent == -20 * GPU_SECOND
    harness.remove("p1")
    harness.pod("p2", "team-a")
    harness.reconcile(30)
    assert harness.spent("a") == 10 * GPU_SECOND
    around = AuditEnvironment(harness.client, lambda: None, lambda: harness.now, lambda _: False)
    assert audit(around, AuditRequest(patience_seconds=0)).differences == ()


def test_spending_below_nothing_is_shown_as_it_is_and_the_auditor_agrees(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 1, period={"every": "hour"}, rollover={"gpuHours": 1})
    pod = harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(36)
    harness.correct("refund", "a", "-0.01", harness.now)
    harness.reconcile()
    harness.finish(pod, seconds_ago=20)
    harness.reconcile()
    reconciler = harness.reconciler
    assert reconciler is not None
    StatusWriter(harness.source, reconciler.books).write(harness.now)
    harness.source.refresh()
    (shown,) = [item["status"] for item in harness.source.mirrors.budgets.items()]
    assert shown["spent"] == {"gpuHours": "-0.005556", "microGPUSeconds": str(-20 * GPU_SECOND)}
    assert shown["remaining"]["microGPUSeconds"] == str(GPU_HOUR + 20 * GPU_SECOND)
    around = AuditEnvironment(
        harness.client, lambda: read_cluster(harness.source.mirrors, None), lambda: harness.now, lambda _: False
    )
    assert audit(around, AuditRequest(patience_seconds=0)).differences == ()
    harness.reconcile(3600)
    assert published(harness, "a").granted == GPU_HOUR


def test_one_that_was_applied_is_applied_again_where_the_store_was_lost_before_anything_is_settled(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(3600)
    harness.correct("refund", "a", "-0.5", harness.now)
    harness.reconcile(0)
    assert status(harness, "refund")["applied"] is True
    harness.client.flushall()
    harness.lead()
    harness.reconcile(1)
    assert harness.spent("a") == GPU_HOUR // 2 + GPU_SECOND


def test_one_that_a_leader_has_refused_is_refused_by_those_who_follow_whatever_is_spent_since(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.correct("too-much", "a", -1, harness.now)
    harness.reconcile(10)
    assert status(harness, "too-much")["conditions"][0]["reason"] == "Refused"
    harness.reconcile(7200)
    harness.lead()
    harness.reconcile(1)
    assert harness.spent("a") == 7211 * GPU_SECOND
    assert status(harness, "too-much")["applied"] is False


def test_a_closed_period_that_is_corrected_leaves_what_its_own_allowance_left(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 1, period={"every": "hour"}, rollover={"gpuHours": 1})
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(1800)
    harness.remove("p1")
    harness.reconcile()
    harness.reconcile(1801)
    assert published(harness, "a").granted == GPU_HOUR // 2
    harness.budget("a", ["team-a"], 10, period={"every": "hour"}, rollover={"gpuHours": 20})
    harness.reconcile(1)
    harness.lead()
    harness.correct("refund", "a", "-0.25", NOON)
    harness.reconcile(1)
    harness.reconcile(1)
    assert published(harness, "a").granted == GPU_HOUR * 3 // 4


def test_an_ended_pods_cost_counts_once_in_the_balance_of_a_period_that_is_corrected(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], 10, period={"every": "hour"}, rollover={"gpuHours": 20})
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(3600)
    harness.reconcile(600)
    harness.finish(harness.source_pod("p1"))
    harness.reconcile()
    harness.correct("refund", "a", "-0.5", NOON)
    harness.reconcile()
    harness.reconcile(60)
    assert harness.spent("a", NOON) == GPU_HOUR // 2
    assert published(harness, "a").granted == GPU_HOUR * 19 // 2


def test_usage_and_the_audit_count_it(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.correct("extra", "a", 2, harness.now, namespace="team-a")
    harness.reconcile(10)
    harness.remove("p1")
    harness.reconcile(1)
    (usage,) = accounts_usage(harness.client, ["a"], {})
    rows = [row for row in usage.rows() if row.dimensions.namespace == "team-a"]
    assert sum(row.figures.billed for row in rows) == 2 * GPU_HOUR + 11 * GPU_SECOND
    around = AuditEnvironment(harness.client, lambda: None, lambda: harness.now, lambda _: False)
    assert audit(around, AuditRequest(patience_seconds=0)).differences == ()


def test_one_of_a_time_to_come_waits_for_it(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.reconcile()
    harness.correct("later", "a", 1, harness.now + HOUR)
    harness.reconcile(1)
    assert corrections(harness) == []
    harness.reconcile(3600)
    assert len(corrections(harness)) == 1
