"""A context is charged from before it is there until the driver has ended it, whatever was called to end it."""

import subprocess
import sys

import pytest
from node import BUILD, MIB, OUT_OF_MEMORY, Container, Node, Share, ended, until

CONTEXT = 256 * MIB
HELD = 64 * MIB
INVALID_CONTEXT = 201


def test_a_primary_context_is_not_ended_by_the_call_for_others(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        assert [ask(line)[0] for line in ("init", "ctx", f"alloc a {HELD}", f"async b {HELD}")] == [0] * 4
        assert ask("endprimary")[0] == INVALID_CONTEXT
        assert container.charged() == node.truth("a")[0] == CONTEXT + 2 * HELD
        assert [ask("free a")[0], ask("freeasync b")[0], ask("trim")[0]] == [0, 0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT
        assert ask("release")[0] == 0
        assert container.charged() == node.truth("a")[0] == 0


def test_ending_no_context_ends_nothing(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        lines = ["init", "ctx", f"create a {HELD}", f"alloc b {HELD}"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert ask("endctx")[0] != 0, "there was none"
        assert container.charged() == node.truth("a")[0] == CONTEXT + 2 * HELD
        assert [ask("drop a")[0], ask("free b")[0], ask("release")[0]] == [0, 0, 0]
        assert container.charged() == node.truth("a")[0] == 0


def test_a_context_that_was_attached_ends_with_its_last_use(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        lines = ["init", "newctx", f"alloc a {HELD}", "attach", "as cuCtxDestroy_v2 cuCtxDetach", "endctx"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == node.truth("a")[0] == CONTEXT + HELD
        assert ask(f"alloc b {800 * MIB}")[0] == OUT_OF_MEMORY
        assert ask("endctx")[0] == 0
        assert container.charged() == node.truth("a")[0] == 0


def test_an_attached_context_is_destroyed_for_all_who_use_it(node: Node) -> None:
    container = node.container("a")
    assert {a[0] for a in container.run("init", "newctx", f"alloc a {HELD}", "attach", "endctx")} == {0}
    assert container.charged() == 0


@pytest.mark.parametrize("form", ["cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"])
def test_a_reset_ends_the_primary_context_for_all_that_retain_it_and_takes_no_retain_away(
    node: Node, form: str
) -> None:
    container = node.container("a")
    with container.session() as ask:
        lines = ["init", "ctx", "ctx", f"alloc a {HELD}", f"as cuDevicePrimaryCtxReset_v2 {form}", "reset"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == node.truth("a")[0] == 0
        assert [ask("ctx")[0], ask(f"alloc a {HELD}")[0], ask("release")[0], ask("release")[0]] == [0, 0, 0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT + HELD, "three retained it, two let go"
        assert ask("release")[0] == 0
        assert container.charged() == node.truth("a")[0] == 0


@pytest.mark.parametrize("form", ["cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"])
def test_a_primary_context_ends_with_its_last_release(node: Node, form: str) -> None:
    container = node.container("a")
    with container.session() as ask:
        lines = ["init", f"as cuDevicePrimaryCtxRelease_v2 {form}", "ctx", "ctx", f"alloc a {HELD}", "release"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == node.truth("a")[0] == CONTEXT + HELD
        assert ask("release")[0] == 0
        assert container.charged() == node.truth("a")[0] == 0


def test_pools_and_graphs_end_with_the_context_as_far_as_the_driver_ends_them(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        lines = ["newctx", f"async a {HELD}", f"graph b {HELD}", "upload b"]
        for _ in range(3):
            assert [ask(line)[0] for line in ("init", *lines)] == [0] * 5
            assert container.charged() == node.truth("a")[0] == CONTEXT + 2 * HELD
            assert ask("endctx")[0] == 0
            assert container.charged() == node.truth("a")[0] == 0


def test_small_allocations_begin_anew_after_the_context_of_the_last_ended(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        for _ in range(3):
            lines = ["init", "newctx", "alloc a 1000", "alloc b 1000", "endctx", "newctx", "alloc c 1000", "free c"]
            assert [ask(line)[0] for line in lines] == [0] * len(lines)
            assert container.charged() == node.truth("a")[0] == CONTEXT, "no block is set aside for nothing"
            assert ask("endctx")[0] == 0


def test_the_block_that_is_set_aside_for_small_allocations_ends_with_the_context_of_the_last(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        lines = ["init", "newctx", "alloc a 1000", "alloc b 1000", "endctx"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == node.truth("a")[0] == 0


def test_a_context_is_charged_by_the_threads_and_multiprocessors_where_the_node_measured_none(node: Node) -> None:
    container = node.container("a", Share(context=0))
    estimate = 108 * (2048 * 1024 + 2 * MIB) + 24 * MIB
    assert container.run("init", "ctx", "info")[-1] == [0, 1024 * MIB - estimate, 1024 * MIB]


def test_a_refused_green_context_retains_nothing(node: Node) -> None:
    container = node.container("a", SIMGPU_FAULTS="cuGreenCtxCreate:*:error=999")
    with container.session() as ask:
        assert [ask("init")[0], ask("newgreen")[0]] == [0, 999]
        assert container.charged() == node.truth("a")[0] == 0


def test_a_context_of_very_many_allocations_ends_at_once_with_each_of_them_and_no_other() -> None:
    command = [str(BUILD / "tests" / "unit" / "rows_of_a_context"), "400000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found, left, processor_ms = (int(word) for word in done.stdout.split())
    assert [found, left] == [400_000, 400_000]
    assert processor_ms < 1000


def test_green_contexts_of_one_primary_context_are_one_beside_others(node: Node) -> None:
    """The GPU goes round by context, and green ones share the primary one's turn."""
    container = node.container("a", LD_PRELOAD="")
    assert container.start("unit/contexts_beside").communicate(timeout=60) == ("1\n1\n", "")


def test_heaps_and_print_buffers_are_charged_by_their_last_size(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        for size in (50, 150, 100):
            lines = ["init", "ctx", f"heap - {size * MIB}", f"prints - {size * MIB}"]
            assert [ask(line)[0] for line in lines] == [0] * len(lines)
            assert container.charged() == CONTEXT + 2 * size * MIB
        assert ask(f"heap - {2**64 - 1}")[0] == OUT_OF_MEMORY
        assert container.charged() == CONTEXT + 200 * MIB


def test_stacks_of_all_threads_that_can_run_at_one_time_are_charged_and_may_not_pass_the_limit(node: Node) -> None:
    container = node.container("a", Share(memory=2048 * MIB))
    with container.session() as ask:
        assert [ask(line)[0] for line in ("init", "ctx", "stack - 1024")] == [0] * 3
        assert container.charged() == node.truth("a")[0] == CONTEXT
        assert ask("stack - 5120")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT + 4096 * 108 * 2048
        assert ask("stack - 102400")[0] == OUT_OF_MEMORY, "22 GiB"
        assert [ask("stack - 2048")[0], container.unsettled()] == [0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT + 1024 * 108 * 2048
        assert ask("reset")[0] == container.charged() == node.truth("a")[0] == 0


RETAIN_AND_RELEASE = """
import ctypes, sys, threading
driver = ctypes.CDLL("libcuda.so.1")
answers = {driver.cuInit(0)}
def retain_and_release():
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    for _ in range(200):
        answers.add(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        answers.add(driver.cuDevicePrimaryCtxRelease_v2(0))
threads = [threading.Thread(target=retain_and_release) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(answers, flush=True)
sys.stdin.readline()
"""
"""There is room for one context: none may be charged twice."""

MADE_SLOWLY = """
import ctypes, sys, threading, time
driver = ctypes.CDLL("libcuda.so.1")
contexts = [ctypes.c_void_p() for _ in range(2)]
answers = [driver.cuInit(0)]
def retains(context):
    answers.append(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
first, second = [threading.Thread(target=retains, args=(context,)) for context in contexts]
first.start()
while "cuDevicePrimaryCtxRetain" not in open(sys.argv[1]).read():
    time.sleep(0.01)
second.start()
first.join()
second.join()
print(*answers, contexts[0].value == contexts[1].value, flush=True)
sys.stdin.readline()
"""
"""A thread retains a primary context while the driver makes it for another."""

ENDS_SLOWLY = """
import ctypes, sys, threading, time
driver = ctypes.CDLL("libcuda.so.1")
contexts = [ctypes.c_void_p() for _ in range(3)]
answers = [driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(contexts[0]), 0)]
ended = threading.Event()
def ends():
    answers.append(driver.cuDevicePrimaryCtxRelease_v2(0))
    ended.set()
threading.Thread(target=ends).start()
while "cuDevicePrimaryCtxRelease_v2" not in open(sys.argv[1]).read():
    time.sleep(0.01)
for device, context in ((1, contexts[1]), (0, contexts[2])):
    answers.append(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    print(int(ended.is_set()), flush=True)
ended.wait()
print(*answers, flush=True)
sys.stdin.readline()
"""
"""A primary context of one device is retained while the driver ends that of another, and its own."""

RETAINED_FOR_LONG = """
import ctypes, sys, threading, time
driver = ctypes.CDLL("libcuda.so.1")
context, returned = ctypes.c_void_p(), threading.Event()
answers = [driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)]
def retains():
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    returned.set()
threading.Thread(target=retains, daemon=True).start()
while open(sys.argv[1]).read().count("cuDevicePrimaryCtxRetain") < 2:
    time.sleep(0.01)
answers.append(driver.cuDevicePrimaryCtxRelease_v2(0))
print(*answers, returned.is_set(), flush=True)
sys.stdin.readline()
"""
"""A primary context is released while the driver does not come back from retaining it."""


@pytest.mark.parametrize("also", [{}, {"RELEASES": "1"}], ids=["retains", "retains and releases"])
def test_a_tool_may_retain_the_primary_context_while_the_driver_does_and_it_is_charged_once(
    node: Node, also: dict[str, str]
) -> None:
    """A profiler does so from a callback, in the thread whose call it reports."""
    tool = {"SIMGPU_TOOL": str(BUILD / "tests" / "unit" / "tool.so"), "CALLED": "cuDevicePrimaryCtxRetain", **also}
    container = node.container("a", Share(memory=CONTEXT + HELD), **tool)
    with container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0]] == [0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT
        assert {ask("release")[0] for _ in range(1 if also else 2)} == {0}
        assert (container.charged(), container.unsettled(), node.truth("a")[0]) == (0, 0, 0)


def test_so_it_may_while_the_driver_ends_the_context_which_then_lives_on(node: Node) -> None:
    tool = {"SIMGPU_TOOL": str(BUILD / "tests" / "unit" / "tool.so"), "CALLED": "cuDevicePrimaryCtxRelease_v2"}
    container = node.container("a", Share(memory=CONTEXT + HELD), **tool)
    with container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0], ask("release")[0]] == [0, 0, 0]
        assert (container.charged(), container.unsettled(), node.truth("a")[0]) == (CONTEXT, 0, CONTEXT)


def test_no_release_waits_for_a_retain_from_which_the_driver_does_not_come_back(node: Node) -> None:
    calls = node.folder / "calls"
    node.settings["SIMGPU_FAULTS"] = "cuDevicePrimaryCtxRetain:2:slow_us=600000000"
    container = node.container("a", SIMGPU_TRACE=str(calls))
    command, pipe = [sys.executable, "-c", RETAINED_FOR_LONG, str(calls)], subprocess.PIPE
    program = subprocess.Popen(command, env=container.environment(), stdin=pipe, stdout=pipe, text=True)
    with ended(program):
        assert program.stdout is not None
        assert program.stdout.readline() == "0 0 0 False\n"


def test_a_reset_while_the_driver_is_long_about_to_make_the_context_leaves_nothing_charged(node: Node) -> None:
    given = {name: value for name, value in node.container("a").environment().items() if name != "LD_PRELOAD"}
    command = [str(BUILD / "tests" / "unit" / "reset_in_retain")]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0", "1", str(CONTEXT)]


def test_no_primary_context_waits_for_one_that_the_driver_is_long_about_to_end(node: Node) -> None:
    """To end one, the driver may wait for its work, and that for what another thread does."""
    calls = node.folder / "calls"
    node.settings |= {"SIMGPU_DEVICES": "2", "SIMGPU_FAULTS": "cuDevicePrimaryCtxRelease_v2:1:slow_us=5000000"}
    container = node.container("a", Share(), Share(ordinal=1), SIMGPU_TRACE=str(calls))
    command, pipe = [sys.executable, "-c", ENDS_SLOWLY, str(calls)], subprocess.PIPE
    program = subprocess.Popen(command, env=container.environment(), stdin=pipe, stdout=pipe, text=True)
    with ended(program):
        assert program.stdout is not None
        assert [program.stdout.readline() for _ in range(3)] == ["0\n", "0\n", "0 0 0 0 0\n"]
        assert [container.charged(device) for device in range(2)] == [CONTEXT, CONTEXT]
        assert [node.truth("a", device)[0] for device in range(2)] == [CONTEXT, CONTEXT]


def test_a_primary_context_that_the_driver_is_long_about_to_make_is_charged_once(node: Node) -> None:
    calls = node.folder / "calls"
    node.settings["SIMGPU_FAULTS"] = "cuDevicePrimaryCtxRetain:1:slow_us=3000000"
    container = node.container("a", Share(memory=CONTEXT + HELD), SIMGPU_TRACE=str(calls))
    command, pipe = [sys.executable, "-c", MADE_SLOWLY, str(calls)], subprocess.PIPE
    program = subprocess.Popen(command, env=container.environment(), stdin=pipe, stdout=pipe, text=True)
    with ended(program):
        assert program.stdout is not None
        assert program.stdout.readline() == "0 0 0 True\n"
        assert (container.charged(), container.unsettled()) == (CONTEXT, 0)


def test_primary_contexts_that_threads_retain_and_release_at_once_are_charged_while_they_live(node: Node) -> None:
    container = node.container("a", Share(memory=CONTEXT + HELD))
    command, pipe = [sys.executable, "-c", RETAIN_AND_RELEASE], subprocess.PIPE
    program = subprocess.Popen(command, env=container.environment(), stdin=pipe, stdout=pipe, text=True)
    with ended(program):
        assert program.stdout is not None
        assert program.stdout.readline() == "{0}\n"
        assert (container.charged(), container.unsettled()) == (0, 0)


def test_contexts_that_were_made_past_the_shim_are_let_go_of_when_they_end(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        lines = ["init", "bypass - 200", "newctx", "launch spin_us_1"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        launched = launches(container)
        assert ask("launch spin_us_1")[0] == 0
        until(lambda: launches(container) > launched)


def launches(container: Container) -> int:
    """Returns the number of the container's launches that are accounted for."""
    with container.ledger.open("rb") as ledger:
        return int.from_bytes(ledger.read(4096)[64 + 32 :][:8], "little")
