"""The REST service under load: reports of 10,000 pods, and 50 clients that wait for states.

The rate per core is requests over the CPU time that the serving process took (user and system, TLS included), since
the client and Redis share the machine's few cores with it.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from fairgpu.states import BudgetState, NamespaceState
from tests.support.ledger.seeding import Pod, publish, seed_budget
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.rest_server import RestServer

PODS = 10_000
CONNECTIONS = 32
POLLERS = 50
NAMESPACES = 10_000
HANDSHAKES = 1_000
TICKS = os.sysconf("SC_CLK_TCK")


def rows() -> list[dict[str, Any]]:
    """The figures beside their goals."""
    with served() as (rest, redis_server):
        return [*reports(rest, redis_server), *states(rest, redis_server)]


@contextmanager
def served() -> Iterator[tuple[RestServer, RedisServer]]:
    """A timekeeper of one worker on a Redis of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="fairgpu-bench-") as folder,
        RedisServer(Path(folder)) as redis_server,
        RestServer(Path(folder, "rest"), redis_server.url) as rest,
    ):
        yield rest, redis_server


def reports(rest: RestServer, redis_server: RedisServer) -> list[dict[str, Any]]:
    """Each pod reports twice over kept connections, then some of them with a TLS handshake each."""
    pods = [Pod(f"0b1c2d3e-0000-4000-8000-{number:012d}", "team-a", f"train-{number}") for number in range(PODS)]
    with redis_server.client() as client:
        seed_budget(client, "research", ["team-a"], pods)
    tokens = [rest.signer.pod(pod.namespace, pod.name, pod.uid, exp=int(time.time()) + 3600) for pod in pods]
    result = []
    for name, sequence, goal in (("cold", 1, None), ("warm", 2, 1500.0)):
        requests = [report_request(token, sequence) for token in tokens]
        time.sleep(1)  # a pod's reports are taken once a second
        wall, cpu = measured(rest, partial(_ask, rest, requests))
        context = f"{PODS} tokens ({rest.signer.algorithm}), TLS kept open, {PODS / wall:,.0f}/s on shared cores"
        result.append(row(f"reports, {name} tokens, per core", PODS / cpu, "reports/s", goal, context, at_least=True))
    requests = [report_request(token, 3) for token in tokens[:HANDSHAKES]]
    time.sleep(1)  # a pod's reports are taken once a second
    wall, cpu = measured(rest, lambda: asyncio.run(send_all(rest, requests, kept=False)))
    context = f"as sidecars do, {HANDSHAKES / wall:,.0f}/s on shared cores"
    name = "reports, warm tokens, a TLS handshake each, per core"
    result.append(row(name, HANDSHAKES / cpu, "reports/s", None, context, at_least=True))
    return result


def states(rest: RestServer, redis_server: RedisServer) -> list[dict[str, Any]]:
    """From the moment of publication until the last client has read the last state."""
    everything, single = asyncio.run(wait_for_states(rest, redis_server))
    context = f"{POLLERS} waiting clients, one worker, clients on the same cores"
    return [
        row(f"{NAMESPACES} changed states to {POLLERS} long polls", everything, "s", 5.0, context, at_least=False),
        row(f"a single changed state to {POLLERS} long polls", single, "s", 1.0, context, at_least=False),
    ]


def row(name: str, value: float, unit: str, goal: float | None, context: str, *, at_least: bool) -> dict[str, Any]:
    met = None if goal is None else value >= goal if at_least else value <= goal
    sign = ">=" if at_least else "<="
    shown = None if goal is None else f"{sign} {goal:g}"
    return {"name": name, "value": value, "unit": unit, "goal": shown, "met": met, "context": context}


def measured(rest: RestServer, work: Callable[[], None]) -> tuple[float, float]:
    """Wall time and the workers' CPU time of some work, in seconds."""
    before, start = cpu_seconds(rest), time.perf_counter()
    work()
    return time.perf_counter() - start, cpu_seconds(rest) - before


def cpu_seconds(rest: RestServer) -> float:
    """User and system time of the server's workers, from /proc/PID/stat."""
    assert rest.process is not None
    arbiter = rest.process.pid
    workers = Path(f"/proc/{arbiter}/task/{arbiter}/children").read_text().split()
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in workers]
    return sum(int(field[11]) + int(field[12]) for field in fields) / TICKS


