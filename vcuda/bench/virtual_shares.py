"""The exactness of the pacer's shares when nothing on the machine disturbs it: on a virtual clock (virtual_time.c).

    python bench/virtual_shares.py [NAME]      rows of the simulated GPU, and of one with an H100's slices

The programs, the shim, the simulated GPU and the node agent's decisions are those of shares.py; only the clock is
another. So an error here is the pacer's own, and it is the same however busy the machine is. The crowd of eight is
begun in several orders, for that decides how its spans overlap. Prints JSON rows.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

VCUDA = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(VCUDA.parent), str(VCUDA / "bench"), str(VCUDA / "tests"), str(VCUDA / "simgpu")]
import truth
from node import MIB, Container, Node, Share, give_line
from shares import BEST_EFFORT, LONG, POLICIES, SHORT, Tenant, Window, hard, row, uuid, work_done
from shares import CASES as MEASURED

from nodeagent import turns
from nodeagent.rounds import Container as Written
from nodeagent.rounds import State, describe, step
from nodeagent.schedule import INTERVAL_SECONDS, PageFile, read_activity

CROWD = [hard(70, SHORT), *[Tenant(0, (SHORT,), BEST_EFFORT)] * 8]
LONGER = ("2000",)
GREEDY = [
    ("30/70, sixteen processes of kernels of 2 ms in the first", [hard(30, *[LONGER] * 16), hard(70, SHORT)], 2, 1.0),
    (
        "30/70, eight contexts of kernels of 2 ms in the first",
        [hard(30, ("2000", "8", "contexts")), hard(70, SHORT)],
        2,
        1.0,
    ),
]
"""Containers whose processes or contexts fill more than a turn with one kernel each: they lose time to changing between
these, and what counts is that they take no more than their share."""
WAITING = [
    (
        "30/70, a context of the first waits for the host beside kernels of 5 ms",
        [hard(30, ("5000", "1", "beside")), hard(70, LONG)],
        4,
        1.0,
    ),
    (
        "30/70, a process of the first waits for the host beside kernels of 5 ms",
        [hard(30, LONG, ("5000", "1", "beside", "idle")), hard(70, LONG)],
        4,
        1.0,
    ),
]
CASES = [*MEASURED, ("a hard 70 beside eight best-effort containers", CROWD, 4, 1.0), *GREEDY, *WAITING]
MANY_STREAMS = "30/70, 32 streams of kernels of 1 ms in the first"
ORDERS = (0, 1, 2, 3)
"""Seeds of the moments at which programs begin; 0: all at once."""
BEGIN_SECONDS = 0.02
WARM_UP_SECONDS = 1.0
THREADS_AT, THREAD = 24, struct.Struct("<IiQQ")
RUNNING, SLEEPING = 1, 2
PASSED_ON = ("VIRTUAL_", "SIMGPU_SLICE_US", "SIMGPU_SWITCH_US")
"""Variables of the caller that the programs get, too."""
H100 = {"SIMGPU_SLICE_US": "2092", "SIMGPU_SWITCH_US": "157"}
"""For how long an H100 runs one of several contexts, and how long it takes to change to another, as measured on one."""
LIBRARY = VCUDA / "build" / "bench" / "virtual_time.so"


class Writer:
    """The node agent's writer of the page, one look at a time."""

    def __init__(self, page: Path, containers: list[Container]) -> None:
        self.file = PageFile(page)
        self.containers = tuple(
            Written(share.slot, 1000 + share.slot, share.core, turns.Policy[POLICIES[share.policy].upper()], one.ledger)
            for one in containers
            for share in one.shares
        )
        self.state = State(period_start_ns=time.monotonic_ns())
        self.turns: dict[int, turns.Plan] = {}
        """The last plan of each period, by the period's beginning."""

    def look(self) -> None:
        """Reads what the containers do and publishes the turns that follow."""
        activities = {each.slot: read_activity(each) for each in self.containers}
        now_ns = time.monotonic_ns()
        self.state, made = step(self.state, self.containers, activities, now_ns)
        self.turns[self.state.period_start_ns] = made
        self.file.write(describe(uuid(), self.containers, self.state, made, now_ns))

    def look_until(self, moment: float) -> None:
        """Looks every few milliseconds until then."""
        while time.monotonic() < moment:
            self.look()
            time.sleep(min(INTERVAL_SECONDS, max(0.0, moment - time.monotonic())))


