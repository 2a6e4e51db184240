"""Usage over 30 days, 10,000 namespaces and 1,000,000 ledger entries, asked of a served REST API; and what they take.

Every entry is the end of a session of its own, which is the longest kind of entry; all are settled and archived as the
leader does. Uids, pods' names, instants and amounts are random, so that no compression finds more in them than in life.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID

import redis

from fairgpu.states import BudgetState, NamespaceState
from tests.support.ledger import seeding
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.rest_server import RestServer
from timekeeper.api.usage import cursor_of
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.audit.difference import Difference
from timekeeper.domain.attribution import Attribution
from timekeeper.domain.charges import Segment, hourly_points
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import DAY, HOUR, format_exact, parse_instant
from timekeeper.domain.usage import dimensions
from timekeeper.domain.windows import parse_window
from timekeeper.ledger import keys, reading, shared, writing
from timekeeper.ledger.compaction import fold_hours, pack_hours
from timekeeper.ledger.entries import pack_ledger
from timekeeper.ledger.totals import Summary, encode_summary

NAMESPACES = 10_000
ENTRIES = 100
DAYS = 30
START = parse_instant("2026-01-01T00:00:00Z")
END = START + 31 * DAY
WINDOW = "2026-01-01T00:00:00Z,2026-01-31T00:00:00Z"
HOURLY_DAYS = 8
REQUESTS = 60
AUDITED = 200
GOAL_SECONDS = 0.3
GOAL_MEGABYTES = 120.0
GOAL_SECONDS_OF_ALL = 2.0
GOAL_SECONDS_BY_USER = 1.0
WORKERS = 5
"""New workers that are asked questions across all namespaces."""
ALL = {
    "all of it by model and day": "aggregate=model&step=1d",
    "all of it by user": "aggregate=user",
    "a page by namespace and day, with idle": "step=1d&idle=true",
}
AT_ONCE = 5
"""Sessions of an account that end between two settlements; in life, mostly one."""
RATES = (100_000, 300_000, 500_000, 1_000_000, 2_000_000)
MODELS = ("A100", "H100", "L40S", "T4")


def rows() -> list[dict[str, Any]]:
    """The figures beside their goals."""
    with (
        tempfile.TemporaryDirectory(prefix="fairgpu-bench-") as store,
        tempfile.TemporaryDirectory(prefix="fairgpu-bench-") as folder,
        RedisServer(Path(store)) as server,
        server.client() as client,
    ):
        seed(client)
        began = time.process_time()
        archive(client)
        archiving = time.process_time() - began
        with RestServer(Path(folder), server.url) as rest:
            found = asked_for_pages(rest)
        found |= asked_for_all(server.url)
        publish(client, AUDITED)
        began = time.process_time()
        differences = audited(client, AUDITED)
        auditing = time.process_time() - began
        sizes = {kind: freed(client, kind) for kind in ("segments", "ledger", "amounts", "hours", "folded")}
    if differences:
        raise AssertionError(f"the books that were measured are wrong: {differences}")
    entries = NAMESPACES * ENTRIES
    context = f"{NAMESPACES} namespaces, {entries} entries"
    stored = "used_memory that goes with them"
    per_million = 1e6 / entries / 1e6
    packed = (sizes["segments"] + sizes["ledger"]) * per_million
    return [
        *(
            row(f"usage: {name}", seconds, "s", goal, f"{context}, 30 days", cpu)
            for name, (goal, seconds, cpu) in found.items()
        ),
        row("usage: the ledger's entries in Redis, a million", packed, "MB", GOAL_MEGABYTES, f"{context}, {stored}"),
        row("usage: what is remembered of each session, a million", sizes["amounts"] * per_million, "MB", None, stored),
        row("usage: hours and days in Redis", (sizes["hours"] + sizes["folded"]) / 1e6, "MB", None, stored),
        row("usage: folding and packing an account, CPU", archiving / NAMESPACES, "s", None, "22 days, 100 entries"),
        row("usage: an audit of an account, CPU", auditing / AUDITED, "s", None, f"{ENTRIES} sessions and entries"),
    ]


def account(number: int) -> str:
    """The account of a namespace that no budget names."""
    return f"namespace:ns-{number:05d}"


def seed(client: redis.Redis) -> None:
    """Settles every session as the leader does at its end."""
    chance = random.Random(5)
    shared.write_assignments(client, 1, {f"ns-{number:05d}": ((0, account(number)),) for number in range(NAMESPACES)})
    for first in range(0, NAMESPACES, 100):
        chunk = range(first, first + 100)
        writing.open_periods(client, 1, START, [writing.Opening(account(number), START, END) for number in chunk])
        owners = {number: str(random_uid(chance)) for number in chunk}
        for index in range(0, ENTRIES, AT_ONCE):
            now = START + (index + AT_ONCE) * DAYS * DAY // ENTRIES + 2 * HOUR + chance.randrange(10 * SECOND)
            writing.write_settlements(
                client,
                writing.Revision(1, index + 1),
                now,
                [
                    writing.SettlementBatch(
                        account(number),
                        START,
                        [item(number, index + offset, owners[number], chance) for offset in range(AT_ONCE)],
                    )
                    for number in chunk
                ],
            )


def item(number: int, index: int, owner: str, chance: random.Random) -> writing.Item:
    """A session of up to two hours, at its end."""
    start = START + index * DAYS * DAY // ENTRIES + chance.randrange(3600) * SECOND
    end = start + chance.randrange(60, 7200) * SECOND + chance.randrange(SECOND)
    rate, model = chance.choice(RATES), MODELS[number % len(MODELS)]
    job = f"CronJob/train-{index % 20}"
    shown = Attribution(model, job, job, (), rate, 50_000)
    amount = rate * (end - start) // SECOND
    found = hourly_points([Segment(account(number), START, start, end)], ((start, rate),), shown, None, amount)
    note = f"finished {format_exact(start)} {format_exact(end)} {owner}"
    namespace, pod = f"ns-{number:05d}", f"train-{index % 20}-29391020-{chance.randrange(36**5):07x}"
    entered = dimensions(namespace, f"gpu-node-{chance.randrange(300):03d}", shown)
    return writing.Item(
        str(random_uid(chance)),
        amount,
        writing.LedgerAction.FINALIZE,
        writing.Kind.CLOSE,
        namespace,
        pod,
        note,
        "",
        entered,
        tuple(found),
    )


def random_uid(chance: random.Random) -> UUID:
    """A uid as the API server makes them."""
    return UUID(int=chance.getrandbits(128), version=4)


def archive(client: redis.Redis) -> None:
    """Archives as the leader does hourly, at the end of the 30 days."""
    for number in range(NAMESPACES):
        while not fold_hours(client, 1, account(number), START + (DAYS - HOURLY_DAYS) * DAY, [START]):
            pass
        while not pack_hours(client, 1, account(number), START + DAYS * DAY):
            pass
        while not pack_ledger(client, 1, account(number), START + (DAYS - 1) * DAY):
            pass


def asked_for_pages(rest: RestServer) -> dict[str, tuple[float, float, float]]:
    """Goal, seconds and the timekeeper's seconds of CPU, by question."""
    pages = lambda: f"step=1d&limit=1000&cursor={somewhere()}"  # noqa: E731
    mine = "/v1/namespaces/ns-00007/usage"
    return {
        "a page of 1,000, by namespace and day, p95": (GOAL_SECONDS, *timed(rest, pages)),
        "one namespace by day, p95": (GOAL_SECONDS, *timed(rest, lambda: "step=1d", mine)),
    }


