"""Older entries of the ledger are packed into segments, and every answer stays as it was."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.support.ledger import old_segments
from tests.support.ledger.seeding import END, EPOCH, START
from timekeeper.domain.timestamps import DAY
from timekeeper.ledger import entries, keys, reading
from timekeeper.ledger.client import FencedError, run_one
from timekeeper.ledger.compaction import Cutoffs, due_for_compaction
from timekeeper.ledger.entries import LedgerEntry, entry_order, pack_ledger
from timekeeper.ledger.writing import (
    Item,
    Kind,
    LedgerAction,
    Opening,
    Revision,
    SettlementBatch,
    open_periods,
    write_settlements,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from tests.support.servers.redis_server import RedisServer

NAMES = keys.AccountKeys("a")
UID = "0b1c2d3e-0000-4000-8000-000000000001"


@pytest.fixture
def client(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    monkeypatch.setattr(entries, "SEGMENT_ENTRIES", 10)
    monkeypatch.setattr(reading, "SEGMENT_ENTRIES", 10)
    with redis_server.client() as client:
        open_periods(client, EPOCH, START, [Opening("a", START, END)])
        yield client


def post(client: redis.Redis, amounts: range) -> None:
    """One entry for each of these, to which the session's amount grows."""
    for amount in amounts:
        item = Item(UID, amount, LedgerAction.POST, Kind.HOURLY, "team-a", "train-0")
        write_settlements(client, Revision(EPOCH, amount), time.time_ns(), [SettlementBatch("a", START, [item])])


def everything(client: redis.Redis) -> list[LedgerEntry]:
    return reading.ledger_page(client, "a", "", 1000)


def written_before_now(client: redis.Redis) -> int:
    return everything(client)[-1].at + 1


def test_an_order_of_segments_that_names_one_there_is_not_is_not_used(client: redis.Redis) -> None:
    post(client, range(1, 26))
    before = everything(client)
    while not pack_ledger(client, EPOCH, "a", before[22].at):
        pass
    (first, *_) = client.zrange(NAMES.segment_order, 0, 0)
    client.zrem(NAMES.segment_order, first)
    client.zadd(NAMES.segment_order, {f"{first.decode()}0": 0})
    assert everything(client) == before
    assert reading.ledger_page(client, "a", before[4].id, 7) == before[5:12]


def test_packed_and_unpacked_entries_are_one_ledger_from_every_cursor_on(client: redis.Redis) -> None:
    post(client, range(1, 26))
    before = everything(client)
    while not pack_ledger(client, EPOCH, "a", before[22].at):
        pass
    assert (client.hlen(NAMES.segments), client.xlen(NAMES.ledger)) == (3, 3)
    assert [entry.amount for entry in everything(client)] == [1] * 25
    for first in range(25):
        for limit in (1, 2, 10, 1000):
            expected = before[first + 1 : first + 1 + limit]
            assert reading.ledger_page(client, "a", before[first].id, limit) == expected
    assert reading.ledger_page(client, "a", "", 7) == before[:7]
    bare = before[12].id.partition("-")[0]
    later = [entry for entry in before if entry_order(entry.id) > (int(bare), 0)]
    assert reading.ledger_page(client, "a", bare, 1000) == later


def test_a_segment_grows_until_it_is_full_and_stays_as_it_is_from_then_on(client: redis.Redis) -> None:
    post(client, range(1, 8))
    assert pack_ledger(client, EPOCH, "a", written_before_now(client))
    post(client, range(8, 15))
    assert not pack_ledger(client, EPOCH, "a", written_before_now(client))
    (full,) = client.hkeys(NAMES.segments)
    while not pack_ledger(client, EPOCH, "a", written_before_now(client)):
        pass
    assert client.hlen(NAMES.segments) == 2
    assert full in client.hkeys(NAMES.segments)
    assert len(everything(client)) == 14


