"""A busy cluster over many days, simulated minute by minute: what Redis, the leader and questions about use take.

100,000 pods a day of 1,000 accounts, each pod with an owner of its own, three kept labels and four reports. A tenth of
them live over eight hours, the others 45 minutes on average. The leader is the real one with the real scripts; only the
API server is played, and reports are taken by a process of their own, as the REST API takes them. Every minute the
leader does a round, which settles and publishes the accounts that have changed, and every hour one over all accounts;
after each round it archives as it does in life. A pod is deleted ten minutes after its end. While questions are asked,
a simulated minute passes each second.

    python -m tests.bench.month --days 30
"""

from __future__ import annotations

import argparse
import heapq
import json
import multiprocessing
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import UUID

import redis

from tests.bench.__main__ import line
from tests.bench.usage import cpu_seconds
from tests.support.ledger.fake_cluster import MirroredCluster, budget_object
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.rest_server import RestServer
from timekeeper.api.usage import cursor_of
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.controller.archive import Archivist
from timekeeper.controller.leader_tasks import Collector
from timekeeper.controller.reconcile.reconciler import Reconciler
from timekeeper.controller.state.books import ControllerRules
from timekeeper.controller.state.observing import Clocks
from timekeeper.domain.money import SECOND
from timekeeper.domain.reports import Counter
from timekeeper.domain.timestamps import DAY, HOUR, MINUTE, format_instant, parse_instant
from timekeeper.domain.windows import Retention, Window
from timekeeper.ledger import keys
from timekeeper.ledger.reports import ReportIntake, Submission
from timekeeper.ledger.writing import take_fencing_token
from timekeeper.sources.base import Mirrors

DAYS = 3.0
START = parse_instant("2026-01-01T00:00:00Z")
PODS_A_DAY = 100_000
ACCOUNTS = 1_000
NODES = 300
SHORT_SECONDS = 45 * 60
LONG_SECONDS = (8 * 3600, 9 * 3600)
DELETED_AFTER = 10 * MINUTE
REPORTS = 4
QUESTIONS = 200
KINDS = 8
SECONDS_OF_A_MINUTE = 1.0
"""Simulated, while questions are asked."""
FORK = multiprocessing.get_context("fork")
"""The processes that ask are forked: each has an interpreter of its own, and does not wait for the leader's."""
LABELS = ("app", "project", "team")
BYTES_IN_MIB = 1 << 20
GOALS = {"memory": 512.0, "round": 2.0, "question": 0.3, "command": 0.05, "day": 120.0}
"""A day may take two minutes: then a month takes an hour."""


@dataclass(slots=True)
class Measured:
    """The results of a run; seconds, and bytes of Redis's memory by the simulated hour.

    An hour's memory is all of it, and what of it is a buffer of the append-only file. Redis 6 keeps there what
    comes while it writes the file anew; that is long where a day passes in minutes. `peak` is the most at any moment.
    `cpu` holds the processor time of each part until questions are asked; `asking` that of the REST API.
    `undisturbed` where Redis had a processor whenever it could use one: its longest command is then no other process's.
    """

    rounds: list[float] = field(default_factory=list)
    archiving: list[float] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    peak: int = 0
    pages: list[float] = field(default_factory=list)
    namespaces: list[float] = field(default_factory=list)
    commands: list[tuple[float, str]] = field(default_factory=list)
    undisturbed: bool = False
    pods: int = 0
    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    asking: float = 0.0
    differences: int = 0
    auditing: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)


def rows() -> list[dict[str, Any]]:
    """The figures beside their goals."""
    return rows_of(DAYS)