def asked_for_all(store: str) -> dict[str, tuple[float, float, float]]:
    """The same for questions across all namespaces: the longest that any of some new workers takes, at first and again.

    At first a worker remembers nothing; again, it remembers days that are closed.
    """
    taken = defaultdict[str, list[tuple[float, float]]](list)
    for _ in range(WORKERS):
        with tempfile.TemporaryDirectory(prefix="fairgpu-bench-") as folder, RestServer(Path(folder), store) as rest:
            for when, (name, query) in product(("at first", "again"), ALL.items()):
                before = cpu_seconds(rest)
                seconds = asked(rest, query)
                taken[f"{name}, {when}"].append((seconds, cpu_seconds(rest) - before))
    goals = {"all of it by user, at first": GOAL_SECONDS_BY_USER}
    return {name: (goals.get(name, GOAL_SECONDS_OF_ALL), *max(found)) for name, found in taken.items()}


def somewhere() -> str:
    """The cursor of a page anywhere in the answer."""
    window = parse_window(WINDOW, 0)
    return cursor_of(window, (random.randrange(DAYS), (f"ns-{random.randrange(NAMESPACES):05d}",)))


def asked(rest: RestServer, query: str, path: str = "/v1/usage") -> float:
    """Seconds that an answer takes, the request and the connection included."""
    began = time.perf_counter()
    answer = rest.as_person("finance", "GET", f"{path}?window={WINDOW}&{query}")
    seconds = time.perf_counter() - began
    if answer.status != 200 or not answer.document["items"]:
        raise AssertionError(answer.body[:500])
    return seconds


