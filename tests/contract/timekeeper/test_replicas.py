"""With a replica of the store: what cannot be computed again is believed once it is there, too."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
import redis

from tests.support.ledger.harness import LedgerHarness
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import LIMIT_S, wait_until
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.ledger import reading
from timekeeper.ledger.connection import replicated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def replica(redis_server: RedisServer, tmp_path: Path) -> Iterator[RedisServer]:
    """A second server that follows the first one, and has caught up with it."""
    folder = tmp_path / "replica"
    folder.mkdir()
    options = ("--replicaof", "127.0.0.1", str(redis_server.port))
    with redis_server.client() as client, RedisServer(folder, *options) as server:
        wait_until(
            lambda: client.info("replication").get("slave0", {}).get("state") == "online", "the replica is online"
        )
        yield server


@pytest.fixture
def harness(redis_server: RedisServer, tmp_path: Path) -> Iterator[LedgerHarness]:
    folder = tmp_path / "harness"
    folder.mkdir()
    with redis_server.client() as client:
        harness = LedgerHarness(folder, client)
        harness.lead(ControllerRules(replica_wait_seconds=0.3))
        yield harness


def freeze(server: RedisServer) -> None:
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)


def thaw(server: RedisServer) -> None:
    """Lets it go on, and returns once it holds what came meanwhile, and its master knows."""
    assert server.process is not None
    server.process.send_signal(signal.SIGCONT)
    with server.client() as client:
        followed = client.info("replication")
    with redis.Redis(port=followed["master_port"]) as master:

        def caught_up() -> bool:
            shown = master.info("replication")
            follower = shown.get("slave0", {})  # none where it was silent for so long that its master gave it up
            return bool(follower.get("offset", -1) >= shown["master_repl_offset"])

        wait_until(caught_up, "the replica has caught up")


def is_on_the_meter(harness: LedgerHarness, uid: str) -> bool:
    assert harness.reconciler is not None
    return uid in harness.reconciler.books.pods.sessions


def test_the_end_of_a_session_is_believed_once_a_replica_holds_it_and_counts_once(
    harness: LedgerHarness, replica: RedisServer
) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("ends", "team-a")
    harness.pod("runs-on", "team-a", core=50)
    harness.reconcile()
    freeze(replica)
    harness.remove("ends")
    harness.reconcile(10)
    harness.reconcile(10)
    assert is_on_the_meter(harness, "ends")
    assert ("ends", "a") in reading.open_sessions(harness.client, "", 10)
    thaw(replica)
    harness.reconcile(10)
    wait_until(
        lambda: harness.reconcile() or not is_on_the_meter(harness, "ends"), "the end of the session is believed"
    )
    assert reading.open_sessions(harness.client, "", 10) == [("runs-on", "a")]
    assert harness.spent("a") == (10 + 15) * GPU_SECOND
    assert [entry.kind for entry in reading.ledger_page(harness.client, "a", "", 10)] == ["close"]
    with replica.client() as copy:
        assert [entry.session for entry in reading.ledger_page(copy, "a", "", 10)] == ["ends"]


def test_sessions_that_go_on_are_settled_and_published_while_a_replica_is_frozen(
    harness: LedgerHarness, replica: RedisServer
) -> None:
    harness.budget("a", ["team-a"])
    harness.pod("ends", "team-a")
    harness.pod("runs-on", "team-a")
    harness.reconcile()
    freeze(replica)
    harness.remove("ends")
    harness.reconcile(10)
    harness.reconcile(10)
    assert harness.spent("a") == 30 * GPU_SECOND
    assert harness.reconciler is not None
    assert harness.reconciler.books.figures["a"].spent == 30 * GPU_SECOND
    thaw(replica)


@pytest.mark.parametrize("spec", [{}, {"expires": "2027-01-01T00:00:00Z"}], ids=["lapses", "expires"])
def test_a_grant_is_believed_once_a_replica_holds_it_and_adds_once(
    harness: LedgerHarness, replica: RedisServer, spec: dict[str, str]
) -> None:
    harness.budget("a", ["team-a"])
    harness.reconcile()
    freeze(replica)
    harness.grant("g", "a", 5, **spec)
    harness.reconcile(10)
    harness.reconcile(10)
    assert harness.reconciler is not None
    account = harness.reconciler.books.accounts["a"]
    assert "g" not in account.grants
    thaw(replica)
    wait_until(lambda: harness.reconcile() or "g" in account.grants, "the grant is believed")
    assert [entry.amount for entry in reading.ledger_page(harness.client, "a", "", 10)] == [5 * GPU_HOUR]


def test_a_write_of_another_connection_is_waited_for_too(redis_server: RedisServer, replica: RedisServer) -> None:
    with redis_server.client() as writer, redis_server.client() as waiter:
        freeze(replica)
        writer.set("written", "elsewhere")
        assert not replicated(waiter, 1, 0.2)
        thaw(replica)
        assert replicated(waiter, 1, LIMIT_S)


def test_nothing_waits_where_there_is_no_replica_or_none_is_wanted(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        assert replicated(client, 1, 60.0)
        assert replicated(client, 1, 0)
