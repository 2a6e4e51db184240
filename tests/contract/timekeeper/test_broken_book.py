"""A shared key may be broken for one account in the store: the others are settled and published."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from redis import Redis
from structlog.testing import capture_logs

from fairgpu.leadership import Term
from tests.support.ledger.harness import MONTH, NOON, LedgerHarness, state_answer
from timekeeper.api.figures import Book, SessionFigures
from timekeeper.api.models import budget_answer
from timekeeper.controller.leader_tasks import LeaderTasks, TaskEnvironment
from timekeeper.controller.metrics import JobMeasures
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.pricing import price_at
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import FencedError, StoreEmptyError, StoreFormatError
from timekeeper.ledger.exports import Export, note_late_changes, note_written
from timekeeper.ledger.exports import load as load_exports
from timekeeper.ledger.reading import highest_fencing_token, read_changes
from timekeeper.ledger.shared import index_sessions, write_capacity
from timekeeper.ledger.usage import capacity, capacity_of_models

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
def teams(harness: LedgerHarness) -> LedgerHarness:
    """Two teams of one GPU-hour each, with one running pod each."""
    for team in ("a", "b"):
        harness.budget(team, [f"team-{team}"], gpu_hours=1)
        harness.pod(f"pod-{team}", f"team-{team}")
    harness.reconcile()
    harness.reconcile(60)
    return harness


def test_a_process_that_leads_no_more_names_no_account_that_is_not_settled(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("pod-a", "team-a")
    harness.source.refresh()
    term, measures = Term(lambda: 0.0), JobMeasures()
    environment = TaskEnvironment(harness.client, harness.source, term, lambda: harness.now, holder="first")
    tasks = LeaderTasks(environment, ControllerRules(), measures)
    gauge = "fairgpu_timekeeper_accounts_not_settled"
    term.hold(1, 1000.0, 0.0)
    tasks.settle()
    harness.client.set(keys.AccountKeys("a").amounts(MONTH), "nonsense")
    harness.pass_time(10)
    tasks.settle()
    assert measures.registry.get_sample_value(gauge) == 1
    term.lose()
    tasks.react()
    assert measures.registry.get_sample_value(gauge) == 0


def break_entry(harness: LedgerHarness, key: str, field: str, broken: str | bytes) -> Callable[[], object]:
    """Spoils one field of a hash; mends it."""
    before = harness.client.hget(key, field)
    assert isinstance(before, bytes)
    harness.client.hset(key, field, broken)
    return lambda: harness.client.hset(key, field, before)


def not_settled(harness: LedgerHarness) -> set[str]:
    assert harness.reconciler is not None
    return set(harness.reconciler.books.not_settled)


@pytest.mark.parametrize("broken", BROKEN_PAYERS, ids=lambda text: repr(text[:12]))
def test_a_namespace_whose_payers_cannot_be_read_waits_and_stops_no_other(
    teams: LedgerHarness, broken: str | bytes
) -> None:
    mend = break_entry(teams, keys.NAMESPACES, "team-a", broken)
    teams.gated("held", "team-a")
    with capture_logs() as logs:
        teams.lead()
        teams.reconcile(2 * HOUR)
        teams.reconcile(60)
    assert state_answer(teams, "team-b")["state"] == "over"
    assert teams.spent("b") == (60 + 2 * HOUR + 60) * GPU_SECOND
    assert not_settled(teams) == {"a"}
    (event,) = [event for event in logs if event["event"] == "payers unreadable"]
    assert (event["namespace"], event["account"], event["log_level"]) == ("team-a", "a", "error")
    stored = teams.client.hget(keys.NAMESPACES, "team-a")
    assert stored == (broken if isinstance(broken, bytes) else broken.encode())
    mend()
    teams.reconcile(600)
    teams.reconcile(1)
    assert not_settled(teams) == set()
    assert teams.spent("a") == (60 + 2 * HOUR + 60 + 600 + 1) * GPU_SECOND
    assert state_answer(teams, "team-a")["state"] == "over"


def test_payers_that_cannot_be_read_are_brought_back_from_the_checkpoint_of_a_budget_that_knows_them(
    teams: LedgerHarness,
) -> None:
    teams.budget("a", ["team-z"])
    teams.budget("c", ["team-a"], gpu_hours=1)
    teams.reconcile(60)
    moved = teams.client.hget(keys.NAMESPACES, "team-a")
    payers = [{"account": "a", "from": "1970-01-01T00:00:00Z"}, {"account": "c", "from": "2026-01-15T12:02:00Z"}]
    moves = [{"namespace": "team-a", "payers": payers}]
    teams.budgets[-1]["status"] = {"checkpoint": {"moves": moves}}
    teams.write_budgets()
    break_entry(teams, keys.NAMESPACES, "team-a", "nonsense")
    teams.lead()
    teams.reconcile(HOUR)
    assert not_settled(teams) == set()
    assert teams.client.hget(keys.NAMESPACES, "team-a") == moved
    assert teams.spent("a") == 120 * GPU_SECOND
    assert teams.spent("c") == HOUR * GPU_SECOND


def test_a_leader_that_knows_the_payers_writes_them_again(teams: LedgerHarness) -> None:
    before = teams.client.hget(keys.NAMESPACES, "team-a")
    break_entry(teams, keys.NAMESPACES, "team-a", "nonsense")
    teams.client.hset(keys.AccountKeys("b").head, "burn", "[1]")
    teams.client.delete(keys.BOOK_FENCING_TOKEN)
    with pytest.raises(StoreEmptyError):
        teams.reconcile(60)
    teams.reconcile(60)
    assert teams.client.hget(keys.NAMESPACES, "team-a") == before
    assert not_settled(teams) == {"b"}


@pytest.mark.parametrize("broken", BROKEN_BUDGETS, ids=lambda text: repr(text[:12]))
def test_a_kept_budget_that_cannot_be_read_is_kept_anew_from_its_object(
    teams: LedgerHarness, broken: str | bytes
) -> None:
    before = teams.client.hget(keys.BUDGETS, "a")
    break_entry(teams, keys.BUDGETS, "a", broken)
    teams.lead()
    teams.reconcile(2 * HOUR)
    assert teams.client.hget(keys.BUDGETS, "a") == before
    assert not_settled(teams) == set()
    assert [state_answer(teams, f"team-{team}")["state"] for team in ("a", "b")] == ["over", "over"]


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
        teams.reconcile(2 * HOUR)
    assert state_answer(teams, "team-b")["state"] == "over"
    assert "a" in not_settled(teams)
    assert [(event["account"], event["log_level"]) for event in logs if event["event"] == "budget unreadable"] == [
        ("a", "error")
    ]
    moved = [] if object_ == "its object cannot be used" else [[NOON + (60 + 2 * HOUR) * 10**9, "namespace:team-a"]]
    assert json.loads(teams.client.hget(keys.NAMESPACES, "team-a") or b"") == payers + moved
    mend()
    teams.reconcile(600)
    teams.reconcile(1)
    assert not_settled(teams) == set()
    paid = 60 + 2 * HOUR + (0 if moved else 601)
    assert teams.spent("a") == paid * GPU_SECOND


@pytest.mark.parametrize("broken", ["nonsense", b"\xff", "[]", '{"*":1}', '{"*":[[0,"1/0"]]}', '{"*":[["x","1"]]}'])
def test_prices_that_cannot_be_read_stop_no_leader_and_are_written_anew(
    teams: LedgerHarness, broken: str | bytes
) -> None:
    teams.client.set(keys.PRICES, broken)
    with capture_logs() as logs:
        teams.lead()
        teams.reconcile(2 * HOUR)
    assert [state_answer(teams, f"team-{team}")["state"] for team in ("a", "b")] == ["over", "over"]
    assert price_at(reading.prices(teams.client), "A100", teams.now) == 1
    assert any(event["event"] == "prices cannot be read" for event in logs)


@pytest.mark.parametrize("key", [keys.WATCHED, keys.WATCHED_CLAIMS, keys.PAST])
@pytest.mark.parametrize("broken", ["soon", b"\xff", "1e3", "9" * 5000])
def test_an_instant_of_all_accounts_that_cannot_be_read_stops_no_leader(
    teams: LedgerHarness, key: str, broken: str | bytes
) -> None:
    teams.client.set(key, broken)
    teams.lead()
    teams.reconcile(2 * HOUR)
    assert not_settled(teams) == set()
    assert teams.client.get(key) == str(teams.now).encode()


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
    teams.reconcile(2 * HOUR)
    assert state_answer(teams, "team-b")["state"] == "over"
    assert not_settled(teams) == {"a"}
    teams.client.hdel(getattr(account, hash_), "broken")
    teams.reconcile(600)
    teams.reconcile(1)
    assert not_settled(teams) == set()
    assert teams.spent("a") == (60 + 2 * HOUR + 601) * GPU_SECOND


def spoil(harness: LedgerHarness, key: str, broken: str | bytes | None) -> None:
    """Puts a text where a number belongs, or a key of another type where none is given."""
    if broken is None:
        harness.client.delete(key)
        harness.client.rpush(key, "of another type")
    else:
        harness.client.set(key, broken)


@pytest.mark.parametrize("broken", ["soon", b"\xff", "1e3", "", "-7", "9" * 400, None])
@pytest.mark.parametrize("name", [keys.BOOK_FENCING_TOKEN, keys.BOOK_TERM])
def test_an_epoch_or_a_term_that_cannot_be_read_stops_no_leader_and_no_earlier_leader_writes_after_it(
    teams: LedgerHarness, name: str, broken: str | bytes | None
) -> None:
    before = teams.reconciler
    assert before is not None
    spoil(teams, name, broken)
    teams.reconcile(10)
    spoil(teams, name, broken)
    following = teams.lead()
    assert following.fencing_token > before.fencing_token
    teams.reconcile(HOUR)
    assert not_settled(teams) == set()
    assert [teams.spent(team) for team in "ab"] == [(60 + 10 + HOUR) * GPU_SECOND] * 2
    with pytest.raises(FencedError):
        before.reconcile(teams.now + SECOND)
    assert highest_fencing_token(teams.client) == following.fencing_token


@pytest.mark.parametrize("broken", ["soon", b"\xff", "1e3", "", "-7", "9" * 16, "9" * 400])
def test_an_epoch_of_one_account_that_cannot_be_read_stops_no_leader_and_is_written_anew(
    teams: LedgerHarness, broken: str | bytes
) -> None:
    before, head = teams.reconciler, keys.AccountKeys("a").head
    assert before is not None
    teams.client.hset(head, "epoch", broken)
    teams.reconcile(10)
    teams.client.hset(head, "epoch", broken)
    following = teams.lead()
    teams.reconcile(HOUR)
    assert not_settled(teams) == set()
    assert [teams.spent(team) for team in "ab"] == [(60 + 10 + HOUR) * GPU_SECOND] * 2
    assert teams.client.hget(head, "epoch") == str(following.fencing_token).encode()
    with pytest.raises(FencedError):
        before.reconcile(teams.now + SECOND)


@pytest.mark.parametrize("broken", ["lots", b"\xff", "1e3", None])
def test_a_capacity_that_cannot_be_read_stops_no_leader(teams: LedgerHarness, broken: str | bytes | None) -> None:
    if broken is None:
        spoil(teams, keys.CAPACITY, None)
    else:
        teams.client.hset(keys.CAPACITY, mapping={"7": broken, "soon": "1", "8": "5"})
    assert capacity(teams.client) == ({} if broken is None else {8: 5, **capacity(teams.client)})
    teams.lead()
    teams.reconcile(HOUR)
    assert not_settled(teams) == set()
    assert teams.now in capacity(teams.client)


@pytest.mark.parametrize("broken", ["lots", b"\xff", "[1]", '{"A100":"many"}', '{"A100":-1}', None])
def test_a_capacity_by_model_that_cannot_be_read_stops_no_leader(
    teams: LedgerHarness, broken: str | bytes | None
) -> None:
    if broken is None:
        spoil(teams, keys.CAPACITY_OF_MODELS, None)
    else:
        teams.client.hset(keys.CAPACITY_OF_MODELS, mapping={"7": broken, "soon": "{}", "8": '{"A100":5}'})
    assert capacity_of_models(teams.client) == ({} if broken is None else {"A100": {**zeros(teams.client), 8: 5}})
    teams.lead()
    teams.reconcile(HOUR)
    assert not_settled(teams) == set()
    assert teams.client.hget(keys.CAPACITY_OF_MODELS, str(teams.now)) == b"{}"


def test_a_model_has_a_point_only_where_its_own_capacity_changes(teams: LedgerHarness) -> None:
    """So a query does not go through the changes of all other models."""
    for instant, rates in enumerate(({"A100": 1}, {"A100": 1, "T4": 2}, {"A100": 1, "T4": 3}, {"T4": 3}, {"T4": 3})):
        write_capacity(teams.client, highest_fencing_token(teams.client), instant, rates)
    found = {
        model: {at: rate for at, rate in points.items() if at < 5}
        for model, points in capacity_of_models(teams.client).items()
    }
    assert found == {"A100": {0: 1, 3: 0}, "T4": {1: 2, 2: 3}}


def zeros(client: Redis) -> dict[int, int]:
    """Returns nothing as the capacity from each instant at which the leader wrote the cluster's, which has no GPU."""
    return dict.fromkeys(capacity(client), 0)


