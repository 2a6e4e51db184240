"""The shim's costs on the machine's own GPU, and the exactness of shares there.

A share is what a container's programs complete in each window, in percent of what one of them completes alone and
without the shim. The first second is no window: kernels come to the device in it, and clocks go up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import costs
import shares
from node import BEST_EFFORT, ELASTIC, Node, Share
from shares import Tenant

SOLO_WINDOWS, WINDOWS = 3, 4
LONG_WINDOWS = 2
"""Windows of ten seconds."""
LATEST_SECONDS = 60.0
"""A program that has not ended so long after its time hangs."""
CROWD = [shares.hard(70, shares.SHORT), *[Tenant(0, (shares.SHORT,), BEST_EFFORT)] * 8]


def calls(folder: Path, settings: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Measures the time that the shim adds to calls."""
    # No figure says when the driver has released what ended processes held: it is charged for seconds and needs room.
    node = Node(folder / "node", settings, driver=None)
    container = node.container("a", Share(1 << 40, schedule=str(node.folder / "page")))
    with shares.paged(node, [container]):
        for name, words, processes, goal in (
            ("launch in its turn, sampling included", ("launch", "200"), 1, 50),
            ("alloc + free of 1 MiB", ("alloc", "10"), 1, 300),
            ("alloc + free of 1 MiB, 16 processes", ("alloc", "1"), 16, 1500),
        ):
            mean, plain, tail = costs.added(container, *words, processes=processes)
            context = f"{plain:,.0f} ns without; p99.9 with: {tail:,.0f} ns"
            yield costs.row(f"vcuda: {name}", mean, "ns added", goal, context)
    yield costs.starting(container, processes=10)
    container.config.unlink()
    mean, plain, _ = costs.added(container, "launch", "200")
    yield costs.row("vcuda: launch without config", mean, "ns added", 5, f"{plain:,.0f} ns without")


@dataclass
class Measured:
    """Runs on the GPU, each in a folder of its own, and what each kind of program completes alone, by the second."""

    folder: Path
    settings: dict[str, str]
    runs: int = 0
    alone: dict[tuple[str, ...], float] = field(default_factory=dict)

    def completed(self, tenants: Sequence[Tenant], seconds: int, *, shim: bool = True) -> list[list[float]]:
        """Launches of each tenant that were completed in each second but the first."""
        self.runs += 1
        node = Node(self.folder / f"{self.runs}", self.settings, driver=None)
        with shares.started(node, counted(tenants), seconds + 1, shim=shim) as running:
            return [
                each_second([process.communicate(timeout=seconds + LATEST_SECONDS)[0] for process in processes])
                for processes in running
            ]

    def windows(self, tenants: Sequence[Tenant], number: int, window_seconds: int) -> list[list[float]]:
        """Percent of its solo speed that each tenant got, in each window."""
        for program in {tenant.programs[0] for tenant in tenants} - set(self.alone):
            (solo,) = self.completed([Tenant(100, (program,))], SOLO_WINDOWS, shim=False)
            self.alone[program] = sum(solo) / SOLO_WINDOWS
        done = self.completed(tenants, number * window_seconds)
        return [
            [
                100 * sum(each[at : at + window_seconds]) / window_seconds / self.alone[one.programs[0]]
                for each, one in zip(done, tenants)
            ]
            for at in range(0, number * window_seconds, window_seconds)
        ]


def counted(tenants: Sequence[Tenant]) -> list[Tenant]:
    """The same, whose programs count what the GPU has completed."""
    return [
        replace(one, programs=tuple((p[0], *(p[1:] or ("1",)), "completed") for p in one.programs)) for one in tenants
    ]


def each_second(outputs: Sequence[str]) -> list[float]:
    """Returns what programs completed together in each second but the first, from their counts since they began."""
    counts = [[float(word) for word in output.split()] for output in outputs]
    sums = [sum(column) for column in zip(*counts)]
    return [after - before for before, after in zip(sums, sums[1:])]


def mean_of(windows: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each tenant over all windows."""
    return [sum(column) / len(windows) for column in zip(*windows)]


def shares_of_time(folder: Path, settings: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Measures how far from its share each container was in each window; some may borrow, and others must not be
    disturbed."""
    measured = Measured(folder, settings)
    for name, tenants, most, window_seconds in shares.CASES:
        number = min(most, WINDOWS if window_seconds == 1 else LONG_WINDOWS)
        windows = measured.windows(tenants, number, int(window_seconds))
        errors = [abs(part - one.core) for window in windows for part, one in zip(window, tenants)]
        error = sum(errors) / len(errors)
        got = "/".join(f"{part:.1f}" for part in mean_of(windows))
        context = f"got {got}; {number} windows of {window_seconds:g} s, the worst {max(errors):.1f} off"
        yield shares.row(f"share error, {name}", error, "points", "<= 2", met=error <= 2, context=context)
    (elastic,) = mean_of(measured.windows([Tenant(30, (shares.SHORT,), ELASTIC)], 4, 1))
    yield shares.row(
        "elastic alone, throughput", elastic / 100, "of no shim", ">= 0.98", met=elastic >= 98, context="4 windows"
    )
    first, *rest = mean_of(measured.windows(CROWD, 4, 1))
    context = f"4 windows; the eight got {sum(rest):.1f}"
    yield shares.row("hard 70 beside eight best effort", first, "percent", ">= 68", met=first >= 68, context=context)
