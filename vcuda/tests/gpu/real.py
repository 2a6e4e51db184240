"""The shim on a real GPU: do names lead to it, does the limit hold, what does it cost, how exact are shares?

    make -C vcuda gpu

Prints JSON rows with the GPU and its driver in the context of each, then all of them as a table, which is kept in
build/gpu-report.md. Where there is no GPU it says so and ends with status 3: nothing was tested. With the simulated
driver found in the GPU's place (LD_LIBRARY_PATH and SIMGPU_DIR) it tries the suite itself; the GPU's name says so.

Not here, since only the simulated GPU tells the truth about it: what kills leave behind (make bench).
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pynvml

VCUDA = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(VCUDA / "tests"), str(VCUDA / "bench")]
import costs  # noqa: E402
import shares  # noqa: E402
from crowds import race  # noqa: E402
from node import BEST_EFFORT, ELASTIC, MIB, OUT_OF_MEMORY, Node, Share, until  # noqa: E402
from shares import Tenant  # noqa: E402

RACE_SECONDS = 10
SETTLED_READINGS = 5
SOLO_SECONDS, SHARE_SECONDS, LONG_SECONDS = 4.0, 10.0, 20.0
STAND_IN = {name: os.environ[name] for name in ("SIMGPU_DIR",) if name in os.environ}
REPORT = VCUDA / "build" / "gpu-report.md"


def report(gpu: str, measured: list[dict[str, Any]]) -> str:
    """The rows as a table to hand on: which GPU, what came out, what was wanted."""
    lines = [f"{gpu}, {platform.machine()}, Linux {platform.release()}, {os.cpu_count()} CPUs", ""]
    lines += ["| figure | goal | measured | |", "|---|---|---|---|"]
    for row in measured:
        verdict = "met" if row["met"] else "**missed**"
        lines.append(f"| {row['name']} | {row['goal']} | {row['value']} {row['unit']} | {verdict}; {row['context']} |")
    return "\n".join(lines) + "\n"


def real_gpu() -> tuple[str, str] | None:
    """UUID, and name with driver version, of the first GPU; None where there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, version = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return None
    raw, name = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(128)
    cuda.cuDeviceGetUuid_v2(raw, device)
    cuda.cuDeviceGetName(name, 128, device)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    text = bytes(raw).hex()
    uuid = f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return uuid, f"{name.value.decode()}, driver for CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Checks first (value 1 is right), then memory, costs and shares."""
    for part in (checks, memory, calls, shares_of_time):
        place = folder / part.__name__
        place.mkdir()
        yield from part(place)


def checks(folder: Path) -> Iterator[dict[str, Any]]:
    """Do names lead to the shim, and does it hold?"""
    container = Node(folder / "node", STAND_IN, driver=None).container("a", Share(4096 * MIB))
    out, _ = container.start("resolve").communicate(timeout=240)
    agree = out.strip() == "10 2"
    yield shares.row("addresses by linking, dlsym and resolver agree", agree, "", "1", met=agree, context=out.strip())
    answers = container.run("init", "ctx", "total 0", f"alloc a {8192 * MIB}", f"alloc a {1024 * MIB}")
    held = [a[0] for a in answers] == [0, 0, 0, OUT_OF_MEMORY, 0] and answers[2][1] == 4096 * MIB
    yield shares.row("the limit holds and is shown", held, "", "1", met=held, context=str(answers))


def used_bytes() -> int:
    """Memory of the whole GPU in use, by the driver."""
    pynvml.nvmlInit()
    try:
        device = pynvml.nvmlDeviceGetHandleByUUID(os.environ["VCUDA_TEST_UUID"])
        return int(pynvml.nvmlDeviceGetMemoryInfo(device).used)
    finally:
        pynvml.nvmlShutdown()


def settled_bytes() -> int:
    """The same, once programs that have ended are gone from it."""
    readings = [used_bytes()]
    while len(readings) < SETTLED_READINGS or len(set(readings[-SETTLED_READINGS:])) > 1:
        time.sleep(0.2)
        readings.append(used_bytes())
    return readings[-1]


def memory(folder: Path) -> Iterator[dict[str, Any]]:
    """Do many processes pass their limit together? NVML is asked every few milliseconds: a glance, not a proof."""
    node = Node(folder / "node", STAND_IN, driver=None)
    before = settled_bytes()
    with node.container("one").session() as ask:
        if ask("init")[0] != 0 or ask("ctx")[0] != 0:
            raise RuntimeError("a program under the shim gets no context on this GPU")
        context = used_bytes() - before
    until(lambda: used_bytes() <= before)
    limit = 16 * context + 2048 * MIB
    container = node.container("crowd", Share(limit, context=context))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(race, container, 16, 8, RACE_SECONDS)
        most = before
        while not running.done():
            most = max(most, used_bytes())
            time.sleep(0.005)
    made, refused = running.result()
    over = max(0, most - before - limit)
    context_of_row = f"{made} allocations, {refused} refused; a context has {context // MIB} MiB"
    name = f"over the limit, 16 processes x 8 threads racing {RACE_SECONDS} s"
    yield shares.row(name, over, "bytes", "0", met=over == 0 < refused, context=context_of_row)