@pytest.mark.parametrize("key", [keys.WATCHED, keys.WATCHED_CLAIMS, keys.SILENT, keys.PAST, keys.PRICES])
def test_an_entry_of_another_type_stops_no_leader_and_is_written_anew(teams: LedgerHarness, key: str) -> None:
    spoil(teams, key, None)
    teams.lead()
    teams.reconcile(HOUR)
    teams.reconcile(10)
    assert not_settled(teams) == set()
    assert teams.client.type(key) == b"string"


@pytest.mark.parametrize("broken", ["many", b"\xff", "1e3", "9" * 400, None])
def test_a_count_of_late_changes_that_cannot_be_read_stops_no_folding_and_makes_the_month_due(
    teams: LedgerHarness, broken: str | bytes | None
) -> None:
    client, export = teams.client, Export(2, "hash", 1, "tag")
    note_late_changes(client, ["2025-11", "2025-12", "2025-12"])
    note_written(client, "2025-12", export)
    assert load_exports(client).is_confirmed("2025-12")
    if broken is None:
        spoil(teams, keys.LATE_CHANGES, None)
    else:
        client.hset(keys.LATE_CHANGES, "2025-12", broken)
    assert not load_exports(client).is_confirmed("2025-12")
    note_late_changes(client, ["2025-12"])
    found = load_exports(client)
    assert not found.is_confirmed("2025-12")
    note_written(client, "2025-12", replace(export, change=found.changes["2025-12"]))
    assert load_exports(client).is_confirmed("2025-12")
    note_late_changes(client, ["2025-12"])
    assert not load_exports(client).is_confirmed("2025-12")


