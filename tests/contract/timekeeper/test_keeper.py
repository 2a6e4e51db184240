from __future__ import annotations

import pytest

from tests.support.ledger.harness import MONTH, NOON, LedgerHarness, published, state_answer
from timekeeper.controller.reconcile.context import ReconcileContext
from timekeeper.controller.state.observing import Clocks
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND
from timekeeper.domain.timestamps import HOUR, parse_instant
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import FencedError


def kinds(stage: LedgerHarness, account: str) -> list[tuple[str, int]]:
    return [(entry.kind, entry.amount) for entry in reading.ledger_page(stage.client, account, "", 1000)]


def test_a_running_pod_spends_its_share_of_a_gpu_by_the_second(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a", core=30)
    stage.round()
    stage.round(10)
    assert stage.spent("a") == 3 * GPU_SECOND
    stage.round(0.5)
    assert stage.spent("a") == 3_150_000
    assert published(stage, "a").rate == 300_000


def test_a_finished_pod_is_charged_to_its_last_containers_end_and_closed_once(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    pod = stage.pod("p1", "team-a")
    stage.round()
    stage.pass_time(10)
    stage.finish(pod, seconds_ago=2)
    stage.round()
    stage.round(60)
    assert stage.spent("a") == 8 * GPU_SECOND
    stage.remove("p1")
    stage.round(60)
    stage.round(60)
    assert stage.spent("a") == 8 * GPU_SECOND
    assert kinds(stage, "a") == [("close", 8 * GPU_SECOND)]
    assert reading.open_sessions(stage.client, "", 10) == []


def test_pods_that_have_ended_leave_without_a_question_to_the_store(
    stage: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.budget("a", ["team-a"])
    for number in range(3):
        pod = stage.pod(f"p{number}", "team-a")
        stage.round()
        stage.finish(pod)
    stage.round(10)
    monkeypatch.setattr(ReconcileContext, "reported", lambda _, uid: pytest.fail(f"asked when {uid} last reported"))
    for number in range(3):
        stage.remove(f"p{number}")
    stage.round(60)
    assert reading.period_totals(stage.client, "a", MONTH).finalized == stage.spent("a")


def test_a_removed_pod_is_charged_to_its_removal(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.round()
    stage.round(10)
    stage.remove("p1")
    stage.round(5)
    stage.round(60)
    assert stage.spent("a") == 15 * GPU_SECOND
    (entry,) = reading.ledger_page(stage.client, "a", "", 10)
    assert (entry.kind, entry.session, entry.namespace, entry.pod) == ("close", "p1", "team-a", "p1")
    assert entry.note == "deleted 2026-01-15T12:00:00Z 2026-01-15T12:00:15Z"


def test_a_session_that_runs_across_a_period_is_cut_at_its_end(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.pod("p1", "team-a")
    stage.round(1800)
    stage.round(3600)
    assert stage.spent("a", NOON) == 3600 * GPU_SECOND
    assert stage.spent("a", NOON + HOUR) == 1800 * GPU_SECOND
    assert kinds(stage, "a")[0] == ("period", 3600 * GPU_SECOND)
    stage.remove("p1")
    stage.round(10)
    assert stage.spent("a", NOON + HOUR) == 1810 * GPU_SECOND


def test_hours_without_a_timekeeper_are_charged_period_by_period(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.pod("p1", "team-a")
    stage.round(60)
    stage.pass_time(5 * 3600)
    stage.lead()
    stage.round()
    assert [stage.spent("a", NOON + hour * HOUR) for hour in range(6)] == [3600 * GPU_SECOND] * 5 + [60 * GPU_SECOND]


def test_a_running_session_gets_an_entry_an_hour(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.round()
    for _ in range(9):
        stage.round(1200)
    assert kinds(stage, "a") == [("hourly", 3600 * GPU_SECOND)] * 3


def test_a_namespace_that_moves_pays_from_its_new_budget_from_then_on(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.budget("b", ["team-b"])
    stage.pod("p1", "team-a")
    stage.round(10)
    stage.budget("a", ["other"])
    stage.budget("b", ["team-b", "team-a"])
    stage.round(10)
    stage.round(10)
    assert (stage.spent("a"), stage.spent("b")) == (20 * GPU_SECOND, 10 * GPU_SECOND)
    stage.remove("p1")
    stage.round(5)
    assert (stage.spent("a"), stage.spent("b")) == (20 * GPU_SECOND, 15 * GPU_SECOND)
    assert kinds(stage, "a") == [("move", 20 * GPU_SECOND)] or kinds(stage, "a")[0] == ("move", 20 * GPU_SECOND)
    assert state_answer(stage, "team-a")["budget"] == "b"


def test_a_new_leader_goes_on_where_the_last_one_stopped(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stays = stage.pod("p2", "team-a", core=50)
    stage.round(10)
    old = stage.keeper
    assert old is not None
    stage.finish(stays)
    stage.pass_time(100)
    stage.lead()
    stage.round()
    assert stage.spent("a") == 110 * GPU_SECOND + 5 * GPU_SECOND
    with pytest.raises(FencedError):
        old.reconcile(stage.now + HOUR)
    assert stage.spent("a") == 115 * GPU_SECOND


def test_a_pod_that_left_while_nobody_watched_is_charged_to_when_it_was_last_seen(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.round(10)
    stage.remove("p1")
    stage.now += 500 * SECOND
    stage.lead()
    stage.round()
    assert stage.spent("a") == 10 * GPU_SECOND
    (entry,) = reading.ledger_page(stage.client, "a", "", 10)
    assert entry.note.startswith("last-seen")


def test_a_later_report_proves_that_a_pod_lived_longer_than_it_was_watched(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"])
    stage.pod("p1", "team-a")
    stage.round(10)
    stage.client.hset(keys.report("p1"), "at", str(stage.now + 30 * SECOND))
    stage.remove("p1")
    stage.now += 500 * SECOND
    stage.lead()
    stage.round()
    assert stage.spent("a") == 40 * GPU_SECOND


def test_a_clock_that_steps_forth_and_back_leaves_no_trace(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.pod("p1", "team-a")
    stage.round(10)
    stage.round(7200)
    stage.round(-7200)
    stage.round(10)
    assert stage.spent("a", NOON) == 20 * GPU_SECOND
    stage.remove("p1")
    stage.round(10)
    assert stage.spent("a", NOON) == 30 * GPU_SECOND
    assert stage.spent("a", NOON + 2 * HOUR) == 0


@pytest.mark.parametrize("hours", [2, 24 * 365])
def test_an_api_server_whose_clock_is_far_ahead_opens_no_period_and_spends_nothing_of_it(
    stage: LedgerHarness, hours: int
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(clocks=Clocks(lambda: 0, lambda: stage.now))
    stage.pod("p1", "team-a")
    stage.round(10)
    stage.now += hours * HOUR
    stage.pod("p2", "team-a")
    stage.now -= hours * HOUR
    stage.round(10)
    stage.round(10)
    assert stage.spent("a", NOON) == (30 + 10) * GPU_SECOND
    keeper = stage.keeper
    assert keeper is not None
    assert [period.start for period in keeper.books.accounts["a"].periods] == [NOON]
    assert keeper.books.pods.ahead == hours * HOUR - 10 * SECOND
    stage.remove("p2")
    stage.round(10)
    assert stage.spent("a", NOON) == (40 + 20) * GPU_SECOND
    assert keeper.books.pods.ahead == 0


def test_where_the_store_agrees_with_the_api_server_it_is_the_timekeepers_clock_that_is_behind(
    stage: LedgerHarness,
) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.lead(clocks=Clocks(lambda: 0, lambda: NOON + 2 * HOUR))
    stage.now += 2 * HOUR
    stage.pod("p1", "team-a")
    stage.now -= 2 * HOUR
    stage.round(0)
    stage.round(2 * 3600 + 10)
    assert stage.spent("a", NOON + 2 * HOUR) == 10 * GPU_SECOND


@pytest.mark.parametrize("loaded", [False, True])
def test_what_happened_while_the_leader_stood_still_in_a_round_is_charged_as_it_was(
    stage: LedgerHarness, *, loaded: bool
) -> None:
    stage.budget("a", ["team-a"])
    stage.lead(clocks=Clocks(lambda: stage.now, lambda: stage.now))
    before = stage.pod("before", "team-a")
    if loaded:
        stage.round(0.9)
    keeper, begun = stage.keeper, stage.now
    assert keeper is not None
    stage.now = NOON + 4 * SECOND
    unseen = stage.pod("unseen", "team-a")
    stage.now += 3 * SECOND
    stage.finish(before)
    stage.finish(unseen)
    stage.pass_time(0.5)
    keeper.reconcile(begun)
    assert stage.spent("a") == (7 + 3) * GPU_SECOND
    stage.round(60)
    assert stage.spent("a") == (7 + 3) * GPU_SECOND


def test_a_grant_belongs_to_the_period_in_which_it_was_made(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], period={"every": "hour"})
    stage.round(10)
    stage.grant("late", "a", 1)
    stage.pass_time(3600)
    stage.grant("lapsed", "a", 7, created=parse_instant("2025-01-01T00:00:00Z"))
    stage.round()
    assert published(stage, "a").granted == 0
    standing = reading.period_totals(stage.client, "a", NOON)
    assert standing is not None
    assert standing.granted == GPU_HOUR
