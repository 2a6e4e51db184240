"""Present use of 50,000 pods: the reading of an answer of Prometheus, and its way into the store and out of it."""

from __future__ import annotations

import json
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.servers.redis_server import RedisServer
from timekeeper.controller.present_use import answer_rules, sessions_by_pod
from timekeeper.domain.money import SECOND
from timekeeper.domain.present_use import AnswerRules, read_answer
from timekeeper.domain.sessions import Session
from timekeeper.ledger import present_use
from timekeeper.ledger.present_use import NamespaceUse, PresentUse
from timekeeper.settings import PrometheusSettings

PODS = 50_000
CONTEXT = f"{PODS:,} pods, DCGM exporter's labels"


def rows() -> Iterator[dict[str, Any]]:
    """Measures the leader's processor time and memory, the size of an answer, and what Redis keeps."""
    now = time.time_ns()
    body = answer(now)
    yield row("size of Prometheus's answer", len(body) / 2**20, "MiB")
    rules = answer_rules(PrometheusSettings())
    yield row("an answer of Prometheus is read", spent(lambda: read_answer(body, rules, now)), "s of CPU")
    yield row("memory while an answer is read, the answer included", held(body, rules, now) / 2**20, "MiB")
    sessions = [Session(f"uid-{number:032d}", *pod(number), "n1", now, ((now, 1),)) for number in range(PODS)]
    yield row("sessions are found by their pods", spent(lambda: sessions_by_pod(sessions)), "s of CPU")
    uses = {session.uid: PresentUse(now, now + 180 * SECOND, 5000) for session in sessions}
    namespaces = {f"team-{number}": NamespaceUse(now, now + 180 * SECOND, 1, 1) for number in range(500)}
    with (
        tempfile.TemporaryDirectory(prefix="fairgpu-bench-") as folder,
        RedisServer(Path(folder)) as server,
        server.client() as client,
    ):
        before = client.info("memory")["used_memory"]
        yield row("present use is stored", spent(lambda: present_use.write(client, uses, namespaces)), "s of CPU")
        yield row("present use in Redis", (client.info("memory")["used_memory"] - before) / 2**20, "MiB")


def pod(number: int) -> tuple[str, str]:
    """The namespace and the name of a pod."""
    return f"team-{number % 500}", f"train-{number}-7d4b9c6f5-x7k2p"


def answer(now: int) -> bytes:
    """An answer to the default query, in which each pod holds a GPU."""
    result = []
    for number in range(PODS):
        namespace, name = pod(number)
        exporter = {"namespace": "gpu-operator", "pod": f"nvidia-dcgm-exporter-{number % 2000:05d}"}
        labels = {"exported_namespace": namespace, "exported_pod": name, **exporter}
        result.append({"metric": labels, "value": [now / SECOND, f"{number % 100}.25"]})
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def spent(act: Callable[[], object]) -> float:
    """The processor time of this process, in seconds."""
    began = time.process_time()
    act()
    return time.process_time() - began


def held(body: bytes, rules: AnswerRules, now: int) -> int:
    """The most memory that an answer and its reading take, in bytes.

    The count makes the reading slow, so that its time is measured apart.
    """
    tracemalloc.start()
    try:
        read_answer(body, rules, now)
        return tracemalloc.get_traced_memory()[1] + len(body)
    finally:
        tracemalloc.stop()


def row(name: str, value: float, unit: str) -> dict[str, Any]:
    """A figure without a goal."""
    return {"name": name, "value": value, "unit": unit, "goal": "", "met": None, "context": CONTEXT}