def test_a_session_that_ends_or_cannot_be_read_meanwhile_cuts_no_list_of_sessions_short(teams: LedgerHarness) -> None:
    """A page with fewer sessions than were asked for is the last one."""
    book = Book(teams.client, lambda: teams.now)
    first, second = book.sessions("", "", 10)
    break_entry(teams, keys.AccountKeys("a").sessions, "pod-a", "broken")
    assert book.sessions("", "", 1) == book.dearest_sessions("", 1) == [second]
    teams.client.hdel(keys.AccountKeys("a").sessions, "pod-a")
    assert book.sessions("", "", 1) == [second]
    assert book.sessions("", first.session.uid, 2) == [second]
    assert book.sessions("", second.session.uid, 1) == []


def test_a_session_that_moves_stands_once_in_a_list_while_the_index_has_both_its_payers(teams: LedgerHarness) -> None:
    book = Book(teams.client, lambda: teams.now)
    whole = book.sessions("", "", 10)
    index_sessions(teams.client, 1, [("pod-b", "a"), ("pod-a", "b")], [])
    assert book.sessions("", "", 10) == whole
    assert len(book.dearest_sessions("", 10)) == 2
    for limit in (1, 2, 3, 4):
        pages, after = list[SessionFigures](), ""
        while page := book.sessions("", after, limit):
            pages += page
            after = page[-1].session.uid
        assert pages == whole


