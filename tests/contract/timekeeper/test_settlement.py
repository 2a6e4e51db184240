from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ledger.harness import MAX_AMOUNT
from tests.support.servers.redis_server import RedisServer
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import FencedError, StoreEmptyError, StoreError
from timekeeper.ledger.totals import PeriodTotals
from timekeeper.ledger.writing import (
    CorrectionEntry,
    GrantEntry,
    Item,
    Kind,
    LedgerAction,
    Opening,
    Revision,
    SettlementBatch,
    apply_corrections,
    apply_grants,
    open_periods,
    take_fencing_token,
    write_settlements,
)

PERIOD = 1_769_850_000_000_000_000
ACCOUNT = "team-a"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with server.client() as connected:
        empty(connected)
        yield connected


def empty(client: redis.Redis) -> None:
    client.flushall()
    opened(client)


def opened(client: redis.Redis, fencing_token: int = 1, checkpoint: int = 0) -> PeriodTotals:
    (answer,) = open_periods(client, fencing_token, PERIOD, [Opening(ACCOUNT, PERIOD, PERIOD + 10**15, checkpoint)])
    assert isinstance(answer, PeriodTotals)
    return answer


def settled(client: redis.Redis, counter: int, *items: Item, fencing_token: int = 1) -> PeriodTotals:
    (answer,) = write_settlements(
        client, Revision(fencing_token, counter), PERIOD, [SettlementBatch(ACCOUNT, PERIOD, items)]
    )
    if isinstance(answer, StoreError):
        raise answer
    return answer


def everything(client: redis.Redis) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.scan_iter()}


near_limits = st.one_of(
    st.integers(0, 2000),
    *(st.integers(edge - 3, edge + 3) for edge in (10**9, 10**14, 2**53, 10**18, 2**63, 10**23)),
    st.integers(0, 10**22),
)
FINALIZING = {LedgerAction.FINALIZE_PERIOD, LedgerAction.FINALIZE}
actions = st.sampled_from([action for action in LedgerAction if action is not LedgerAction.MOVE])
steps = st.lists(st.tuples(st.integers(0, 6), st.sampled_from("abc"), near_limits, actions), max_size=12)


@given(steps, near_limits)
def test_spend_is_checkpoint_plus_entries_plus_what_is_not_posted_and_equals_a_model_to_the_last_unit(
    server: RedisServer, found: list[tuple[int, str, int, LedgerAction]], checkpoint: int
) -> None:
    with server.client() as client:
        client.flushall()
        opened(client, checkpoint=checkpoint)
        amounts: dict[str, int] = {}
        revisions: dict[str, int] = {}
        flags: dict[str, LedgerAction] = {}
        standing = None
        for counter, uid, amount, action in found:
            standing = settled(client, counter, Item(uid, amount, action, Kind.HOURLY, record="{}"))
            over = (flags.get(uid) in FINALIZING and action in FINALIZING) or (
                flags.get(uid) is LedgerAction.CLOSE and action in {LedgerAction.HOLD, LedgerAction.OPEN}
            )
            if counter > revisions.get(uid, -1) and not over:
                amounts[uid], revisions[uid] = amount, counter
                keeps = flags.get(uid) is LedgerAction.CLOSE and action is LedgerAction.POST
                flags[uid] = LedgerAction.CLOSE if keeps else action
        stored = reading.stored_amounts(client, ACCOUNT, PERIOD)
        entries = reading.ledger_page(client, ACCOUNT, "", 1000)
        total = checkpoint + sum(amounts.values())
        assert {uid: found.amount for uid, found in stored.items()} == amounts
        assert sum(entry.amount for entry in entries) + sum(s.amount - s.posted for s in stored.values()) == total
        if standing is not None:
            assert standing.total == total
            assert standing.finalized == checkpoint + sum(amounts[uid] for uid in amounts if flags[uid] in FINALIZING)


