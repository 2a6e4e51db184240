"""The limit of memory under crowds and kills, by the simulator's truth. Prints JSON rows."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from agent import Agent, Tenant
from crowds import killed, raced
from node import MIB, Node, Share, until

PROCESSES, THREADS, SECONDS, KILLS = 16, 8, 60, 1000


def row(name: str, value: int, context: str) -> dict[str, Any]:
    """A figure in bytes that has to be 0."""
    return {
        "name": f"vcuda: {name}",
        "value": value,
        "unit": "bytes",
        "goal": "0",
        "met": value == 0,
        "context": context,
    }


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Both figures."""
    node = Node(folder / "race", settings={"SIMGPU_CONTEXT_MIB": "16"})
    container = node.container("a", Share(memory=1024 * MIB, context=16 * MIB))
    race = raced(node, container, PROCESSES, THREADS, SECONDS)
    context = f"{race.allocations} allocations, {race.refusals} refused, {race.most // MIB} MiB of 1024 at most"
    name = f"over the limit, {PROCESSES} processes x {THREADS} threads racing {SECONDS} s"
    yield row(name, max(0, race.most - 1024 * MIB), context)
    node = Node(folder / "kills")
    node.folder.mkdir()
    page = node.folder / "page"
    with Agent(node, page, Tenant("a", 0), drives=True):
        container = node.container("a", Share(memory=1536 * MIB, schedule=str(page)))
        killed(container, KILLS)
        over = max(0, node.truth("a")[1] - 1536 * MIB)
        with container.session() as ask:
            ask("init")
            until(lambda: ask("ctx")[0] == 0)
            until(lambda: ask("info")[1] == (1536 - 256) * MIB and container.charged() <= 256 * MIB)
            lost = abs(container.charged() - node.truth("a")[0])
    yield row(f"lost, phantom or over the limit, {KILLS} SIGKILLs at random moments", lost + over, "one container")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for each in rows(Path(name)):
            print(json.dumps(each), flush=True)