def test_payers_and_sessions_that_cannot_be_read_are_left_out_of_answers(teams: LedgerHarness) -> None:
    book = Book(teams.client, lambda: teams.now)
    whole = book.sessions("", "", 10)
    assert [figures.session.uid for figures in whole] == ["pod-a", "pod-b"]
    break_entry(teams, keys.AccountKeys("b").sessions, "pod-b", "broken")
    assert book.sessions("", "", 10) == whole[:1]
    assert book.sessions("team-b", "", 10) == []
    break_entry(teams, keys.NAMESPACES, "team-a", "broken")
    assert book.namespace("team-a") is None
    assert not book.has_paid_for("a", "team-a")
    assert book.sessions("team-a", "", 10) == []
    assert book.namespace("team-b") is not None


@pytest.mark.parametrize("key", ["head", "period", "sessions"])
def test_an_account_whose_key_is_of_another_type_stops_no_answer_about_others(teams: LedgerHarness, key: str) -> None:
    book = Book(teams.client, lambda: teams.now)
    of_b = book.sessions("team-b", "", 10)
    named = getattr(keys.AccountKeys("a"), key)
    spoil(teams, named(MONTH) if callable(named) else named, None)
    assert "b" in {summary.name for summary in book.budgets("", 10)}
    assert of_b[0] in book.sessions("", "", 10)
    assert of_b[0] in book.dearest_sessions("", 10)
    assert {figures.session.uid for figures in book.sessions("team-a", "", 10)} <= {"pod-a"}
    assert book.budget("a") is None or key != "head"


