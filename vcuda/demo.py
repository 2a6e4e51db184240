"""Two programs on one simulated GPU, held to their slices before your eyes, and what the sidecar makes of it.

    make -C vcuda demo

The programs speak CUDA's driver API; the shim, the node agent's writer of turns and the sidecar's reader are real.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

VCUDA = Path(__file__).resolve().parent
sys.path[:0] = [str(VCUDA.parent), str(VCUDA / "bench"), str(VCUDA / "tests")]
from node import MIB, OUT_OF_MEMORY, Container, Node, Share  # noqa: E402
from shares import Tenant, started, work_done  # noqa: E402

from sidecar.report import encode  # noqa: E402
from sidecar.tally import Tally, advance  # noqa: E402
from sidecar.usage_file import read_usage  # noqa: E402

GIB = 1024 * MIB
NAMES = ("notebook", "training")
CORES = (30, 70)
MEMORY = (4 * GIB, 8 * GIB)
WARM_UP_SECONDS = 0.5
SECONDS = 2.0


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def memory(container: Container, name: str) -> None:
    """What a program sees of the GPU, by CUDA and by NVML, and whether it may take 6 GiB."""
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


def main() -> None:
    """Tells the story."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        node = Node(root / "memory")
        say("One simulated GPU of 80 GiB; a notebook has 30 percent of its time and 4 GiB, a training run 70 and 8.")
        say("  container  CUDA shows   6 GiB more   nvidia-smi shows")
        for container, size in zip(NAMES, MEMORY, strict=True):
            memory(node.container(container, Share(size)), container)
        say("Both launch all that they can; percent of the GPU's time that each gets:")
        for shim in (False, True):
            notebook, training = got(root / f"time-{shim}", shim=shim)
            say(
                f"  {'with the shim' if shim else 'without it':<15} notebook {notebook:4.1f}   training {training:4.1f}"
            )
        say("What the sidecar reads of it, and reports to the timekeeper:")
        folder = root / "time-True"
        tallies = {name: advance(Tally(), read_usage(str(folder), name)) for name in ("c0", "c1")}
        for each in json.loads(encode("demo", 1, tallies))["containers"]:
            (device,) = each["devices"]
            busy, launches, peak = device["busyNs"] / 1e9, device["launches"], device["memoryPeakMiB"]
            say(f"  {NAMES[int(each['name'][1])]:<9} {busy:.1f} s of GPU time, {launches} launches, {peak} MiB at most")


if __name__ == "__main__":
    main()