def calls(folder: Path) -> Iterator[dict[str, Any]]:
    """What the shim adds to calls."""
    # Nobody says when the driver has let go of what the ended held: they stay charged for seconds, and must find room.
    container = Node(folder / "node", STAND_IN, driver=None).container("a", Share(1 << 40))
    for name, words, processes, goal in (
        ("launch", ("launch", "200"), 1, 50),
        ("alloc + free of 1 MiB", ("alloc", "10"), 1, 300),
        ("alloc + free of 1 MiB, 16 processes", ("alloc", "1"), 16, 1500),
    ):
        mean, plain, tail = costs.added(container, *words, processes=processes)
        yield costs.row(
            f"vcuda: {name}", mean, "ns added", goal, f"{plain:,.0f} ns without; p99.9 with: {tail:,.0f} ns"
        )
    yield costs.starting(container, processes=20)
    container.config.unlink()
    mean, plain, _ = costs.added(container, "launch", "200")
    yield costs.row("vcuda: launch without config", mean, "ns added", 5, f"{plain:,.0f} ns without")


def counted(tenants: Sequence[Tenant]) -> list[Tenant]:
    """The same, whose programs count what the GPU has completed."""
    return [
        replace(one, programs=tuple((p[0], *(p[1:] or ("1",)), "completed") for p in one.programs)) for one in tenants
    ]


def shares_of_time(folder: Path) -> Iterator[dict[str, Any]]:
    """What each container completes, in percent of what its program completes alone and without the shim."""
    alone: dict[tuple[str, ...], float] = {}
    numbers = count()

    def got(tenants: Sequence[Tenant], seconds: float) -> list[float]:
        tenants = counted(tenants)
        for program in {tenant.programs[0] for tenant in tenants} - set(alone):
            solo = [Tenant(100, (program,))]
            alone[program] = launches(folder / f"{next(numbers)}", solo, SOLO_SECONDS, shim=False)[0]
        done = launches(folder / f"{next(numbers)}", tenants, seconds)
        return [100 * each / alone[one.programs[0]] for each, one in zip(done, tenants, strict=True)]

    for name, tenants, _, window_seconds in shares.CASES:
        parts = got(tenants, SHARE_SECONDS if window_seconds < LONG_SECONDS / 2 else LONG_SECONDS)
        error = sum(abs(part - one.core) for part, one in zip(parts, tenants, strict=True)) / len(parts)
        context = f"got {'/'.join(f'{part:.1f}' for part in parts)}, as a mean of the whole run"
        yield shares.row(f"share error, {name}", error, "points", "<= 2", met=error <= 2, context=context)
    (elastic,) = got([Tenant(30, (shares.SHORT,), ELASTIC)], SHARE_SECONDS)
    met = elastic >= 98
    yield shares.row("elastic alone, throughput", elastic / 100, "of no shim", ">= 0.98", met=met, context="")
    first, *rest = got([shares.hard(70, shares.SHORT), *[Tenant(0, (shares.SHORT,), BEST_EFFORT)] * 8], SHARE_SECONDS)
    context = f"the eight got {sum(rest):.1f}"
    yield shares.row("hard 70 beside eight best effort", first, "percent", ">= 68", met=first >= 68, context=context)


def launches(folder: Path, tenants: list[Tenant], seconds: float, *, shim: bool = True) -> list[float]:
    """Launches a second of each tenant on the machine's own GPU: all that one can know there."""
    with shares.started(Node(folder, STAND_IN, driver=None), tenants, seconds, shim=shim) as running:
        done = [sum(int(process.communicate()[0]) for process in processes) for processes in running]
    return [each / seconds for each in done]


def main() -> int:
    """Runs all of it on the first GPU."""
    found = real_gpu()
    if found is None:
        sys.stderr.write("no GPU here: nothing was tested and nothing measured\n")
        return 3
    os.environ["VCUDA_TEST_UUID"], gpu = found
    found_rows = []
    with tempfile.TemporaryDirectory() as name:
        for row in rows(Path(name)):
            found_rows.append(row)
            sys.stdout.write(json.dumps({**row, "context": f"{row['context']}; {gpu}"}) + "\n")
            sys.stdout.flush()
    table = report(gpu, found_rows)
    REPORT.write_text(table)
    sys.stdout.write(f"\n{table}\nwritten to {REPORT}\n")
    return not all(row["met"] for row in found_rows)


if __name__ == "__main__":
    sys.exit(main())