def rows_of(days: float) -> list[dict[str, Any]]:
    """The figures of a run over so many days."""
    found = measure(days)
    context = f"{days:g} days, {found.pods} pods"
    commands = max(found.commands, default=(0.0, "none over 1 ms"))
    longest, (memory, buffer) = max(found.rounds), max(found.memory)
    alone = "Redis ran before all others" if found.undisturbed else "with what Redis waited for a processor"
    return [
        row(
            "month: Redis memory",
            memory / BYTES_IN_MIB,
            "MiB",
            GOALS["memory"],
            f"{context}; {buffer / BYTES_IN_MIB:.1f} MiB of it buffer of its file",
        ),
        row(
            "month: Redis memory, the peak between two hours",
            found.peak / BYTES_IN_MIB,
            "MiB",
            None,
            "used_memory_peak",
        ),
        row("month: longest round", longest, "s", GOALS["round"], f"{context}, {len(found.rounds)} rounds"),
        row("month: longest step of archiving", max(found.archiving), "s", None, "50 accounts"),
        *(
            row(
                f"month: {name} by namespace and day, p95",
                statistics.quantiles(seconds, n=20)[-1],
                "s",
                GOALS["question"],
                f"{context}, {QUESTIONS} questions while the leader settles",
            )
            for name, seconds in (("pages of 100 to 1,000", found.pages), ("one namespace", found.namespaces))
        ),
        row("month: CPU of the REST API, a question", found.asking / QUESTIONS / 2, "s", None, "processor time"),
        row("month: Redis's longest command", commands[0], "s", GOALS["command"], f"{commands[1]}; {alone}"),
        row("month: differences that an audit finds", found.differences, "", 0, f"took {found.auditing:.1f} s"),
        row(
            "month: a simulated day",
            found.seconds / days,
            "s",
            GOALS["day"],
            f"load of the machine {os.getloadavg()[1]:.1f}",
        ),
        *(
            row(f"month: CPU of a simulated day, {part}", seconds / days, "s", None, "processor time")
            for part, seconds in found.cpu.items()
        ),
        *(
            row(f"month: of Redis memory, {kind}", size / BYTES_IN_MIB, "MiB", None, "MEMORY USAGE of its keys")
            for kind, size in sorted(found.kinds.items(), key=lambda item: -item[1])[:KINDS]
        ),
    ]


def measure(days: float) -> Measured:
    """Simulates so many days."""
    with (
        tempfile.TemporaryDirectory(prefix="fairgpu-bench-") as store,
        tempfile.TemporaryDirectory(prefix="fairgpu-bench-") as folder,
        RedisServer(Path(store)) as server,
        server.client() as client,
    ):
        client.config_set("slowlog-log-slower-than", 1000)
        simulation = Simulation(client)
        shown: Any = client.info("server")
        simulation.found.undisturbed = before_all_others(int(shown["process_id"]))
        began, before = time.perf_counter(), cpu_of_redis(client)
        while simulation.now < START + int(days * DAY):
            simulation.minute()
        simulation.found.seconds = time.perf_counter() - began
        simulation.found.cpu = {**simulation.cpu, "Redis": cpu_of_redis(client) - before}
        with RestServer(Path(folder), server.url) as rest:
            idle = cpu_seconds(rest)
            simulation.settle_while(lambda: ask(rest, simulation))
            simulation.found.asking = cpu_seconds(rest) - idle
        began = time.perf_counter()
        around = AuditEnvironment(client, lambda: None, lambda: simulation.now, lambda _: False)
        found = audit(around, AuditRequest(patience_seconds=0))
        simulation.found.differences = len(found.differences)
        simulation.found.auditing = time.perf_counter() - began
        simulation.look_at_redis()
        simulation.found.kinds = memory_by_kind(client)
    return simulation.found


