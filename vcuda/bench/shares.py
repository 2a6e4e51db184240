"""The exactness of containers' shares on the simulated GPU, at real time. Prints JSON rows.

Truth is the simulator's own record of completed work, in time that the work would take alone on the GPU, cut into
windows of a second (of ten for kernels as long as a period). The error is the mean absolute difference from the share,
in percentage points. The page is written by the node agent's own turn-maker.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

VCUDA = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(VCUDA / "tests"), str(VCUDA / "simgpu")]
import truth
from node import BEST_EFFORT, ELASTIC, HARD, MIB, Container, Node, Share, begin_at_once, until, uuid

Popen = subprocess.Popen[str]
POLICIES = {HARD: "hard", ELASTIC: "elastic", BEST_EFFORT: "best_effort"}


@dataclass(frozen=True)
class Tenant:
    """One container: its share, and the arguments of each of its programs (spin.c)."""

    core: int
    programs: tuple[tuple[str, ...], ...]
    policy: int = HARD


@contextmanager
def paged(node: Node, containers: list[Container]) -> Iterator[None]:
    """The node agent's writer of the schedule page, while the containers run."""
    listed = [
        {
            "slot": share.slot, "key": 1000 + share.slot, "corePercent": share.core, "policy": POLICIES[share.policy],
            "ledger": str(container.ledger), "device": 0,
        }
        for container in containers
        for share in container.shares
    ]  # fmt: skip
    config = node.folder / "containers.json"
    config.write_text(json.dumps({"uuid": uuid(), "containers": listed}))
    page = node.folder / "page"
    command = [sys.executable, "-m", "nodeagent.schedule", "--page", str(page), "--containers", str(config)]
    writer = subprocess.Popen(command, cwd=VCUDA.parent)
    try:
        until(lambda: page.exists() and page.stat().st_size == 7296 and page.read_bytes()[:7] == b"FGSCHED")
        yield
    finally:
        writer.terminate()
        writer.wait()


def work_done(node: Node) -> dict[str, int]:
    """Completed work of each container, ns."""
    with (node.folder / "gpu" / "truth").open("rb") as file:
        head = file.read(truth.DEVICES_AT)
    _, _, _, contexts, groups, _ = truth.HEADER.unpack_from(head)
    labels = [
        truth.GROUP.unpack_from(head, truth.HEADER.size + i * truth.GROUP.size)[0].rstrip(b"\0").decode()
        for i in range(groups)
    ]
    sums = dict.fromkeys(labels, 0)
    for i in range(contexts):
        context = truth.Context(*truth.CONTEXT.unpack_from(head, truth.CONTEXTS_AT + i * truth.CONTEXT.size))
        sums[labels[context.group]] += context.solo_ns
    return sums


@contextmanager
def started(node: Node, tenants: list[Tenant], seconds: float, *, shim: bool) -> Iterator[list[list[Popen]]]:
    """Every tenant's programs, begun at once, beside a writer of their page."""
    node.folder.mkdir()
    page = str(node.folder / "page")
    containers = [
        node.container(f"c{i}", Share(8192 * MIB, tenant.core, tenant.policy, slot=i, schedule=page))
        for i, tenant in enumerate(tenants)
    ]
    if not shim:
        for container in containers:
            container.config.unlink()
    programs = [(container, program) for container, tenant in zip(containers, tenants) for program in tenant.programs]
    with paged(node, containers), begun(programs, seconds) as running:
        ends = list(accumulate(len(tenant.programs) for tenant in tenants))
        yield [running[first:end] for first, end in zip([0, *ends], ends)]


@contextmanager
def begun(programs: list[tuple[Container, tuple[str, ...]]], seconds: float) -> Iterator[list[Popen]]:
    """Programs (spin.c, with these arguments) that were begun at once; their end is waited for."""
    running = [container.start("spin", str(seconds), *program) for container, program in programs]
    try:
        begin_at_once(running)
        yield running
        for process in running:
            process.communicate()
    finally:
        for process in running:
            process.kill()  # nothing, where it has ended


@contextmanager
def lateness(folder: Path) -> Iterator[Callable[[], float]]:
    """Seconds, ever growing, by which a program that only sleeps was woken too late while the containers ran."""
    path = folder / "lateness"
    path.write_bytes(bytes(8))
    sleeper = subprocess.Popen([str(VCUDA / "build" / "bench" / "lateness"), str(path)])
    try:
        yield lambda: int.from_bytes(path.read_bytes(), "little") / 1e9
    finally:
        sleeper.kill()
        sleeper.wait()


@dataclass(frozen=True)
class Window:
    """Percent that each tenant's completed work came to, and the part of the window that the machine was late."""

    parts: list[float]
    late: float


