"""Numba, CuPy and PyTorch on the simulated driver: does each get as far with the shim as without?

Prints a table with a row for each step. Ends with 1 where a step comes to something else with the shim than without,
where a step that asks for the GPU's memory does not get the slice's, or where the shim does not refuse the program for
its config.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from node import BUILD, MIB, Container, Node, Share

FRAMEWORKS = ("numba", "cupy", "torch")
RELEASE = "12"
SLICE_MIB = 4096
NOT_READY = ("802", "SYSTEM_NOT_READY", "SystemNotReady")
"""The error of a driver that is not ready, as each framework spells it."""
LONGEST_SECONDS = 600


def steps(container: Container, name: str, *, shim: bool) -> list[tuple[str, str]]:
    """Each step of a framework's program and what came of it; a last one says how the program ended.

    Raises:
        subprocess.TimeoutExpired: it hangs.
    """
    given = container.environment() | {"PYTHONPATH": str(BUILD / "frameworks"), "HOME": str(container.folder)}
    if not shim:
        del given["LD_PRELOAD"]
    command = [sys.executable, str(HERE / f"{name}_reach.py")]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=LONGEST_SECONDS)
    lines = [line.partition("\t") for line in done.stdout.splitlines()]
    return [*((step, outcome) for step, _, outcome in lines), ("end", str(done.returncode))]


def compared(plain: list[tuple[str, str]], held: list[tuple[str, str]]) -> list[tuple[str, str, str, bool]]:
    """Rows of a step, what came of it without the shim and with it, and whether that is as it must be."""
    rows = []
    for at in range(max(len(plain), len(held))):
        step, without = plain[at] if at < len(plain) else (held[at][0], "not reached")
        also, with_it = held[at] if at < len(held) else (step, "not reached")
        wanted = str(SLICE_MIB) if step == "memory, MiB" else without
        rows.append((step, without, with_it, step == also and with_it == wanted))
    return rows


def refused(held: list[tuple[str, str]]) -> tuple[str, str, str, bool]:
    """A row of the first step that says that cuInit failed for the container's config (802): the shim was there."""
    said = [outcome for _, outcome in held if any(word in outcome for word in NOT_READY)]
    return "one with a bad config", "", said[0] if said else "not refused", bool(said)


def say(line: str) -> None:
    """Prints it at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Runs each without the shim and with it, and prints what came of the steps."""
    same = True
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder), driver=BUILD / "simgpu" / RELEASE)
        say(f"{time.strftime('%d %B %Y')}, Python {sys.version.split()[0]}, simulated driver {RELEASE}\n")
        say("| program | step | without the shim | with it | as it must be |\n|---|---|---|---|---|")
        for name in FRAMEWORKS:
            container, other = (node.container(f"{name}{kind}", Share(SLICE_MIB * MIB)) for kind in ("", "-refused"))
            other.config.write_bytes(b"none")
            plain, held = (steps(container, name, shim=shim) for shim in (False, True))
            for step, without, with_it, good in [*compared(plain, held), refused(steps(other, name, shim=True))]:
                same = same and good
                say(f"| {name} | {step} | {without} | {with_it} | {'yes' if good else 'NO'} |")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    os.umask(0o077)
    main()
