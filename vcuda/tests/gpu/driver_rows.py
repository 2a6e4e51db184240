"""Does the GPU's own driver do what the shim and the node agent take for granted of it?

By which addresses it is called, what NVML says of a process's memory, what the driver takes that no call allocates. A
row whose goal is missed here says that something is held or charged wrongly on this GPU, and by how much.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import names
import shares
from machine import settled_bytes, used_bytes
from node import MIB, Node, Share, until

from nodeagent.driver_figures import DriverSample
from nodeagent.nvml import Nvml

SHARED = 64
"""MiB that one process allocates and another opens."""
ROUNDING = 16
"""MiB by which NVML's figure of a process and the GPU's differ for one context (6 on an H100)."""
LARGE_STACK, LARGE_MODULE = 16384, 1 << 30
"""Bytes: of each thread's stack, and of a module's variables."""
EXECUTABLES = 100


def addresses(_: Path) -> Iterator[dict[str, Any]]:
    """Does cuGetProcAddress give any address of a hooked function that dlsym does not know?"""
    driver = names.Driver()
    hooked = names.hooked()
    lines, answers = names.unknown(driver, hooked)
    missing = [name for name in hooked if driver.exported(name) is None]
    asked = f"{answers} answers for {len(hooked)} names, {len(missing)} of them not in this driver"
    context = "; ".join([asked, *lines])
    yield shares.row("addresses that only the resolver gives", len(lines), "", "0", met=not lines, context=context)


def done(ask: Any, *lines: str) -> list[int]:
    """The last answer of a program that does the lines.

    Raises:
        RuntimeError: one failed; with its number.
    """
    answers = [ask(line) for line in lines]
    for line, answer in zip(lines, answers):
        if answer[:1] != [0]:
            raise RuntimeError(f"{line} was answered {answer}")
    return answers[-1]


def sampled(uuid: str) -> Nvml:
    """The node agent's own way to NVML.

    Raises:
        RuntimeError: nvidia-ml-py is not installed.
    """
    try:
        return Nvml(uuid)
    except ImportError as error:
        raise RuntimeError("nvidia-ml-py is not installed") from error


def nvml_readings(folder: Path, settings: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yields rows of the node agent's readings: a process counts once for each allocation, whichever has it open."""
    uuid = os.environ["VCUDA_TEST_UUID"]
    nvml = sampled(uuid)
    node = Node(folder / "node", settings, driver=None)
    container = node.container("a", Share(1 << 40))
    with container.session() as maker, container.session() as opener:
        pids = [done(ask, "init", "ctx", "launch spin_us_1", "pid")[1] for ask in (maker, opener)]

        def figures() -> list[int]:
            found = nvml.sample()
            return [*(found.bytes_by_pid.get(pid, 0) // MIB for pid in pids), found.used_bytes // MIB]

        def grew(what: str, who: int, goal: int, ask: Any, *lines: str) -> dict[str, Any]:
            before = figures()
            done(ask, *lines)
            after = figures()
            grown = [new - old for new, old in zip(after, before)]
            context = f"the maker by {grown[0]}, the opener by {grown[1]}, the GPU by {grown[2]} MiB"
            return shares.row(what, grown[who], "MiB", str(goal), met=grown[who] == goal, context=context)

        both = all(figures()[:2])
        yield shares.row("NVML gives the memory of each process", both, "", "1", met=both, context=str(figures()))
        handle = folder / "handle"
        made = (f"alloc m {SHARED * MIB}", f"ipcget m {handle}")
        yield grew("NVML: cuMemAlloc of 64 MiB, its process grows by", 0, SHARED, maker, *made)
        yield grew("NVML: who opens it by IPC grows by", 1, 0, opener, f"ipcopen o {handle}")
        yield grew("NVML: cuMemCreate of 64 MiB, its process grows by", 0, SHARED, maker, f"create p {SHARED * MIB}")
        number = done(maker, "export p")[1]
        importing = f"import p /proc/{pids[0]}/fd/{number}"
        yield grew("NVML: who imports it grows by", 1, 0, opener, importing, f"map p {SHARED * MIB}")
        managed = "NVML: cuMemAllocManaged of 64 MiB, its process grows by"
        yield grew(managed, 0, 0, maker, f"managed g {SHARED * MIB}")
        yield grew("NVML: once it is filled on the device, by", 0, 0, maker, f"fill g {SHARED * MIB}")
        done(maker, "free g")
        settled_bytes(uuid)
        before = nvml.sample()
        maker("kill")
        until(lambda: pids[0] not in nvml.sample().bytes_by_pid, 30)
        settled_bytes(uuid)
        after = nvml.sample()
        taken_over = (after.bytes_by_pid.get(pids[1], 0) - before.bytes_by_pid.get(pids[1], 0)) // MIB
        of_none = (unclaimed(after) - unclaimed(before)) // MIB
        context = f"{taken_over} by who has it open, {of_none} by no process"
        context += f"; the GPU has {(before.used_bytes - after.used_bytes) // MIB} MiB less in use"
        met = abs(taken_over + of_none - 2 * SHARED) <= ROUNDING
        name = "of a killed process, what another has open is counted"
        goal = f"{2 * SHARED}, within {ROUNDING}"
        yield shares.row(name, taken_over + of_none, "MiB", goal, met=met, context=context)


def unclaimed(sample: DriverSample) -> int:
    """Bytes in use on the GPU that the driver gives to no process."""
    return sample.used_bytes - sum(sample.bytes_by_pid.values())


def taken_unasked(folder: Path, settings: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yields rows of the driver's memory beyond the charge for contexts, code, stacks and executable graphs."""
    uuid = os.environ["VCUDA_TEST_UUID"]
    node = Node(folder / "node", settings, driver=None)
    container = node.container("a", Share(1 << 40, context=0))  # by the shim's estimate
    before = settled_bytes(uuid)
    with container.session() as ask:
        for what, lines in (
            ("a bare context", ("init", "ctx")),
            ("the first kernel", ("launch spin_us_1",)),
            (f"stacks of {LARGE_STACK} bytes", (f"stack - {LARGE_STACK}", "launch spin_us_1")),
            ("a module with 1 GiB of variables", (f"launch holds_{LARGE_MODULE}",)),
            (f"{EXECUTABLES} executable graphs of 20 kernels", (f"executables {EXECUTABLES}",)),
        ):
            charged = container.charged()
            done(ask, *lines)
            taken, charge = used_bytes(uuid) - before, container.charged() - charged
            before += taken
            beyond = (taken - charge) / MIB
            context = f"the driver took {taken / MIB:.0f} MiB, {charge / MIB:.0f} were charged"
            yield shares.row(
                f"taken beyond the charge by {what}", beyond, "MiB", "<= 0", met=beyond <= 0, context=context
            )
