"""A reconciliation calls the store as rarely as what has changed allows: a leader's time goes into its calls."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import NoScriptError

from tests.support.ledger.harness import MONTH, LedgerHarness, report
from timekeeper.domain.money import GPU_SECOND
from timekeeper.ledger import client
from timekeeper.ledger.client import Call, run_for_each
from timekeeper.ledger.keys import AccountKeys
from timekeeper.ledger.keys import report as report_key
from timekeeper.ledger.scripts import script
from timekeeper.ledger.usage import accounts_usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

TEAMS = [f"team-{number}" for number in range(9)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Returns the number of calls of each script."""
    found, do = Counter[str](), client._execute

    def execute(store: redis.Redis, chosen: Sequence[Call]) -> list[Any]:
        answers = do(store, chosen)
        scripts_there = [
            call for call, each in zip(chosen, answers, strict=True) if not isinstance(each, NoScriptError)
        ]
        found.update(call.script for call in scripts_there)
        return answers

    monkeypatch.setattr(client, "_execute", execute)
    return found


def test_an_account_is_called_once_when_one_of_its_pods_ends_and_when_it_is_deleted(
    harness: LedgerHarness, calls: Counter[str]
) -> None:
    harness.budget("a", ["team-a"])
    pods = [harness.pod(name, "team-a") for name in ("p1", "p2", "p3")]
    harness.reconcile()
    report(harness, "p1", 1, 0)
    harness.finish(pods[0])
    calls.clear()
    harness.reconcile(10)
    assert (calls["settle"], calls["read_report"], calls["end_report"]) == (1, 1, 1)
    harness.remove("p1")
    calls.clear()
    harness.reconcile(10)
    assert (calls["settle"], calls["read_report"], calls["end_report"]) == (1, 0, 1)
    assert harness.spent("a") == 40 * GPU_SECOND


def test_a_deleted_pod_whose_end_is_stored_waits_for_the_next_settlement_of_its_account(
    harness: LedgerHarness, calls: Counter[str]
) -> None:
    harness.budget("a", ["team-a"])
    ended, _ = harness.pod("ended", "team-a"), harness.pod("running", "team-a")
    harness.reconcile(10)
    harness.finish(ended)
    harness.reconcile(10)
    harness.remove("ended")
    calls.clear()
    harness.reconcile(10, full=False)
    assert (calls["settle"], calls["publish_account"]) == (0, 0)
    assert harness.client.hexists(AccountKeys("a").ended, "ended")
    harness.reconcile(10)
    assert not harness.client.hexists(AccountKeys("a").ended, "ended")
    assert harness.client.hget(AccountKeys("a").period(MONTH), "gone") == str(10 * GPU_SECOND).encode()


def test_reports_are_closed_read_and_ended_a_hundred_at_a_time(harness: LedgerHarness, calls: Counter[str]) -> None:
    for team in TEAMS:
        harness.pod(f"{team}-runs", team)
    harness.reconcile()
    calls.clear()
    for team in TEAMS:
        harness.remove(f"{team}-runs")
    harness.reconcile(10)
    assert calls["read_report"] == 1
    assert calls["end_report"] <= 2


def test_one_pods_broken_reports_stop_no_others(harness: LedgerHarness) -> None:
    harness.client.hset(report_key("good"), mapping={"at": "1", "used": "5", "state": "[]"})
    harness.client.set(report_key("broken"), "text")
    both = [(report_key(uid), ()) for uid in ("broken", "good")]
    failed, ended = run_for_each(harness.client, "end_report", (60,), both)
    assert (isinstance(failed, Exception), ended) == (True, 1)
    assert harness.client.hgetall(report_key("good")) == {b"at": b"1", b"used": b"5"}
    assert harness.client.ttl(report_key("good")) == 60


def test_the_use_of_four_accounts_is_read_by_one_call(harness: LedgerHarness, calls: Counter[str]) -> None:
    for team in TEAMS:
        harness.budget(team, [team])
        harness.pod(f"{team}-runs", team)
    harness.reconcile()
    harness.reconcile(10)
    calls.clear()
    found = {each.account: each for each in accounts_usage(harness.client, [*TEAMS, "unknown"], {})}
    assert calls["read_usage"] == 3
    assert {name: sum(row.figures.billed for row in each.rows()) for name, each in found.items()} == dict.fromkeys(
        TEAMS, 10 * GPU_SECOND
    )


def test_a_script_has_the_shared_functions_that_it_needs_and_no_others() -> None:
    assert "local function limbs" in script("settle").text
    assert "local function " not in script("end_report").text


def test_a_finalized_sessions_last_point_is_written_once(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    pod = harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(10)
    harness.finish(pod)
    harness.reconcile(10)
    before = harness.client.hgetall(AccountKeys("a").hour_index)
    harness.remove("p1")
    harness.reconcile(10)
    assert harness.client.hgetall(AccountKeys("a").hour_index) == before
