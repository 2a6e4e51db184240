"""The GPU time in a container's figures is what the GPU did."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from agent import PERIOD_NS, Agent, Tenant
from deck_programs import part_of_a_gpu, run
from node import BUILD, Container, Node, Share, ended, give_line, until

sys.path.append(str(BUILD.parent / "bench"))
sys.path.append(str(BUILD.parent.parent))
import virtual_shares
from shares import work_done

from nodeagent.schedule_page import LEDGER_PAGE_SIZE, Activity, unpack_activity

BURST = ("spin_us_10", "100")
UNEVEN = ("spin_us_2000", "3", "spin_us_10", "300")
"""As a step of training is: some long kernels, and many short ones."""
NEIGHBOURS = 6
"""Each has the GPU for 0.5 to 2 ms before the next; without them it goes to the first that launches."""


def reported(container: Container) -> Activity:
    """Returns the figures of the container's first GPU in its ledger."""
    with container.ledger.open("rb") as ledger:
        return unpack_activity(ledger.read(LEDGER_PAGE_SIZE))[0]


def asleep(clock: Path, count: int) -> bool:
    """True once so many of the threads on the clock wait for it."""
    return virtual_shares.on_the_clock(clock).count(virtual_shares.SLEEPING) >= count


def test_work_in_its_turn_is_no_overrun_though_others_had_the_gpu_when_the_container_first_launched(node: Node) -> None:
    page, clock = node.folder / "page", node.folder / "clock"
    others = [Tenant(f"neighbour-{i}", i + 1, turns=(), core=0) for i in range(NEIGHBOURS)]
    Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS // 5),), core=20), *others)
    container = node.container("a", Share(core=20, schedule=str(page)))
    neighbours = [node.container(f"neighbour-{i}") for i in range(NEIGHBOURS)]
    for each in (container, *neighbours):
        libraries = [virtual_shares.LIBRARY] if each in neighbours else [virtual_shares.LIBRARY, each.library]
        each.settings |= {"VIRTUAL_TIME": str(clock), "LD_PRELOAD": ":".join(map(str, libraries))}
    with ExitStack() as ends:
        first = [ends.enter_context(ended(one.start("spin", "0.02", "5000", "1", "completed"))) for one in neighbours]
        program = ends.enter_context(ended(container.start("spin", "2", "100")))
        until(lambda: len(virtual_shares.on_the_clock(clock)) > NEIGHBOURS)  # one that waits for its line stops it
        for one in first:
            give_line(one)
        until(lambda: asleep(clock, NEIGHBOURS))
        give_line(program)
        assert program.communicate(timeout=240)[1] == ""
    done_ns = work_done(node)["a"]
    activity = reported(container)
    assert abs(activity.busy_ns - done_ns) < done_ns / 20
    assert activity.overrun_ns < done_ns / 50, "what it began before its turn ended, it ended soon after"


def run_alone(container: Container, *program: str) -> None:
    """Lets a program (steps.c) run alone on a clock that only it moves."""
    container.settings["VIRTUAL_TIME"] = str(container.node.folder / "clock")
    container.settings["LD_PRELOAD"] = f"{virtual_shares.LIBRARY}:{container.library}"
    with ended(container.start("steps", *program)) as running:
        give_line(running)
        assert running.communicate(timeout=240)[1] == ""


@pytest.mark.parametrize("ppm", [990_000, 1_010_000])
def test_nor_is_it_where_the_gpus_clock_goes_slower_or_faster_than_the_nodes(node: Node, ppm: int) -> None:
    node.settings["SIMGPU_CLOCK_PPM"] = str(ppm)
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS // 5),), core=20))
    container = node.container("a", Share(core=20, schedule=str(page)))
    run_alone(container, "1", "1", "0", "spin_us_100", "1")
    done_ns = work_done(node)["a"]
    activity = reported(container)
    assert abs(activity.busy_ns - done_ns) < done_ns / 20
    assert activity.overrun_ns < done_ns / 50


