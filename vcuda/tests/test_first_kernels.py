"""Launches of a program before the length of its kernels is known."""

import sys

from agent import Agent, Tenant
from node import BUILD, Node, Share

sys.path.append(str(BUILD.parent / "bench"))
from shares import work_done


def test_unknown_kernels_are_not_queued_by_the_dozen(node: Node) -> None:
    page = node.folder / "schedule"
    container = node.container("long", Share(core=30, schedule=str(page)))
    with Agent(node, page, Tenant("long", 0, turns=((0, 15_000_000),), core=30)):
        program = container.start("spin", "0.5", "100000")
        out, errors = program.communicate("\n", timeout=240)
    assert errors == "", errors
    assert int(out.split()[1]) <= 8


def test_a_program_that_counts_what_was_completed_counts_no_more_than_the_gpu_did(node: Node) -> None:
    container = node.container("a")
    out, errors = container.start("spin", "0.5", "20000", "1", "completed").communicate("\n", timeout=60)
    assert errors == "", errors
    assert 0 < float(out.split()[1]) * 20_000_000 <= work_done(node)["a"]
