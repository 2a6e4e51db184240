"""Holding launches: its cost to a program, the longest hold, and what it must not disturb."""

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agent import PERIOD_NS, Agent, Tenant
from node import BUILD, ELASTIC, MIB, Container, Node, Share, ended, until

sys.path.append(str(BUILD.parent / "bench"))
sys.path.append(str(BUILD.parent.parent))
import costs
from shares import work_done

from sidecar.usage_record import decode

IN_CI = os.environ.get("CI") == "true"
HOLD_LIMIT_US = 100_000
IN_FLIGHT_US = 2_000
SLEEP_US = 200
"""The most by which a wait on the virtual clock can last longer than it was asked for: looks at the clock cost time on
it."""
NEAR_POINTS = 3
"""The second that is looked at cuts a period, and the first launches ask one by one."""
CALLS_OF_A_THOUSAND = 300
"""To measure batches and single launches, and the helper's; one question for each launch would be a thousand."""
INTERNAL = {32, 33}
"""Signals that the C library keeps for itself; no thread can block them."""


def on_a_virtual_clock(node: Node, container: Container, *command: str, shim: bool = True) -> list[int]:
    """Returns what a program prints last, run alone on a clock that only it moves."""
    clock = str(BUILD / "bench" / "virtual_time.so")
    container.settings["VIRTUAL_TIME"] = str(node.folder / "clock")
    container.settings["LD_PRELOAD"] = f"{clock}:{container.library}" if shim else clock
    out, errors = container.start(*command).communicate(timeout=240)
    assert errors == "", errors
    return [int(word) for word in out.splitlines()[-1].split()]


@pytest.mark.parametrize(
    ("what", "gpus"), [("launch", 1), ("launch", 4), ("launches", 4), ("alternating", 1), ("destroyed", 1)]
)
def test_a_launch_in_its_turn_seldom_calls_the_driver_for_anything_else(tmp_path: Path, what: str, gpus: int) -> None:
    node = Node(tmp_path, driver=BUILD / "bench" / "null")
    page = tmp_path / "page"
    container = node.container("a", *[Share(ordinal=ordinal, schedule=str(page)) for ordinal in range(gpus)])
    with Agent(node, page, Tenant("a", 0)):
        calls = subprocess.run(
            [costs.CALLS, what, "100"], env=container.environment(), capture_output=True, text=True, check=True
        )
    assert int(calls.stdout.split()[-1]) < CALLS_OF_A_THOUSAND


@pytest.mark.parametrize(("kernel", "kernel_us"), [("spin_us_10", 10), ("spin_ms_1", 1_000)])
def test_no_launch_is_held_for_more_than_a_tenth_of_a_second(node: Node, kernel: str, kernel_us: int) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=()))  # a container that never has a turn
    container = node.container("a", Share(schedule=str(page)))
    (longest,) = on_a_virtual_clock(node, container, "launches", "longest", kernel, "20")
    assert HOLD_LIMIT_US - SLEEP_US <= longest <= HOLD_LIMIT_US + kernel_us + SLEEP_US


