from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from tests.support.waiting import wait_until
from timekeeper.controller.metrics import StoreHealth, StoreMeasures, read_health, worst

if TYPE_CHECKING:
    from tests.support.servers.redis_server import RedisServer

GOOD = StoreHealth(append_only=True, append_only_ok=True, snapshot_ok=True, replicas=1, used_bytes=10, limit_bytes=100)


def value(registry: CollectorRegistry, name: str) -> float:
    found = registry.get_sample_value(f"fairgpu_timekeeper_store_{name}")
    assert found is not None
    return found


def test_a_store_that_keeps_what_it_takes_says_so(redis_server: RedisServer) -> None:
    registry = CollectorRegistry()
    with redis_server.client() as client:
        StoreMeasures(registry).look(client)
        used = client.info("memory")["used_memory"]
    shown = {
        name: value(registry, name)
        for name in (
            "up",
            "append_only_enabled",
            "append_only_write_ok",
            "snapshot_ok",
            "connected_replicas",
            "memory_limit_bytes",
        )
    }
    assert shown == {
        "up": 1,
        "append_only_enabled": 1,
        "append_only_write_ok": 1,
        "snapshot_ok": 1,
        "connected_replicas": 0,
        "memory_limit_bytes": 0,
    }
    assert 0 < value(registry, "memory_used_bytes") < 10 * used


def test_a_snapshot_that_cannot_be_written_is_seen(redis_server: RedisServer) -> None:
    registry = CollectorRegistry()
    measures = StoreMeasures(registry)
    with redis_server.client() as client:
        shutil.rmtree(redis_server.folder)
        client.bgsave()
        wait_until(lambda: not client.info("persistence")["rdb_bgsave_in_progress"], "the snapshot is over")
        measures.look(client)
        redis_server.folder.mkdir()
    assert value(registry, "snapshot_ok") == 0
    assert value(registry, "up") == 1


def test_a_store_that_does_not_answer_is_down(redis_server: RedisServer) -> None:
    registry = CollectorRegistry()
    measures = StoreMeasures(registry)
    with redis_server.client() as client:
        measures.look(client)
        redis_server.kill()
        measures.look(client)
    assert value(registry, "up") == 0


def test_a_store_without_an_append_only_file_says_so() -> None:
    assert not read_health({"aof_enabled": 0}).append_only


def test_the_worst_of_several_servers_counts() -> None:
    bad = StoreHealth(
        append_only=False, append_only_ok=False, snapshot_ok=False, replicas=0, used_bytes=5, limit_bytes=0
    )
    assert worst([GOOD, bad]) == StoreHealth(
        append_only=False, append_only_ok=False, snapshot_ok=False, replicas=0, used_bytes=15, limit_bytes=0
    )
    assert worst([GOOD, GOOD]).limit_bytes == 200
