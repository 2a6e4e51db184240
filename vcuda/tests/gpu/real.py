"""The shim on a real GPU: do names lead to it, does the limit hold, what does it cost, how exact are shares?

    make -C vcuda gpu

Prints JSON rows with the GPU and its driver in the context of each, and writes them as a table to
build/gpu-report.md. Where there is no GPU it says so and ends with status 3: nothing was tested.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VCUDA = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(VCUDA / "tests"), str(VCUDA / "bench")]


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
    """Checks first (value 1 is right), then costs, then shares."""
    import costs  # noqa: PLC0415 (after the GPU is known)
    import shares  # noqa: PLC0415
    from node import MIB, OUT_OF_MEMORY, Node, Share  # noqa: PLC0415

    node = Node(folder / "checks", driver=None)
    container = node.container("a", Share(4096 * MIB))
    out, _ = container.start("resolve").communicate(timeout=240)
    agree = out.strip() == "10 2"
    yield shares.row("addresses by linking, dlsym and resolver agree", agree, "", "1", met=agree, context=out.strip())
    answers = container.run("init", "ctx", "total 0", f"alloc a {8192 * MIB}", f"alloc a {1024 * MIB}")
    held = [a[0] for a in answers] == [0, 0, 0, OUT_OF_MEMORY, 0] and answers[2][1] == 4096 * MIB
    yield shares.row("the limit holds and is shown", held, "", "1", met=held, context=str(answers))
    roomy = Node(folder / "costs", driver=None).container("a", Share(16384 * MIB))
    for name, words, goal in (("launch", ("launch", "200"), 50), ("alloc + free of 1 MiB", ("alloc", "10"), 300)):
        mean, plain, tail = costs.added(roomy, *words)
        yield costs.row(name, mean, "ns added", goal, f"{plain:,.0f} ns without; p99.9 with: {tail:,.0f} ns")
    yield costs.starting(roomy, processes=20)
    for name, kernel in (("0.1 ms", "100"), ("5 ms", "5000")):
        program = (kernel, "1", "completed")
        solo = shares.launches(folder / f"solo{kernel}", [shares.hard(100, program)], 4.0, shim=False)[0]
        both = shares.launches(folder / f"both{kernel}", [shares.hard(30, program), shares.hard(70, program)], 10.0)
        got = [100 * part / solo for part in both]
        error = (abs(got[0] - 30) + abs(got[1] - 70)) / 2
        context = f"got {got[0]:.1f}/{got[1]:.1f}"
        yield shares.row(
            f"share error, 30/70, kernels of about {name}", error, "points", "<= 2", met=error <= 2, context=context
        )


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
    REPORT.write_text(report(gpu, found_rows))
    sys.stdout.write(f"written to {REPORT}\n")
    return not all(row["met"] for row in found_rows)


if __name__ == "__main__":
    sys.exit(main())
