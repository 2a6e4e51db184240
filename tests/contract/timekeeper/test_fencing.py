"""A leader whom another has followed never writes again under a newer epoch: it cannot shut its successor out."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairgpu.leadership import Term
from tests.support.ledger.harness import NOON, LedgerHarness, report
from tests.support.ledger.steps import stepping
from timekeeper.controller.leader_tasks import LeaderTasks, TaskEnvironment
from timekeeper.controller.metrics import JobMeasures
from timekeeper.controller.reconcile import settle_accounts
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.pricing import Bill, PricePoint
from timekeeper.domain.timestamps import MINUTE
from timekeeper.ledger import keys, shared
from timekeeper.ledger.client import FencedError
from timekeeper.ledger.compaction import forget_payer
from timekeeper.ledger.reading import highest_fencing_token
from timekeeper.ledger.reports import close_and_read
from timekeeper.ledger.shared import write_capacity
from timekeeper.ledger.usage import capacity, capacity_of_models
from timekeeper.ledger.writing import take_fencing_token

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

LEADERS = ("first", "second", "third")
ACTS = st.one_of(
    st.tuples(st.just("takes over"), st.sampled_from(LEADERS)),
    st.tuples(st.just("believes in its latest term"), st.sampled_from(LEADERS)),
    st.tuples(st.just("settles"), st.sampled_from(LEADERS)),
)


class Leader:
    """The jobs of one process, whose Lease says what the test says, on a monotonic clock of the test's own."""

    def __init__(self, harness: LedgerHarness, name: str) -> None:
        self.clock = 0.0
        self.term = Term(lambda: self.clock)
        environment = TaskEnvironment(harness.client, harness.source, self.term, lambda: harness.now, holder=name)
        self.work = LeaderTasks(environment, ControllerRules(), JobMeasures())
        self.latest = 0
        """The latest term that the Lease gave it."""
        self._left = 0
        self._meanwhile: Callable[[], object] = int

    def settle(self, after: int = 0, meanwhile: Callable[[], object] = int) -> None:
        """Settles; after so many steps of the round something else happens meanwhile."""
        self._left, self._meanwhile = after, meanwhile
        with stepping(self._step):
            self.work.settle()

    def _step(self, _name: str) -> None:
        self._left -= 1
        if self._left == -1:
            self._meanwhile()

    def look(self, term: int) -> None:
        """The Lease is seen to be its own, in this term."""
        self.latest = term
        self.clock += 1
        self.term.hold(term, self.clock + 1000, self.clock)


@pytest.fixture
def harness(harness: LedgerHarness) -> LedgerHarness:
    harness.budget("a", ["team-a"])
    harness.pod("p1", "team-a")
    harness.source.refresh()
    return harness


def test_a_fenced_leader_that_asks_again_is_refused_and_its_successor_goes_on(harness: LedgerHarness) -> None:
    first, second = Leader(harness, "first"), Leader(harness, "second")
    first.look(1)
    first.work.settle()
    second.look(2)
    second.work.settle()
    fencing_token = highest_fencing_token(harness.client)
    for _ in range(3):
        harness.pass_time(10)
        first.work.settle()
        assert first.term.number() is None
        first.look(1)  # its view of the Lease is old
        first.work.react()
        second.work.settle()
        assert second.term.number() == 2
    assert highest_fencing_token(harness.client) == fencing_token
    assert harness.spent("a") == 30 * GPU_SECOND