class Simulation:
    """A cluster, its leader, and how far they are."""

    def __init__(self, client: redis.Redis) -> None:
        self.now = START
        self.found = Measured()
        self.cpu = defaultdict[str, float](float)
        self._client = client
        self._chance = random.Random(11)
        self._cluster = MirroredCluster(lambda: self.now)
        self._cluster.replace("budgets", [budget_object(f"b{n}", [f"team-{n}"]) for n in range(ACCOUNTS)])
        rules = ControllerRules(labels=LABELS)
        clocks = Clocks(lambda: self.now, lambda: self.now)
        self._keeper = Reconciler(client, self._cluster, rules, take_fencing_token(client, 0), clocks=clocks)
        books, fencing_token = self._keeper.books, self._keeper.fencing_token
        self._archivist = Archivist(client, self._cluster, books, fencing_token, Retention())
        self._collector = Collector(time.monotonic)
        self._reports, there = multiprocessing.Pipe()
        FORK.Process(target=take_reports, args=(ReportIntake(client), there), daemon=True).start()
        there.close()
        self._due: list[tuple[int, int, str, dict[str, Any]]] = []
        self._number = self._planned = 0

    def minute(self) -> None:
        """Lets a minute pass in the cluster, and the leader do a round."""
        started = time.process_time()
        self.now += MINUTE
        for _ in range(round(PODS_A_DAY * MINUTE / DAY + self._chance.random() - 0.5)):
            self._begin()
        self._let_happen()
        for name in Mirrors.__slots__:
            getattr(self._cluster.mirrors, name).confirmed()
        whole = self.now % HOUR == 0
        began, played = time.perf_counter(), time.process_time()
        with self._collector.paused():
            self._keeper.reconcile(self.now, full=whole)
        rounded, settled = time.perf_counter(), time.process_time()
        self._archivist.archive(self.now)
        archived = time.perf_counter()
        self.cpu["the played cluster"] += played - started
        self.cpu["rounds"] += settled - played
        self.cpu["archiving"] += time.process_time() - settled
        self._reports.recv()
        self.found.rounds.append(rounded - began)
        self.found.archiving.append(archived - rounded)
        # The writer of checkpoints forgets them so.
        books = self._keeper.books
        books.finalized = [(at, metered) for at, metered in books.finalized if at > self.now - 10 * MINUTE]
        if whole:
            self.look_at_redis()

    def settle_while(self, ask_questions: Any) -> None:
        """Goes on minute by minute until the questions are answered."""
        here, there = multiprocessing.Pipe(duplex=False)
        asking = FORK.Process(target=lambda: there.send(ask_questions()))
        asking.start()
        there.close()
        while not here.poll(SECONDS_OF_A_MINUTE):
            self.minute()
        self.found.pages, self.found.namespaces = here.recv()
        asking.join()

    def look_at_redis(self) -> None:
        """Notes its memory and its longest commands."""
        shown: Any = self._client.info("memory")
        self.found.memory.append((int(shown["used_memory"]), int(shown["mem_aof_buffer"])))
        self.found.peak = int(shown["used_memory_peak"])
        slow: Any = self._client.slowlog_get(128)
        self.found.commands += [(each["duration"] / 1e6, told_of(each["command"])) for each in slow]
        self.found.commands = heapq.nlargest(10, self.found.commands)
        self._client.slowlog_reset()

    def _begin(self) -> None:
        chance, self._number = self._chance, self._number + 1
        uid = str(UUID(int=chance.getrandbits(128), version=4))
        start = self.now - chance.randrange(MINUTE // SECOND) * SECOND
        lives = chance.uniform(*LONG_SECONDS) if chance.random() < 0.1 else chance.expovariate(1 / SHORT_SECONDS)
        life = max(int(lives), 60) * SECOND
        pod = pod_of(chance, self._number, uid, start)
        self._cluster.mirrors.pods.changed("ADDED", pod)
        self.found.pods += 1
        for number in range(1, REPORTS + 1):
            self._plan(start + life * number // (REPORTS + 1), f"report {number}", pod)
        self._plan(start + life, "end", pod)
        self._plan(start + life + DELETED_AFTER, "delete", pod)
        self._plan(start + life + DELETED_AFTER + DAY, "forget", {"metadata": {"uid": uid}})

    def _plan(self, at: int, what: str, pod: dict[str, Any]) -> None:
        self._planned += 1
        heapq.heappush(self._due, (at, self._planned, what, pod))

    def _let_happen(self) -> None:
        reports = list[Submission]()
        forgotten = list[str]()
        while self._due and self._due[0][0] <= self.now:
            at, _, what, pod = heapq.heappop(self._due)
            uid = pod["metadata"]["uid"]
            if what == "end":
                self._cluster.mirrors.pods.changed("MODIFIED", ended(pod, at))
            elif what == "delete":
                self._cluster.mirrors.pods.changed("DELETED", ended(pod, at - DELETED_AFTER))
            elif what == "forget":
                forgotten.append(keys.report(uid))
            else:
                number = int(what.split()[1])
                busy = number * 60 * SECOND
                reports.append(Submission(uid, "boot", number, at, (Counter(f"GPU-{uid}", busy, busy, 0),)))
        self._reports.send(reports)
        if forgotten:  # Redis does so by its own clock, which passes more slowly here.
            self._client.delete(*forgotten)


def cpu_of_redis(client: redis.Redis) -> float:
    """Seconds of processor time that Redis has taken."""
    used: Any = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def take_reports(intake: ReportIntake, reports: Connection) -> None:
    """Takes a minute's reports after the other, and confirms each, until the other side is gone."""
    while True:
        try:
            submissions = reports.recv()
        except EOFError:
            return
        intake.take(submissions)
        reports.send(len(submissions))


def before_all_others(process: int) -> bool:
    """Lets a process run whenever it can, so that what it takes is its own time; False where that is not permitted."""
    try:
        os.sched_setscheduler(process, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        return False
    return True


def pod_of(chance: random.Random, number: int, uid: str, start: int) -> dict[str, Any]:
    """A running pod on three tenths of a GPU, of a job of its own."""
    account, node = chance.randrange(ACCOUNTS), f"gpu-node-{chance.randrange(NODES):03d}"
    stamp, job = format_instant(start), f"train-{number:x}"
    device = {"uuid": f"GPU-{uid}", "model": "A100", "totalMiB": 81920, "core": 30, "memoryMiB": 4096}
    allocation = {"v": 1, "node": node, "containers": [{"name": "main", "devices": [device]}]}
    limits = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": "30", "fairgpu.io/gpu-memory": "4096"}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid, "controller": True}
    return {
        "metadata": {
            "uid": uid,
            "name": f"{job}-{chance.randrange(36**5):05x}",
            "namespace": f"team-{account}",
            "creationTimestamp": stamp,
            "annotations": {"fairgpu.io/allocation": json.dumps(allocation), "fairgpu.io/created-by": f"Job/{job}"},
            "labels": {"app": f"app-{number % 7}", "project": f"project-{number % 30}", "team": f"team-{account}"},
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp}],
        },
    }


def ended(pod: dict[str, Any], at: int) -> dict[str, Any]:
    """The same pod with its container ended."""
    state = {"terminated": {"exitCode": 0, "finishedAt": format_instant(at)}}
    status = {**pod["status"], "phase": "Succeeded", "containerStatuses": [{"name": "main", "state": state}]}
    return {**pod, "status": status}


def ask(rest: RestServer, simulation: Simulation) -> tuple[list[float], list[float]]:
    """The seconds that each of many distinct questions takes: pages of all namespaces, and one namespace; by day."""
    chance = random.Random(7)
    days = max(int((simulation.now - START) // DAY), 1)
    whole = Window(START, START + (days + 1) * DAY)
    window = f"{format_instant(whole.start)},{format_instant(whole.end)}"
    found = list[float](), list[float]()
    for number in range(QUESTIONS):
        place = (chance.randrange(days), (f"team-{chance.randrange(ACCOUNTS)}",))
        page = f"limit={chance.randrange(100, 1000)}&cursor={cursor_of(whole, place)}"
        paths = (f"/v1/usage?{page}", f"/v1/namespaces/team-{number * ACCOUNTS // QUESTIONS}/usage?")
        for seconds, path in zip(found, paths, strict=True):
            began = time.perf_counter()
            answer = rest.as_person("finance", "GET", f"{path}&window={window}&step=1d")
            seconds.append(time.perf_counter() - began)
            if answer.status != 200:
                raise AssertionError(answer.body[:500])
    return found


def memory_by_kind(client: redis.Redis) -> dict[str, int]:
    """Bytes that keys take in Redis, by what they are called behind their hash tag, without numbers."""
    sizes: dict[str, int] = {}
    names: list[bytes] = list(client.scan_iter(count=1000))
    for first in range(0, len(names), 1000):
        chunk = names[first : first + 1000]
        pipeline = client.pipeline(transaction=False)
        for name in chunk:
            pipeline.memory_usage(name.decode(), samples=0)
        for name, size in zip(chunk, pipeline.execute(), strict=True):
            kind = re.sub(r":[0-9]+(?=:|$)", "", name.decode().rpartition("}:")[2])
            sizes[kind] = sizes.get(kind, 0) + (size or 0)
    return sizes


def told_of(command: bytes | str) -> str:
    """The beginning of a command."""
    text = command.decode(errors="replace") if isinstance(command, bytes) else command
    return " ".join(part[:60] for part in text.split()[:4])


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


def main() -> int:
    """Measures and reports."""
    parser = argparse.ArgumentParser(prog="tests.bench.month", description=__doc__)
    parser.add_argument("--days", type=float, default=30.0, help="simulated days; may be a fraction (30)")
    for found in rows_of(parser.parse_args().days):
        print(line(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
