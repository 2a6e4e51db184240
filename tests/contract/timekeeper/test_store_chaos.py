"""Whatever befalls the store while the books are kept, they come out exact: held to what really happened."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from tests.support.ledger.chaos_model import ChaosModel, persisted
from tests.support.ledger.concurrent_events import alongside, live_through
from tests.support.ledger.harness import LedgerHarness
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import wait_until
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger.client import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KILLS = 20 if os.environ.get("CI") == "true" else 4
EXACT = {"a": 0, "b": 0, "namespace:team-c": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "harness"
    place.mkdir()
    return place


@pytest.fixture
def harness(redis_server: RedisServer, folder: Path) -> Iterator[LedgerHarness]:
    with redis_server.client(socket_timeout=1.0) as client:
        yield LedgerHarness(folder, client)


@pytest.mark.parametrize("leaders", ["the leader goes on", "another leader follows"])
def test_the_store_is_killed_again_and_again(harness: LedgerHarness, redis_server: RedisServer, leaders: str) -> None:
    model = ChaosModel(harness, 4)
    for _ in range(KILLS):
        live_through(model, redis_server.restart)
        if leaders == "another leader follows":
            model.checkpoint()
            redis_server.restart()
            model.lead()
        assert {name: model.error()[name] for name in ("a", "b")} == {"a": 0, "b": 0}


def test_a_full_disk_stops_the_books_and_loses_nothing_of_them(
    harness: LedgerHarness, redis_server: RedisServer
) -> None:
    model = ChaosModel(harness, 5)
    model.live(3)
    redis_server.limit_files(max(file.stat().st_size for file in redis_server.folder.rglob("*.aof")) + 100)
    wait_until(lambda: is_refused(model, "MISCONF"), "Redis refuses to write")
    redis_server.limit_files(None)
    model.live(3)
    assert model.error() == EXACT
    assert model.differences() == ()


def test_a_full_disk_under_a_store_that_is_killed_before_there_is_room_again(
    harness: LedgerHarness, redis_server: RedisServer
) -> None:
    model = ChaosModel(harness, 6)
    model.live(3)
    redis_server.limit_files(max(file.stat().st_size for file in redis_server.folder.rglob("*.aof")) + 2000)
    wait_until(lambda: is_refused(model, "MISCONF"), "Redis refuses to write")
    redis_server.restart()
    model.live(3)
    assert model.error() == EXACT
    assert model.differences() == ()


def test_a_store_without_memory_left_holds_back_what_is_new_and_catches_up(harness: LedgerHarness) -> None:
    model = ChaosModel(harness, 7)
    model.live(3)
    client = harness.client
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    model.live(3)
    client.config_set("maxmemory", 0)
    model.live(3)
    assert model.error() == EXACT
    assert model.differences() == ()


def is_refused(model: ChaosModel, reason: str) -> bool:
    """Lets something happen; returns whether the store refused it."""
    model.act()
    try:
        model.harness.reconcile()
    except StoreUnavailableError as error:
        return reason in str(error)
    return False


def test_a_store_that_hangs_for_seconds_does_late_what_was_given_up_and_nothing_counts_twice(
    redis_server: RedisServer, folder: Path
) -> None:
    with redis_server.client(socket_timeout=0.3, retry=None) as client:
        model = ChaosModel(LedgerHarness(folder, client), 8)
        for _ in range(3):
            model.live(2)
            assert redis_server.process is not None
            hung = redis_server.process
            hung.send_signal(signal.SIGSTOP)
            for _ in range(4):
                model.act()
                with pytest.raises(StoreUnavailableError):
                    model.harness.reconcile()
            hung.send_signal(signal.SIGCONT)
            model.live(2)
        assert persisted(model.error) == EXACT
        assert persisted(model.differences) == ()


@pytest.mark.parametrize("leaders", ["the leader goes on", "another leader follows"])
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_an_append_only_file_that_was_cut_off_is_a_store_that_went_back(
    harness: LedgerHarness, redis_server: RedisServer, share: float, leaders: str
) -> None:
    model = ChaosModel(harness, 9)
    model.live(8)
    model.checkpoint()
    redis_server.stop()
    file = max(redis_server.folder.rglob("*.aof"), key=lambda found: found.stat().st_size)
    os.truncate(file, int(file.stat().st_size * share))
    redis_server.start()
    if leaders == "another leader follows":
        model.lead()
        assert model.error(("a", "b")) == {"a": 0, "b": 0}
    model.live(3)
    exact = EXACT if leaders == "the leader goes on" else {"a": 0, "b": 0}
    assert model.error(tuple(exact)) == exact


@pytest.mark.parametrize("skew", [HOUR, -HOUR, 26 * HOUR, -26 * HOUR])
def test_a_clock_that_steps_and_is_set_right_changes_no_figure(harness: LedgerHarness, skew: int) -> None:
    model = ChaosModel(harness, 10)
    assert harness.reconciler is not None
    for _ in range(3):
        model.live(3)
        model.act()
        harness.reconciler.reconcile(harness.now + skew)
        model.act()
        harness.reconciler.reconcile(harness.now + skew)
        model.live(2)
        assert model.error() == EXACT
    assert model.differences() == ()


def test_scripts_that_are_forgotten_in_the_middle_are_loaded_again(
    harness: LedgerHarness, redis_server: RedisServer
) -> None:
    model = ChaosModel(harness, 11)
    ending = threading.Event()

    def forget() -> None:
        with redis_server.client() as client:
            while not ending.wait(0.002):
                client.script_flush()

    with alongside(forget):
        try:
            model.live(10)
        finally:
            ending.set()
    assert model.error() == EXACT
