"""What concerns all accounts may be broken for one of them in the store: the others are settled and published."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from tests.support.ledger.harness import MONTH, NOON, LedgerHarness, told
from timekeeper.domain.money import GPU_SECOND
from timekeeper.domain.pricing import price_at
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import StoreEmptyError

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR = 3600
BROKEN_PAYERS = [
    "nonsense",
    b"\xff\xfe",
    "{}",
    "[]",
    "[[1]]",
    '[["soon","a"]]',
    "[[0,7]]",
    '[[0,""]]',
    '[[0,"a}b"]]',
    "[[0.5,null]]",
    "[" * 100_000,
]
BROKEN_BUDGETS = ["nonsense", b"\xff\xfe", "[]", "null", '{"spec":1}', '{"metadata":"a"}', "[" * 100_000]


@pytest.fixture
def teams(stage: LedgerHarness) -> LedgerHarness:
    """Two teams of one GPU-hour each, with one running pod each."""
    for team in ("a", "b"):
        stage.budget(team, [f"team-{team}"], gpu_hours=1)
        stage.pod(f"pod-{team}", f"team-{team}")
    stage.round()
    stage.round(60)
    return stage


def break_entry(stage: LedgerHarness, key: str, field: str, broken: str | bytes) -> Callable[[], object]:
    """Spoils one field of a hash; mends it."""
    before = stage.client.hget(key, field)
    assert isinstance(before, bytes)
    stage.client.hset(key, field, broken)
    return lambda: stage.client.hset(key, field, before)


def not_settled(stage: LedgerHarness) -> set[str]:
    assert stage.keeper is not None
    return set(stage.keeper.books.not_settled)


@pytest.mark.parametrize("broken", BROKEN_PAYERS, ids=lambda text: repr(text[:12]))
def test_a_namespace_whose_payers_cannot_be_read_waits_and_stops_no_other(
    teams: LedgerHarness, broken: str | bytes
) -> None:
    mend = break_entry(teams, keys.NAMESPACES, "team-a", broken)
    teams.gated("held", "team-a")
    with capture_logs() as logs:
        teams.lead()
        teams.round(2 * HOUR)
        teams.round(60)
    assert told(teams, "team-b")["state"] == "over"
    assert teams.spent("b") == (60 + 2 * HOUR + 60) * GPU_SECOND
    assert not_settled(teams) == {"a"}
    (event,) = [event for event in logs if event["event"] == "payers not readable"]
    assert (event["namespace"], event["account"], event["log_level"]) == ("team-a", "a", "error")
    stored = teams.client.hget(keys.NAMESPACES, "team-a")
    assert stored == (broken if isinstance(broken, bytes) else broken.encode())
    mend()
    teams.round(600)
    teams.round(1)
    assert not_settled(teams) == set()
    assert teams.spent("a") == (60 + 2 * HOUR + 60 + 600 + 1) * GPU_SECOND
    assert told(teams, "team-a")["state"] == "over"


def test_payers_that_cannot_be_read_are_brought_back_from_the_checkpoint_of_a_budget_that_knows_them(
    teams: LedgerHarness,
) -> None:
    teams.budget("a", ["team-z"])
    teams.budget("c", ["team-a"], gpu_hours=1)
    teams.round(60)
    moved = teams.client.hget(keys.NAMESPACES, "team-a")
    payers = [{"account": "a", "from": "1970-01-01T00:00:00Z"}, {"account": "c", "from": "2026-01-15T12:02:00Z"}]
    moves = [{"namespace": "team-a", "payers": payers}]
    teams.budgets[-1]["status"] = {"checkpoint": {"moves": moves}}
    teams.write_budgets()
    break_entry(teams, keys.NAMESPACES, "team-a", "nonsense")
    teams.lead()
    teams.round(HOUR)
    assert not_settled(teams) == set()
    assert teams.client.hget(keys.NAMESPACES, "team-a") == moved
    assert teams.spent("a") == 120 * GPU_SECOND
    assert teams.spent("c") == HOUR * GPU_SECOND


def test_a_leader_that_knows_the_payers_writes_them_again(teams: LedgerHarness) -> None:
    before = teams.client.hget(keys.NAMESPACES, "team-a")
    break_entry(teams, keys.NAMESPACES, "team-a", "nonsense")
    teams.client.hset(keys.AccountKeys("b").head, "burn", "[1]")
    teams.client.delete(keys.BOOK_EPOCH)
    with pytest.raises(StoreEmptyError):
        teams.round(60)
    teams.round(60)
    assert teams.client.hget(keys.NAMESPACES, "team-a") == before
    assert not_settled(teams) == {"b"}


@pytest.mark.parametrize("broken", BROKEN_BUDGETS, ids=lambda text: repr(text[:12]))
def test_a_kept_budget_that_cannot_be_read_is_kept_anew_from_its_object(
    teams: LedgerHarness, broken: str | bytes
) -> None:
    before = teams.client.hget(keys.BUDGETS, "a")
    break_entry(teams, keys.BUDGETS, "a", broken)
    teams.lead()
    teams.round(2 * HOUR)
    assert teams.client.hget(keys.BUDGETS, "a") == before
    assert not_settled(teams) == set()
    assert [told(teams, f"team-{team}")["state"] for team in ("a", "b")] == ["over", "over"]


@pytest.mark.parametrize("broken", BROKEN_BUDGETS, ids=lambda text: repr(text[:12]))
@pytest.mark.parametrize("object_", ["its object is gone", "its object cannot be used"])
def test_an_account_whose_kept_budget_cannot_be_read_waits_and_stops_no_other(
    teams: LedgerHarness, broken: str | bytes, object_: str
) -> None:
    mend = break_entry(teams, keys.BUDGETS, "a", broken)
    of_a = teams.budgets[0]
    if object_ == "its object is gone":
        teams.budgets = teams.budgets[1:]
    else:
        of_a["spec"]["period"] = {"every": "so often"}
    teams.write_budgets()
    payers = json.loads(teams.client.hget(keys.NAMESPACES, "team-a") or b"")
    with capture_logs() as logs:
        teams.lead()
        teams.round(2 * HOUR)
    assert told(teams, "team-b")["state"] == "over"
    assert "a" in not_settled(teams)
    assert [(event["account"], event["log_level"]) for event in logs if event["event"] == "budget not readable"] == [
        ("a", "error")
    ]
    moved = [] if object_ == "its object cannot be used" else [[NOON + (60 + 2 * HOUR) * 10**9, "namespace:team-a"]]
    assert json.loads(teams.client.hget(keys.NAMESPACES, "team-a") or b"") == payers + moved
    mend()
    teams.round(600)
    teams.round(1)
    assert not_settled(teams) == set()
    paid = 60 + 2 * HOUR + (0 if moved else 601)
    assert teams.spent("a") == paid * GPU_SECOND


@pytest.mark.parametrize("broken", ["nonsense", b"\xff", "[]", '{"*":1}', '{"*":[[0,"1/0"]]}', '{"*":[["x","1"]]}'])
def test_prices_that_cannot_be_read_stop_nobody_and_are_written_anew(teams: LedgerHarness, broken: str | bytes) -> None:
    teams.client.set(keys.PRICES, broken)
    with capture_logs() as logs:
        teams.lead()
        teams.round(2 * HOUR)
    assert [told(teams, f"team-{team}")["state"] for team in ("a", "b")] == ["over", "over"]
    assert price_at(reading.prices(teams.client), "A100", teams.now) == 1
    assert any(event["event"] == "prices cannot be read" for event in logs)


@pytest.mark.parametrize("broken", ["soon", b"\xff", "1e3", "9" * 5000])
def test_an_instant_of_watching_that_cannot_be_read_stops_nobody(teams: LedgerHarness, broken: str | bytes) -> None:
    teams.client.set(keys.WATCHED, broken)
    teams.lead()
    teams.round(2 * HOUR)
    assert not_settled(teams) == set()
    assert teams.client.get(keys.WATCHED) == str(teams.now).encode()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("start", "noon"),
        ("start", None),
        ("end", "later"),
        ("tariff", []),
        ("tariff", [["x", 1]]),
        ("tariff", [[NOON, "1"]]),
        ("namespace", 5),
        ("pod", []),
        ("node", {}),
        ("use", [["a", "x", 1]]),
        ("reported", [["a", MONTH, None]]),
        ("for", ["A100", None, "u", {}, 1, 1]),
        ("for", ["A100", "o", "u", {"k": 1}, 1, 1]),
        ("for", ["A100", "o", "u", {}, "x", 1]),
        ("tally", ["x", []]),
        ("unmeasured", [1]),
        ("namespaceUid", 3),
    ],
)
@pytest.mark.parametrize("hash_", ["sessions", "ended"])
def test_a_record_with_a_field_of_another_type_is_its_account_s_error(
    teams: LedgerHarness, hash_: str, field: str, value: object
) -> None:
    account = keys.AccountKeys("a")
    record = json.loads(teams.client.hget(account.sessions, "pod-a") or b"")
    teams.client.hset(getattr(account, hash_), "broken", json.dumps({**record, "uid": "broken", field: value}))
    teams.lead()
    teams.round(2 * HOUR)
    assert told(teams, "team-b")["state"] == "over"
    assert not_settled(teams) == {"a"}
    teams.client.hdel(getattr(account, hash_), "broken")
    teams.round(600)
    teams.round(1)
    assert not_settled(teams) == set()
    assert teams.spent("a") == (60 + 2 * HOUR + 601) * GPU_SECOND
