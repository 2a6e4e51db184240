"""Programs of the deck on the machine's own clock, where a sanitizer can look at them: they end as they should."""

import os
import subprocess

import pytest
from agent import Agent, Tenant
from deck_programs import DECK, WAITING, Program, neighbour, part_of_a_gpu, run, two_halves
from node import BUILD, MIB, Node, Share, ended, give_line, until

RACING = ["data_frames", "capturing", "serving", "pipeline"]
"""Those whose threads, streams and captures come and go; the others are tried in continuous integration."""
IN_CI = os.environ.get("CI") == "true"
IN_REAL_TIME: list[Program] = [program for program in [*DECK.values(), *WAITING] if IN_CI or program[0] in RACING]
UNDER_TSAN: list[Program] = [
    *IN_REAL_TIME,
    *(
        [
            ("waiting", "first"),
            ("waiting", "green", "20"),
            ("waiting", "exit"),
            ("waiting", "fills", "20"),
            ("waiting", "among", "100"),
        ]
        if IN_CI
        else []
    ),
]


@pytest.mark.parametrize("program", IN_REAL_TIME, ids=" ".join)
def test_a_program_ends_as_without_the_shim(node: Node, program: Program) -> None:
    ours, other = two_halves(node)
    with neighbour(other, virtual=False):
        assert run(ours, program, virtual=False)[0] == 0


@pytest.mark.parametrize("program", UNDER_TSAN, ids=" ".join)
def test_a_program_that_is_built_for_the_thread_sanitizer_races_for_nothing(node: Node, program: Program) -> None:
    ours, _ = two_halves(node)
    name, *arguments = program
    given = {key: value for key, value in ours.environment().items() if key != "LD_PRELOAD"}
    command = ["setarch", "-R", str(BUILD / "tests" / "programs" / f"{name}-tsan"), *arguments]
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


def test_the_first_launch_comes_back_while_other_streams_wait_for_the_host(node: Node) -> None:
    assert run(node.container("a"), ("waiting", "first"), virtual=False)[0] == 0


def test_memory_freed_in_the_order_of_a_stream_that_waits_is_charged_until_the_stream_comes_to_it(node: Node) -> None:
    container = node.container("a")
    with ended(container.start("programs/waiting", "free")) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "held\n"
        assert container.charged() == (256 + 64 + 2) * MIB
        give_line(program)
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


@pytest.mark.parametrize("what", ["pool", "graph"])
def test_no_allocation_waits_for_another_threads_that_waits_for_room_in_its_queue(node: Node, what: str) -> None:
    node.settings["SIMGPU_POOL_STEP_MIB"] = "2"  # each allocation makes the pool grow
    result, _ = run(node.container("a"), ("waiting", "full", what), virtual=False)
    assert result == 0


def test_a_stream_takes_as_many_launches_ahead_as_programs_put_into_it_without_the_shim(node: Node) -> None:
    result, _ = run(node.container("a"), ("waiting", "deep", "700"), virtual=False)
    assert result == 0


@pytest.mark.parametrize("part", [False, True], ids=["the whole GPU", "a part of it"])
def test_so_it_does_of_launches_with_a_wait_before_each(node: Node, *, part: bool) -> None:
    container = part_of_a_gpu(node, 50) if part else node.container("a")
    assert run(container, ("waiting", "crowded", "450"), virtual=False)[0] == 0


@pytest.mark.parametrize(
    "program",
    [("deep", "100"), ("midway", "100"), ("after", "spin_ms_300"), ("deep", "100", "spin_ms_3600000_w25")],
    ids=" ".join,
)
def test_an_event_that_a_stream_waits_for_comes_about(node: Node, program: Program) -> None:
    """test_deck.py says how soon."""
    assert run(part_of_a_gpu(node, 50), ("waiting", *program), virtual=False)[0] == 0