@pytest.mark.parametrize("percent", [20, 100])
@pytest.mark.parametrize(
    ("streams", "pause_us", "program"),
    [
        pytest.param(1, 0, ("spin_us_100", "1"), id="one kernel after the other"),
        pytest.param(4, 0, ("spin_us_100", "1"), id="the same on four streams"),
        pytest.param(0, 0, ("spin_us_100", "1"), id="the same on the thread's own default stream"),
        pytest.param(0, 20_000, ("spin_us_500", "6"), id="some behind one another on it"),
        pytest.param(1, 1_000, ("spin_us_100", "1"), id="one now and then"),
        pytest.param(1, 1_000, ("spin_us_100", "1", "wait"), id="one now and then that is waited for"),
        pytest.param(4, 1_000, ("spin_us_100", "4", "each"), id="one now and then on four streams"),
        pytest.param(1, 150, ("spin_us_50", "1"), id="one that is done before the next"),
        pytest.param(1, 20_000, (*BURST, "wait"), id="bursts"),
        pytest.param(1, 0, ("spin_us_4000", "1", "spin_us_20", "20"), id="a long one among short ones"),
        pytest.param(1, 0, UNEVEN, id="steps of uneven kernels"),
        pytest.param(1, 3_000, (*UNEVEN, "wait"), id="steps that are waited for"),
    ],
)
def test_a_container_tells_the_gpu_time_that_its_kernels_took_however_it_launches_them(
    node: Node, percent: int, streams: int, pause_us: int, program: tuple[str, ...]
) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS * percent // 100),), core=percent))
    container = node.container("a", Share(core=percent, schedule=str(page)))
    run_alone(container, "0.5", str(streams), str(pause_us), *program)
    done_ns = work_done(node)["a"]
    assert abs(reported(container).busy_ns - done_ns) < done_ns / 20


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(UNEVEN, id="steps of uneven kernels"),
        pytest.param(("spin_us_4000", "1", "spin_us_20", "20"), id="a long one among short ones"),
        pytest.param(("spin_us_10", "3000", "spin_us_2000", "10"), id="many of one length and then some of another"),
    ],
)
def test_work_that_is_longer_than_what_was_before_it_is_not_taken_for_disturbed(
    node: Node, program: tuple[str, ...]
) -> None:
    """Its neighbour has a turn, and could have run over into this container's; but it launches nothing."""
    page, own = node.folder / "page", PERIOD_NS * 9 // 10
    Agent(node, page, Tenant("a", 0, turns=((0, own),)), Tenant("quiet", 1, turns=((own, PERIOD_NS - own),)))
    container = node.container("a", Share(core=90, schedule=str(page)))
    run_alone(container, "1", "1", "0", *program)
    assert reported(container).busy_ns > work_done(node)["a"] * 0.9


@pytest.mark.parametrize("percent", [50, 100])
def test_the_beginning_of_a_kernel_counts_also_where_one_of_another_context_ends_before_it(
    node: Node, percent: int
) -> None:
    container = part_of_a_gpu(node, percent)
    result, _ = run(container, ("unusual", "contexts", "20"))
    done_ns = work_done(node)["a"]
    busy_ns = reported(container).busy_ns
    assert (result, abs(busy_ns - done_ns) < done_ns / 20) == (0, True), f"{busy_ns} of {done_ns}"


def test_time_for_which_another_context_waits_for_the_host_is_no_gpu_time(node: Node) -> None:
    container = part_of_a_gpu(node, 50)
    result, _ = run(container, ("unusual", "beside", "100"))
    done_ns = work_done(node)["a"]
    assert (result, abs(reported(container).busy_ns - done_ns) < done_ns / 20) == (0, True)


def test_a_kernel_that_goes_on_is_charged_before_it_ends(node: Node) -> None:
    container = node.container("a")
    with ended(container.start("actor")) as program:
        assert program.stdin is not None
        program.stdin.write("init\nctx\nlaunch spin_ms_3600000\n")
        program.stdin.flush()
        until(lambda: container.living() == 1)
        until(lambda: reported(container).busy_ns > 300_000_000)
        assert program.poll() is None


def test_so_is_one_beside_a_stream_that_waits_for_the_host(node: Node) -> None:
    container = node.container("a")
    with ended(container.start("programs/waiting", "beside", "spin_ms_3600000")) as program:
        until(lambda: container.living() == 1)
        until(lambda: reported(container).busy_ns > 300_000_000)
        assert program.poll() is None


