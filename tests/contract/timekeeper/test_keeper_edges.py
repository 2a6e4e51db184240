"""The edges of what is metered: budgets that go, grants and pods that nobody saw in time, a loss of many at once."""

from __future__ import annotations

import json

import pytest

from tests.support.ledger.harness import MONTH, NOON, LedgerHarness, published, report
from timekeeper.api.budget_answers import budget_answer
from timekeeper.api.figures import Book
from timekeeper.controller.report.status_writer import StatusWriter
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND
from timekeeper.domain.timestamps import HOUR, format_instant, to_datetime
from timekeeper.ledger import keys, reading


def test_a_pod_that_failed_before_anybody_saw_it_is_charged_to_the_last_change_that_it_reports(
    stage: LedgerHarness,
) -> None:
    stage.budget("a", ["team-a"])
    refused = stage.pod("refused", "team-a")
    evicted = stage.pod("evicted", "team-a")
    for pod in (refused, evicted):
        pod["status"]["phase"] = "Failed"
    disrupted = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": format_instant(NOON + 30 * SECOND)}
    evicted["status"]["conditions"].append(disrupted)
    stage.write_pod(refused)
    stage.write_pod(evicted)
    stage.now += 7 * 24 * HOUR
    stage.round()
    assert stage.spent("a") == 30 * GPU_SECOND


def test_a_grant_made_just_after_a_period_began_by_the_servers_clock_adds_to_that_period(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.round(3599)
    stage.grant("g", "a", 5, created=NOON + HOUR)
    stage.round(0.5)
    stage.round(0.5)
    keeper = stage.keeper
    assert keeper is not None
    standings = keeper.books.accounts["a"].period_totals
    assert (standings[NOON].granted, standings[NOON + HOUR].granted) == (0, 5 * GPU_HOUR)


def test_a_budget_that_was_deleted_is_listed_no_more(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.budget("b", ["team-b"])
    stage.pod("p1", "team-a")
    stage.round(1)
    stage.budgets = stage.budgets[1:]
    stage.write_budgets()
    stage.round(1)
    assert [found.name for found in Book(stage.client, lambda: stage.now).budgets("", 10)] == ["b"]


def test_a_loss_of_very_many_accounts_is_shown_beside_a_few_of_them(stage: LedgerHarness) -> None:
    for number in range(60):
        stage.budgets.append(
            {
                "kind": "GPUBudget",
                "metadata": {"name": f"b{number}", "uid": f"u{number}"},
                "spec": {"namespaces": [f"n{number}"], "allowance": {"gpuHours": 1}, "period": {"every": "month"}},
            }
        )
    stage.write_budgets()
    stage.round()
    stage.client.flushall()
    with pytest.raises(RuntimeError):
        stage.round()
    stage.round()
    lines = (stage.folder / "events.jsonl").read_text().splitlines()
    assert {json.loads(line)["reason"] for line in lines} == {"LedgerRestored"}
    assert len(lines) == 20


def test_what_a_pod_reported_is_not_kept_for_weeks_once_it_is_gone(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.round(1)
    report(stage, "p1", 1, 0)
    stage.round(1)
    assert stage.client.ttl(keys.report("p1")) > 30 * 86400
    stage.remove("p1")
    stage.round(1)
    assert 0 < stage.client.ttl(keys.report("p1")) <= 86400


def test_a_folder_keeps_the_checkpoint_through_a_restart_with_an_emptied_redis(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("gone", "team-a")
    stage.pod("runs", "team-a")
    stage.round()
    stage.remove("gone")
    stage.round(10)
    assert stage.keeper is not None
    StatusWriter(stage.source, stage.keeper.books).write(stage.now)
    stage.client.flushall()
    stage.lead()
    stage.round(10)
    assert stage.spent("a") == (10 + 20) * GPU_SECOND


def test_what_a_namespace_spent_before_it_moved_is_in_the_ledger_though_its_pod_was_first_settled_after(
    stage: LedgerHarness,
) -> None:
    stage.budget("a", ["team-a"])
    stage.budget("b", ["team-b"])
    stage.round()
    stage.pod("p1", "team-a")
    stage.pass_time(10)
    stage.budget("a", ["nobody"])
    stage.budget("b", ["team-b", "team-a"])
    stage.round()
    stage.round(5)
    assert (stage.spent("a"), stage.spent("b")) == (10 * GPU_SECOND, 5 * GPU_SECOND)
    (amount,) = reading.stored_amounts(stage.client, "a", MONTH).values()
    assert amount.posted == amount.amount


def test_a_budget_in_its_grace_shows_how_far_that_reaches_and_no_other_does(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], "0.5", grace={"gpuHours": 1, "duration": "2h"})
    stage.pod("p1", "team-a")
    stage.round()
    assert budget_answer(published(stage, "a"), stage.now).grace is None
    exhausted_at = stage.now + 1800 * SECOND
    stage.round(1800)
    stage.round(900)
    shown = budget_answer(published(stage, "a"), stage.now).grace
    assert shown is not None
    assert shown.remaining is not None
    assert shown.ends is not None
    left = GPU_HOUR // 2 + GPU_HOUR - published(stage, "a").spent
    assert int(shown.remaining.microGPUSeconds) == left > 0
    assert shown.ends == to_datetime(exhausted_at + 2 * HOUR)
    stage.round(7200)
    assert published(stage, "a").state == "over"
    assert budget_answer(published(stage, "a"), stage.now).grace is None
