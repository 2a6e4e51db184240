"""What a program launches before anybody knows how long its kernels take."""

from agent import Agent, Tenant
from node import Node, Share


def test_unknown_kernels_are_not_queued_by_the_dozen(node: Node) -> None:
    page = node.folder / "schedule"
    container = node.container("long", Share(core=30, schedule=str(page)))
    with Agent(node, page, Tenant("long", 0, turns=((0, 15_000_000),), core=30)):
        program = container.start("spin", "0.5", "100000")
        out, errors = program.communicate("\n", timeout=240)
    assert errors == "", errors
    assert int(out.split()[1]) <= 8
