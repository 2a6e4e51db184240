"""Do programs of others, and programs whose kernels wait, do with the shim what they do without it?

Programs of frameworks (programs/) and of NVIDIA's runtime (../real/runtime.c) print one line for each thing that they
did, and what came of it. A framework that is not installed has no row.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import costs
import shares
from deck_programs import DECK, longer
from machine import settled_bytes, total_bytes, used_bytes
from node import BUILD, MIB, Container, Node, Share, begin_at_once, ended

PROGRAMS = Path(__file__).resolve().parent / "programs"
RUNTIMES = ("12", "shared-12", "13", "shared-13")
"""Releases of NVIDIA's runtime, linked in and as a library of its own."""
RUNTIME_LAUNCHES = 40
"""Kernels and graphs that a program of the runtime launches."""
LAUNCHES_AT = 144
"""Where the launches of the first GPU are in a container's usage file (usage.h)."""
FRAMEWORKS = ("torch", "cupy", "numba", "jax")
LONGEST_SECONDS = 90
"""A program that has not ended by then hangs."""
WAITING = [("legacy",), ("ahead", "3"), ("pairs", "10"), ("warm", "10"), ("first",), ("exit",), ("overlap", "20")]
"""Programs of waiting.c, with the number of their rounds."""
GREEN = ("green", "200")
SLACK_US = 2000
"""The most by which a start or a wake-up may differ."""
MATMUL_SECONDS = 5
RUNS, TIMES = 3, 4
"""Runs of each program of the deck, and how many times as long as in the tests each is at work."""


def run(container: Container, *command: str, shim: bool, **settings: str) -> subprocess.CompletedProcess[str]:
    """A program run to its end, in the container or in the same one without the shim.

    Raises:
        subprocess.TimeoutExpired: it hangs; it was killed.
        RuntimeError: it was to run with the shim, and no process took a slot in the ledger.
    """
    environment = costs.environment(container, shim=shim) | settings
    before = container.processes()
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST_SECONDS
    )
    if shim:
        must_have_begun(container, before)
    return done


def must_have_begun(container: Container, before: frozenset[bytes]) -> None:
    """Raises RuntimeError where only these processes have ever had a slot of the ledger: the shim was inert."""
    if container.processes() <= before:
        raise RuntimeError(f"nothing ran under {container.library}: does it read its config from VCUDA_CONFIG?")


def waited(container: Container, program: tuple[str, ...], *, shim: bool, connections: str) -> tuple[int, int]:
    """The CUresult and the microseconds that a program of the deck prints; -1 and 0 where it hangs or crashes."""
    command = (str(BUILD / "tests" / "programs" / program[0]), *program[1:])
    try:
        done = run(container, *command, shim=shim, CUDA_DEVICE_MAX_CONNECTIONS=connections)
    except subprocess.TimeoutExpired:
        return -1, 0
    words = done.stdout.split()
    return (int(words[0]), int(words[1])) if done.returncode == 0 else (-1, 0)


