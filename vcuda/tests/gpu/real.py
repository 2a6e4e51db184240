"""The shim on a real GPU: do names lead to it, does the limit hold, what does it cost, how exact are shares?

    make -C vcuda gpu

Prints JSON rows with the GPU and its driver in the context of each, and keeps them as a table in build/gpu-report.md,
from the first row on. A part that cannot be measured is a row that says why, and the parts behind it go on. The whole
suite ends eight minutes after `make` began: each part that has not ended by then is a row that says so. Parts that are
named (PARTS="checks shares") have no deadline.

A second process measures, and this one prints: no program, library or driver that hangs delays the end. Where there is
no GPU it says so and ends with status 3: nothing was tested. With the simulated driver found in the GPU's place
(LD_LIBRARY_PATH and SIMGPU_DIR) it tries the suite itself; the GPU's name says so. No other program may use the GPU.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VCUDA = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(VCUDA / "tests" / "gpu"), str(VCUDA / "tests"), str(VCUDA / "bench"), str(VCUDA.parent)]
import shares
from deadline import lines_until
from driver_rows import addresses, nvml_readings, taken_unasked
from machine import real_gpu
from memory_rows import killing, racing
from node import MIB, OUT_OF_MEMORY, Node, Share
from program_rows import deck, frameworks, runtimes, waiting
from time_rows import calls, shares_of_time

RACE_SECONDS = 15
MOST_SECONDS = 465
"""From the beginning of `make`: what is left of eight minutes is for the end of the programs."""
MEASURE = "--measure"
STAND_IN = {name: os.environ[name] for name in ("SIMGPU_DIR",) if name in os.environ}
REPORT = Path(os.environ.get("VCUDA_GPU_REPORT", VCUDA / "build" / "gpu-report.md"))

Row = dict[str, Any]


def report(gpu: str, measured: list[Row]) -> str:
    """The rows as a table to hand on: which GPU, what came out, what was wanted."""
    lines = [f"{gpu}, {platform.machine()}, Linux {platform.release()}, {os.cpu_count()} CPUs", ""]
    lines += ["| figure | goal | measured | |", "|---|---|---|---|"]
    for row in measured:
        verdict = "met" if row["met"] else "**missed**"
        lines.append(f"| {row['name']} | {row['goal']} | {row['value']} {row['unit']} | {verdict}; {row['context']} |")
    return "\n".join(lines) + "\n"


def checks(folder: Path) -> Iterator[Row]:
    """Do names lead to the shim, and does it hold?"""
    container = Node(folder / "node", STAND_IN, driver=None).container("a", Share(4096 * MIB))
    out, _ = container.start("resolve").communicate(timeout=240)
    agree = out.strip() == "10 3"
    yield shares.row("addresses by linking, dlsym and resolver agree", agree, "", "1", met=agree, context=out.strip())
    answers = container.run("init", "ctx", "total 0", f"alloc a {8192 * MIB}", f"alloc a {1024 * MIB}")
    held = [a[0] for a in answers] == [0, 0, 0, OUT_OF_MEMORY, 0] and answers[2][1] == 4096 * MIB
    yield shares.row("the limit holds and is shown", held, "", "1", met=held, context=str(answers))


PARTS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "checks": checks,
    "addresses": addresses,
    "nvml": lambda folder: nvml_readings(folder, STAND_IN),
    "unasked": lambda folder: taken_unasked(folder, STAND_IN),
    "waiting": lambda folder: waiting(folder, STAND_IN),
    "runtimes": lambda folder: runtimes(folder, STAND_IN),
    "frameworks": lambda folder: frameworks(folder, STAND_IN),
    "killing": lambda folder: killing(folder, STAND_IN),
    "racing": lambda folder: racing(folder, STAND_IN, RACE_SECONDS),
    "deck": lambda folder: deck(folder, STAND_IN),
    "calls": lambda folder: calls(folder, STAND_IN),
    "shares": lambda folder: shares_of_time(folder, STAND_IN),
}
"""In order: what the shim takes for granted of a GPU, right or wrong, then costs and shares."""


def not_measured(name: str, why: str) -> Row:
    """The row of what is missing of a part."""
    return shares.row(f"the rest of {name}", 0, "", "measured", met=False, context=why)


def rows(name: str, folder: Path) -> Iterator[Row]:
    """Yields the rows of one part; where it fails, the last one says why."""
    folder.mkdir()
    try:
        yield from PARTS[name](folder)
    except (AssertionError, OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        yield not_measured(name, f"{type(error).__name__}: {error}".replace("\n", " "))


def measure(folder: Path, names: list[str]) -> None:
    """Prints the rows of these parts as JSON, and behind each part its name and the seconds that it took."""
    for name in names:
        began = time.monotonic()
        for row in rows(name, folder / name):
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
        sys.stdout.write(json.dumps({"ended": name, "seconds": round(time.monotonic() - began)}) + "\n")
        sys.stdout.flush()


def measured_until(deadline: float | None, command: list[str], names: list[str]) -> Iterator[Row]:
    """Yields the rows that the command prints of these parts until the deadline, and one for each part that has not
    ended by then."""
    missing = list(names)
    for line in lines_until(deadline, command):
        said = json.loads(line)
        if "ended" not in said:
            yield said
            continue
        sys.stderr.write(f"{said['ended']}: {said['seconds']} s\n")
        missing.remove(said["ended"])
        if not missing:
            return
    over = deadline is not None and time.monotonic() >= deadline
    why = "not measured: the eight minutes of all parts were over" if over else "not measured: the suite itself failed"
    for name in missing:
        yield not_measured(name, f"{why}; PARTS={name} measures it")


def deadline_of(named: list[str]) -> float | None:
    """The moment by time.monotonic() by which all parts have to end; None for parts that are named.

    The time that `make` took to build counts.
    """
    built = max(0.0, time.time() - float(os.environ.get("VCUDA_GPU_BEGAN", time.time())))
    sys.stderr.write(f"build: {built:.0f} s\n")
    return None if named else time.monotonic() + MOST_SECONDS - built


def main() -> int:
    """Runs the parts that are named, or all of it, on the first GPU."""
    named = sys.argv[1:]
    if named[:1] == [MEASURE]:
        measure(Path(named[1]), named[2:])
        return 0
    found = real_gpu()
    if found is None:
        sys.stderr.write("no GPU here: nothing was tested and nothing measured\n")
        return 3
    os.environ["VCUDA_TEST_UUID"], gpu = found
    found_rows = []
    names = named or list(PARTS)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).resolve()), MEASURE, folder, *names]
        for row in measured_until(deadline_of(named), command, names):
            found_rows.append(row)
            sys.stdout.write(json.dumps({**row, "context": f"{row['context']}; {gpu}"}) + "\n")
            sys.stdout.flush()
            REPORT.write_text(report(gpu, found_rows))
    sys.stdout.write(f"\n{report(gpu, found_rows)}\nwritten to {REPORT}\n")
    return not all(row["met"] for row in found_rows)


if __name__ == "__main__":
    sys.exit(main())
