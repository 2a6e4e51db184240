"""Many processes on one container's memory: racing for it, and killed at random."""

import random
import time
from dataclasses import dataclass

from node import MIB, Container, Node, begin_at_once, ended, give_line, until


@dataclass(frozen=True)
class Race:
    """The outcome of a race: allocations made and refused, and the most that the GPU held, in bytes."""

    allocations: int
    refusals: int
    most: int


def churned_and_killed(container: Container, seed: int, seconds: float) -> bool:
    """Starts a program that allocates and frees, and kills it after so long; false when it found no room to begin."""
    with ended(container.start("churn", "60", "2", str(64 * MIB), str(seed))) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            return False
        give_line(process)
        moment = time.monotonic() + seconds
        until(lambda: time.monotonic() > moment)
    return True


def killed(container: Container, wanted: int) -> None:
    """Kills so many allocating programs of the container, one after the other, each at a random moment."""
    chance = random.Random(7)
    kills = 0
    while kills < wanted:
        kills += churned_and_killed(container, kills, chance.random() * 0.02)


def raced(node: Node, container: Container, processes: int, threads: int, seconds: float) -> Race:
    """Lets processes of many threads allocate and free at once for so long, on the simulated GPU."""
    allocations, refusals = race(container, processes, threads, seconds)
    return Race(allocations, refusals, node.truth(container.folder.name)[1])


def race(container: Container, processes: int, threads: int, seconds: float) -> tuple[int, int]:
    """Runs a race; returns the number of allocations made and refused in it."""
    arguments = (str(seconds), str(threads), str(20 * MIB))
    crowd = [container.start("churn", *arguments, str(i)) for i in range(processes)]
    begin_at_once(crowd)
    answers = [process.communicate(timeout=seconds + 160)[0].split() for process in crowd]
    return sum(int(a[0]) for a in answers), sum(int(a[1]) for a in answers)