@pytest.mark.parametrize(("how", "limit_us"), [("apart", HOLD_LIMIT_US), ("longest", 2 * HOLD_LIMIT_US)])
def test_nor_is_one_that_pays_back_once_what_its_program_has_in_flight_is_done(
    node: Node, how: str, limit_us: int
) -> None:
    """A launch while the last is running waits behind it first: for that, as long again at most."""
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, core=10, turns=((0, PERIOD_NS // 10),)))
    container = node.container("a", Share(core=10, schedule=str(page)))
    (longest,) = on_a_virtual_clock(node, container, "launches", how, "spin_ms_150", "6")
    assert limit_us - SLEEP_US <= longest <= limit_us + SLEEP_US


@pytest.mark.parametrize("where", ["ahead", "elsewhere"])
@pytest.mark.parametrize(("kernel", "kernel_us"), [("spin_us_10", 10), ("spin_us_100", 100), ("spin_ms_5", 5_000)])
def test_no_more_is_in_flight_than_two_kernels_or_two_milliseconds(
    node: Node, kernel: str, kernel_us: int, where: str
) -> None:
    """Nor in a stream of a context that is not the current one, which is where its launches go."""
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS * 9 // 10),)))
    container = node.container("a", Share(schedule=str(page)))
    (most,) = on_a_virtual_clock(node, container, "launches", where, kernel, str(max(60, 20_000 // kernel_us)))
    assert most <= max(2, IN_FLIGHT_US // kernel_us)


@pytest.mark.parametrize(("threads", "streams"), [(1, 8), (4, 1), (8, 2)])
@pytest.mark.parametrize(("kernel", "kernel_us"), [("spin_us_100", 100), ("spin_ms_5", 5_000)])
def test_nor_is_more_on_any_stream_of_several_threads_nor_in_all_than_the_turn_has_time_for(
    node: Node, threads: int, streams: int, kernel: str, kernel_us: int
) -> None:
    page, turn_us = node.folder / "page", PERIOD_NS * 9 // 10_000
    Agent(node, page, Tenant("a", 0, turns=((0, turn_us * 1_000),)))
    container = node.container("a", Share(schedule=str(page)))
    count = str(max(4, 20_000 // kernel_us // threads))
    (most,) = on_a_virtual_clock(node, container, "launches", "together", kernel, count, str(threads), str(streams))
    on_each = max(1, IN_FLIGHT_US // kernel_us)
    in_all = max(threads * streams, turn_us // 2 // kernel_us)
    assert most <= min(threads * streams * on_each, in_all) + threads - 1


@pytest.mark.parametrize(("turns", "held_us"), [(((0, PERIOD_NS),), 0), ((), 5 * HOLD_LIMIT_US)])
def test_time_reported_as_held_back_is_the_wait_for_turns_and_not_behind_its_own_work(
    node: Node, turns: tuple[tuple[int, int], ...], held_us: int
) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=turns))
    container = node.container("a", Share(schedule=str(page)))
    on_a_virtual_clock(node, container, "launches", "longest", "spin_ms_5", "5")
    record = decode(container.usage.read_bytes())
    assert record is not None
    assert held_us * 0.99 <= record.devices[0].throttled_ns / 1000 <= held_us * 1.01


def percent_of_a_second(node: Node, container: Container, *, shim: bool = True) -> float:
    """Returns the part of the GPU's time that a program completes that launches all it can for a second, in percent."""
    on_a_virtual_clock(node, container, "spin", "1", "100", shim=shim)
    return work_done(node)["a"] / 1e7


def test_a_container_alone_on_a_gpu_that_is_lent_to_it_loses_nothing(tmp_path: Path) -> None:
    done = []
    for shim in (False, True):
        node = Node(tmp_path / str(shim), settings={"SIMGPU_CALL_COSTS": "1"})
        node.folder.mkdir()
        page = node.folder / "page"
        Agent(node, page, Tenant("a", 0, core=30, policy=ELASTIC))
        container = node.container("a", Share(core=30, policy=ELASTIC, schedule=str(page)))
        done.append(percent_of_a_second(node, container, shim=shim))
    assert done[1] >= 0.98 * done[0] > 90


@pytest.mark.parametrize(("trim_permille", "percent"), [(0, 60), (500, 30)])
def test_a_container_completes_what_its_turns_allow_as_far_as_they_are_trimmed(
    node: Node, trim_permille: int, percent: int
) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS * 6 // 10),), trim_permille=trim_permille))
    container = node.container("a", Share(core=60, schedule=str(page)))
    assert abs(percent_of_a_second(node, container) - percent) < NEAR_POINTS


def test_a_container_without_a_good_page_completes_what_its_share_allows(node: Node) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 3))
    container = node.container("a", Share(core=30, schedule=str(page)))
    assert abs(percent_of_a_second(node, container) - 30) < NEAR_POINTS


def test_a_kernel_that_waits_for_what_is_launched_behind_it_gets_it(node: Node) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0))
    container = node.container("a", Share(schedule=str(page)))
    result, held = on_a_virtual_clock(node, container, "launches", "flag")
    assert result == 0
    assert held <= HOLD_LIMIT_US + SLEEP_US


def test_nor_does_it_wait_for_ever_where_that_is_launched_behind_much_else(node: Node) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0))
    container = node.container("a", Share(schedule=str(page)))
    more_than_are_measured_at_one_time = "150"
    assert on_a_virtual_clock(node, container, "launches", "behind", more_than_are_measured_at_one_time) == [0]


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
    """The whole shim in a program built for the thread sanitizer, which ends it with 66 and reports each race."""
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


def test_a_child_that_ends_waits_for_no_helper_of_its_parents(node: Node) -> None:
    container = node.container("a")
    container.put_on_a_virtual_clock()

    def now_ns() -> int:
        return int.from_bytes((node.folder / "clock").read_bytes()[8:16], "little")

    with container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0]] == [0, 0]
        before_ns = now_ns()
        assert ask("child")[0] == 0
        assert now_ns() - before_ns < 10_000_000


