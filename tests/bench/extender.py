"""The extender as it is installed, over 5,000 nodes of 8 GPUs: asked over HTTP as kube-scheduler asks it.

It is the program `fairgpu scheduler serve`, which has listed the nodes and 40,000 pods from a stand-in of the API
server (`tests.bench._pods_server`). The client, that server and whatever else the machine does share its processors
with it: the processor time is what it takes, and the latency is what this machine makes of it.
"""

from __future__ import annotations

import http.client
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from scheduler.application import LEARN_LOOK_SECONDS
from scheduler.placement.choosing import MAX_KEPT
from tests.bench._pods_server import Cluster, PodsServer, serving
from tests.bench.placement import GPUS, NODES, PLACED, body, row
from tests.support.ports import free_ports
from tests.support.processes import FAIRGPU, ending
from tests.support.waiting import wait_until

CALLS = 200
KINDS = 40
"""Kinds of requests, each of which was asked about before."""
LEARNING_SECONDS = 20.0
"""The time that requests about pods take while the extender learns as often as it may."""
ABOUT_SECONDS = 0.1
"""Longer than a learning takes of one processor."""
LEARNED = "request statistics updated"
"""The log event at the end of each learning."""


@dataclass(frozen=True)
class Extender:
    """An extender that answers.

    Attributes:
        port: where it answers kube-scheduler.
        worker: the process that answers.
        processes: all its processes.
        log: what it has logged.
        server: the API server that it watches.
    """

    port: int
    worker: int
    processes: tuple[int, ...]
    log: Path
    server: PodsServer

    def memory_mib(self) -> float:
        """Returns the memory of all its processes together; a shared page counts once (proc_pid_smaps_rollup(5))."""
        rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in self.processes]
        return sum(int(line.split()[1]) for lines in rollups for line in lines if line.startswith("Pss:")) / 1024

    def processor_seconds(self) -> float:
        """Returns the processor time that the answering process has taken."""
        return processor_seconds(self.worker)


def rows() -> Iterator[dict[str, Any]]:
    """The figures, each beside its goal."""
    context = f"{NODES:,} nodes x {GPUS} GPUs, {PLACED:,} pods placed, the installed program over HTTP"
    alone = [body(f"p{number}", 1 + number % KINDS) for number in range(CALLS + KINDS)]
    spread = [scored(f"s{number}", 1 + number % KINDS) for number in range(CALLS + KINDS)]
    with extender() as found:
        listed, spent = found.memory_mib(), found.processor_seconds()
        yield row(
            "processor time until the extender is ready", spent, "s", "", f"start, lists, HTTP; {context}", met=None
        )
        for name, asked in (("filter of one pod", alone), ("filter and prioritize of a pod that spreads", spread)):
            latencies, spent = load(found, asked, prioritizes=asked is spread)
            yield row(f"{name}, processor time of the extender", spent, "ms", "<= 3", context, met=spent <= 3)
            median = statistics.median(latencies)
            yield row(f"{name}, median latency", median, "ms", "<= 3 on an idle machine", context, met=None)
        latencies, times = while_learning(found, alone)
        slowest = statistics.quantiles(latencies, n=100)[98]
        learning = f"it learned {times} times, {len(latencies):,} calls, load {os.getloadavg()[0]:.0f}, {context}"
        name = "filter of one pod while it learns, slowest hundredth"
        yield row(name, slowest, "ms", "<= 10", learning, met=slowest <= 10)
        memory = max(listed, found.memory_mib())
        share = f"PSS of {len(found.processes)} processes, {listed:.0f} before the first pod, {context}"
        yield row("memory of the extender", memory, "MiB", "<= 250", share, met=memory <= 250)
        ask_of_many_kinds(found)
        memory = found.memory_mib()
        name = f"the same with {MAX_KEPT} kinds of requests that fit and as many that do not"
        yield row(name, memory, "MiB", "<= 250", share, met=memory <= 250)


def scored(name: str, core: int) -> bytes:
    """The body about a pod for which all nodes that fit are scored."""
    text = orjson.loads(body(name, core))
    text["Pod"]["metadata"]["annotations"]["fairgpu.io/placement"] = "spread"
    return orjson.dumps(text)


