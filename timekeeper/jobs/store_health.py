"""Whether the store keeps what it takes: what Redis says of its files and its replicas, as metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis
import structlog
from prometheus_client import CollectorRegistry, Gauge

from timekeeper.store.servers import ask_each

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """What one or several servers say of themselves, the worst of them counting.

    Attributes:
        append_only: whether an append-only file is written at all: without one, a restart loses what was taken.
        append_only_ok: whether the last write to the append-only file succeeded.
        snapshot_ok: whether the last snapshot succeeded.
        replicas: replicas that are connected to each primary, at the least.
        used_bytes: memory in use.
        limit_bytes: how much may be used; 0 for no limit.
    """

    append_only: bool
    append_only_ok: bool
    snapshot_ok: bool
    replicas: int
    used_bytes: int
    limit_bytes: int


def read_health(info: dict[str, Any]) -> StoreHealth:
    """Reads the answer to INFO (https://redis.io/docs/latest/commands/info/)."""
    return StoreHealth(
        append_only=bool(int(info.get("aof_enabled", 0))),
        append_only_ok=info.get("aof_last_write_status", "ok") == "ok",
        snapshot_ok=info.get("rdb_last_bgsave_status", "ok") == "ok",
        replicas=int(info.get("connected_slaves", 0)),
        used_bytes=int(info.get("used_memory", 0)),
        limit_bytes=int(info.get("maxmemory", 0)),
    )


def worst(found: list[StoreHealth]) -> StoreHealth:
    """Several primaries as one; memory added up, and no limit where any has none."""
    return StoreHealth(
        append_only=all(health.append_only for health in found),
        append_only_ok=all(health.append_only_ok for health in found),
        snapshot_ok=all(health.snapshot_ok for health in found),
        replicas=min(health.replicas for health in found),
        used_bytes=sum(health.used_bytes for health in found),
        limit_bytes=sum(health.limit_bytes for health in found) if all(h.limit_bytes for h in found) else 0,
    )


class StoreMeasures:
    """The store's metrics; read by every jobs process, whether it leads or not."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"fairgpu_timekeeper_store_{name}", text, registry=registry)

        self._up = gauge("up", "Whether Redis answered when it was last asked.")
        self._append_only = gauge("append_only_enabled", "Whether Redis writes an append-only file.")
        self._append_only_ok = gauge(
            "append_only_write_ok", "Whether the last write to the append-only file succeeded."
        )
        self._snapshot = gauge("snapshot_ok", "Whether the last snapshot succeeded.")
        self._replicas = gauge("connected_replicas", "Replicas that are connected, at the primary that has the fewest.")
        self._used = gauge("memory_used_bytes", "Memory that Redis uses.")
        self._limit = gauge("memory_limit_bytes", "The most memory that Redis may use; 0 for no limit.")

    def look(self, client: redis.Redis) -> None:
        """Asks the store how it is."""
        try:
            health = worst(ask_each(client, lambda server: read_health(server.info())))
        except (redis.RedisError, OSError) as error:
            self._up.set(0)
            _log.warning("the store does not say how it is", error=str(error))
            return
        self._up.set(1)
        self._append_only.set(health.append_only)
        self._append_only_ok.set(health.append_only_ok)
        self._snapshot.set(health.snapshot_ok)
        self._replicas.set(health.replicas)
        self._used.set(health.used_bytes)
        self._limit.set(health.limit_bytes)