@pytest.mark.parametrize(
    ("program", "most_ns"),
    [
        pytest.param(("held", "1000", "spin_us_10"), 100_000_000, id="before a short kernel"),
        pytest.param(("held", "1000", "spin_ms_500"), 700_000_000, id="before a long one"),
        pytest.param(("late", "1000"), 100_000_000, id="while another stream has a short one"),
        pytest.param(("within", "1000"), 100_000_000, id="between two kernels that are admitted at one time"),
        pytest.param(("bursts", "500"), 100_000_000, id="twice among kernels that are launched at once"),
        pytest.param(("chain", "1000"), 100_000_000, id="while another stream waits for its kernel"),
        pytest.param(("among", "1000"), 100_000_000, id="while another stream has more than is admitted at one time"),
    ],
)
def test_time_for_which_a_stream_waits_for_the_host_is_no_gpu_time(
    node: Node, program: tuple[str, ...], most_ns: int
) -> None:
    container = node.container("a")
    result, took_us = run(container, ("waiting", *program))
    assert (result, took_us >= 1_000_000) == (0, True)
    assert reported(container).busy_ns < most_ns


@pytest.mark.parametrize("kind", ["within", "bursts", "held", "late"])
def test_nor_is_it_of_a_container_that_is_held_to_turns(node: Node, kind: str) -> None:
    container = part_of_a_gpu(node, 50)
    result, took_us = run(container, ("waiting", kind, "1000"))
    assert (result, took_us >= 1_000_000) == (0, True)
    assert reported(container).busy_ns < 100_000_000


WAITS = (
    "cuLaunchHostFunc",
    "cuLaunchHostFunc_ptsz",
    "cuStreamAddCallback",
    "cuStreamAddCallback_ptsz",
    "cuStreamWaitEvent",
    "cuStreamWaitEvent_ptsz",
    "cuStreamWaitValue32_v2",
    "cuStreamWaitValue32_v2_ptsz",
    "cuStreamBatchMemOp_v2",
    "cuStreamBatchMemOp_v2_ptsz",
)


@pytest.mark.parametrize("call", WAITS)
def test_by_whatever_call_it_waits(node: Node, call: str) -> None:
    container = part_of_a_gpu(node, 50)
    result, took_us = run(container, ("waiting", "within", "1000", call))
    assert (result, took_us >= 1_000_000) == (0, True)
    assert reported(container).busy_ns < 100_000_000


@pytest.mark.parametrize(
    "case",
    [
        "charged_then_joined",
        "prolonged_while_it_is_asked_about",
        "prolonged_twice_meanwhile",
        "ended_while_a_beginning_is_recorded",
        "forked_while_it_is_asked_about",
    ],
)
def test_work_that_another_thread_does_at_the_same_time_is_neither_forgotten_nor_mistaken(
    node: Node, case: str
) -> None:
    assert_as_wanted(node, case)


@pytest.mark.parametrize("case", ["ended_with_others_unseen", "ended_with_an_error"])
def test_a_streams_part_of_the_work_beside_another_ends_with_its_span(node: Node, case: str) -> None:
    assert_as_wanted(node, case)


def assert_as_wanted(node: Node, case: str) -> None:
    """Runs one case with a driver that is played."""
    container = node.container("a")
    given = {name: value for name, value in container.environment().items() if name != "LD_PRELOAD"}
    command = [str(BUILD / "tests" / "unit" / "spans_overtaken"), case]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    got, wanted = done.stdout.split()
    assert got == wanted


def test_work_of_contexts_that_end_right_after_it_is_reported(node: Node) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0))
    container = node.container("a", Share(schedule=str(page)))
    container.put_on_a_virtual_clock()
    answers = container.run("init", *["newctx", "launch spin_ms_20", "endctx"] * 20)
    assert {answer[0] for answer in answers} == {0}
    done_ns = work_done(node)["a"]
    assert done_ns >= 400_000_000
    assert reported(container).launches == 20
    assert abs(reported(container).busy_ns - done_ns) < done_ns / 20