def test_segments_of_the_version_before_are_read_and_the_last_one_grows_in_the_present_version(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(entries, "pack_entries", old_segments.pack_entries)
        post(client, range(1, 16))
        while not pack_ledger(client, EPOCH, "a", written_before_now(client)):
            pass
    post(client, range(16, 23))
    before = everything(client)
    while not pack_ledger(client, EPOCH, "a", written_before_now(client)):
        pass
    assert everything(client) == before
    assert reading.ledger_page(client, "a", before[4].id, 12) == before[5:17]
    order = client.zrange(NAMES.segment_order, 0, -1)
    packed = [client.hget(NAMES.segments, member.partition(b" ")[2]) for member in order]
    assert [segment[0] for segment in packed] == [1, 2, 2]


def test_segments_that_were_packed_before_there_was_an_order_of_them_are_read_all_the_same_and_get_one(
    client: redis.Redis,
) -> None:
    post(client, range(1, 36))
    before = everything(client)
    while not pack_ledger(client, EPOCH, "a", before[24].at):
        pass
    client.delete(NAMES.segment_order)
    assert everything(client) == before
    assert reading.ledger_page(client, "a", before[12].id, 15) == before[13:28]
    while not pack_ledger(client, EPOCH, "a", before[29].at):
        pass
    ordered = [name.partition(b" ")[2] for name in client.zrange(NAMES.segment_order, 0, -1)]
    known = client.hkeys(NAMES.segments)
    assert ordered == sorted(known, key=lambda name: entry_order(name.decode().partition(" ")[0]))
    assert everything(client) == before


def test_an_entry_that_is_not_due_stays_with_all_after_it(client: redis.Redis) -> None:
    post(client, range(1, 5))
    before = everything(client)
    assert pack_ledger(client, EPOCH, "a", before[0].at)
    assert client.exists(NAMES.segments) == 0
    assert everything(client) == before


def test_an_entry_by_a_clock_that_was_ahead_is_packed_by_the_clock_of_the_store(client: redis.Redis) -> None:
    ahead = Item(UID, 1, LedgerAction.POST, Kind.HOURLY, "team-a", "train-0")
    write_settlements(client, Revision(EPOCH, 1), time.time_ns() + 366 * DAY, [SettlementBatch("a", START, [ahead])])
    post(client, range(2, 5))
    before, tomorrow = everything(client), time.time_ns() + DAY
    assert due_for_compaction(client, ["a"], Cutoffs(0, 0, tomorrow)) == {"a"}
    while not pack_ledger(client, EPOCH, "a", tomorrow):
        pass
    assert client.xlen(NAMES.ledger) == 0
    assert everything(client) == before


def test_entries_that_come_once_all_are_packed_follow_them(client: redis.Redis) -> None:
    post(client, range(1, 5))
    assert pack_ledger(client, EPOCH, "a", written_before_now(client))
    assert client.xlen(NAMES.ledger) == 0
    last = everything(client)[-1].id
    post(client, range(5, 7))
    assert [entry.amount for entry in reading.ledger_page(client, "a", last, 10)] == [1, 1]


def test_a_store_that_is_full_is_packed_all_the_same(client: redis.Redis) -> None:
    post(client, range(1, 5))
    due, before = written_before_now(client), everything(client)
    client.config_set("maxmemory", 1)
    try:
        assert pack_ledger(client, EPOCH, "a", due)
    finally:
        client.config_set("maxmemory", 0)
    assert client.xlen(NAMES.ledger) == 0
    assert everything(client) == before


def test_a_leader_that_was_replaced_packs_nothing(client: redis.Redis) -> None:
    post(client, range(1, 5))
    client.hset(NAMES.head, "epoch", EPOCH + 1)
    with pytest.raises(FencedError):
        pack_ledger(client, EPOCH, "a", written_before_now(client))
    assert client.xlen(NAMES.ledger) == 4


def test_nothing_is_packed_where_the_segment_that_was_read_is_another_by_then(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    post(client, range(1, 5))
    assert pack_ledger(client, EPOCH, "a", written_before_now(client))
    post(client, range(5, 9))

    def after_another(to: redis.Redis, call: object) -> object:
        monkeypatch.setattr(entries, "run_one", run_one)
        pack_ledger(client, EPOCH, "a", written_before_now(client))
        return run_one(to, call)  # type: ignore[arg-type]

    monkeypatch.setattr(entries, "run_one", after_another)
    assert not pack_ledger(client, EPOCH, "a", written_before_now(client))
    assert len(everything(client)) == 8
    assert client.hlen(NAMES.segments) == 1
