"""The error of the books after all that may befall their store, against an account of what really happened.

Pods stay until their last settlement is stored, as with `end_proof: finalizer`. Each figure is the sum of the absolute
errors of three accounts, one of which no budget pays for, looked at after each blow.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import redis
from structlog.testing import capture_logs

from tests.support.ledger.chaos_model import ChaosModel
from tests.support.ledger.concurrent_events import live_through
from tests.support.ledger.harness import LedgerHarness
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.redis_shapes import ClusterShape, SentinelShape
from tests.support.waiting import wait_until
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger.client import StoreError
from timekeeper.ledger.connection import connect
from timekeeper.ledger.keys import AccountKeys

PROMOTIONS = 20 if os.environ.get("CI") == "true" else 5
BLOWS = 10
REPLICATED = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "2")

Blow = Callable[[ChaosModel], object]


def rows() -> list[dict[str, Any]]:
    """The figures beside their goal."""
    with capture_logs():  # each blow is logged
        return [row(name, error, count) for name, error, count in figures()]


def figures() -> list[tuple[str, int, int]]:
    """Each blow, the error after it, and how often it fell."""
    found = [("replica promoted under a writer, Sentinel", *behind_sentinels())]
    found.append(("replica promoted under a writer, Cluster", *on_a_cluster()))
    blows: dict[str, Callable[[RedisServer, Path], Blow]] = {
        "SIGKILL": lambda server, _: lambda model: live_through(model, server.restart),
        "full disk": lambda server, _: partial(full_disk, server),
        "memory at its limit": lambda _server, _: without_memory,
        "Redis hangs for seconds": lambda server, _: partial(hang, server),
        "the clock steps by a day and back": lambda _server, _: step_clock,
        "append-only file cut in the middle": lambda server, _: partial(cut_off, server),
        "restored from an old backup": lambda server, folder: partial(go_back, server, folder),
        "emptied": lambda _server, _: lambda model: model.harness.client.flushall(),
    }
    for name, blow in blows.items():
        found.append((name, *on_one_server(blow)))
    return found


def row(name: str, error: int, count: int) -> dict[str, Any]:
    """One figure."""
    context = f"{count} times, one leader, real redis-server"
    return {
        "name": f"chaos: error after: {name}",
        "value": error,
        "unit": "uGPU·s",
        "goal": "0",
        "met": error == 0,
        "context": context,
    }


def behind_sentinels() -> tuple[int, int]:
    """Promotions while the old master is written to."""
    with scratch() as folder, SentinelShape(folder, *REPLICATED) as store, connect(store.settings) as client:
        model = begin(folder, client)
        return sum(promoted(model, store.promote, store.is_whole) for _ in range(PROMOTIONS)), PROMOTIONS


def on_a_cluster() -> tuple[int, int]:
    """The same of the primaries of a cluster in turn."""
    with scratch() as folder, ClusterShape(folder) as store, connect(store.settings) as client:
        model = begin(folder, client)
        keys = [AccountKeys(name).head for name in ("a", "b", "book", "namespace:team-c")]
        promote = [partial(store.promote, keys[number % len(keys)]) for number in range(PROMOTIONS)]
        return sum(promoted(model, happening, store.is_whole) for happening in promote), PROMOTIONS


def promoted(model: ChaosModel, happening: Callable[[], object], is_whole: Callable[[], bool]) -> int:
    """One promotion, and the error after it."""
    live_through(model, happening)
    wait_until(is_whole, "the old master never followed the new one")
    return error_of(model)


def on_one_server(blow: Callable[[RedisServer, Path], Blow]) -> tuple[int, int]:
    """Blows one after another, and the error after each."""
    with (
        scratch() as folder,
        RedisServer(made(folder / "redis")) as server,
        server.client(socket_timeout=1.0) as client,
    ):
        model = begin(folder, client)
        model.live(3)
        strike, error = blow(server, folder), 0
        for _ in range(BLOWS):
            strike(model)
            model.live(2)
            error += error_of(model)
        return error, BLOWS


def full_disk(server: RedisServer, model: ChaosModel) -> None:
    """No write to a file succeeds for a while; then the server is killed."""
    server.limit_files(max(file.stat().st_size for file in server.folder.rglob("*.aof")) + 500)
    until_refused(model)
    server.restart()


def without_memory(model: ChaosModel) -> None:
    """Redis may use no more memory than it does."""
    client: Any = model.harness.client
    client.config_set("maxmemory", client.info("memory")["used_memory"] - 1)
    until_refused(model)
    client.config_set("maxmemory", 0)


def hang(server: RedisServer, model: ChaosModel) -> None:
    """Answers come after everybody has given up."""
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    until_refused(model)
    server.process.send_signal(signal.SIGCONT)


def step_clock(model: ChaosModel) -> None:
    """Our clock is a day ahead, then a day behind."""
    assert model.harness.reconciler is not None
    for skew in (26 * HOUR, -26 * HOUR):
        model.act()
        model.harness.reconciler.reconcile(model.harness.now + skew)


def cut_off(server: RedisServer, _story: ChaosModel) -> None:
    """Half of the append-only file is gone."""
    server.stop()
    file = max(server.folder.rglob("*.aof"), key=lambda found: found.stat().st_size)
    os.truncate(file, file.stat().st_size // 2)
    server.start()


def go_back(server: RedisServer, folder: Path, model: ChaosModel) -> None:
    """The server's files are what they were some days before."""
    server.stop()
    shutil.rmtree(folder / "backup", ignore_errors=True)
    shutil.copytree(server.folder, folder / "backup")
    server.start()
    model.live(4)
    server.kill()
    shutil.rmtree(server.folder)
    shutil.copytree(folder / "backup", server.folder)
    server.start()


def until_refused(model: ChaosModel) -> None:
    """Goes on until the store takes nothing any more."""
    while True:
        model.act()
        try:
            model.harness.reconcile()
        except StoreError:
            return


def begin(folder: Path, client: redis.Redis) -> ChaosModel:
    """A model of this folder."""
    return ChaosModel(LedgerHarness(made(folder / "harness"), client), 1)


def error_of(model: ChaosModel) -> int:
    """Returns the sum of all accounts' errors, in microGPU-seconds."""
    model.reconcile()
    return sum(abs(error) for error in model.error().values())


def made(folder: Path) -> Path:
    """A new folder."""
    folder.mkdir(parents=True)
    return folder


def scratch() -> Any:
    """A folder for a while."""
    return _Scratch(prefix="fairgpu-bench-")


class _Scratch(tempfile.TemporaryDirectory[str]):
    def __enter__(self) -> Path:  # type: ignore[override]
        return Path(super().__enter__())
