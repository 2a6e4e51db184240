from __future__ import annotations

import pytest

from tests.support.ledger.harness import MONTH, NOON, LedgerHarness, published, state_answer
from timekeeper.controller.reconcile import settle_accounts
from timekeeper.controller.reconcile.context import ReconcileContext
from timekeeper.controller.state.observing import Clocks
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND
from timekeeper.domain.timestamps import HOUR, format_instant, parse_instant
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import FencedError


def kinds(harness: LedgerHarness, account: str) -> list[tuple[str, int]]:
    return [(entry.kind, entry.amount) for entry in reading.ledger_page(harness.client, account, "", 1000)]


def test_a_running_pod_spends_its_share_of_a_gpu_by_the_second(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a", core=30)
    harness.reconcile()
    harness.reconcile(10)
    assert harness.spent("a") == 3 * GPU_SECOND
    harness.reconcile(0.5)
    assert harness.spent("a") == 3_150_000
    assert published(harness, "a").rate == 300_000


def test_a_finished_pod_is_charged_to_its_last_containers_end_and_closed_once(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    pod = harness.pod("p1", "team-a")
    harness.reconcile()
    harness.pass_time(10)
    harness.finish(pod, seconds_ago=2)
    harness.reconcile()
    harness.reconcile(60)
    assert harness.spent("a") == 8 * GPU_SECOND
    harness.remove("p1")
    harness.reconcile(60)
    harness.reconcile(60)
    assert harness.spent("a") == 8 * GPU_SECOND
    assert kinds(harness, "a") == [("close", 8 * GPU_SECOND)]
    assert reading.open_sessions(harness.client, "", 10) == []


def test_pods_that_have_ended_leave_without_a_question_to_the_store(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.budget("a", ["team-a"])
    for number in range(3):
        pod = harness.pod(f"p{number}", "team-a")
        harness.reconcile()
        harness.finish(pod)
    harness.reconcile(10)
    monkeypatch.setattr(ReconcileContext, "reported", lambda _, uid: pytest.fail(f"asked when {uid} last reported"))
    for number in range(3):
        harness.remove(f"p{number}")
    harness.reconcile(60)
    assert reading.period_totals(harness.client, "a", MONTH).finalized == harness.spent("a")


def test_a_removed_pod_is_charged_to_its_removal(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(10)
    harness.remove("p1")
    harness.reconcile(5)
    harness.reconcile(60)
    assert harness.spent("a") == 15 * GPU_SECOND
    (entry,) = reading.ledger_page(harness.client, "a", "", 10)
    assert (entry.kind, entry.session, entry.namespace, entry.pod) == ("close", "p1", "team-a", "p1")
    assert entry.note == "deleted 2026-01-15T12:00:00Z 2026-01-15T12:00:15Z"


def test_a_session_that_runs_across_a_period_is_cut_at_its_end(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.pod("p1", "team-a")
    harness.reconcile(1800)
    harness.reconcile(3600)
    assert harness.spent("a", NOON) == 3600 * GPU_SECOND
    assert harness.spent("a", NOON + HOUR) == 1800 * GPU_SECOND
    assert kinds(harness, "a")[0] == ("period", 3600 * GPU_SECOND)
    harness.remove("p1")
    harness.reconcile(10)
    assert harness.spent("a", NOON + HOUR) == 1810 * GPU_SECOND


def test_hours_without_a_timekeeper_are_charged_period_by_period(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.pod("p1", "team-a")
    harness.reconcile(60)
    harness.pass_time(5 * 3600)
    harness.lead()
    harness.reconcile()
    assert [harness.spent("a", NOON + hour * HOUR) for hour in range(6)] == [3600 * GPU_SECOND] * 5 + [60 * GPU_SECOND]


def test_a_running_session_gets_an_entry_an_hour(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile()
    for _ in range(9):
        harness.reconcile(1200)
    assert kinds(harness, "a") == [("hourly", 3600 * GPU_SECOND)] * 3


def test_a_namespace_that_moves_pays_from_its_new_budget_from_then_on(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.budget("b", ["team-b"])
    harness.pod("p1", "team-a")
    harness.reconcile(10)
    harness.budget("a", ["other"])
    harness.budget("b", ["team-b", "team-a"])
    harness.reconcile(10)
    harness.reconcile(10)
    assert (harness.spent("a"), harness.spent("b")) == (20 * GPU_SECOND, 10 * GPU_SECOND)
    harness.remove("p1")
    harness.reconcile(5)
    assert (harness.spent("a"), harness.spent("b")) == (20 * GPU_SECOND, 15 * GPU_SECOND)
    assert kinds(harness, "a") == [("move", 20 * GPU_SECOND)] or kinds(harness, "a")[0] == ("move", 20 * GPU_SECOND)
    assert state_answer(harness, "team-a")["budget"] == "b"


def test_a_new_leader_goes_on_where_the_last_one_stopped(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    stays = harness.pod("p2", "team-a", core=50)
    harness.reconcile(10)
    old = harness.reconciler
    assert old is not None
    harness.finish(stays)
    harness.pass_time(100)
    harness.lead()
    harness.reconcile()
    assert harness.spent("a") == 110 * GPU_SECOND + 5 * GPU_SECOND
    with pytest.raises(FencedError):
        old.reconcile(harness.now + HOUR)
    assert harness.spent("a") == 115 * GPU_SECOND


def test_sessions_are_settled_alike_however_many_at_once(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle_accounts, "SETTLED_AT_ONCE", 2)
    harness.budget("a", ["team-a", "team-b"])
    pods = [harness.pod(f"p{number}", f"team-{'ab'[number % 2]}") for number in range(5)]
    harness.reconcile()
    harness.reconcile(10)
    harness.finish(pods[0])
    harness.remove("p1")
    harness.reconcile()
    harness.reconcile(10)

    assert harness.spent("a") == (2 * 10 + 3 * 20) * GPU_SECOND


def test_a_pod_that_was_deleted_while_no_leader_watched_is_charged_to_when_it_was_last_seen(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile(10)
    harness.remove("p1")
    harness.now += 500 * SECOND
    harness.lead()
    harness.reconcile()
    assert harness.spent("a") == 10 * GPU_SECOND
    (entry,) = reading.ledger_page(harness.client, "a", "", 10)
    assert entry.note.startswith("last-seen")


@pytest.mark.parametrize(("changed", "charged"), [(5, 10), (200, 200)])
def test_a_pod_that_failed_between_two_leaders_without_finish_times_is_not_charged_until_the_second_saw_that(
    harness: LedgerHarness, changed: int, charged: int
) -> None:
    """It ran on a node that crashed and came back. It was seen after the last change of its conditions, or before."""
    harness.budget("a", ["team-a"])
    pod = harness.pod("p1", "team-a")
    harness.reconcile(10)
    harness.now += 9000 * SECOND
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": format_instant(NOON + changed * SECOND)}
    conditions = [*pod["status"]["conditions"], ready]
    harness.write_pod({**pod, "status": {"phase": "Failed", "conditions": conditions}})
    harness.lead()
    harness.reconcile()
    assert harness.spent("a") == charged * GPU_SECOND


def test_a_later_report_proves_that_a_pod_lived_longer_than_it_was_watched(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.reconcile(10)
    harness.client.hset(keys.report("p1"), "at", str(harness.now + 30 * SECOND))
    harness.remove("p1")
    harness.now += 500 * SECOND
    harness.lead()
    harness.reconcile()
    assert harness.spent("a") == 40 * GPU_SECOND


def test_a_clock_that_steps_forth_and_back_leaves_no_trace(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.pod("p1", "team-a")
    harness.reconcile(10)
    harness.reconcile(7200)
    harness.reconcile(-7200)
    harness.reconcile(10)
    assert harness.spent("a", NOON) == 20 * GPU_SECOND
    harness.remove("p1")
    harness.reconcile(10)
    assert harness.spent("a", NOON) == 30 * GPU_SECOND
    assert harness.spent("a", NOON + 2 * HOUR) == 0


@pytest.mark.parametrize("hours", [2, 24 * 365])
def test_an_api_server_whose_clock_is_far_ahead_opens_no_period_and_spends_nothing_of_it(
    harness: LedgerHarness, hours: int
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(clocks=Clocks(lambda: 0, lambda: harness.now))
    harness.pod("p1", "team-a")
    harness.reconcile(10)
    harness.now += hours * HOUR
    harness.pod("p2", "team-a")
    harness.now -= hours * HOUR
    harness.reconcile(10)
    harness.reconcile(10)
    assert harness.spent("a", NOON) == (30 + 10) * GPU_SECOND
    reconciler = harness.reconciler
    assert reconciler is not None
    assert [period.start for period in reconciler.books.accounts["a"].periods] == [NOON]
    assert reconciler.books.pods.ahead == hours * HOUR - 10 * SECOND
    harness.remove("p2")
    harness.reconcile(10)
    assert harness.spent("a", NOON) == (40 + 20) * GPU_SECOND
    assert reconciler.books.pods.ahead == 0


def test_where_the_store_agrees_with_the_api_server_it_is_the_timekeepers_clock_that_is_behind(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.lead(clocks=Clocks(lambda: 0, lambda: NOON + 2 * HOUR))
    harness.now += 2 * HOUR
    harness.pod("p1", "team-a")
    harness.now -= 2 * HOUR
    harness.reconcile(0)
    harness.reconcile(2 * 3600 + 10)
    assert harness.spent("a", NOON + 2 * HOUR) == 10 * GPU_SECOND


@pytest.mark.parametrize("loaded", [False, True])
def test_changes_while_the_leader_was_paused_in_a_reconciliation_are_charged_as_they_were(
    harness: LedgerHarness, *, loaded: bool
) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(clocks=Clocks(lambda: harness.now, lambda: harness.now))
    before = harness.pod("before", "team-a")
    if loaded:
        harness.reconcile(0.9)
    reconciler, begun = harness.reconciler, harness.now
    assert reconciler is not None
    harness.now = NOON + 4 * SECOND
    unseen = harness.pod("unseen", "team-a")
    harness.now += 3 * SECOND
    harness.finish(before)
    harness.finish(unseen)
    harness.pass_time(0.5)
    reconciler.reconcile(begun)
    assert harness.spent("a") == (7 + 3) * GPU_SECOND
    harness.reconcile(60)
    assert harness.spent("a") == (7 + 3) * GPU_SECOND


def test_a_grant_belongs_to_the_period_in_which_it_was_made(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.reconcile(10)
    harness.grant("late", "a", 1)
    harness.pass_time(3600)
    harness.grant("lapsed", "a", 7, created=parse_instant("2025-01-01T00:00:00Z"))
    harness.reconcile()
    assert published(harness, "a").granted == 0
    standing = reading.period_totals(harness.client, "a", NOON)
    assert standing is not None
    assert standing.granted == GPU_HOUR