def on_the_clock(clock: Path) -> list[int]:
    """States of the threads that take part in a virtual clock; a process that reads them counts its own."""
    threads = clock.read_bytes()[THREADS_AT:] if clock.exists() else b""
    whole = len(threads) // THREAD.size * THREAD.size
    return [state for state, *_ in THREAD.iter_unpack(threads[:whole]) if state != 0]


def begin(container: Container, program: tuple[str, ...]) -> None:
    """Starts a program, and waits by the machine's own clock until it sleeps: it comes as far each time.

    No program may sleep before it takes part in the virtual clock, which would go on without it.
    """
    clock = Path(os.environ["VIRTUAL_TIME"])
    before = len(on_the_clock(clock))
    started = container.start("spin", "1000", *program)
    give_line(started)  # one that waited for it later would stop the clock
    while len(on_the_clock(clock)) == before or on_the_clock(clock).count(RUNNING) > 1:
        assert started.poll() is None, f"spin {program} ended with {started.returncode}"
        select.select([], [], [], 0.001)


def shares(
    folder: Path, tenants: list[Tenant], windows: int, window_s: float, order: int
) -> tuple[list[Window], Writer]:
    """Returns each tenant's share in each window, by the simulator's truth, and the writer of turns; none is late."""
    node = Node(folder, settings={"SIMGPU_CALL_COSTS": "1"})
    page = folder / "page"
    containers = [
        node.container(f"c{i}", Share(8192 * MIB, one.core, one.policy, slot=i, schedule=str(page)))
        for i, one in enumerate(tenants)
    ]
    writer = Writer(page, containers)
    writer.look()
    programs = []
    for container, tenant in zip(containers, tenants, strict=True):
        container.settings |= {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        container.settings["LD_PRELOAD"] = f"{LIBRARY}:{container.library}"
        programs += [(container, program) for program in tenant.programs]
    chance = random.Random(order)  # noqa: S311 (the same order for the same number)
    if order:
        chance.shuffle(programs)
    for container, program in programs:
        begin(container, program)
        if order:
            writer.look_until(time.monotonic() + chance.random() * BEGIN_SECONDS)
    return list(measured(node, writer, len(tenants), windows, window_s)), writer


def measured(node: Node, writer: Writer, count: int, windows: int, window_s: float) -> Iterator[Window]:
    """One window after the other."""
    at = time.monotonic() + WARM_UP_SECONDS
    writer.look_until(at)
    before = work_done(node)
    for _ in range(windows):
        at += window_s
        writer.look_until(at)
        after = work_done(node)
        yield Window([(after[f"c{i}"] - before[f"c{i}"]) / window_s / 1e7 for i in range(count)], 0.0)
        before = after


@dataclass(frozen=True)
class Begun:
    """A turn's beginning, ns: until its owner had the GPU, and until another's work that ran over had left it."""

    first_ns: int
    left_ns: int


def beginnings(folder: Path, writer: Writer, slot: int, other: int) -> list[Begun]:
    """Returns how late each turn of a slot began after the warm-up, by the simulator's truth."""
    known = truth.Truth(folder / "gpu")
    labels = [container.label for container in known.containers()]
    of_context = [labels[context.group] for context in known.contexts()]
    slices = [(one.begin_ns, one.end_ns, of_context[one.context]) for one in known.slices()]
    warm_ns = min(writer.turns) + int(WARM_UP_SECONDS * 1e9)
    found = []
    for period_ns, plan in writer.turns.items():
        for turn in plan.turns:
            begin, end = period_ns + turn.start_ns, period_ns + turn.end_ns
            if turn.slot != slot or period_ns < warm_ns:
                continue
            inside = [one for one in slices if one[0] < end and one[1] > begin]
            first = min((max(one[0], begin) for one in inside if one[2] == f"c{slot}"), default=end)
            left = max((min(one[1], end) for one in inside if one[2] == f"c{other}"), default=begin)
            found.append(Begun(first - begin, left - begin))
    return found


def p99_ms(times_ns: Iterable[int]) -> float:
    """The 99th percentile in milliseconds."""
    ordered = sorted(times_ns)
    return ordered[len(ordered) * 99 // 100] / 1e6


def rows_of(folder: Path, number: int, most_windows: int, order: int) -> list[dict[str, Any]]:
    """The rows of one case; on the virtual clock."""
    name, tenants, windows, window_s = CASES[number]
    found, writer = shares(folder, tenants, min(windows, most_windows), window_s, order)
    errors = [abs(part - t.core) for window in found for part, t in zip(window.parts, tenants, strict=True) if t.core]
    error = sum(errors) / len(errors)
    got = "/".join(f"{sum(w.parts[i] for w in found) / len(found):.1f}" for i in range(len(tenants)))
    context = f"got {got}, {len(found)} windows, order {order}, on a clock that no load moves"
    if name in [case[0] for case in GREEDY]:
        over = sum(w.parts[0] for w in found) / len(found) - tenants[0].core
        return [
            row(f"taken beyond its share by itself, {name}", over, "points", "<= 2", met=over <= 2, context=context)
        ]
    made = [row(f"share error by itself, {name}", error, "points", "<= 2", met=error <= 2, context=context)]
    if name == MANY_STREAMS:
        begun = beginnings(folder, writer, slot=1, other=0)
        late = p99_ms(one.first_ns for one in begun)
        left = p99_ms(one.left_ns for one in begun)
        context = (
            f"p99 of {len(begun)} turns; what ran over into them was gone after {left:.1f} ms (p99), order {order}"
        )
        made.append(row(f"turn beside it begins late, {name}", late, "ms", "<= 4", met=late <= 4, context=context))
    return made


def rows(
    wanted: str = "",
    windows: int = 6,
    orders: tuple[int, ...] = ORDERS,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[dict[str, Any]]:
    """The share errors whose name has `wanted` in it, each on a clock of its own, over so many windows at most.

    `settings` are variables of the simulated GPU.
    """
    crowded = [any(len(tenant.programs) > 1 for tenant in case[1]) for case in CASES]
    for number, order in [(i, order) for i in range(len(CASES)) for order in (orders if crowded[i] else (0,))]:
        if wanted not in CASES[number][0]:
            continue
        with tempfile.TemporaryDirectory() as name:
            clock = {"LD_PRELOAD": str(LIBRARY), "VIRTUAL_TIME": f"{name}/clock"}
            command = [sys.executable, __file__, "--case", str(number), f"{name}/node", str(windows), str(order)]
            environment, pipe = os.environ | clock | settings, subprocess.PIPE
            with subprocess.Popen(command, env=environment, stdout=pipe, start_new_session=True) as running:
                try:
                    assert running.stdout is not None
                    yield from json.loads(running.stdout.readline())
                finally:
                    os.killpg(running.pid, signal.SIGKILL)


def main() -> None:
    """Prints all rows; or, started by `rows`, a list of those of its case."""
    if sys.argv[1:2] == ["--case"]:
        number, windows, order = int(sys.argv[2]), int(sys.argv[4]), int(sys.argv[5])
        # One of the threads runs at a time, and to wake the next on an idle processor costs more than it does there.
        os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})  # noqa: S311 (no secret)
        print(json.dumps(rows_of(Path(sys.argv[3]), number, windows, order)), flush=True)
        signal.pause()  # who started it ends it, and the programs with it
    for each in rows(*sys.argv[1:2]):
        print(json.dumps(each), flush=True)
    for each in rows(*sys.argv[1:2], orders=(0,), settings=H100):
        print(json.dumps(each | {"name": f"{each['name']}, slices as an H100's"}), flush=True)


if __name__ == "__main__":
    main()