def timed(rest: RestServer, query: Callable[[], str], path: str = "/v1/usage") -> tuple[float, float]:
    """The seconds that 95 of 100 answers stay within, and the seconds of CPU that the timekeeper takes for one."""
    before = cpu_seconds(rest)
    seconds = [asked(rest, query(), path) for _ in range(REQUESTS)]
    return statistics.quantiles(seconds, n=20)[-1], (cpu_seconds(rest) - before) / REQUESTS


def cpu_seconds(rest: RestServer) -> float:
    """Returns the processor seconds that the timekeeper and its workers have used so far."""
    assert rest.process is not None
    group, total = rest.process.pid, 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[2]) == group:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def freed(client: redis.Redis, kind: str) -> int:
    """Bytes of Redis's memory that go when the keys of a kind are deleted."""
    before = used_memory(client)
    for first in range(0, NAMESPACES, 1000):
        names = [keys.AccountKeys(account(number)) for number in range(first, first + 1000)]
        client.delete(*(key for name in names for key in keys_of(client, name, kind)))
    return before - used_memory(client)


def keys_of(client: redis.Redis, names: keys.AccountKeys, kind: str) -> list[str]:
    """The keys of a kind that an account has."""
    if kind == "amounts":
        return [names.amounts(START)]
    if kind == "hours":
        found: Any = client.hkeys(names.hour_index)
        hours = [hour.decode() for hour in found]
        return [names.hour_index, *map(names.rows_of, hours), *map(names.sums_of, hours)]
    return [getattr(names, kind)]


def used_memory(client: redis.Redis) -> int:
    """Bytes that Redis has allocated."""
    stated: Any = client.info("memory")
    return int(stated["used_memory"])


def audited(client: redis.Redis, number: int) -> tuple[Difference, ...]:
    """Returns the differences that an audit of the store alone finds in some accounts."""
    around = AuditEnvironment(client, lambda: None, lambda: START + DAYS * DAY, lambda _: False)
    asked_for = tuple(account(index) for index in range(number))
    return audit(around, AuditRequest(asked_for, patience_seconds=0)).differences


def publish(client: redis.Redis, number: int) -> None:
    """Figures and states of some accounts, which an audit holds to their sums."""
    figures, states = list[writing.Publication](), list[NamespaceState]()
    for index in range(number):
        found = reading.period_totals(client, account(index), START)
        assert found is not None
        summary = Summary(
            account(index), (f"ns-{index:05d}",), BudgetState.UNLIMITED, "", START, END, 0, None, found.total, 0, None
        )
        figures.append(writing.Publication(account(index), START, None, encode_summary(summary)))
        states.append(NamespaceState(f"ns-{index:05d}", "", BudgetState.UNLIMITED, 0, 0, 0))
    writing.publish_accounts(client, 1, figures)
    seeding.publish(client, states)


def row(
    name: str, value: float, unit: str, goal: float | None, context: str, cpu: float | None = None
) -> dict[str, Any]:
    """One figure."""
    return {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "goal": f"<= {goal:g}" if goal is not None else None,
        "met": value <= goal if goal is not None else None,
        "context": context if cpu is None else f"{context}; {cpu:.3f} s of CPU",
    }