def waiting(folder: Path, settings: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Correct programs whose kernels wait, alone on the GPU: as fast as without the shim."""
    node = Node(folder / "node", settings, driver=None)
    container = node.container("a", Share(1 << 40, schedule=str(node.folder / "page")))
    cases = [(program, "8") for program in [*WAITING, GREEN]] + [(("overlap", "20"), "1"), (("legacy",), "32")]
    with shares.paged(node, [container]):
        for program, connections in cases:
            waits = ("waiting", *program)
            plain, plain_us = waited(container, waits, shim=False, connections=connections)
            result, took_us = waited(container, waits, shim=True, connections=connections)
            met = result == plain and took_us <= plain_us * 1.05 + SLACK_US
            name = f"{' '.join(program)}, {connections} hardware queues"
            context = f"{plain_us} us without; answers {plain} and {result}"
            yield shares.row(name, took_us, "us", f"<= {plain_us * 1.05 + SLACK_US:.0f}", met=met, context=context)


def deck(folder: Path, settings: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Programs of the kinds that people run, alone on the GPU: the median of runs with the shim and without in turn.

    A simulated driver in the GPU's place tries the suite itself, and runs each once.
    """
    runs, times = (1, 1) if settings else (RUNS, TIMES)
    node = Node(folder / "node", settings, driver=None)
    container = node.container("a", Share(1 << 40, schedule=str(node.folder / "page")))
    with shares.paged(node, [container]):
        for kind, program in DECK.items():
            results: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
            for number in range(2 * runs):
                shim = number % 2 == 1
                answer = waited(container, longer(program, times), shim=shim, connections="8")
                results[shim].append(answer)
            plain_us, took_us = (int(statistics.median(us for _, us in results[shim])) for shim in (False, True))
            answers = sorted({result for both in results.values() for result, _ in both})
            most = plain_us * 1.05 + SLACK_US
            met = answers == [0] and took_us <= most
            context = f"{plain_us} us without; answers {answers}"
            yield shares.row(f"{kind}, alone", took_us, "us", f"<= {most:.0f}", met=met, context=context)


def runtime(container: Container, name: str, *, shim: bool) -> list[str]:
    """The lines of the runtime's program. The simulated driver ends it before the shim has a slot."""
    given, program = costs.environment(container, shim=shim), BUILD / "tests" / f"runtime-{name}"
    done = subprocess.run([program], env=given, capture_output=True, text=True, check=False, timeout=LONGEST_SECONDS)
    return [*done.stdout.splitlines(), *([] if done.returncode == 0 else [f"ended {done.returncode}"])]


def runtimes(folder: Path, settings: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yields a row for each runtime: its calls succeed as without the shim, and each launch reaches the shim."""
    node = Node(folder / "node", settings, driver=None)
    for name in RUNTIMES:
        container = node.container(name, Share(1 << 40))
        plain, held = (runtime(container, name, shim=shim) for shim in (False, True))
        usage = container.usage.read_bytes() if container.usage.exists() else b""
        launches = int.from_bytes(usage[LAUNCHES_AT:][:8], "little")
        failed = [line for line in plain if not line.endswith(" 0")]
        met = plain == held and not failed and launches == RUNTIME_LAUNCHES
        same = f"the same {len(plain)} lines" if plain == held else f"{plain} without, {held} with"
        context = f"{same}; {failed} failed without; {launches} of {RUNTIME_LAUNCHES} launches counted"
        yield shares.row(f"runtime {name}: calls as without the shim", met, "", "1", met=met, context=context)


def framework(container: Container, name: str) -> dict[str, Any]:
    """Compares how far a framework's program gets with the shim and without."""
    lines = {}
    for shim in (False, True):
        try:
            done = run(container, sys.executable, str(PROGRAMS / f"{name}_steps.py"), shim=shim)
            lines[shim] = [*done.stdout.splitlines(), *([] if done.returncode == 0 else [f"ended {done.returncode}"])]
        except subprocess.TimeoutExpired:
            lines[shim] = ["hung"]
    plain, held = lines[False], lines[True]
    differing = [f"{one!r} against {other!r}" for one, other in zip(plain, held) if one != other]
    same = plain == held and len(plain) > 1 and not plain[-1].startswith(("ended", "hung"))
    context = "; ".join(differing[:3]) or f"the same {len(plain)} lines: {', '.join(plain)}"
    return shares.row(f"{name}: steps as without the shim", same, "", "1", met=same, context=context)


def frameworks(folder: Path, settings: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Frameworks that are installed, in a container with the whole GPU's time and a quarter of its memory."""
    node = Node(folder / "node", settings, driver=None)
    limit = total_bytes() // 4 // MIB * MIB
    container = node.container("a", Share(limit, schedule=str(node.folder / "page")))
    installed = [name for name in FRAMEWORKS if find_spec(name) is not None]
    with shares.paged(node, [container]):
        for name in installed:
            yield framework(container, name)
        if "torch" in installed:
            yield torch_limit(container, limit)
    if "torch" in installed:
        yield torch_taken(node.container("taken", Share(limit)))
        yield from matmuls(folder, settings)


def torch_limit(container: Container, limit: int) -> dict[str, Any]:
    """Does PyTorch see the slice as its GPU, and refuse what is beyond it by its own exception?"""
    done = run(container, sys.executable, str(PROGRAMS / "torch_limit.py"), shim=True)
    answer = done.stdout.split() or ["nothing", done.stderr[-300:]]
    held = answer == [str(limit), "OutOfMemoryError"]
    context = f"limit {limit // MIB} MiB; {' '.join(answer)}"
    return shares.row("torch: shows its limit and keeps to it", held, "", "1", met=held, context=context)


def torch_taken(container: Container) -> dict[str, Any]:
    """Returns the row of what the driver takes beyond the charge for a context in which cuBLAS is at work.

    Raises:
        RuntimeError: the program failed; with the end of what it said.
    """
    uuid, pipe = os.environ["VCUDA_TEST_UUID"], subprocess.PIPE
    before = settled_bytes(uuid)
    command = [sys.executable, str(PROGRAMS / "torch_product.py")]
    given = costs.environment(container, shim=True)
    with ended(subprocess.Popen(command, env=given, stdin=pipe, stdout=pipe, stderr=pipe, text=True)) as running:
        assert running.stdout is not None
        if running.stdout.readline() != "ready\n":
            raise RuntimeError(running.communicate()[1][-300:])
        taken, charge = used_bytes(uuid) - before, container.charged()
    beyond = (taken - charge) / MIB
    context = f"the driver took {taken / MIB:.0f} MiB, {charge / MIB:.0f} were charged"
    return shares.row("taken beyond the charge by cuBLAS", beyond, "MiB", "<= 0", met=beyond <= 0, context=context)


def matmuls(folder: Path, settings: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Two containers of 30 and 70 percent that multiply matrices: what each completes, against one alone."""

    def completed(name: str, cores: tuple[int, ...], *, shim: bool) -> list[float]:
        node = Node(folder / name, settings, driver=None)
        node.folder.mkdir()
        page = str(node.folder / "page")
        containers = [
            node.container(f"c{i}", Share(16384 * MIB, core, slot=i, schedule=page)) for i, core in enumerate(cores)
        ]
        command = [sys.executable, str(PROGRAMS / "torch_matmuls.py"), str(MATMUL_SECONDS)]
        pipe = subprocess.PIPE
        with shares.paged(node, containers):
            running = [
                subprocess.Popen(
                    command, env=costs.environment(each, shim=shim), stdin=pipe, stdout=pipe, stderr=pipe, text=True
                )
                for each in containers
            ]
            try:
                begin_at_once(running)
                for each in containers if shim else ():
                    must_have_begun(each, frozenset())
                return [float(process.communicate(timeout=LONGEST_SECONDS)[0]) for process in running]
            finally:
                for process in running:
                    process.kill()

    (alone,) = completed("alone", (100,), shim=False)
    (held,) = completed("held", (100,), shim=True)
    yield shares.row(
        "torch matmuls alone, throughput", held / alone, "of no shim", ">= 0.98", met=held >= 0.98 * alone, context=""
    )
    for name, shim in (("without", False), ("with", True)):
        parts = [100 * each / alone for each in completed(name, (30, 70), shim=shim)]
        error = sum(abs(part - core) for part, core in zip(parts, (30, 70))) / 2
        context = f"got {'/'.join(f'{part:.1f}' for part in parts)} over {MATMUL_SECONDS} s"
        row = f"share error, 30/70, torch matmuls, {name} the shim"
        yield shares.row(row, error, "points", "<= 2", met=not shim or error <= 2, context=context)
