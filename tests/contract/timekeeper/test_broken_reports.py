"""Whatever a pod's stored reports hold, no account waits for them, and the pod's next reports count again."""

from __future__ import annotations

import json

import pytest

from tests.support.ledger.harness import MONTH, LedgerHarness, report, state_answer
from timekeeper.api.figures import Book
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.pricing import Bill
from timekeeper.domain.reports import Counter
from timekeeper.ledger import keys, reading
from timekeeper.ledger.reports import IntakeOutcome, ReportIntake, Submission
from timekeeper.ledger.usage import AccountUsage, accounts_usage

HOUR = 3600
TERMS = json.dumps([0, [["GPU-pod-a", 1, "1", 1, 1]], 0, 1, 1])
BROKEN = {
    "terms": [
        "nonsense",
        b"\xff",
        "[]",
        "{}",
        TERMS.replace("[0,", '["0",'),
        TERMS.replace('"1", 1, 1', '"x", 1, 1'),
        TERMS.replace('"1", 1, 1', '"1", 0, 1'),
        TERMS.replace('"1", 1, 1', '"1", 1, null'),
        TERMS.replace(" 1, 1]", ' 1, "1"]'),
        "[" * 100_000,
    ],
    "state": [
        "nonsense",
        b"\xff",
        "{}",
        "[[],[]]",
        '[[["b",1]],[],[]]',
        '[[["b","1",0,0]],[],[]]',
        '[[],["x"],[]]',
        "[[],[0],[[1,2]]]",
        '[[],[0],[["1",2,3,4]]]',
        "[" * 100_000,
    ],
    "closed": ["soon", b"\xff", "-", "x" * 100],
    "settled": ["soon", b"\xff", "-", "x" * 100],
    "phase": ["soon", b"\xff", "-"],
    "epoch": ["later", b"\xff", "-", "9" * 400],
    "at": ["soon", b"\xff", "1.5", "nan", ""],
    "used": ["much", b"\xff", "-", "1e9", ""],
    "a": ["soon", b"\xff"],
}


@pytest.fixture(params=[Bill.RESERVED, Bill.USED])
def teams(harness: LedgerHarness, request: pytest.FixtureRequest) -> LedgerHarness:
    """Two teams of one GPU-hour each, with one running pod each, on a node that says nothing."""
    for team in ("a", "b"):
        harness.budget(team, [f"team-{team}"], gpu_hours=1)
        harness.pod(f"pod-{team}", f"team-{team}")
    harness.lead(ControllerRules(bill=request.param))
    harness.reconcile()
    harness.reconcile(60)
    for team in ("a", "b"):
        report(harness, f"pod-{team}", 1, 60)
    return harness


def lead_again(harness: LedgerHarness) -> None:
    assert harness.reconciler is not None
    harness.lead(harness.reconciler.books.rules)


def go_on_and_end(teams: LedgerHarness) -> None:
    """The books go on; pod a reports again, and what it says counts."""
    assert teams.reconciler is not None
    teams.reconcile(HOUR)
    assert teams.reconciler.books.not_settled == {}
    for team in ("a", "b"):
        report(teams, f"pod-{team}", 2, HOUR + 60)
    assert reading.used(teams.client, ["pod-a", "pod-b"])[1] == (HOUR + 60) * GPU_SECOND
    teams.reconcile(60)
    assert state_answer(teams, "team-b")["state"] == "over"
    used = {usage.account: sum(row.figures.used or 0 for row in usage.rows()) for usage in usages(teams)}
    assert used["a"] >= HOUR * GPU_SECOND
    teams.finish(teams.source_pod("pod-a"))
    teams.reconcile(1)
    assert teams.reconciler.books.not_settled == {}
    assert teams.client.hlen(keys.AccountKeys("a").sessions) == 0


def usages(harness: LedgerHarness) -> list[AccountUsage]:
    return list(accounts_usage(harness.client, ["a", "b"], reading.assignments(harness.client)))


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in BROKEN.items() for value in values],
    ids=lambda text: repr(text[:9]),
)
def test_a_field_that_cannot_be_read_stops_neither_its_leader_nor_the_next_one(
    teams: LedgerHarness, field: str, value: str | bytes
) -> None:
    teams.client.hset(keys.report("pod-a"), field, value)
    teams.reconcile(1)
    assert teams.reconciler is not None
    assert teams.reconciler.books.not_settled == {}
    teams.client.hset(keys.report("pod-a"), field, value)
    lead_again(teams)
    go_on_and_end(teams)