@pytest.mark.parametrize("lost", ["emptied", "gone back to the first leader's term", "gone back to before any term"])
def test_a_fenced_leader_is_refused_by_a_store_that_lost_its_successor_s_term_once_that_one_has_written(
    harness: LedgerHarness, lost: str
) -> None:
    first, second = Leader(harness, "first"), Leader(harness, "second")
    first.look(1)
    first.work.settle()
    before = {key: harness.client.dump(key) for key in harness.client.scan_iter()}
    second.look(2)
    second.work.settle()
    fencing_token = highest_fencing_token(harness.client)
    harness.client.flushall()
    if lost != "emptied":
        for key, dumped in before.items():
            harness.client.restore(key, 0, dumped)
        harness.client.replicaof("127.0.0.1", "1")  # so that it is another history of the server
        harness.client.replicaof("NO", "ONE")
    if lost == "gone back to before any term":
        harness.client.delete(keys.BOOK_TERM, keys.BOOK_FENCING_TOKEN)
    for _ in range(3):
        harness.pass_time(10)
        second.work.settle()
        second.work.settle()
        first.look(1)
        first.work.settle()
        assert first.term.number() is None
        assert second.term.number() == 2
    assert highest_fencing_token(harness.client) == fencing_token
    assert harness.client.get(keys.BOOK_TERM) == b"2 second"
    assert harness.spent("a") == 30 * GPU_SECOND


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(st.tuples(ACTS, st.lists(ACTS, max_size=2), st.integers(0, 8)), min_size=4, max_size=16))
def test_the_holder_of_the_latest_term_is_never_fenced_whatever_happens_during_reconciliations(
    harness: LedgerHarness, acts: list[tuple[tuple[str, str], list[tuple[str, str]], int]]
) -> None:
    harness.client.flushall()
    leaders = {name: Leader(harness, name) for name in LEADERS}
    holder = leaders["first"]
    holder.look(1)
    holder.settle()

    def act(what: str, name: str, after: int = 0, meanwhile: Callable[[], object] = int) -> None:
        nonlocal holder
        leader = leaders[name]
        if what == "takes over" and leader is not holder:
            leader.look(holder.latest + 1)
            holder = leader
        elif what == "believes in its latest term" and leader.latest:
            leader.look(leader.latest)
        elif what == "settles":
            leader.settle(after, meanwhile)

    def elsewhere(between: list[tuple[str, str]], name: str) -> None:
        for what, other in between:
            if other != name:  # a process does one job at a time
                act(what, other)

    for (what, name), between, after in acts:
        harness.pass_time(1)
        act(what, name, after, lambda between=between, name=name: elsewhere(between, name))
        assert holder.term.number() == holder.latest
    harness.pass_time(1)
    holder.settle()
    assert holder.term.number() == holder.latest
    assert harness.client.get(keys.BOOK_TERM) == f"{holder.latest} {holder_name(leaders, holder)}".encode()
    assert harness.spent("a") == (harness.now - NOON) // SECOND * GPU_SECOND


def holder_name(leaders: dict[str, Leader], holder: Leader) -> str:
    return next(name for name, leader in leaders.items() if leader is holder)


def test_a_look_at_the_lease_from_before_a_term_was_lost_does_not_bring_it_back() -> None:
    clock = [10.0]
    term = Term(lambda: clock[0])
    term.hold(1, 100.0, looked_at=9.0)
    term.lose()
    term.hold(1, 100.0, looked_at=9.5)
    assert term.number() is None
    term.hold(1, 100.0, looked_at=10.5)
    assert term.number() == 1


def test_an_epoch_is_given_again_to_the_holder_of_the_latest_term_alone(client: redis.Redis) -> None:
    first = take_fencing_token(client, 5, "a")
    assert take_fencing_token(client, 5, "a") > first
    latest = take_fencing_token(client, 7, "b")
    for term, holder in ((5, "a"), (6, "a"), (7, "a"), (7, "c")):
        with pytest.raises(FencedError):
            take_fencing_token(client, term, holder)
    assert highest_fencing_token(client) == latest
    assert take_fencing_token(client, 8, "a") > latest


def test_a_fenced_leader_neither_writes_nor_deletes_capacity(client: redis.Redis) -> None:
    before, following = take_fencing_token(client, 1, "a"), take_fencing_token(client, 2, "b")
    write_capacity(client, following, NOON + SECOND, {"A100": 2 * GPU_SECOND})

    with pytest.raises(FencedError):
        write_capacity(client, before, NOON, {"A100": GPU_SECOND})

    assert capacity(client)[NOON + SECOND] == 2 * GPU_SECOND
    assert capacity_of_models(client)["A100"][NOON + SECOND] == 2 * GPU_SECOND
    assert NOON not in capacity(client)