@given(charged=near_limits, given_back=near_limits, ended=near_limits, again=st.booleans())
def test_an_amount_that_a_correction_and_an_earlier_end_give_back_is_counted_below_nothing_to_the_last_unit(
    server: RedisServer, charged: int, given_back: int, ended: int, *, again: bool
) -> None:
    with server.client() as client:
        empty(client)
        settled(client, 1, Item("a", charged))
        taken = -given_back if again else -min(given_back, charged)
        correction = CorrectionEntry(ACCOUNT, PERIOD, "c", taken, "", "", 0, again=again)
        (answer,) = apply_corrections(client, 1, PERIOD, [correction])
        assert isinstance(answer, PeriodTotals)
        assert answer.total == charged + taken
        amount = min(ended, charged)
        assert (
            settled(client, 2, Item("a", amount, LedgerAction.CLOSE, Kind.CLOSE, record="{}")).total == amount + taken
        )
        assert settled(client, 3, Item("b", 5)).total == amount + taken + 5
        assert sum(entry.amount for entry in reading.ledger_page(client, ACCOUNT, "", 9)) == amount + taken


def test_a_correction_that_takes_more_than_was_spent_is_refused_and_writes_nothing(client: redis.Redis) -> None:
    settled(client, 1, Item("a", 7))
    before = everything(client)
    (answer,) = apply_corrections(client, 1, PERIOD, [CorrectionEntry(ACCOUNT, PERIOD, "c", -8, "", "", 0)])
    assert isinstance(answer, StoreError)
    assert "7 microGPU-seconds were spent" in str(answer)
    assert everything(client) == before


@pytest.mark.parametrize(
    "amount", [0, 1, 10**9 - 1, 10**9, 10**14, 10**14 + 1, 2**53, 2**53 + 1, 10**18, 2**63, MAX_AMOUNT]
)
def test_an_amount_comes_back_as_it_went_in(client: redis.Redis, amount: int) -> None:
    assert settled(client, 1, Item("a", amount, LedgerAction.POST)).total == amount
    assert settled(client, 2, Item("a", 1, LedgerAction.POST)).total == 1
    if amount != 1:
        assert [entry.amount for entry in reading.ledger_page(client, ACCOUNT, "", 9)][-1] == 1 - amount


@pytest.mark.parametrize(
    "bad",
    [
        Item("b", -1),
        Item("b", MAX_AMOUNT + 1),
        Item("b", MAX_AMOUNT),
        Item("a", 5),
        Item("b", "1e14"),  # type: ignore[arg-type]
        Item("b", ""),  # type: ignore[arg-type]
        Item("b", "٣"),  # type: ignore[arg-type]
    ],
)
def test_one_bad_item_and_nothing_of_a_settlement_is_done(client: redis.Redis, bad: Item) -> None:
    settled(client, 1, Item("a", 7, LedgerAction.POST))
    before = everything(client)
    with pytest.raises(StoreError):
        settled(client, 2, Item("a", 9, LedgerAction.CLOSE), bad)
    assert everything(client) == before


def test_a_replay_changes_nothing(client: redis.Redis) -> None:
    items = (Item("a", 7, LedgerAction.OPEN, record="{}"), Item("b", 9, LedgerAction.CLOSE, Kind.CLOSE, record="{}"))
    settled(client, 3, *items)
    before = everything(client)
    assert settled(client, 3, *items).total == 16
    assert settled(client, 2, Item("a", 99)).total == 16
    assert everything(client) == before


def test_a_later_leader_wins_over_any_counter_of_the_earlier_one(client: redis.Redis) -> None:
    settled(client, 1000, Item("a", 7))
    assert settled(client, 1, Item("a", 5), fencing_token=2).total == 5


def test_an_earlier_leader_is_refused_and_writes_nothing(client: redis.Redis) -> None:
    settled(client, 1, Item("a", 7), fencing_token=2)
    before = everything(client)
    with pytest.raises(FencedError):
        settled(client, 2000, Item("a", 9), fencing_token=1)
    (answer,) = open_periods(client, 1, PERIOD, [Opening(ACCOUNT, PERIOD + 10**15, PERIOD + 2 * 10**15)])
    assert isinstance(answer, FencedError)
    (answer,) = apply_grants(client, 1, PERIOD, [GrantEntry(ACCOUNT, PERIOD, "g", 5, "")])
    assert isinstance(answer, FencedError)
    assert everything(client) == before


def test_an_emptied_store_takes_no_settlement(client: redis.Redis) -> None:
    client.flushall()
    with pytest.raises(StoreEmptyError):
        settled(client, 1, Item("a", 7))
    assert client.dbsize() == 0


