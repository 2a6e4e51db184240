"""The edges of what is metered: budgets that go, grants and pods that were not seen in time, a loss of many at once."""

from __future__ import annotations

import json

import pytest

from tests.support.ledger.harness import MONTH, NOON, LedgerHarness, published, report
from timekeeper.api.figures import Book
from timekeeper.api.models import budget_answer
from timekeeper.controller.report.status_writer import StatusWriter
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND
from timekeeper.domain.timestamps import HOUR, format_instant, to_datetime
from timekeeper.ledger import keys, reading


def test_a_pod_that_failed_before_anybody_saw_it_is_charged_to_the_last_change_that_it_reports(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    refused = harness.pod("refused", "team-a")
    evicted = harness.pod("evicted", "team-a")
    for pod in (refused, evicted):
        pod["status"]["phase"] = "Failed"
    disrupted = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": format_instant(NOON + 30 * SECOND)}
    evicted["status"]["conditions"].append(disrupted)
    harness.write_pod(refused)
    harness.write_pod(evicted)
    harness.now += 7 * 24 * HOUR
    harness.reconcile()
    assert harness.spent("a") == 30 * GPU_SECOND


def test_a_grant_made_just_after_a_period_began_by_the_servers_clock_adds_to_that_period(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.reconcile(3599)
    harness.grant("g", "a", 5, created=NOON + HOUR)
    harness.reconcile(0.5)
    harness.reconcile(0.5)
    reconciler = harness.reconciler
    assert reconciler is not None
    standings = reconciler.books.accounts["a"].period_totals
    assert (standings[NOON].granted, standings[NOON + HOUR].granted) == (0, 5 * GPU_HOUR)


def test_a_budget_that_was_deleted_is_listed_no_more(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.budget("b", ["team-b"])
    harness.pod("p1", "team-a")
    harness.reconcile(1)
    harness.budgets = harness.budgets[1:]
    harness.write_budgets()
    harness.reconcile(1)
    assert [found.name for found in Book(harness.client, lambda: harness.now).budgets("", 10)] == ["b"]


def test_a_loss_of_very_many_accounts_is_shown_beside_a_few_of_them(harness: LedgerHarness) -> None:
    for number in range(60):
        harness.budgets.append(
            {
                "kind": "GPUBudget",
                "metadata": {"name": f"b{number}", "uid": f"u{number}"},
                "spec": {"namespaces": [f"n{number}"], "allowance": {"gpuHours": 1}, "period": {"every": "month"}},
            }
        )
    harness.write_budgets()
    harness.reconcile()
    harness.client.flushall()
    with pytest.raises(RuntimeError):
        harness.reconcile()
    harness.reconcile()
    lines = (harness.folder / "events.jsonl").read_text().splitlines()
    assert {json.loads(line)["reason"] for line in lines} == {"LedgerRestored"}
    assert len(lines) == 20


def test_a_pods_reports_are_not_kept_for_weeks_once_it_is_deleted(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile(1)
    report(harness, "p1", 1, 0)
    harness.reconcile(1)
    assert harness.client.ttl(keys.report("p1")) > 30 * 86400
    harness.remove("p1")
    harness.reconcile(1)
    assert 0 < harness.client.ttl(keys.report("p1")) <= 86400


def test_a_folder_keeps_the_checkpoint_through_a_restart_with_an_emptied_redis(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("gone", "team-a")
    harness.pod("runs", "team-a")
    harness.reconcile()
    harness.remove("gone")
    harness.reconcile(10)
    assert harness.reconciler is not None
    StatusWriter(harness.source, harness.reconciler.books).write(harness.now)
    harness.client.flushall()
    harness.lead()
    harness.reconcile(10)
    assert harness.spent("a") == (10 + 20) * GPU_SECOND


def test_a_namespaces_spending_before_it_moved_is_in_the_ledger_though_its_pod_was_first_settled_after(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    harness.budget("b", ["team-b"])
    harness.reconcile()
    harness.pod("p1", "team-a")
    harness.pass_time(10)
    harness.budget("a", ["nobody"])
    harness.budget("b", ["team-b", "team-a"])
    harness.reconcile()
    harness.reconcile(5)
    assert (harness.spent("a"), harness.spent("b")) == (10 * GPU_SECOND, 5 * GPU_SECOND)
    (amount,) = reading.stored_amounts(harness.client, "a", MONTH).values()
    assert amount.posted == amount.amount


def test_a_budget_in_its_grace_shows_how_far_that_reaches_and_no_other_does(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], "0.5", grace={"gpuHours": 1, "duration": "2h"})
    harness.pod("p1", "team-a")
    harness.reconcile()
    assert budget_answer(published(harness, "a"), harness.now).grace is None
    exhausted_at = harness.now + 1800 * SECOND
    harness.reconcile(1800)
    harness.reconcile(900)
    shown = budget_answer(published(harness, "a"), harness.now).grace
    assert shown is not None
    assert shown.remaining is not None
    assert shown.ends is not None
    left = GPU_HOUR // 2 + GPU_HOUR - published(harness, "a").spent
    assert int(shown.remaining.microGPUSeconds) == left > 0
    assert shown.ends == to_datetime(exhausted_at + 2 * HOUR)
    harness.reconcile(7200)
    assert published(harness, "a").state == "over"
    assert budget_answer(published(harness, "a"), harness.now).grace is None