def test_work_that_a_program_launched_last_is_reported_though_the_driver_answers_late_when_it_ends(node: Node) -> None:
    container = node.container("a", SIMGPU_FAULTS="cuEventQuery:*:slow_us=300000")
    container.put_on_a_virtual_clock()
    assert [answer[0] for answer in container.run("init", "ctx", "launch spin_us_10")] == [0, 0, 0]
    record = decode(container.usage.read_bytes())
    assert record is not None
    assert [device.launches for device in record.devices] == [1]


def test_a_helper_that_is_asked_to_end_before_a_long_pause_begins_none(node: Node) -> None:
    pauses_us = on_a_virtual_clock(node, node.container("a"), "unit/before_the_pause", "end", shim=False)
    assert max(pauses_us) < SLEEP_US


def test_a_helper_that_is_asked_to_look_again_before_a_long_pause_begins_it_after_one_more_look(node: Node) -> None:
    pauses_us = on_a_virtual_clock(node, node.container("a"), "unit/before_the_pause", "send", shim=False)
    assert pauses_us[0] < SLEEP_US < pauses_us[1]


def test_a_launch_waits_no_longer_where_what_it_takes_back_is_granted_again(node: Node) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS // 2),), core=50), Tenant("b", 1, turns=(), core=0))
    container = node.container("a", Share(core=50, schedule=str(page)))
    (times,) = on_a_virtual_clock(node, container, "unit/grants_taken_back", shim=False)
    assert 1000 * times == HOLD_LIMIT_US, "each takes a millisecond"


@pytest.mark.parametrize("arguments", [("launch", "1"), ("alloc", "1"), ("async", "1", "2"), ("init",)])
def test_the_benchmark_of_calls_runs_with_the_shim_and_without(node: Node, arguments: tuple[str, ...]) -> None:
    node.driver = BUILD / "bench" / "null"
    container = node.container("a", Share(memory=65536 * MIB))
    for shim in (True, False):
        given = costs.environment(container, shim=shim)
        done = subprocess.run([costs.CALLS, *arguments], env=given, capture_output=True, text=True, check=True)
        assert (len(done.stdout.split()), done.stderr) == (0 if arguments == ("init",) else 3, "")


if platform.machine() == "x86_64":

    def test_a_launch_in_its_turn_reads_no_clock_calls_no_kernel_and_shares_no_write(node: Node) -> None:
        node.driver = BUILD / "bench" / "null"
        page = node.folder / "page"
        container = node.container("a", Share(schedule=str(page)))
        Agent(node, page, Tenant("a", 0))
        instructions, *rest = on_a_virtual_clock(node, container, "unit/launch_instructions")
        assert rest == [0, 0, 0], "system calls, reads of the clock, atomics that lock"
        assert 22 < instructions < 150, "it takes 22 without the shim"
