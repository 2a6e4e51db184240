"""The extender over HTTP, as kube-scheduler asks it: one connection on loopback, over 5,000 nodes of 8 GPUs.

The client and whatever else the machine does share its processors with the server: the processor time of the server is
what it takes, and the latency is what this machine makes of it.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from fairgpu.serving.application import Application
from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.options import Address, ServerOptions
from fairgpu.serving.probes import build_about, build_probes
from fairgpu.serving.server import serve
from scheduler.application import Routes
from scheduler.cluster.state import State
from scheduler.extender.binding import Clock
from scheduler.measures import Measures
from tests.bench.placement import NODES, PLACED, body, placed, row
from tests.support.ports import free_port
from tests.support.waiting import LIMIT_S, wait_until

CALLS = 200
KINDS = 40
"""Kinds of requests, each of which was asked about before."""


def rows() -> Iterator[dict[str, Any]]:
    """The figures, each beside its goal."""
    context = f"{NODES:,} nodes, {PLACED:,} pods placed, one worker over HTTP"
    alone = [body(f"p{number}", 1 + number % KINDS) for number in range(CALLS + KINDS)]
    spread = [scored(f"s{number}", 1 + number % KINDS) for number in range(CALLS + KINDS)]
    with extender(placed(PLACED)) as (port, worker):
        for name, asked in (("filter of one pod", alone), ("filter and prioritize of a pod that spreads", spread)):
            latencies, spent = load(port, worker, asked, prioritizes=asked is spread)
            yield row(f"{name}, processor time of the extender", spent, "ms", "<= 3", context, met=spent <= 3)
            median = statistics.median(latencies)
            yield row(f"{name}, median latency", median, "ms", "<= 3 on an idle machine", context, met=None)


def scored(name: str, core: int) -> bytes:
    """The body about a pod for which all nodes that fit are scored."""
    text = orjson.loads(body(name, core))
    text["Pod"]["metadata"]["annotations"]["fairgpu.io/placement"] = "spread"
    return orjson.dumps(text)


def load(port: int, worker: int, asked: Sequence[bytes], *, prioritizes: bool) -> tuple[list[float], float]:
    """Milliseconds of each pod's calls, and the worker's processor time for a pod; the first KINDS do not count."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    latencies: list[float] = []
    before = 0.0
    for number, text in enumerate(asked):
        if number == KINDS:
            before = processor_seconds(worker)
        elapsed, answer = answered(connection, "/filter", text)
        if prioritizes:
            # kube-scheduler asks for scores of the nodes that filter answered, in the same order
            # (https://github.com/kubernetes/kubernetes/blob/v1.34.2/pkg/scheduler/extender.go).
            names = orjson.loads(answer)["NodeNames"]
            elapsed += answered(connection, "/prioritize", orjson.dumps(orjson.loads(text) | {"NodeNames": names}))[0]
        if number >= KINDS:
            latencies.append(elapsed * 1e3)
    spent = (processor_seconds(worker) - before) / len(latencies) * 1e3
    connection.close()
    return latencies, spent


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
def extender(state: State) -> Iterator[tuple[int, int]]:
    """A server over a state, in a process of its own: its port, and its worker's process id."""
    port = free_port()
    process = multiprocessing.get_context("fork").Process(target=serve_state, args=(state, port))
    process.start()
    try:
        wait_until(lambda: answers(port), "the extender answers")
        (worker,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield port, int(worker)
    finally:
        process.terminate()
        process.join(LIMIT_S)
        process.kill()  # where that was not enough


def serve_state(state: State, port: int) -> None:
    """Serves until its end is asked for."""

    def build(lifecycle: Lifecycle) -> Application:
        clock = Clock(time.monotonic, lifecycle.ending.wait)
        routes = Routes(state, None, clock, lambda: True, Measures())  # type: ignore[arg-type] # nothing is bound
        immediate = {("POST", "/filter"): routes.filter, ("POST", "/prioritize"): routes.prioritize}
        probes = build_probes(lifecycle, lambda: ())
        return Application(lifecycle, {}, build_about("bench"), 1, immediate={**immediate, **probes})

    options = ServerOptions(name="bench", address=Address("127.0.0.1", port), workers=1, drain_seconds=0.0)
    raise SystemExit(serve(options, build, None))


def answers(port: int) -> bool:
    """Whether the server is there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def processor_seconds(pid: int) -> float:
    """User and system time of a process (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
