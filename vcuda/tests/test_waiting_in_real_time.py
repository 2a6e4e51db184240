"""Correct programs whose kernels or streams wait, on the machine's own clock: also under sanitizers."""

from agent import Agent, Tenant
from node import BUILD, MIB, Node, Share, ended, until
from waiting_programs import run


def test_a_green_context_is_made_current_by_no_thread_but_the_programs_own(node: Node) -> None:
    node.driver = BUILD / "simgpu" / "12"
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)), SIMGPU_FAULTS="cuEventQuery:*:slow_us=1000")
    with Agent(node, page, Tenant("a", 0)):
        result, _ = run(container, "green", "200", virtual=False)
    assert result == 0


def test_the_first_launch_does_not_wait_for_what_other_streams_wait_for(node: Node) -> None:
    container = node.container("a")
    result, held_us = run(container, "first", virtual=False)
    assert result == 0
    assert held_us < 1_000_000


def test_memory_freed_in_the_order_of_a_stream_that_waits_is_charged_until_the_stream_comes_to_it(node: Node) -> None:
    container = node.container("a")
    with ended(container.start("waiting", "free")) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "freed\n"
        until(lambda: container.charged() == node.truth("a")[0] == 256 * MIB)
        assert container.unsettled() == 0


def test_a_pool_that_may_not_grow_is_refused_without_waiting_for_its_stream(node: Node) -> None:
    node.settings["SIMGPU_POOL_STEP_MIB"] = "128"
    container = node.container("a")
    with ended(container.start("waiting", "grow")) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "refused\n"
        until(lambda: container.charged() == node.truth("a")[0] == (256 + 128 + 522) * MIB)
        assert container.unsettled() == 0


def test_a_thread_that_ends_after_launching_spoils_no_capture_of_another(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    with Agent(node, page, Tenant("a", 0)):
        result, _ = run(container, "exit", virtual=False)
    assert result == 0