@pytest.mark.parametrize("broken", ["soon", "", "-", b"\xff"])
def test_an_account_whose_head_does_not_state_its_period_stops_no_answer_about_sessions(
    teams: LedgerHarness, broken: str | bytes
) -> None:
    teams.client.hset(keys.AccountKeys("a").head, "period", broken)
    book = Book(teams.client, lambda: teams.now)
    assert {figures.session.uid: figures.amount for figures in book.sessions("", "", 10)} == {
        "pod-a": 0,
        "pod-b": 60 * GPU_SECOND,
    }


@pytest.mark.parametrize("broken", ["soon", None, 10**40, [1], {}, -1, 0.5])
def test_published_figures_with_a_field_of_another_type_are_left_out_of_lists(
    teams: LedgerHarness, broken: object
) -> None:
    head = keys.AccountKeys("a").head
    text = teams.client.hget(head, "summary")
    assert isinstance(text, bytes)
    document = json.loads(text)
    for field in ("name", "namespaces", "period_start", "period_end", "spent", "available", "rate", "enforcement"):
        teams.client.hset(head, "summary", json.dumps({**document, field: broken}))
        summaries = Book(teams.client, lambda: teams.now).budgets("", 10)
        assert [budget_answer(summary, teams.now).name for summary in summaries][-1] == "b"


def test_a_grant_may_expire_in_the_last_year_of_dates(teams: LedgerHarness) -> None:
    teams.grant("lasting", "a", 5, expires="9999-12-31T23:59:59Z")
    teams.reconcile()
    (budget,) = [each for each in Book(teams.client, lambda: teams.now).budgets("", 10) if each.name == "a"]
    assert budget_answer(budget, teams.now).name == "a"


SHARED_KEYS = {
    name: value
    for name, value in vars(keys).items()
    if name.isupper() and isinstance(value, str) and value.startswith(f"{keys.PREFIX}:{{")
}
LEADERS = ["the leader goes on", "another leader follows"]


REPLACED_BY_EACH_WRITE = {
    "BOOK_FENCING_TOKEN",
    "BOOK_TERM",
    "LATE_CHANGES",
    "MARK",
    "PAST",
    "PRICES",
    "SILENT",
    "WATCHED",
    "WATCHED_CLAIMS",
}


