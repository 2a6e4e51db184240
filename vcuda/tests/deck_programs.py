"""The deck: correct programs of the kinds that people run (programs/), on a clock that only they move.

Each runs without the shim, with it alone, and with it beside a neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agent import PERIOD_NS, Agent, Tenant
from node import BUILD, SANITIZERS, Container, Node, Share, ended

Program = tuple[str, ...]

WAITING: list[Program] = [
    ("waiting", "legacy"),
    ("waiting", "ahead", "3"),
    ("waiting", "pairs", "10"),
    ("waiting", "warm", "10"),
    ("waiting", "overlap", "10"),
]
"""Their kernels wait for one another. They print the longest round of a few, some of which take no time at all."""
DECK: dict[str, Program] = {
    "a model server": ("serving", "400"),
    "a stage of a pipeline": ("pipeline", "64"),
    "data parallel training": ("data_parallel", "40"),
    "the same with one hardware queue": ("data_parallel", "40", "one"),
    "data frames in eight threads": ("data_frames", "8", "40"),
    "captures in threads that end": ("capturing", "60"),
    "pointers that are NULL": ("nulls", "100"),
    "kernels that overlap": ("waiting", "overlap", "40"),
}
"""With how much they are to do: about 0.1 to 0.4 s without the shim."""
SHARE = 0.5
"""The share of the GPU that a program has beside a neighbour."""


def longer(program: Program, times: int) -> Program:
    """The same with so many times as much to do."""
    at = max(place for place, word in enumerate(program) if word.isdigit())
    return (*program[:at], str(int(program[at]) * times), *program[at + 1 :])


def run(container: Container, program: Program, *, shim: bool = True, virtual: bool = True) -> tuple[int, int]:
    """Runs one: the CUresult and the microseconds that it prints.

    Raises:
        subprocess.TimeoutExpired: it hangs.
    """
    libraries = [str(BUILD / "bench" / "virtual_time.so")] if virtual else []
    libraries = [*(SANITIZERS if shim else []), *libraries]
    container.settings["VIRTUAL_TIME"] = str(container.node.folder / "clock")
    container.settings["LD_PRELOAD"] = ":".join([*libraries, *([str(container.library)] if shim else [])])
    with ended(container.start(f"programs/{program[0]}", *program[1:])) as running:
        out, errors = running.communicate(timeout=120)
    assert errors == "", errors
    result, microseconds = out.split()
    return int(result), int(microseconds)


@contextmanager
def neighbour(container: Container, *, virtual: bool = True) -> Iterator[None]:
    """Another program, which keeps the GPU busy in its own turns meanwhile."""
    if virtual:
        container.put_on_a_virtual_clock()
    with ended(container.start("programs/neighbour")) as busy:
        assert busy.stdout is not None
        assert busy.stdout.readline() == "ready\n"
        yield


def two_halves(node: Node) -> tuple[Container, Container]:
    """Two containers with a half of each period."""
    page, half = node.folder / "page", PERIOD_NS // 2
    Agent(
        node,
        page,
        Tenant("a", 0, turns=((0, half),), core=50),
        Tenant("b", 1, turns=((half, half),), core=50),
    )
    return (
        node.container("a", Share(core=50, slot=0, schedule=str(page))),
        node.container("b", Share(core=50, slot=1, schedule=str(page))),
    )


def part_of_a_gpu(node: Node, percent: int) -> Container:
    """A container with one turn in each period."""
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS * percent // 100),), core=percent))
    return node.container("a", Share(core=percent, schedule=str(page)))


def two_gpus(node: Node) -> Container:
    """A container with half of each of two GPUs, whose turns the node has laid at one time."""
    node.settings["SIMGPU_DEVICES"] = "2"
    shares = []
    for ordinal in range(2):
        page = node.folder / f"page-{ordinal}"
        Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS // 2),), core=50))
        shares.append(Share(core=50, ordinal=ordinal, schedule=str(page)))
    return node.container("a", *shares)


def ranks(container: Container, rounds: int) -> int:
    """The microseconds that the slower of two processes takes, one for each GPU."""
    container.settings |= {
        "VIRTUAL_TIME": str(container.folder / "clock"),
        "LD_PRELOAD": ":".join([*SANITIZERS, str(BUILD / "bench" / "virtual_time.so"), str(container.library)]),
    }
    processes = [container.start("programs/waiting", "rank", str(gpu), str(rounds)) for gpu in range(2)]
    answers = [process.communicate(timeout=120)[0].split() for process in processes]
    assert [answer[0] for answer in answers] == ["0", "0"]
    return max(int(answer[1]) for answer in answers)
