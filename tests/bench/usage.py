"""Usage by namespace and day over 30 days, 10,000 namespaces and 1,000,000 ledger entries, asked of a served REST API.

Every entry is the end of a session of its own, which is the longest kind of entry; all are settled as the leader does.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from tests.redis_server import RedisServer
from tests.rest_server import RestServer
from timekeeper.metering.attribution import Attribution
from timekeeper.metering.cuts import cuts
from timekeeper.metering.segments import Span
from timekeeper.rest.usage_query import cursor_of
from timekeeper.rules.money import SECOND
from timekeeper.rules.timestamps import DAY, format_exact, parse_instant
from timekeeper.store import book, keys, ledger
from timekeeper.store.usage_folding import fold_hours
from timekeeper.usage.dimensions import dimensions

NAMESPACES = 10_000
ENTRIES = 100
DAYS = 30
START = parse_instant("2026-01-01T00:00:00Z")
END = START + 31 * DAY
WINDOW = "2026-01-01T00:00:00Z,2026-01-31T00:00:00Z"
HOURLY_DAYS = 8
REQUESTS = 60
GOAL_SECONDS = 0.3
GOAL_MEGABYTES = 120.0
RATE = 300_000


def rows() -> list[dict[str, Any]]:
    """The figures beside their goals."""
    with (
        tempfile.TemporaryDirectory(prefix="fairgpu-bench-") as store,
        tempfile.TemporaryDirectory(prefix="fairgpu-bench-") as folder,
        RedisServer(Path(store)) as server,
        server.client() as client,
    ):
        seed(client)
        stream = memory(client, "ledger")
        unfolded = memory(client, "hours")
        began = time.perf_counter()
        for number in range(NAMESPACES):
            fold_hours(client, 1, account(number), START + (DAYS - HOURLY_DAYS) * DAY, [START])
        folding = time.perf_counter() - began
        hours = memory(client, "hours") + memory(client, "folded")
        with RestServer(Path(folder), server.url) as rest:
            pages = [asked(rest, f"step=1d&limit=1000&cursor={somewhere()}") for _ in range(REQUESTS)]
            mine = [asked(rest, "step=1d", f"/v1/namespaces/ns-{number:05d}/usage") for number in range(REQUESTS)]
            total = [asked(rest, "aggregate=model&step=1d") for _ in range(3)]
    entries = NAMESPACES * ENTRIES
    context = f"{NAMESPACES} namespaces, {entries} entries"
    return [
        row("usage: a page of 1,000, by namespace and day, p95", p95(pages), "s", GOAL_SECONDS, f"{context}, 30 days"),
        row("usage: one namespace by day, p95", p95(mine), "s", GOAL_SECONDS, "30 days"),
        row("usage: all of it by model and day, median", statistics.median(total), "s", None, "every account is read"),
        row("usage: the ledger's streams in Redis", stream / 1e6, "MB", GOAL_MEGABYTES, f"{context}, MEMORY USAGE"),
        row("usage: hours in Redis before folding", unfolded / 1e6, "MB", None, "30 days by the hour"),
        row("usage: hours and days in Redis after folding", hours / 1e6, "MB", None, f"{HOURLY_DAYS} days by the hour"),
        row("usage: folding 22 days of an account", folding / NAMESPACES, "s", None, "read, packed and written"),
    ]


def account(number: int) -> str:
    """The account of a namespace that no budget names."""
    return f"namespace:ns-{number:05d}"


def seed(client: redis.Redis) -> None:
    """Settles every session as the leader does at its end."""
    chance = random.Random(5)
    book.write_assignments(client, {f"ns-{number:05d}": ((0, account(number)),) for number in range(NAMESPACES)})
    for first in range(0, NAMESPACES, 100):
        chunk = range(first, first + 100)
        ledger.open_periods(client, 1, START, [ledger.Opening(account(number), START, END) for number in chunk])
        ledger.settle(
            client, ledger.Revision(1, 1), START + DAYS * DAY, [settlement(number, chance) for number in chunk]
        )


def settlement(number: int, chance: random.Random) -> ledger.Settlement:
    """The sessions of a namespace, spread over the days."""
    return ledger.Settlement(account(number), START, [item(number, index, chance) for index in range(ENTRIES)])


def item(number: int, index: int, chance: random.Random) -> ledger.Item:
    """A session of up to two hours, at its end."""
    start = START + index * DAYS * DAY // ENTRIES + chance.randrange(3600) * SECOND
    end = start + chance.randrange(60, 7200) * SECOND + chance.randrange(SECOND)
    shown = Attribution("A100", f"CronJob/train-{index % 20}", f"CronJob/train-{index % 20}", (), RATE, 50_000)
    amount = RATE * (end - start) // SECOND
    found = cuts([Span(account(number), START, start, end)], ((start, RATE),), shown, None, amount)
    uid = f"0b1c2d3e-{number:05d}-4000-8000-{index:012d}"
    note = f"finished {format_exact(start)} {format_exact(end)} 7f1c2d3e-{number:04d}-4000-8000-000000000000"
    namespace, pod = f"ns-{number:05d}", f"train-{index % 20}-29391020-{index:05d}"
    put_down = dimensions(namespace, f"gpu-node-{number % 300:03d}", shown)
    return ledger.Item(
        uid, amount, ledger.Action.GONE, ledger.Kind.CLOSE, namespace, pod, note, "", put_down, tuple(found)
    )


def memory(client: redis.Redis, kind: str) -> int:
    """Bytes that the keys of one kind take in Redis."""
    total = 0
    for first in range(0, NAMESPACES, 1000):
        pipeline = client.pipeline(transaction=False)
        for number in range(first, first + 1000):
            pipeline.memory_usage(getattr(keys.AccountKeys(account(number)), kind), samples=0)
        total += sum(found or 0 for found in pipeline.execute())
    return total


def somewhere() -> str:
    """The cursor of a page anywhere in the answer."""
    return cursor_of((random.randrange(DAYS), (f"ns-{random.randrange(NAMESPACES):05d}",)))


def asked(rest: RestServer, query: str, path: str = "/v1/usage") -> float:
    """Seconds that an answer takes, the request and the connection included."""
    began = time.perf_counter()
    answer = rest.as_person("finance", "GET", f"{path}?window={WINDOW}&{query}")
    seconds = time.perf_counter() - began
    if answer.status != 200 or not answer.document["items"]:
        raise AssertionError(answer.body[:500])
    return seconds


def p95(seconds: list[float]) -> float:
    """What 95 of 100 stay within."""
    return statistics.quantiles(seconds, n=20)[-1]


def row(name: str, value: float, unit: str, goal: float | None, context: str) -> dict[str, Any]:
    """One figure."""
    return {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "goal": f"<= {goal:g}" if goal is not None else None,
        "met": value <= goal if goal is not None else None,
        "context": context,
    }