def test_an_emptied_store_starts_again_from_the_checkpoint(client: redis.Redis) -> None:
    client.flushall()
    standing = opened(client, checkpoint=2**53 + 1)
    assert (standing.total, standing.finalized, standing.new) == (2**53 + 1, 2**53 + 1, True)
    assert settled(client, 1, Item("a", 1)).total == 2**53 + 2
    again = opened(client, checkpoint=5)
    assert (again.total, again.new) == (2**53 + 2, False)


def test_a_restarted_redis_that_forgot_the_scripts_is_given_them_again(client: redis.Redis) -> None:
    settled(client, 1, Item("a", 7))
    client.script_flush()
    settlements = [SettlementBatch(ACCOUNT, PERIOD, (Item(uid, 1),)) for uid in "bcd"]
    answers = write_settlements(client, Revision(1, 2), PERIOD, settlements)
    assert [answer.total for answer in answers if isinstance(answer, PeriodTotals)] == [8, 9, 10]


def test_a_grant_is_applied_once_whatever_its_amount_the_second_time(client: redis.Redis) -> None:
    grants = [GrantEntry(ACCOUNT, PERIOD, "g", amount, "deadline") for amount in (2**53 + 1, 7)]
    first, second = apply_grants(client, 1, PERIOD, grants)
    assert isinstance(first, PeriodTotals)
    assert isinstance(second, PeriodTotals)
    assert (first.granted, first.new) == (2**53 + 1, True)
    assert (second.granted, second.new) == (2**53 + 1, False)
    (entry,) = reading.ledger_page(client, ACCOUNT, "", 9)
    assert (entry.kind, entry.amount, entry.pod, entry.note) == ("grant", 2**53 + 1, "g", "deadline")


def test_a_closed_session_changes_only_by_a_correction(client: redis.Redis) -> None:
    settled(client, 1, Item("a", 7, LedgerAction.CLOSE, Kind.CLOSE, "ns", "pod", "note", "{}"))
    settled(client, 2, Item("a", 99))
    assert settled(client, 3, Item("a", 7, LedgerAction.CLOSE, Kind.CLOSE, "ns", "pod", "note", "{}")).total == 7
    assert settled(client, 4, Item("a", 5, LedgerAction.POST, Kind.HOURLY, "ns", "pod")).total == 5
    entries = reading.ledger_page(client, ACCOUNT, "", 9)
    assert [(entry.kind, entry.amount) for entry in entries] == [("close", 7), ("correction", -2)]


def test_hundreds_of_sessions_of_one_account_settle_in_one_call(client: redis.Redis) -> None:
    items = [Item(f"pod-{number}", number, LedgerAction.OPEN, record="{}") for number in range(1200)]
    assert settled(client, 1, *items).total == sum(range(1200))


def test_epochs_grow_and_follow_the_lease(client: redis.Redis) -> None:
    assert [
        take_fencing_token(client, 0),
        take_fencing_token(client, 0),
        take_fencing_token(client, 7),
        take_fencing_token(client, 7),
    ] == [1, 2, 7, 8]


def test_no_leader_begins_on_a_store_that_a_later_timekeeper_wrote(client: redis.Redis) -> None:
    client.set(keys.BOOK_FORMAT, keys.FORMAT + 1)
    with pytest.raises(StoreError, match=f"format {keys.FORMAT + 1}.*up to {keys.FORMAT}: install the timekeeper"):
        take_fencing_token(client, 0)
    assert client.get(keys.BOOK_FENCING_TOKEN) is None


def test_ledger_pages_follow_each_other_without_gap(client: redis.Redis) -> None:
    settled(client, 1, *(Item(f"pod-{number}", 1, LedgerAction.POST) for number in range(25)))
    cursor, seen = "", []
    while page := reading.ledger_page(client, ACCOUNT, cursor, 10):
        seen.extend(entry.session for entry in page)
        cursor = page[-1].id
    assert seen == [f"pod-{number}" for number in range(25)]


def test_only_the_amounts_of_a_period_that_are_asked_for_are_read(client: redis.Redis) -> None:
    settled(client, 1, Item("a", 1), Item("b", 2), Item("c", 3))
    found = reading.amounts_of(client, [(ACCOUNT, PERIOD, ["a", "unknown", "c"])])
    assert {uid: stored.amount for uid, stored in found[ACCOUNT, PERIOD].items()} == {"a": 1, "c": 3}