def load(extender: Extender, asked: Sequence[bytes], *, prioritizes: bool) -> tuple[list[float], float]:
    """Milliseconds of each pod's calls, and the worker's processor time for a pod; the first KINDS do not count."""
    connection = http.client.HTTPConnection("127.0.0.1", extender.port, timeout=60)
    latencies: list[float] = []
    before = 0.0
    for number, text in enumerate(asked):
        if number == KINDS:
            before = extender.processor_seconds()
        elapsed, answer = answered(connection, "/filter", text)
        if prioritizes:
            # kube-scheduler asks for scores of the nodes that filter answered, in the same order
            # (https://github.com/kubernetes/kubernetes/blob/v1.34.2/pkg/scheduler/extender.go).
            names = orjson.loads(answer)["NodeNames"]
            elapsed += answered(connection, "/prioritize", orjson.dumps(orjson.loads(text) | {"NodeNames": names}))[0]
        if number >= KINDS:
            latencies.append(elapsed * 1e3)
    spent = (extender.processor_seconds() - before) / len(latencies) * 1e3
    connection.close()
    return latencies, spent


def while_learning(extender: Extender, asked: Sequence[bytes]) -> tuple[list[float], int]:
    """Milliseconds of each call about the end of a learning, and how often it learned.

    Every second a node has GPUs of a new model, which the extender learns at once. The calls within ABOUT_SECONDS of
    the end count: they are answered beside the learning, or are the first after it, which forgets what was known of
    each kind of requests.
    """
    connection = http.client.HTTPConnection("127.0.0.1", extender.port, timeout=60)
    over, calls = threading.Event(), list[tuple[float, float]]()

    def change() -> None:
        number = 0
        while not over.wait(LEARN_LOOK_SECONDS):
            extender.server.change(number, f"NVIDIA NEW {number}")
            number += 1

    changes, before = threading.Thread(target=change), len(learned_at(extender.log))
    changes.start()
    until = time.monotonic() + LEARNING_SECONDS
    while time.monotonic() < until:
        calls += [(time.time(), answered(connection, "/filter", text)[0] * 1e3) for text in asked]
    over.set()
    changes.join()
    connection.close()
    ends = learned_at(extender.log)[before:]
    if len(ends) < LEARNING_SECONDS / 4:
        raise RuntimeError(f"the extender learned {len(ends)} times in {LEARNING_SECONDS} s")
    return [spent for at, spent in calls if any(abs(at - end) < ABOUT_SECONDS for end in ends)], len(ends)


def ask_of_many_kinds(extender: Extender) -> None:
    """Asks about as many kinds of requests that fit as the extender keeps, and about as many that fit nowhere."""
    connection = http.client.HTTPConnection("127.0.0.1", extender.port, timeout=60)
    for first in (1, GPUS + 1):
        for number in range(MAX_KEPT):
            answered(connection, "/filter", body(f"k{first}-{number}", 1 + number % 64, gpus=first + number // 64))
    connection.close()


def learned_at(log: Path) -> list[float]:
    """Returns the instants at which learning ended, in seconds since 1970."""
    events = [orjson.loads(line) for line in log.read_text().splitlines() if LEARNED in line]
    return [datetime.fromisoformat(event["timestamp"]).timestamp() for event in events]


def answered(connection: http.client.HTTPConnection, path: str, text: bytes) -> tuple[float, bytes]:
    """Posts a body; the seconds until the answer was read, and the answer."""
    started = time.perf_counter()
    connection.request("POST", path, text)
    answer = connection.getresponse()
    found = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path} was answered {answer.status}")
    return time.perf_counter() - started, found


@contextmanager
def extender() -> Iterator[Extender]:
    """The program, once it has listed all nodes and pods, for the length of a with statement."""
    with tempfile.TemporaryDirectory() as folder, serving(Cluster(NODES, GPUS, PLACED)) as server:
        kubeconfig, log = Path(folder, "kubeconfig"), Path(folder, "log")
        server.write_kubeconfig(kubeconfig)
        port, metrics, closed = free_ports(3)
        settings = {
            "KUBECONFIG": str(kubeconfig),
            "FAIRGPU_SCHEDULER_EXTENDER_PORT": str(port),
            "FAIRGPU_SCHEDULER_EXTENDER_METRICS_HOST": "127.0.0.1",
            "FAIRGPU_SCHEDULER_EXTENDER_METRICS_PORT": str(metrics),
            "FAIRGPU_SCHEDULER_STATES_URL": f"https://127.0.0.1:{closed}",
        }
        command = [*FAIRGPU, "scheduler", "serve"]
        with log.open("w") as out:
            process = subprocess.Popen(command, env=os.environ | settings, stdout=out, stderr=out)
        with ending(process):
            wait_until(lambda: is_ready(metrics), "the extender is ready")
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            worker = int(children[0])
            yield Extender(port, worker, (process.pid, *map(int, children)), log, server)


def is_ready(port: int) -> bool:
    """Whether the program has listed all that it must know."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def processor_seconds(pid: int) -> float:
    """User and system time of a process (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
