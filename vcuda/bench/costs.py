"""The shim's costs: nanoseconds added to calls, with and without it in one run. Prints JSON rows."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from agent import Agent, Tenant
from node import BUILD, LEDGER_SIZE, MIB, Container, Node, Share

CALLS = str(BUILD / "bench" / "calls")
LOCKED_AT_D52F78F = 381
"""Instructions under the ledger's lock at that commit, with gcc 12 and glibc 2.36."""
ROUNDS = 5


def row(name: str, value: float, unit: str, goal: float, context: str) -> dict[str, Any]:
    """One figure whose goal is an upper bound."""
    value = round(value, 1)
    return {
        "name": name, "value": value, "unit": unit, "goal": f"<= {goal:g}", "met": value <= goal, "context": context,
    }  # fmt: skip


def environment(container: Container, *, shim: bool) -> dict[str, str]:
    """The container's, or the same without the shim."""
    given = container.environment()
    if not shim:
        del given["LD_PRELOAD"]
    return given


def timed(container: Container, *arguments: str, shim: bool, processes: int = 1) -> tuple[float, float]:
    """Median mean and 99.9th percentile of a call, ns; the mean of both over several processes at once."""
    given = environment(container, shim=shim)
    pipe = subprocess.PIPE
    running = [subprocess.Popen([CALLS, *arguments], env=given, stdout=pipe, text=True) for _ in range(processes)]
    answers = [[float(word) for word in process.communicate()[0].split()] for process in running]
    if any(process.returncode != 0 for process in running):
        raise RuntimeError(f"calls {' '.join(arguments)} ended with {[process.returncode for process in running]}")
    return statistics.mean(a[0] for a in answers), statistics.mean(a[1] for a in answers)


def added(container: Container, *arguments: str, processes: int = 1) -> tuple[float, float, float]:
    """Returns medians of rounds: what the shim adds to the mean, the mean without it, the 99.9th percentile with it."""
    with_shim, without = [], []
    for _ in range(ROUNDS):
        without.append(timed(container, *arguments, shim=False, processes=processes))
        with_shim.append(timed(container, *arguments, shim=True, processes=processes))
    plain = statistics.median(one[0] for one in without)
    return statistics.median(one[0] for one in with_shim) - plain, plain, statistics.median(one[1] for one in with_shim)


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """All figures."""
    null = Node(folder / "null", driver=BUILD / "bench" / "null")
    page = folder / "page"
    paced = null.container("a", Share(memory=65536 * MIB, schedule=str(page)))
    with Agent(null, page, Tenant("a", 0)):
        mean, plain, tail = added(paced, "launch", "2000")
    context = f"empty driver, {plain:,.1f} ns without; p99.9 with: {tail:,.0f} ns"
    yield row("vcuda: launch in its turn, sampling included", mean, "ns added", 20, context)
    idling = null.container("idling", Share(memory=65536 * MIB, schedule=str(page)), NULL_DRIVER_IDLES="1")
    with Agent(null, page, Tenant("idling", 0)):
        mean, plain, _ = added(idling, "launch", "2000")
    context = f"empty driver, {plain:,.1f} ns without; the GPU is through with each before the next"
    yield row("vcuda: launch in its turn, GPU that idles", mean, "ns added", 50, context)
    yield many_gpus(null, page)
    mean, plain, _ = added(paced, "alloc", "1000")
    yield row("vcuda: alloc + free of 1 MiB", mean, "ns added", 300, f"empty driver, {plain:,.1f} ns without")
    mean, plain, _ = added(paced, "alloc", "200", processes=16)
    context = f"empty driver, {plain:,.1f} ns without"
    yield row("vcuda: alloc + free of 1 MiB, 16 processes", mean, "ns added", 600, context)
    if platform.machine() == "x86_64":
        yield locked(folder)
    for threads, most in (("1", 400), ("16", 1500)):
        mean, plain, _ = added(paced, "async", "200", threads)
        context = f"empty driver, {plain:,.1f} ns without"
        yield row(f"vcuda: cuMemAllocAsync + free of 1 MiB, threads: {threads}", mean, "ns added", most, context)
    paced.config.unlink()
    mean, plain, _ = added(paced, "launch", "2000")
    yield row("vcuda: launch without config", mean, "ns added", 5, f"empty driver, {plain:,.1f} ns without")
    allocating = Node(folder / "cheap").container("a")
    yield starting(allocating)


def locked(folder: Path) -> dict[str, Any]:
    """Returns the time for which an allocation and its release lock the ledger; the same on a busy machine."""
    ledger = folder / "ledger"
    ledger.touch()
    os.truncate(ledger, LEDGER_SIZE)
    command = [str(BUILD / "bench" / "locked_instructions"), str(ledger)]
    found = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    context = f"{LOCKED_AT_D52F78F} at d52f78f"
    return row("vcuda: alloc + free, ledger locked", found, "instructions", LOCKED_AT_D52F78F, context)


def many_gpus(null: Node, page: Path) -> dict[str, Any]:
    """A launch in a container with four GPUs, on the first; its default stream means another one on each."""
    shares = [Share(memory=65536 * MIB, ordinal=ordinal, schedule=str(page)) for ordinal in range(4)]
    container = null.container("four", *shares)
    with Agent(null, page, Tenant("four", 0)):
        named, plain, _ = added(container, "launch", "2000")
        default, _, _ = added(container, "launches", "2000")
    context = f"empty driver, {plain:,.1f} ns without; on a default stream {default:,.1f}"
    return row("vcuda: launch in its turn, container with four GPUs", named, "ns added", 25, context)


def starting(container: Container, processes: int = 300) -> dict[str, Any]:
    """300 processes through cuInit, with the shim and without in turn; fewer where each takes long.

    Counted as 300 of the middle one: what else the machine does falls on some of them and is no cost of the shim's.
    """
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for i in range(2 * processes):
        began, shim = time.monotonic(), i % 2 == 1
        subprocess.run([CALLS, "init"], env=environment(container, shim=shim), check=True)
        seconds[shim].append(time.monotonic() - began)
    plain, held = (300 * statistics.median(seconds[shim]) for shim in (False, True))
    context = f"{plain:.1f} s without; {processes} of them run"
    return row("vcuda: 300 processes through cuInit", held - plain, "s added", 1, context)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for each in rows(Path(name)):
            print(json.dumps(each), flush=True)
