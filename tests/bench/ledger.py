"""One sweep over 10,000 budgets with 5 running sessions each, on a real redis-server with appendonly everysec."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from tests.support.ledger.fake_cluster import MirroredCluster, budget_object
from tests.support.servers.redis_server import RedisServer
from timekeeper.controller.leader_tasks import Collector
from timekeeper.controller.reconcile.reconciler import Reconciler
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.timestamps import format_instant, parse_instant
from timekeeper.ledger import reading
from timekeeper.ledger.writing import take_fencing_token

BUDGETS = 10_000
SESSIONS = 5
SWEEPS = 5
GOAL_SECONDS = 3.0
START = parse_instant("2026-01-15T12:00:00Z")


def rows() -> list[dict[str, Any]]:
    """The figures beside their goals."""
    clock = [START]
    cluster = MirroredCluster(lambda: clock[0])
    cluster.replace("budgets", [budget_object(f"b{number}", [f"ns-{number}"]) for number in range(BUDGETS)])
    cluster.replace("pods", [pod(budget, number) for budget in range(BUDGETS) for number in range(SESSIONS)])
    with (
        tempfile.TemporaryDirectory(prefix="fairgpu-bench-") as folder,
        RedisServer(Path(folder)) as server,
        server.client() as client,
    ):
        reconciler = Reconciler(client, cluster, ControllerRules(), take_fencing_token(client, 0))
        collector = Collector(time.monotonic)
        first = timed(reconciler, clock, collector)
        sweeps, settled, worked = [], [], []
        for _ in range(SWEEPS):
            scripts, cpu = _script_seconds(client), time.process_time()
            sweeps.append(timed(reconciler, clock, collector))
            worked.append(time.process_time() - cpu)
            settled.append(_script_seconds(client) - scripts)
        check(client, clock[0])
    median = statistics.median(sweeps)
    context = f"{BUDGETS} budgets x {SESSIONS} sessions, median of {SWEEPS}, slowest {max(sweeps):.2f} s"
    return [
        row("ledger: one sweep, all of it", median, context, GOAL_SECONDS),
        row("ledger: of this in Redis, settling", statistics.median(settled), "its scripts, by its own clock", None),
        row("ledger: CPU of the timekeeper in one sweep", statistics.median(worked), "Redis has its own core", None),
        row("ledger: a new leader's first sweep", first, "every session is opened", None),
    ]


def _script_seconds(client: redis.Redis) -> float:
    """The time that Redis has spent in scripts since it started."""
    calls = client.info("commandstats")
    used: int = sum(calls.get(f"cmdstat_{name}", {}).get("usec", 0) for name in ("evalsha", "eval"))
    return used / 1e6


def pod(budget: int, number: int) -> dict[str, Any]:
    """A running pod on three tenths of a GPU."""
    uid = f"0b1c2d3e-{budget:05d}-4000-8000-{number:012d}"
    stamp = format_instant(START)
    device = {"uuid": "GPU-1", "model": "A100", "totalMiB": 81920, "core": 30, "memoryMiB": 4096}
    allocation = {"v": 1, "node": "n1", "containers": [{"name": "main", "devices": [device]}]}
    limits = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": "30", "fairgpu.io/gpu-memory": "4096"}
    return {
        "metadata": {
            "uid": uid,
            "name": f"train-{number}",
            "namespace": f"ns-{budget}",
            "creationTimestamp": stamp,
            "annotations": {"fairgpu.io/allocation": json.dumps(allocation)},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp}],
        },
    }


def timed(reconciler: Reconciler, clock: list[int], collector: Collector) -> float:
    """Seconds that a full round takes, ten seconds of metered time after the one before."""
    clock[0] += 10 * SECOND
    began = time.perf_counter()
    with collector.paused():
        reconciler.reconcile(clock[0])
    return time.perf_counter() - began


def check(client: Any, now: int) -> None:
    """Checks that the measured settlements are right."""
    expected = SESSIONS * 300_000 * (now - START) // SECOND
    for name in ("b0", f"b{BUDGETS - 1}"):
        standing = reading.period_totals(client, name, parse_instant("2026-01-01T00:00:00Z"))
        if standing is None or standing.total != expected or expected < GPU_SECOND:
            raise AssertionError(f"{name} stands at {standing}, not at {expected}")


def row(name: str, seconds: float, context: str, goal: float | None) -> dict[str, Any]:
    """One figure."""
    return {
        "name": name,
        "value": round(seconds, 3),
        "unit": "s",
        "goal": f"<= {goal:g}" if goal is not None else None,
        "met": seconds <= goal if goal is not None else None,
        "context": context,
    }
