"""Sentinels promote replicas of masters that are still written to; what came of it is held to what really happened."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.ledger.chaos_model import ChaosModel
from tests.support.ledger.concurrent_events import live_through
from tests.support.ledger.harness import LedgerHarness
from tests.support.servers.redis_shapes import SentinelShape
from tests.support.waiting import wait_until
from timekeeper.ledger.connection import connect

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.patient

PROMOTIONS = 20 if os.environ.get("CI") == "true" else 4
WITH_REPLICA = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "2")
EXACT = {"a": 0, "b": 0, "namespace:team-c": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "harness"
    place.mkdir()
    return place


@pytest.mark.parametrize("leaders", ["the leader goes on", "another leader follows"])
def test_replicas_are_promoted_while_the_old_master_is_written_to(tmp_path: Path, folder: Path, leaders: str) -> None:
    with SentinelShape(tmp_path, *WITH_REPLICA) as store, connect(store.settings) as client:
        model = ChaosModel(LedgerHarness(folder, client), 1)
        for _ in range(PROMOTIONS // 2):
            live_through(model, store.promote)
            if leaders == "another leader follows":
                model.lead()
            wait_until(store.is_whole, "the old master follows the new one")
            model.reconcile()
            assert model.error() == EXACT
        assert model.differences() == ()