@pytest.mark.parametrize("leader", LEADERS)
@pytest.mark.parametrize("name", sorted(SHARED_KEYS.keys() - {"BOOK_FORMAT"}))
def test_a_shared_key_of_another_type_stops_no_account_and_is_named_and_replaced_in_the_same_reconciliation(
    teams: LedgerHarness, name: str, leader: str
) -> None:
    teams.pod("of-no-budget", "team-z")
    teams.reconcile(10)
    if leader == "another leader follows":
        teams.reconciler = None
    spoil(teams, SHARED_KEYS[name], None)
    teams.pod("new", "team-c")
    with capture_logs() as logs:
        teams.reconcile(2 * HOUR)
    assert not_settled(teams) == set()
    assert [state_answer(teams, f"team-{team}")["state"] for team in "ab"] == ["over", "over"]
    assert [teams.spent(team) for team in "ab"] == [(60 + 10 + 2 * HOUR) * GPU_SECOND] * 2
    assert teams.spent("namespace:team-z") == (10 + 2 * HOUR) * GPU_SECOND
    assert reading.account_names(teams.client) == ["a", "b", "namespace:team-c", "namespace:team-z"]
    named = [event["key"] for event in logs if event["event"] == "shared key of another type: it is written anew"]
    assert named == ([] if name in REPLACED_BY_EACH_WRITE else [SHARED_KEYS[name]])
    assert name in REPLACED_BY_EACH_WRITE or teams.client.type(SHARED_KEYS[name]) != b"list"


@pytest.mark.parametrize("leader", LEADERS)
def test_an_unusable_budget_waits_where_the_store_has_lost_all_kept_budgets_and_the_others_go_on(
    teams: LedgerHarness, leader: str
) -> None:
    valid = json.loads(json.dumps(teams.budgets[0]))
    teams.budgets[0]["spec"]["period"] = {"every": "so often"}
    teams.write_budgets()
    teams.reconcile(1)
    if leader == "another leader follows":
        teams.reconciler = None
    spoil(teams, keys.BUDGETS, None)
    teams.reconcile(2 * HOUR)
    knows = leader == "the leader goes on"
    assert not_settled(teams) == (set() if knows else {"a"})
    assert state_answer(teams, "team-b")["state"] == "over"
    teams.lead()
    teams.reconcile(1)
    assert not_settled(teams) == (set() if knows else {"a"})
    teams.budgets[0] = valid
    teams.write_budgets()
    teams.reconcile(600)
    teams.reconcile(1)
    assert not_settled(teams) == set()
    assert teams.spent("a") == (60 + 1 + 2 * HOUR + 602) * GPU_SECOND


@pytest.mark.parametrize("leader", LEADERS)
def test_a_deleted_budget_stays_an_account_where_the_names_of_all_accounts_are_lost(
    teams: LedgerHarness, leader: str
) -> None:
    teams.budgets = teams.budgets[1:]
    teams.write_budgets()
    teams.reconcile(60)
    if leader == "another leader follows":
        teams.reconciler = None
    spoil(teams, keys.ACCOUNTS, None)
    teams.reconcile(60)
    assert reading.account_names(teams.client) == ["a", "b", "namespace:team-a"]
    assert teams.spent("a") == 120 * GPU_SECOND
    assert teams.spent("namespace:team-a") == 60 * GPU_SECOND


@pytest.mark.parametrize("leader", LEADERS)
def test_lost_payers_of_all_namespaces_are_restored_with_the_moves_of_the_checkpoints(
    teams: LedgerHarness, leader: str
) -> None:
    teams.budget("a", ["team-z"])
    teams.budget("c", ["team-a"], gpu_hours=1)
    teams.reconcile(60)
    before = teams.client.hgetall(keys.NAMESPACES)
    payers = [{"account": "a", "from": "1970-01-01T00:00:00Z"}, {"account": "c", "from": "2026-01-15T12:02:00Z"}]
    teams.budgets[-1]["status"] = {"checkpoint": {"moves": [{"namespace": "team-a", "payers": payers}]}}
    teams.write_budgets()
    if leader == "another leader follows":
        teams.reconciler = None
    spoil(teams, keys.NAMESPACES, None)
    teams.reconcile(HOUR)
    assert teams.client.hgetall(keys.NAMESPACES) == before
    assert [teams.spent(name) for name in "abc"] == [120 * GPU_SECOND, (120 + HOUR) * GPU_SECOND, HOUR * GPU_SECOND]


