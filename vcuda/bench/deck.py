"""The shim's costs for the programs of the deck, alone and beside a neighbour, on a clock that no load moves.

Prints JSON rows.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VCUDA = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(VCUDA / "bench"), str(VCUDA / "tests")]
from agent import Agent, Tenant
from deck_programs import DECK, SHARE, WAITING, longer, neighbour, part_of_a_gpu, ranks, run, two_gpus, two_halves
from node import BUILD, Node, Share
from shares import row

ROUNDS = 1000
"""The rounds of collectives: about two seconds of them."""
RUNS = 5
MOST_FIRST_US = 100
"""The most for a launch that once waited for ever; the first in a process makes what the later ones use."""
TIMES = 12
"""The work of a program of the deck as a multiple of the tests': it is then at work for a second to four."""
MOMENT_US = 1000
"""The least time of a program of which a ratio is given; for a shorter one it would say nothing."""


def ratio(name: str, held_us: int, plain_us: int, share: float, most: float) -> dict[str, Any]:
    """Returns the time of a program divided by the time that its share allows."""
    context = f"{held_us} us instead of {plain_us}, with {share:.0%} of the GPU"
    if plain_us < MOMENT_US:  # programs print whole microseconds
        added = held_us - plain_us
        return row(f"time of {name}", added, "us added", "<= 1", met=added <= 1, context=context)
    value = held_us / plain_us * share
    return row(f"time of {name}", value, "of what its share allows", f"<= {most}", met=value <= most, context=context)


def of_deck(folder: Path, kind: str, program: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """One of the deck, alone with every turn, and beside a neighbour."""
    program = longer(program, TIMES)
    plain, whole, halves = (Node(folder / name) for name in ("plain", "whole", "halves"))
    for node in (plain, whole, halves):
        node.folder.mkdir(parents=True)
    _, plain_us = run(plain.container("a"), program, shim=False)
    page = whole.folder / "page"
    Agent(whole, page, Tenant("a", 0))
    _, held_us = run(whole.container("a", Share(schedule=str(page))), program)
    yield ratio(f"{kind}, alone", held_us, plain_us, 1, 1.05)
    ours, other = two_halves(halves)
    with neighbour(other):
        _, held_us = run(ours, program)
    yield ratio(f"{kind}, beside a neighbour", held_us, plain_us, SHARE, 1.15)


def first_launch(folder: Path) -> dict[str, Any]:
    """A process's first launch while sixteen other streams wait for the host, in real time: the median of five."""
    node = Node(folder)
    took: dict[bool, list[int]] = {False: [], True: []}
    for number in range(2 * RUNS):
        shim = number % 2 == 1
        container = node.container(f"{number}")
        took[shim].append(run(container, ("waiting", "first"), shim=shim, virtual=False)[1])
    plain_us, held_us = (int(statistics.median(took[shim])) for shim in (False, True))
    context = f"{held_us} us instead of {plain_us}"
    added, name = held_us - plain_us, "the first launch while other streams wait, alone"
    return row(f"time of {name}", added, "us added", "<= 100", met=added <= MOST_FIRST_US, context=context)


def first_call(folder: Path) -> dict[str, Any]:
    """A linked program's first call while a constructor in another thread looks the driver up: the median of five."""
    node = Node(folder)
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * RUNS):
        shim = number % 2 == 1
        given = node.container(f"{number}").environment()
        if not shim:
            del given["LD_PRELOAD"]
        command = [str(BUILD / "tests" / "binds"), str(BUILD / "tests" / "unit" / "constructor.so")]
        began = time.monotonic()
        subprocess.run(command, env=given, check=True, capture_output=True, timeout=60)
        took[shim].append(time.monotonic() - began)
    plain_us, held_us = (int(statistics.median(took[shim]) * 1e6) for shim in (False, True))
    return ratio("the first call while a constructor looks the driver up, alone", held_us, plain_us, 1, 1.05)


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """The deck; programs whose kernels wait; and with a half of each of two GPUs."""
    for kind, program in DECK.items():
        yield from of_deck(folder / kind.replace(" ", "-"), kind, program)
    for program in WAITING:
        node = Node(folder / program[1])
        _, held_us = run(node.container("a"), program)
        _, plain_us = run(node.container("plain"), program, shim=False)
        yield ratio(f"{program[1]}, alone on its GPU", held_us, plain_us, 1, 1.05)
    yield first_launch(folder / "first")
    yield first_call(folder / "constructor")
    for percent in (100, 80, 50):
        node = Node(folder / str(percent))
        node.folder.mkdir()
        _, held_us = run(part_of_a_gpu(node, percent), ("waiting", "overlap", "400"))
        _, plain_us = run(node.container("plain"), ("waiting", "overlap", "400"), shim=False)
        yield ratio(f"kernels on two streams, {percent} percent", held_us, plain_us, percent / 100, 1.05)
    node = Node(folder / "two")
    node.folder.mkdir()
    _, held_us = run(two_gpus(node), ("waiting", "collectives", str(ROUNDS)))
    _, plain_us = run(node.container("plain"), ("waiting", "collectives", str(ROUNDS)), shim=False)
    yield ratio("collectives of one process with two GPUs", held_us, plain_us, 0.5, 1.2)
    node = Node(folder / "ranks")
    node.folder.mkdir()
    held_us = ranks(two_gpus(node), ROUNDS)
    yield ratio("collectives of two processes with a GPU each", held_us, plain_us, 0.5, 1.2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for each in rows(Path(name)):
            print(json.dumps(each), flush=True)
