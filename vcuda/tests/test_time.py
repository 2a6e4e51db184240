"""What holding launches costs a program, how long it can last, and what it must not disturb."""

import os
import platform
import signal
import subprocess
from pathlib import Path

import pytest
from agent import PERIOD_NS, Agent, Tenant
from node import BUILD, MIB, Container, Node, Share, ended, until

IN_CI = os.environ.get("CI") == "true"
HOLD_LIMIT_US = 100_000
SLEEP_US = 200
"""How much longer a wait on the virtual clock can last than it was asked for: looks at the clock cost time on it."""
INTERNAL = {32, 33}
"""Signals that the C library keeps for itself; it lets nobody block them."""


def on_a_virtual_clock(node: Node, container: Container, *command: str) -> list[int]:
    """What a program prints, run alone on a clock that only it moves."""
    container.settings["VIRTUAL_TIME"] = str(node.folder / "clock")
    container.settings["LD_PRELOAD"] = f"{BUILD / 'bench' / 'virtual_time.so'}:{container.library}"
    out, errors = container.start(*command).communicate(timeout=240)
    assert errors == "", errors
    return [int(word) for word in out.split()]


@pytest.mark.parametrize("kernel", ["spin_us_10", "spin_ms_1"])
def test_no_launch_is_held_for_more_than_a_tenth_of_a_second(node: Node, kernel: str) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=()))  # a container that never has a turn
    container = node.container("a", Share(schedule=str(page)))
    (longest,) = on_a_virtual_clock(node, container, "launches", "longest", kernel, "20")
    assert HOLD_LIMIT_US - SLEEP_US <= longest <= HOLD_LIMIT_US + SLEEP_US


def test_a_kernel_that_waits_for_what_is_launched_behind_it_gets_it(node: Node) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0))
    container = node.container("a", Share(schedule=str(page)))
    result, held = on_a_virtual_clock(node, container, "launches", "flag")
    assert result == 0
    assert held <= HOLD_LIMIT_US + SLEEP_US


def test_kernels_that_wait_for_one_another_meet_across_turns(node: Node) -> None:
    page = node.folder / "page"
    half = PERIOD_NS // 2
    first, second = (node.container(name, Share(core=50, slot=i, schedule=str(page))) for i, name in enumerate("ab"))
    turns = Tenant("a", 0, turns=((0, half),), core=50), Tenant("b", 1, turns=((half, half),), core=50)
    lines = "".join(f"{line}\n" for line in ("init", "ctx", *[f"launch meet_{i}_2" for i in range(12)]))
    with Agent(node, page, *turns), ended(first.start("actor")) as one, ended(second.start("actor")) as other:
        for program in (one, other):
            assert program.stdin is not None
            program.stdin.write(lines)
            program.stdin.close()
            program.stdin = None
        answers = [program.communicate(timeout=240)[0].splitlines() for program in (one, other)]
    assert answers == [["0 0 0"] * 14] * 2


def test_a_capture_in_the_strictest_mode_is_not_spoilt_by_what_the_shim_looks_at(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    with Agent(node, page, Tenant("a", 0)):
        out, errors = container.start("launches", "captured").communicate(timeout=240)
    assert (out, errors) == ("0 100\n", "")


def test_threads_that_launch_capture_and_end_streams_at_once_race_for_nothing(node: Node) -> None:
    """The whole shim in a program built for the thread sanitizer, which ends it with 66 and tells of each race."""
    page = node.folder / "page"
    container = node.container("a", Share(memory=8192 * MIB, schedule=str(page)))
    given = container.environment()
    del given["LD_PRELOAD"]
    command = ["setarch", "-R", str(BUILD / "tests" / "launching-tsan"), "100" if IN_CI else "20"]
    with Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS * 3 // 5),))):
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def blocked_by_helpers(pid: int) -> list[int]:
    """Masks of blocked signals of a process's threads that are the shim's."""
    found = []
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        if fields["Name"] == "vcuda":
            found.append(int(fields["SigBlk"], 16))
    return found


def test_no_handler_of_the_programs_ever_runs_on_a_thread_of_the_shim(node: Node) -> None:
    container = node.container("a")
    allowed = {signal.SIGKILL, signal.SIGSTOP, *INTERNAL}
    with ended(container.start("actor")) as actor:
        assert actor.stdin is not None
        actor.stdin.write("init\nctx\n")
        actor.stdin.flush()
        until(lambda: len(blocked_by_helpers(actor.pid)) == 1)
        (mask,) = blocked_by_helpers(actor.pid)
    assert {number for number in range(1, 65) if mask >> (number - 1) & 1 == 0} <= allowed


if platform.machine() == "x86_64":

    def test_a_launch_in_its_turn_reads_no_clock_calls_no_kernel_and_shares_no_write(node: Node) -> None:
        node.driver = BUILD / "bench" / "null"
        page = node.folder / "page"
        container = node.container("a", Share(schedule=str(page)))
        Agent(node, page, Tenant("a", 0))
        instructions, *rest = on_a_virtual_clock(node, container, "unit/launch_instructions")
        assert rest == [0, 0, 0], "system calls, reads of the clock, atomics that lock"
        assert 22 < instructions < 150, "it takes 22 without the shim"
