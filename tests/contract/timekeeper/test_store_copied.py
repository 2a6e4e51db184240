"""A copy of the files of a running Redis, made and put in place as docs/redis.md says, holds the books."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.ledger.harness import LedgerHarness
from tests.support.ledger.old_store import STORE, begin, check_converted
from tests.support.servers import redis_binaries
from tests.support.servers.redis_server import RedisServer
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.domain.money import GPU_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VERSIONS = {"6.2": lambda: "", "7": redis_binaries.redis_7}


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets the servers that start from now on be of a version."""

    def choose(version: str) -> None:
        monkeypatch.setenv("FAIRGPU_REDIS_SERVER", VERSIONS[version]())

    return choose


def copied(server: RedisServer, archive: Path) -> None:
    """Makes a copy while the server runs; it is complete although its file grows meanwhile."""
    server.wait_until_written()
    with archive.open("wb") as file:
        subprocess.run(["tar", "-C", str(server.folder), "-cf", "-", "."], stdout=file, check=True)


def unpack(archive: Path, folder: Path) -> None:
    subprocess.run(["tar", "-C", str(folder), "-xf", str(archive)], check=True)


def books(harness: LedgerHarness) -> LedgerHarness:
    for team in ("a", "b"):
        harness.budget(team, [f"team-{team}"], gpu_hours=1)
        harness.pod(f"pod-{team}", f"team-{team}")
    harness.reconcile()
    harness.reconcile(60)
    return harness


def wrong(harness: LedgerHarness) -> tuple[object, ...]:
    around = AuditEnvironment(harness.client, lambda: None, lambda: harness.now, lambda _: False)
    return audit(around, AuditRequest(patience_seconds=0)).differences


@pytest.mark.parametrize(("first", "second"), [("6.2", "6.2"), ("7", "7"), ("6.2", "7")])
def test_a_new_redis_starts_from_the_copy_and_a_leader_goes_on_with_it(
    tmp_path: Path, use: Callable[[str], None], first: str, second: str
) -> None:
    for name in ("first", "second", "harness"):
        (tmp_path / name).mkdir()
    archive = tmp_path / "books.tar"
    use(first)
    with RedisServer(tmp_path / "first") as server, server.client() as client:
        harness = books(LedgerHarness(tmp_path / "harness", client))
        copied(server, archive)
        harness.reconcile(30)
    unpack(archive, tmp_path / "second")
    use(second)
    with RedisServer(tmp_path / "second") as server, server.client() as client:
        later = LedgerHarness(tmp_path / "harness", client)
        later.now = harness.now
        later.reconcile(10)
        assert [later.spent(team) for team in "ab"] == [100 * GPU_SECOND] * 2
        assert wrong(later) == ()


@pytest.mark.parametrize("version", ["6.2", "7"])
def test_a_copy_that_is_put_in_place_of_a_running_redis_is_what_it_starts_from_and_its_leader_brings_it_up(
    tmp_path: Path, use: Callable[[str], None], version: str
) -> None:
    for name in ("redis", "harness"):
        (tmp_path / name).mkdir()
    archive = tmp_path / "books.tar"
    use(version)
    with RedisServer(tmp_path / "redis") as server, server.client() as client:
        harness = books(LedgerHarness(tmp_path / "harness", client))
        copied(server, archive)
        harness.reconcile(30)
        client.set("mark", "not in the copy")
        client.config_set("auto-aof-rewrite-percentage", 0)
        subprocess.run(["rm", "-rf", *server.folder.glob("append*")], check=True)
        unpack(archive, server.folder)
        server.stop()
        server.start()
        assert client.get("mark") is None
        harness.reconcile(10)
        harness.reconcile(10)
        assert [harness.spent(team) for team in "ab"] == [110 * GPU_SECOND] * 2
        assert wrong(harness) == ()


@pytest.mark.parametrize("version", ["6.2", "7"])
def test_a_copy_of_an_earlier_format_is_converted_by_the_leader_that_finds_it(
    tmp_path: Path, use: Callable[[str], None], version: str
) -> None:
    for name in ("first", "second", "harness"):
        (tmp_path / name).mkdir()
    archive = tmp_path / "books.tar"
    use(version)
    with RedisServer(tmp_path / "first") as server, server.client() as client:
        begin(LedgerHarness(tmp_path / "harness", client))
        copied(server, archive)
    unpack(archive, tmp_path / "second")
    with RedisServer(tmp_path / "second") as server, server.client() as client:
        harness = LedgerHarness(tmp_path / "harness", client)
        harness.now = STORE["now"]
        harness.reconcile()
        check_converted(harness)
