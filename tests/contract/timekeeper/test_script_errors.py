"""A script that breaks off is the error of its one call; a server that takes no writes is unavailable to all."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
import redis

from tests.support.servers import redis_binaries
from tests.support.servers.redis_server import RedisServer
from timekeeper.domain.reports import HeldDevice, ReportLimits
from timekeeper.ledger import keys
from timekeeper.ledger.client import ScriptError, StoreError, StoreUnavailableError
from timekeeper.ledger.reports import write_report_limits
from timekeeper.ledger.writing import (
    Item,
    Opening,
    Revision,
    SettlementBatch,
    open_periods,
    write_each_settlement,
    write_settlements,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

START = 1_769_850_000_000_000_000


@pytest.fixture(scope="module", params=["Redis 6.2", "Redis 7"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "Redis 7":
            patch.setenv("FAIRGPU_REDIS_SERVER", redis_binaries.redis_7())
        with RedisServer(tmp_path_factory.mktemp("redis")) as running:
            yield running


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with server.client() as connected:
        connected.flushall()
        open_periods(connected, 1, START, [Opening(name, START, START + 10**15) for name in ("a", "b")])
        yield connected


def settled(client: redis.Redis, counter: int = 1) -> list[object]:
    """Returns the store's answers to a settlement of one session of each of two accounts."""
    pods = [SettlementBatch(name, START, [Item(f"pod-{name}", 5)]) for name in ("a", "b")]
    return list(write_settlements(client, Revision(1, counter), START, pods))


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("head", ("HSET", "version", "many")),
        ("head", ("SET", "a string")),
        ("period", ("SET", "a string")),
        ("period", ("HSET", "total", "all")),
        ("period", ("HSET", "total", str(10**24))),
        ("period", ("HSET", "gone", "-")),
        ("amounts", ("SET", "a string")),
        ("amounts", ("HSET", "pod-a", "much")),
        ("amounts", ("HSET", "pod-a", f"0 0 {10**24} 0 o")),
        ("amounts", ("HSET", "pod-a", f"0 0 0 {10**24} o")),
        ("sessions", ("SET", "a string")),
        ("ended", ("RPUSH", "a list")),
        ("ledger", ("SET", "a string")),
    ],
)
def test_data_that_a_script_cannot_work_with_is_the_error_of_that_account_and_changes_nothing(
    client: redis.Redis, key: str, command: tuple[str, ...]
) -> None:
    account = keys.AccountKeys("a")
    named = getattr(account, key)
    place = named(START) if callable(named) else named
    if command[0] != "HSET":
        client.delete(place)
    client.execute_command(command[0], place, *command[1:])
    before = {name: client.dump(name) for name in client.scan_iter()}
    of_a, of_b = settled(client)
    assert isinstance(of_a, ScriptError)
    if key in {"period", "amounts"} and command[0] == "HSET":
        assert place in str(of_a)  # so the log's line names account and period
    assert not isinstance(of_b, StoreError)
    assert {name: value for name, value in before.items() if b"{a}" in name} == {
        name: client.dump(name) for name in client.scan_iter() if b"{a}" in name
    }


def test_the_words_of_a_refused_value_are_not_taken_for_a_state_of_the_server(client: redis.Redis) -> None:
    client.hset(keys.AccountKeys("a").amounts(START), "pod-a", "READONLY -OOM user_script")
    of_a, _ = settled(client)
    assert isinstance(of_a, ScriptError)


def test_a_replica_is_unavailable_for_every_account(client: redis.Redis) -> None:
    settled(client)
    client.replicaof("127.0.0.1", "1")
    try:
        assert [type(answer) for answer in settled(client, 2)] == [StoreUnavailableError] * 2
    finally:
        client.replicaof("NO", "ONE")


def test_a_server_without_its_replicas_is_unavailable(client: redis.Redis) -> None:
    client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            client.set("anything", "at all")
        kinds = {type(answer) for answer in settled(client)}
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert ScriptError not in kinds


def test_the_sessions_of_a_refused_settlement_are_taken_one_by_one_under_the_same_revision(client: redis.Redis) -> None:
    client.hset(keys.AccountKeys("a").amounts(START), "bad", "nonsense")
    items = [Item("good", 3), Item("bad", 4), Item("fine", 5)]
    whole = SettlementBatch("a", START, items)
    (refused,) = write_settlements(client, Revision(1, 1), START, [whole])
    assert isinstance(refused, ScriptError)
    standing, errors = write_each_settlement(client, Revision(1, 1), START, whole)
    assert standing is not None
    assert standing.total == 8
    assert errors.keys() == {"bad"}


def test_a_report_whose_limits_cannot_be_written_stops_the_limits_of_no_other(client: redis.Redis) -> None:
    client.rpush(keys.report("bad"), "a list")
    held = ReportLimits(START, (HeldDevice("GPU-1", 1, Fraction(1), 1000, 1_000_000),))
    write_report_limits(client, 1, dict.fromkeys(["first", "bad", "last"], held), {})
    assert client.type(keys.report("bad")) == b"list"
    for uid in ("first", "last"):
        assert client.hget(keys.report(uid), "terms") is not None
        assert client.ttl(keys.report(uid)) > 0