def report_request(token: str, sequence: int) -> bytes:
    device = {
        "uuid": "GPU-9c2a5e0e-7a0b-4d0c-8a55-0f4c9b1f0001",
        "busyNs": 5_000_000_000 * sequence,
        "spanNs": 60_000_000_000 * sequence,
        "throttledNs": 1_000_000,
        "memoryPeakMiB": 4096,
        "launches": 12_000 * sequence,
        "oom": 0,
    }
    containers = [{"name": "main", "devices": [device]}]
    body = orjson.dumps({"v": 1, "boot": "0" * 32, "seq": sequence, "containers": containers})
    head = (
        "POST /v1/reports HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _ask(rest: RestServer, requests: list[bytes]) -> None:
    asyncio.run(send_all(rest, requests))


async def send_all(rest: RestServer, requests: list[bytes], *, kept: bool = True) -> None:
    """Sends the requests over a number of connections, each as soon as the one before is answered."""
    queue = iter(requests)

    async def sender() -> None:
        connection = await connected(rest) if kept else None
        for request in queue:
            used = connection or await connected(rest)
            status, body = await exchange(used, request)
            if status != 200:
                raise RuntimeError(f"{status}: {body[:300]!r}")
            if connection is None:
                used[1].close()
        if connection:
            connection[1].close()

    await asyncio.gather(*(sender() for _ in range(CONNECTIONS)))


async def wait_for_states(rest: RestServer, redis_server: RedisServer) -> tuple[float, float]:
    """Seconds until every client knows every state, then until every client knows of a single change."""
    token = rest.signer.person("finance")
    with redis_server.client() as client:
        await asyncio.to_thread(publish, client, all_states(1))
        pollers = [Poller(await connected(rest), token) for _ in range(POLLERS)]
        for poller in pollers:
            await poller.poll(until=lambda seen: len(seen) == NAMESPACES)
        everything = await timed(
            client, pollers, all_states(2), lambda seen: all(value == "2" for value in seen.values())
        )
        single = await timed(client, pollers, all_states(3)[:1], lambda seen: "3" in seen.values())
    return everything, single


async def timed(client: Any, pollers: list[Poller], changed: list[NamespaceState], done: Callable[..., bool]) -> float:
    waiting = [asyncio.create_task(poller.poll(until=done)) for poller in pollers]
    await asyncio.sleep(1.0)  # all of them wait; not part of what is measured
    start = time.perf_counter()
    await asyncio.to_thread(publish, client, changed)
    await asyncio.gather(*waiting)
    return time.perf_counter() - start


def all_states(remaining: int) -> list[NamespaceState]:
    return [
        NamespaceState(f"team-{number}", f"budget-{number}", BudgetState.OPEN, 36_000_000_000, remaining, 1_000_000)
        for number in range(NAMESPACES)
    ]


class Poller:
    """A webhook that follows the states."""

    def __init__(self, connection: Connection, token: str) -> None:
        self.connection = connection
        self.token = token
        self.cursor = ""
        self.seen: dict[str, str] = {}

    async def poll(self, until: Callable[[dict[str, str]], bool]) -> None:
        """Polls until what was seen satisfies a condition."""
        while not until(self.seen):
            path = f"/v1/states?since={self.cursor}&wait=30"
            request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.token}\r\n\r\n"
            status, body = await exchange(self.connection, request.encode())
            if status != 200:
                raise RuntimeError(f"{status}: {body[:300]!r}")
            document = orjson.loads(body)
            self.cursor = document["cursor"]
            self.seen |= {state["namespace"]: state["remaining"] for state in document["states"]}


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(rest: RestServer) -> Connection:
    context = ssl.create_default_context(cafile=str(rest.ca_file))
    return await asyncio.open_connection("127.0.0.1", rest.port, ssl=context, limit=1 << 22)


async def exchange(connection: Connection, request: bytes) -> tuple[int, bytes]:
    """One request and its answer over HTTP/1.1."""
    reader, writer = connection
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)