def shares(folder: Path, tenants: list[Tenant], windows: int, window_s: float, *, shim: bool = True) -> list[Window]:
    """Returns each tenant's share in each window, by the simulator's truth."""
    node = Node(folder, settings={"SIMGPU_CALL_COSTS": "1"})
    with started(node, tenants, windows * window_s + 3, shim=shim), lateness(folder) as late:
        time.sleep(1)
        before, at, late_before = work_done(node), time.monotonic(), late()
        measured = []
        for _ in range(windows):
            time.sleep(max(0.0, at + window_s - time.monotonic()))
            after, now, late_now = work_done(node), time.monotonic(), late()
            parts = [(after[f"c{i}"] - before[f"c{i}"]) / (now - at) / 1e7 for i in range(len(tenants))]
            measured.append(Window(parts, (late_now - late_before) / (now - at)))
            before, at, late_before = after, now, late_now
    return measured


def described(measured: list[Window]) -> str:
    """Describes the shares, and how late the machine was."""
    count = len(measured)
    got = "/".join(f"{sum(w.parts[i] for w in measured) / count:.1f}" for i in range(len(measured[0].parts)))
    late = 100 * sum(window.late for window in measured) / count
    return f"got {got}, {count} windows; machine late {late:.0f} percent of the time"


def row(name: str, value: float, unit: str, goal: str, *, met: bool, context: str) -> dict[str, Any]:
    """One figure."""
    return {
        "name": f"vcuda: {name}",
        "value": round(value, 3),
        "unit": unit,
        "goal": goal,
        "met": met,
        "context": context,
    }


def hard(core: int, *programs: tuple[str, ...]) -> Tenant:
    """A tenant of the default policy."""
    return Tenant(core, programs)


SHORT, LONG, VERY_LONG, UNEVEN = ("100",), ("5000",), ("50000",), ("20", "1", "uneven")
CASES = [
    ("30/70, kernels of 0.1 ms", [hard(30, SHORT), hard(70, SHORT)], 6, 1.0),
    ("50/50, kernels of 0.1 and 5 ms", [hard(50, SHORT), hard(50, LONG)], 6, 1.0),
    ("10/20/70, kernels of 0.1 ms", [hard(10, SHORT), hard(20, SHORT), hard(70, SHORT)], 6, 1.0),
    ("30/70, kernels of 5 ms", [hard(30, LONG), hard(70, LONG)], 6, 1.0),
    ("30/70, eight processes in the first", [hard(30, *[SHORT] * 8), hard(70, SHORT)], 6, 1.0),
    ("30/70, kernels of 0.02 and 2 ms in the first", [hard(30, UNEVEN), hard(70, SHORT)], 6, 1.0),
    ("30/70, four streams", [hard(30, ("100", "4")), hard(70, ("100", "4"))], 6, 1.0),
    ("30/70, 32 streams of kernels of 1 ms in the first", [hard(30, ("1000", "32")), hard(70, SHORT)], 6, 1.0),
    ("30/70, graphs of eight kernels", [hard(30, ("100", "1", "graph")), hard(70, ("100", "1", "graph"))], 6, 1.0),
    ("30/70, kernels of 50 ms", [hard(30, VERY_LONG), hard(70, VERY_LONG)], 6, 10.0),
]


def rows(folder: Path, wanted: str = "") -> Iterator[dict[str, Any]]:
    """All figures whose name has `wanted` in it."""
    for number, (name, tenants, windows, window_s) in enumerate(CASES):
        if wanted not in name:
            continue
        measured = shares(folder / str(number), tenants, windows, window_s)
        errors = [abs(part - t.core) for window in measured for part, t in zip(window.parts, tenants)]
        error = sum(errors) / len(errors)
        yield row(f"share error, {name}", error, "points", "<= 2", met=error <= 2, context=described(measured))
    if wanted in "elastic alone":
        alone = [Tenant(30, (SHORT,), ELASTIC)]
        plain = shares(folder / "plain", alone, 4, 1.0, shim=False)
        paced = shares(folder / "paced", alone, 4, 1.0)
        ratio = sum(w.parts[0] for w in paced) / sum(w.parts[0] for w in plain)
        yield row(
            "elastic alone, throughput", ratio, "of no shim", ">= 0.98", met=ratio >= 0.98, context=described(paced)
        )
    if wanted in "best effort":
        crowd = [hard(70, SHORT), *[Tenant(0, (SHORT,), BEST_EFFORT)] * 8]
        measured = shares(folder / "crowd", crowd, 4, 1.0)
        first = sum(window.parts[0] for window in measured) / 4
        yield row(
            "hard 70 beside eight best effort", first, "percent", ">= 68", met=first >= 68, context=described(measured)
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for each in rows(Path(name), *sys.argv[1:2]):
            print(json.dumps(each), flush=True)