@pytest.fixture
def client(harness: LedgerHarness) -> redis.Redis:
    return harness.client


@pytest.mark.parametrize(
    ("key", "write", "arguments"),
    [
        (keys.NAMESPACES, shared.write_assignments, ({"team": ((0, "late"),)},)),
        (keys.ACCOUNTS, shared.write_accounts, (["late"],)),
        (keys.BUDGETS, shared.write_budgets, ({"late": {}},)),
        (keys.PRICES, shared.write_prices, ({"A100": (PricePoint(0, Fraction(9)),)},)),
        (keys.SINCE, shared.write_since, (9,)),
        (keys.WATCHED, shared.write_watched, (9, 9)),
        (keys.WATCHED_CLAIMS, shared.write_watched, (9, 9)),
        (keys.SILENT, shared.write_silent, ({"n1": 9},)),
        (keys.UNMETERED, shared.note_unmetered, ({"uid": 9},)),
        (keys.PAST, shared.write_past, (9,)),
        (keys.RESTORED, shared.note_restored, (["late"],)),
        (keys.NOT_SETTLED, shared.write_not_settled, (frozenset(), {"late"})),
        (keys.OPEN_SESSIONS, shared.index_sessions, ([("late", "a")], [])),
    ],
)
def test_a_fenced_leader_writes_no_record_that_all_accounts_share(
    client: redis.Redis, key: str, write: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    before, following = take_fencing_token(client, 1, "a"), take_fencing_token(client, 2, "b")
    with pytest.raises(FencedError):
        write(client, before, *arguments)
    assert not client.exists(key)
    write(client, following, *arguments)
    assert client.exists(key)


def test_a_fenced_leader_removes_no_record_that_all_accounts_share(client: redis.Redis) -> None:
    before, following = take_fencing_token(client, 1, "a"), take_fencing_token(client, 2, "b")
    shared.index_sessions(client, following, [("uid", "a")], [])
    shared.write_not_settled(client, following, None, {"a"})
    shared.write_assignments(client, following, {"team": ((0, "a"),)})
    with pytest.raises(FencedError):
        shared.index_sessions(client, before, [], [("uid", "a")])
    for known in (None, {"a"}):
        with pytest.raises(FencedError):
            shared.write_not_settled(client, before, known, set())
    with pytest.raises(FencedError):
        forget_payer(client, before, {}, ["team"])
    shared.note_unmetered(client, following, {"uid": 9})
    with pytest.raises(FencedError):
        shared.forget_unmetered(client, before, ["uid"])
    assert client.exists(keys.UNMETERED)
    assert client.exists(keys.OPEN_SESSIONS, keys.NOT_SETTLED, keys.NAMESPACES) == 3


def test_a_paused_leader_keeps_no_reports_apart_as_its_successor_does_not(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile another account pays, whose period ends seven minutes past the hour."""
    rules = ControllerRules(bill=Bill.USED)
    harness.budget("a", ["team-a"], period={"every": "hour"})
    first = harness.lead(rules)
    harness.reconcile(1)

    def succeed() -> None:
        harness.budget("a", ["team-b"], period={"every": "hour"})
        harness.budget("b", ["team-a"], period={"cron": "7 * * * *"})
        harness.lead(rules)
        harness.reconcile(60)
        harness.reconcile()

    read, once = close_and_read, [succeed]

    def read_later(*arguments: Any) -> Any:
        while once:
            once.pop()()
        return read(*arguments)

    monkeypatch.setattr(settle_accounts, "close_and_read", read_later)
    with suppress(FencedError):
        first.reconcile(harness.now)
    assert once == []
    for sequence, (at, busy) in enumerate([(300, 90), (410, 100), (430, 110), (640, 120)]):
        harness.pass_time((NOON - harness.now) / SECOND + at)
        report(harness, "p1", sequence, busy)
    harness.reconcile(10)
    begun = NOON - 53 * MINUTE, NOON + 7 * MINUTE
    assert [harness.spent("b", start) for start in begun] == [100 * GPU_SECOND, 20 * GPU_SECOND]
