"""What the shim costs programs whose kernels wait for one another, on a clock that no load moves. Prints JSON rows."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VCUDA = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(VCUDA / "bench"), str(VCUDA / "tests")]
from node import Node
from shares import row
from waiting_programs import PROGRAMS, part_of_a_gpu, ranks, run, two_gpus

ROUNDS = 1000
"""Of collectives: about two seconds of them."""
MOMENT_US = 1000
"""Of programs that take less, a ratio would say nothing."""


def ratio(name: str, held_us: int, plain_us: int, share: float, most: float) -> dict[str, Any]:
    """How much longer it takes than the share allows, as a factor."""
    context = f"{held_us} us instead of {plain_us}, with {share:.0%} of the GPU"
    if plain_us < MOMENT_US:  # programs print whole microseconds
        added = held_us - plain_us
        return row(f"time of {name}", added, "us added", "<= 1", met=added <= 1, context=context)
    value = held_us / plain_us * share
    return row(f"time of {name}", value, "of what its share allows", f"<= {most}", met=value <= most, context=context)


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Alone on a GPU, with a part of one, and with a half of each of two."""
    for name, *rounds in PROGRAMS:
        node = Node(folder / name)
        _, held_us = run(node.container("a"), name, *rounds)
        _, plain_us = run(node.container("plain"), name, *rounds, shim=False)
        yield ratio(f"{name}, alone on its GPU", held_us, plain_us, 1, 1.05)
    for percent in (100, 80, 50):
        node = Node(folder / str(percent))
        node.folder.mkdir()
        _, held_us = run(part_of_a_gpu(node, percent), "overlap", "400")
        _, plain_us = run(node.container("plain"), "overlap", "400", shim=False)
        yield ratio(f"kernels on two streams, {percent} percent", held_us, plain_us, percent / 100, 1.05)
    node = Node(folder / "two")
    node.folder.mkdir()
    _, held_us = run(two_gpus(node), "collectives", str(ROUNDS))
    _, plain_us = run(node.container("plain"), "collectives", str(ROUNDS), shim=False)
    yield ratio("collectives of one process with two GPUs", held_us, plain_us, 0.5, 1.2)
    node = Node(folder / "ranks")
    node.folder.mkdir()
    held_us = ranks(two_gpus(node), ROUNDS)
    yield ratio("collectives of two processes with a GPU each", held_us, plain_us, 0.5, 1.2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for each in rows(Path(name)):
            print(json.dumps(each), flush=True)
