"""Programs whose kernels wait for one another (waiting.c), run on a clock that only they move."""

from agent import PERIOD_NS, Agent, Tenant
from node import BUILD, SANITIZERS, Container, Node, Share

PROGRAMS = [("legacy",), ("ahead", "3"), ("pairs", "10"), ("warm", "10"), ("overlap", "10")]
"""Of one GPU, with the number of their rounds."""


def run(container: Container, *program: str, shim: bool = True, virtual: bool = True) -> tuple[int, int]:
    """Runs one: the CUresult and the microseconds that a program prints (waiting.c)."""
    libraries = [str(BUILD / "bench" / "virtual_time.so")] if virtual else []
    libraries = [*(SANITIZERS if shim else []), *libraries]
    container.settings["VIRTUAL_TIME"] = str(container.node.folder / "clock")
    container.settings["LD_PRELOAD"] = ":".join([*libraries, *([str(container.library)] if shim else [])])
    out, errors = container.start("waiting", *program).communicate(timeout=60)
    assert errors == "", errors
    result, microseconds = out.split()
    return int(result), int(microseconds)


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
    processes = [container.start("waiting", "rank", str(gpu), str(rounds)) for gpu in range(2)]
    answers = [process.communicate(timeout=120)[0].split() for process in processes]
    assert [answer[0] for answer in answers] == ["0", "0"]
    return max(int(answer[1]) for answer in answers)
