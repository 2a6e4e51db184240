"""Programs of the deck on the machine's own clock, where a sanitizer can look at them: they end as they should."""

import os
import subprocess

import pytest
from agent import Agent, Tenant
from deck_programs import DECK, neighbour, run, two_halves
from node import BUILD, MIB, Node, Share, ended, until

UNDER_TSAN = ["data_frames", "captures", "serving", "pipeline"]
"""As tests.mk builds them with the shim in one program."""
IN_REAL_TIME = {kind: DECK[kind] for kind in DECK if os.environ.get("CI") or DECK[kind][0] in UNDER_TSAN}


@pytest.mark.parametrize("kind", IN_REAL_TIME)
def test_a_program_ends_as_without_the_shim(node: Node, kind: str) -> None:
    ours, other = two_halves(node)
    with neighbour(other, virtual=False):
        assert run(ours, DECK[kind], virtual=False)[0] == 0


@pytest.mark.parametrize("name", UNDER_TSAN)
def test_a_program_that_is_built_for_the_thread_sanitizer_races_for_nothing(node: Node, name: str) -> None:
    ours, _ = two_halves(node)
    (program,) = {program for program in DECK.values() if program[0] == name}
    given = {key: value for key, value in ours.environment().items() if key != "LD_PRELOAD"}
    command = ["setarch", "-R", str(BUILD / "tests" / "programs" / f"{name}-tsan"), *program[1:]]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr, done.stdout.split()[0]) == (0, "", "0")
    assert ours.slots_used() == 1, "its calls went to the shim"


def test_a_green_context_is_made_current_by_no_thread_but_the_programs_own(node: Node) -> None:
    node.driver = BUILD / "simgpu" / "12"
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)), SIMGPU_FAULTS="cuEventQuery:*:slow_us=1000")
    with Agent(node, page, Tenant("a", 0)):
        result, _ = run(container, ("waiting", "green", "200"), virtual=False)
    assert result == 0


def test_the_first_launch_does_not_wait_for_what_other_streams_wait_for(node: Node) -> None:
    container = node.container("a")
    result, held_us = run(container, ("waiting", "first"), virtual=False)
    assert result == 0
    assert held_us < 1_000_000


def test_memory_freed_in_the_order_of_a_stream_that_waits_is_charged_until_the_stream_comes_to_it(node: Node) -> None:
    container = node.container("a")
    with ended(container.start("programs/waiting", "free")) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "freed\n"
        until(lambda: container.charged() == node.truth("a")[0] == 256 * MIB)
        assert container.unsettled() == 0


def test_a_pool_that_may_not_grow_is_refused_without_waiting_for_its_stream(node: Node) -> None:
    node.settings["SIMGPU_POOL_STEP_MIB"] = "128"
    container = node.container("a")
    with ended(container.start("programs/waiting", "grow")) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "refused\n"
        until(lambda: container.charged() == node.truth("a")[0] == (256 + 128 + 522) * MIB)
        assert container.unsettled() == 0


def test_a_thread_that_ends_after_launching_spoils_no_capture_of_another(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    with Agent(node, page, Tenant("a", 0)):
        result, _ = run(container, ("waiting", "exit"), virtual=False)
    assert result == 0
