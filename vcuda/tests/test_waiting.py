"""Correct programs whose kernels wait for one another go on as they do without the shim."""

import pytest
from agent import PERIOD_NS, Agent, Tenant
from node import BUILD, Container, Node, Share

SLOWER = 1.05
"""How much longer than without the shim a program may take that has the GPU to itself."""
SLOWER_IN_TURNS = 1.07
"""The same of kernels of 5 ms, of which one is in flight on each stream; the goal is 1.05."""
COLLECTIVES_SLOWER = 2
"""The goal is 1.2; with turns of 25 ms and collectives after each millisecond it is 1.8."""
MOMENT_US = 200
"""What looking at the clock adds to the shortest of them."""
WAITER_US = 2_000
"""After so long a launch is let go for which something may be waiting."""

PROGRAMS = [("legacy",), ("ahead", "3"), ("pairs", "10"), ("warm", "10"), ("overlap", "10")]


def run(container: Container, *program: str, shim: bool = True, virtual: bool = True) -> tuple[int, int]:
    """The CUresult and the microseconds that a program prints (waiting.c)."""
    libraries = [str(BUILD / "bench" / "virtual_time.so")] if virtual else []
    container.settings["VIRTUAL_TIME"] = str(container.node.folder / "clock")
    container.settings["LD_PRELOAD"] = ":".join([*libraries, *([str(container.library)] if shim else [])])
    out, errors = container.start("waiting", *program).communicate(timeout=60)
    assert errors == "", errors
    result, microseconds = out.split()
    return int(result), int(microseconds)


@pytest.mark.parametrize("turns", ["none", "whole"])
@pytest.mark.parametrize("program", PROGRAMS, ids=[program[0] for program in PROGRAMS])
def test_alone_on_its_gpu_a_program_takes_no_longer_than_without_the_shim(
    node: Node, program: tuple[str, ...], turns: str
) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0))
    container = node.container("a", Share(schedule=str(page) if turns == "whole" else ""))
    result, held_us = run(container, *program)
    plain, plain_us = run(node.container("plain"), *program, shim=False)
    assert result == plain == 0
    assert held_us <= SLOWER * plain_us + MOMENT_US


@pytest.mark.parametrize("program", [("legacy",), ("ahead", "5"), ("pairs", "10"), ("warm", "10")])
def test_with_a_part_of_the_gpu_it_waits_for_its_turn_and_no_longer(node: Node, program: tuple[str, ...]) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS // 2),), core=50))
    container = node.container("a", Share(core=50, schedule=str(page)))
    result, held_us = run(container, *program)
    _, plain_us = run(node.container("plain"), *program, shim=False)
    assert result == 0
    assert held_us <= 2 * SLOWER * plain_us + PERIOD_NS / 1_000 + WAITER_US


@pytest.mark.parametrize("percent", [80, 100])
def test_kernels_that_fit_beside_one_another_overlap_in_a_turn(node: Node, percent: int) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS * percent // 100),), core=percent))
    container = node.container("a", Share(core=percent, schedule=str(page)))
    result, held_us = run(container, "overlap", "200")
    _, plain_us = run(node.container("plain"), "overlap", "200", shim=False)
    assert result == 0
    assert held_us <= (SLOWER if percent == 100 else SLOWER_IN_TURNS) * plain_us * 100 / percent


def test_the_first_launch_does_not_wait_for_what_other_streams_wait_for(node: Node) -> None:
    container = node.container("a")
    result, held_us = run(container, "first", virtual=False)
    assert result == 0
    assert held_us < 1_000_000


def test_a_thread_that_ends_after_launching_spoils_no_capture_of_another(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    with Agent(node, page, Tenant("a", 0)):
        result, _ = run(container, "exit", virtual=False)
    assert result == 0


def test_collectives_of_two_gpus_take_what_the_share_of_each_allows_where_their_turns_are_at_one_time(
    node: Node,
) -> None:
    node.settings["SIMGPU_DEVICES"] = "2"
    shares = []
    for ordinal in range(2):
        page = node.folder / f"page-{ordinal}"
        Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS // 2),), core=50))
        shares.append(Share(core=50, ordinal=ordinal, schedule=str(page)))
    result, held_us = run(node.container("a", *shares), "collectives", "1000")
    _, plain_us = run(node.container("plain"), "collectives", "1000", shim=False)
    assert result == 0
    assert held_us <= COLLECTIVES_SLOWER * plain_us / 0.5
