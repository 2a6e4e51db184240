"""Replicas take over from a killed master, and on a Redis Cluster; apart from promotions, for a worker of its own."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import pytest
import redis

from tests.support.ledger.chaos_model import ChaosModel
from tests.support.ledger.concurrent_events import live_through
from tests.support.ledger.harness import LedgerHarness
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.redis_shapes import ClusterShape, SentinelShape
from tests.support.waiting import wait_until
from timekeeper.ledger.connection import connect, identity
from timekeeper.ledger.keys import BOOK_FENCING_TOKEN, AccountKeys

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.patient

PROMOTIONS = 20 if os.environ.get("CI") == "true" else 2
EXACT = {"a": 0, "b": 0, "namespace:team-c": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "harness"
    place.mkdir()
    return place


def test_a_replica_takes_over_from_a_master_that_is_killed(tmp_path: Path, folder: Path) -> None:
    with SentinelShape(tmp_path, sentinels=3, watchful=True) as store, connect(store.settings) as client:
        model = ChaosModel(LedgerHarness(folder, client), 2)
        for _ in range(PROMOTIONS // 5 or 1):
            old = store.master()
            live_through(model, partial(kill_and_wait, store, old))
            old.start()
            wait_until(store.is_whole, "the old master follows the new one")
            model.reconcile()
            assert model.error() == EXACT


def kill_and_wait(store: SentinelShape, old: RedisServer) -> None:
    old.kill()
    wait_until(lambda: store.master() is not old, "a replica is promoted")


def test_primaries_of_a_cluster_are_replaced_while_they_are_written_to(tmp_path: Path, folder: Path) -> None:
    # Nodes vote for another replica of the same primary only after twice the time in which they give a silent one up.
    with ClusterShape(tmp_path, watchful=True) as store, connect(store.settings) as client:
        model = ChaosModel(LedgerHarness(folder, client), 3)
        for number in range(PROMOTIONS):
            key = AccountKeys(("a", "b", "book", "namespace:team-c")[number % 4]).head
            live_through(model, partial(store.promote, key))
            wait_until(store.is_whole, "the old primary follows the new one")
            model.reconcile()
            assert model.error() == EXACT
        assert model.differences() == ()


def test_the_books_go_on_once_a_replica_has_taken_over_from_a_primary_that_is_killed(tmp_path: Path) -> None:
    with ClusterShape(tmp_path, watchful=True) as store, connect(store.settings) as client:
        client.set(BOOK_FENCING_TOKEN, "1")
        before = identity(client)
        old = store.primary_of(BOOK_FENCING_TOKEN)
        old.kill()
        wait_until(lambda: store.primary_of(BOOK_FENCING_TOKEN) is not old, "a replica is promoted")
        wait_until(lambda: answers(client), "the new primary is asked")
        assert identity(client)[0] != before[0]


def answers(client: redis.Redis) -> bool:
    try:
        return identity(client)[1]
    except redis.RedisError:
        return False