@pytest.mark.parametrize("broken", [None, "two", "", "9" * 400])
def test_a_leader_does_not_follow_on_a_store_whose_format_is_unreadable_and_names_the_key(
    teams: LedgerHarness, broken: str | bytes | None
) -> None:
    spoil(teams, keys.BOOK_FORMAT, broken)
    fencing_token = highest_fencing_token(teams.client)
    with pytest.raises(StoreFormatError) as refused:
        teams.lead()
    text = str(refused.value)
    assert keys.BOOK_FORMAT in text
    assert f"set {keys.BOOK_FORMAT} " in text
    assert highest_fencing_token(teams.client) == fencing_token


@pytest.mark.parametrize("broken", [None, "two"])
def test_a_leader_goes_on_and_writes_its_format_again_where_the_store_has_lost_it(
    teams: LedgerHarness, broken: str | bytes | None
) -> None:
    spoil(teams, keys.BOOK_FORMAT, broken)
    teams.reconcile(2 * HOUR)
    assert state_answer(teams, "team-b")["state"] == "over"
    assert teams.client.get(keys.BOOK_FORMAT) == str(keys.FORMAT).encode()
    teams.lead()


@pytest.mark.parametrize("broken", [b"\xff", ""])
@pytest.mark.parametrize("field", ["epoch", "id", "version", "prices", "default", "charge", "servers"])
def test_a_broken_field_of_the_published_states_stops_no_leader_and_is_written_anew(
    teams: LedgerHarness, field: str, broken: str | bytes
) -> None:
    teams.client.hset(keys.STATES_HEAD, field, broken)
    teams.reconcile(2 * HOUR)
    assert not_settled(teams) == set()
    changes = read_changes(teams.client, None)
    assert changes is not None
    assert {namespace: json.loads(state)["state"] for namespace, state in changes.states} == {
        "team-a": "over",
        "team-b": "over",
    }


def test_a_pod_whose_amount_could_not_be_read_as_its_namespace_moved_is_open_under_the_next_payer_alone(
    teams: LedgerHarness,
) -> None:
    teams.pod("moving", "team-a")
    teams.reconcile()
    mend = break_entry(teams, keys.AccountKeys("a").amounts(MONTH), "moving", "broken")
    teams.lead()
    teams.reconcile()
    teams.budget("a", ["nobody"])
    teams.budget("b", ["team-b", "team-a"])
    teams.reconcile()
    mend()
    teams.reconcile(600)

    assert not teams.client.hexists(keys.AccountKeys("a").sessions, "moving")
    assert teams.client.hexists(keys.AccountKeys("b").sessions, "moving")


@pytest.mark.parametrize("ends", [False, True], ids=["runs on", "ended"])
def test_an_unreadable_amount_of_a_clock_that_was_ahead_is_taken_back_once_it_is_mended(
    harness: LedgerHarness, *, ends: bool
) -> None:
    harness.budget("a", ["team-a"], period={"every": "hour"})
    harness.pod("early", "team-a")
    harness.reconcile()
    later = NOON + 2 * HOUR * SECOND
    harness.ahead = 9000 * SECOND
    harness.reconcile()
    assert harness.spent("a", later) == 1800 * GPU_SECOND
    mend = break_entry(harness, keys.AccountKeys("a").amounts(later), "early", "broken")
    harness.lead()
    harness.reconcile()
    harness.ahead = 0
    harness.reconcile(1)
    if ends:
        harness.finish(harness.source_pod("early"))
    harness.reconcile()
    assert not_settled(harness) == {"a"}
    mend()
    harness.reconcile(600)
    harness.reconcile()
    assert not_settled(harness) == set()
    assert harness.spent("a", NOON) == (1 if ends else 601) * GPU_SECOND
    assert harness.spent("a", later) == 0


@pytest.mark.parametrize("broken", ["9" * 40, "soon", "", "-7"])
def test_a_period_whose_end_cannot_be_read_stops_no_other_account_and_no_next_leader(
    teams: LedgerHarness, broken: str
) -> None:
    teams.client.hset(keys.AccountKeys("a").periods, str(MONTH), broken)
    teams.reconcile(10)
    teams.lead()
    teams.reconcile(HOUR)
    assert teams.client.hget(keys.AccountKeys("b").head, "settled") == str(teams.now).encode()
    assert "b" not in not_settled(teams)