@pytest.mark.parametrize("leader", ["the leader goes on", "another leader follows"])
def test_a_key_of_another_type_stops_no_leader(teams: LedgerHarness, leader: str) -> None:
    teams.client.delete(keys.report("pod-a"))
    teams.client.set(keys.report("pod-a"), "text")
    if leader == "another leader follows":
        lead_again(teams)
    teams.reconcile(HOUR)
    assert teams.reconciler is not None
    assert teams.reconciler.books.not_settled == {}
    teams.finish(teams.source_pod("pod-a"))
    teams.reconcile(1)
    assert teams.client.hlen(keys.AccountKeys("a").sessions) == 0


@pytest.mark.parametrize("field", BROKEN)
def test_the_reports_of_others_in_the_same_batch_are_taken(teams: LedgerHarness, field: str) -> None:
    teams.reconcile(1)
    intake = ReportIntake(teams.client)
    for number, value in enumerate(BROKEN[field]):
        teams.client.hset(keys.report("pod-a"), field, value)
        batch = [
            Submission(uid, "b", number + 2, teams.now + number, (Counter(f"GPU-{uid}", SECOND * 61, SECOND, 0),))
            for uid in ("pod-a", "pod-b")
        ]
        assert intake.take(batch) == [IntakeOutcome.TAKEN, IntakeOutcome.TAKEN]


def test_the_end_of_a_pod_whose_last_report_has_no_time_is_found(teams: LedgerHarness) -> None:
    teams.client.hset(keys.report("pod-a"), "at", "soon")
    teams.remove("pod-a")
    lead_again(teams)
    teams.reconcile(HOUR)
    assert teams.client.hlen(keys.AccountKeys("a").sessions) == 0
    assert teams.reconciler is not None
    assert teams.reconciler.books.not_settled == {}


@pytest.mark.parametrize("used", [2 * HOUR * GPU_SECOND, 60 * GPU_SECOND, 10**24, 10**30])
def test_the_gpu_time_of_an_earlier_version_s_reports_is_at_most_what_the_session_can_have_used(
    teams: LedgerHarness, used: int
) -> None:
    key = keys.report("pod-a")
    teams.client.delete(key)
    teams.client.hset(key, mapping={"at": str(teams.now), "used": str(used), "boots": "old"})
    teams.pass_time(HOUR)
    lead_again(teams)
    teams.reconcile()
    age = 60 * GPU_SECOND
    assert reading.used(teams.client, ["pod-a", "pod-b"]) == [min(used, age), age]


def test_the_gpu_time_of_an_earlier_version_s_reports_without_a_time_is_dropped(teams: LedgerHarness) -> None:
    teams.client.delete(keys.report("pod-a"))
    teams.client.hset(keys.report("pod-a"), "used", str(10**30))
    lead_again(teams)
    teams.reconcile()
    assert reading.used(teams.client, ["pod-a"]) == [None]


@pytest.mark.parametrize("field", ["at", "used"])
def test_a_figure_of_reports_that_cannot_be_read_is_not_measured_in_answers(teams: LedgerHarness, field: str) -> None:
    teams.client.hset(keys.report("pod-a"), field, "nonsense")
    shown = Book(teams.client, lambda: teams.now).sessions("", "", 10)
    assert [(found.reported_at is None, found.used is None) for found in shown] == [
        (field == "at", field == "used"),
        (False, False),
    ]


def test_reports_and_an_amount_of_another_type_hide_no_session_from_answers(teams: LedgerHarness) -> None:
    teams.client.delete(keys.report("pod-a"))
    teams.client.set(keys.report("pod-a"), "text")
    teams.client.hset(keys.AccountKeys("b").amounts(MONTH), "pod-b", "nonsense")
    shown = Book(teams.client, lambda: teams.now).sessions("", "", 10)
    assert [(found.session.uid, found.amount, found.used) for found in shown] == [
        ("pod-a", 60 * GPU_SECOND, None),
        ("pod-b", 0, 60 * GPU_SECOND),
    ]
