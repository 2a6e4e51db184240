"""Programs that are correct and do what few do end as without the shim."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from agent import PERIOD_NS, Agent, Tenant
from deck_programs import part_of_a_gpu, run
from node import BUILD, MIB, OUT_OF_MEMORY, Node, Share, ended

STACK_OF_THE_SHIM = 8 << 10
"""Bytes; without the shim such a thread needs 6 KiB on the simulated GPU."""

SYSTEM_NOT_READY = 802
SLICE = Share(memory=80 << 30)


def test_a_thread_may_launch_in_the_last_pass_over_its_keys_destructors(node: Node) -> None:
    assert run(node.container("a"), ("unusual", "last"), virtual=False)[0] == 0


def test_a_thread_needs_little_more_of_a_stack(node: Node) -> None:
    """Threads of runtimes with many, and fibers, have small ones."""
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    with Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS // 2),))):
        results, written = zip(
            *(run(container, ("unusual", "stack"), shim=shim, virtual=False) for shim in (False, True)), strict=True
        )
    assert results == (0, 0)
    assert written[1] <= written[0] + STACK_OF_THE_SHIM


def test_a_capture_that_ends_with_its_context_costs_later_launches_nothing(node: Node) -> None:
    calls = node.folder / "calls"
    container = part_of_a_gpu(node, 50)
    container.settings["SIMGPU_TRACE"] = str(calls)
    assert run(container, ("unusual", "capture", "1000"))[0] == 0
    assert calls.read_text().count("cuEventRecord") < 500, "most launches are not measured by themselves"


def test_a_graph_with_conditions_runs_the_same_bodies_and_waits_for_its_turn_alone(node: Node) -> None:
    """A launch is 2 ms of kernels in the bodies of a loop and of a choice; 25 ms of each period are another's."""
    container = part_of_a_gpu(node, 50)
    container.settings["SIMGPU_CALL_COSTS"] = "1"
    plain, held = (run(container, ("unusual", "conditional", "50"), shim=shim) for shim in (False, True))
    assert (plain[0], held[0]) == (0, 0)
    assert plain[1] < 2_500
    assert held[1] <= plain[1] + PERIOD_NS // 2_000 + 1_000


def test_two_processes_whose_streams_wait_for_each_others_events_end_as_without_the_shim(node: Node) -> None:
    """Kernels of one program wait for kernels that the other launches later, and neither program is held for it."""
    container = part_of_a_gpu(node, 50)
    plain, held = (run(container, ("ipc_events", "60"), shim=shim, virtual=False) for shim in (False, True))
    assert (plain[0], held[0]) == (0, 0)
    assert held[1] < 3 * plain[1] + 2 * PERIOD_NS // 1_000, "a hold of each round would be 6 s"


def test_after_an_error_that_stays_each_call_answers_as_soon_as_without_the_shim(node: Node) -> None:
    """A program may go on for long before it looks at an error: its launches wait for no work that never ends."""
    container = part_of_a_gpu(node, 50)
    times = [run(container, ("unusual", "fault", "200"), shim=shim) for shim in (False, True)]
    assert [result for result, _ in times] == [0, 0]
    assert times[1][1] < times[0][1] + PERIOD_NS // 1000
    assert container.unsettled() == 0


def test_a_program_without_memory_is_answered_and_goes_on(node: Node) -> None:
    assert run(node.container("a"), ("unusual", "starved"), virtual=False)[0] == OUT_OF_MEMORY


def test_a_program_without_memory_finds_no_function_that_passes_the_limit(node: Node) -> None:
    assert run(node.container("a"), ("unusual", "unread"), virtual=False)[0] == OUT_OF_MEMORY


@pytest.mark.parametrize("shim", [False, True])
def test_a_thread_without_a_context_allocates_in_the_order_of_a_stream_that_has_one(node: Node, *, shim: bool) -> None:
    assert run(node.container("a"), ("unusual", "contextless"), shim=shim, virtual=False)[0] == 0


@pytest.mark.parametrize("refusal", [0, 1])
def test_a_range_with_a_gap_is_unmapped_as_the_driver_says_and_no_part_of_it_before(node: Node, refusal: int) -> None:
    """Whether NVIDIA's driver refuses it no document says."""
    calls = node.folder / "calls"
    container = node.container("a", SIMGPU_TRACE=str(calls))
    if refusal:
        container.settings["SIMGPU_FAULTS"] = f"cuMemUnmap:1:error={refusal}"
    assert run(container, ("unusual", "gap"), virtual=False) == (0, refusal)
    assert calls.read_text().splitlines().count("cuMemUnmap") == 1


SEES_NO_FILES = """
import ctypes, os, sys
driver = ctypes.CDLL("libcuda.so.1")
os.unlink(sys.argv[1])
print(driver.cuInit(0))
"""
"""As a program that changes its root, the container's files are out of its sight at its first call."""


def test_a_program_that_changed_its_root_before_its_first_call_is_refused_and_not_let_go(node: Node) -> None:
    container = node.container("a")
    command = [sys.executable, "-c", SEES_NO_FILES, str(container.config)]
    done = subprocess.run(command, env=container.environment(), capture_output=True, text=True, check=True)
    assert int(done.stdout) == SYSTEM_NOT_READY
    assert done.stderr.endswith("is missing in a FairGPU container: CUDA is refused\n")


WITHOUT_DESCRIPTORS = """
import ctypes, resource, sys
driver, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
answers, most = [driver.cuInit(0)], resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, most[1]))
answers.append(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
resource.setrlimit(resource.RLIMIT_NOFILE, most)
size = ctypes.c_size_t(500 << 20)
answers += [driver.cuCtxPushCurrent_v2(context), driver.cuMemAlloc_v2(ctypes.byref(pointer), size)]
print(*answers, flush=True)
sys.stdin.readline()
"""
"""All descriptors are in use when the first context is made."""


def test_a_program_that_could_open_no_file_when_it_made_its_context_is_not_taken_for_dead(node: Node) -> None:
    container, pipe = node.container("a"), subprocess.PIPE
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS]
    program = subprocess.Popen(command, env=container.environment(), stdin=pipe, stdout=pipe, text=True)
    with ended(program):
        assert program.stdout is not None
        assert program.stdout.readline() == "0 0 0 0\n"
        lines = ["init", "ctx", "info", "release"]  # to say what is free it looks for the dead
        assert [answer[0] for answer in container.run(*lines)] == [0] * len(lines)
        assert container.living() == 1
        assert container.charged() == node.truth("a")[0] == 756 * MIB


FIRST_CALL_WITHOUT = """
import ctypes, resource, sys
limit, pointer, context, size = getattr(resource, sys.argv[1]), ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_size_t
driver, most = ctypes.CDLL("libcuda.so.1"), resource.getrlimit(limit)
names = ("cuInit", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuMemAlloc_v2")
resource.setrlimit(limit, (0, most[1]))
init, retain, push, allocate = (getattr(driver, name) for name in names)
answers = [init(0), init(0)]
resource.setrlimit(limit, most)
answers += [init(0), retain(ctypes.byref(context), 0), push(context)]
print(*answers, *(allocate(ctypes.byref(pointer), size(700 << 20)) for _ in range(2)))
"""
"""All descriptors, or all of the address space, are in use when the program first asks for a function of the driver."""


@pytest.mark.parametrize("limit", ["RLIMIT_NOFILE", "RLIMIT_AS"])
def test_a_program_that_had_no_means_at_its_first_call_is_refused_only_until_it_has_some(
    node: Node, limit: str
) -> None:
    command = [sys.executable, "-c", FIRST_CALL_WITHOUT, limit]
    environment = node.container("a").environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    refused = str(SYSTEM_NOT_READY)
    assert done.stdout.split() == [refused, refused, "0", "0", "0", "0", str(OUT_OF_MEMORY)]
    assert done.stderr.count("CUDA is refused until it can be\n") == done.stderr.count("\n") == 1


def test_a_line_that_nothing_reads_ends_no_program(node: Node) -> None:
    container = node.container("a", Share(schedule=str(node.folder / "missing")))
    reads, writes = os.pipe()
    os.close(reads)
    program, given, pipe = str(BUILD / "tests" / "actor"), container.environment(), subprocess.PIPE
    done = subprocess.run([program], env=given, input="init\n", stdout=pipe, stderr=writes, text=True, check=False)
    os.close(writes)
    assert (done.returncode, done.stdout.split()[0]) == (0, "0")


IN_ODD_STATES = """
import ctypes, sys
driver, state = ctypes.CDLL("libcuda.so.1"), sys.argv[1]
context, free, pool, number = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_uint64()
size, here = ctypes.c_size_t(4 << 20), ctypes.byref
words = (ctypes.c_int * 64)(1, 0, 1, 0)  # pinned memory of device 0; a pool of it
if state != "before cuInit":
    print(driver.cuInit(0))
if state == "ended context":
    print(driver.cuDevicePrimaryCtxRetain(here(context), 0), driver.cuCtxPushCurrent_v2(context),
          driver.cuMemAlloc_v2(here(number), size), driver.cuDevicePrimaryCtxReset_v2(0))
calls = {
    "cuDevicePrimaryCtxRelease_v2": (0,), "cuDevicePrimaryCtxReset_v2": (0,),
    "cuDeviceTotalMem_v2": (here(free), 0), "cuDeviceGraphMemTrim": (0,), "cuMemPoolCreate": (here(pool), words),
    "cuMemCreate": (here(number), size, words, ctypes.c_uint64(0)), "cuMemAlloc_v2": (here(number), size),
    "cuMemAllocManaged": (here(number), size, 1), "cuMemAllocPitch_v2": (here(number), here(free), size, size, 4),
    "cuMemAllocAsync": (here(number), size, None), "cuMemAllocFromPoolAsync": (here(number), size, None, None),
    "cuMemFreeAsync": (ctypes.c_uint64(77), None), "cuMemFree_v2": (ctypes.c_uint64(77),),
    "cuMemGetInfo_v2": (here(free), here(free)), "cuCtxSetLimit": (2, size), "cuModuleLoadData": (here(pool), None),
    "cuMemsetD8_v2": (ctypes.c_uint64(0), 1, ctypes.c_size_t(32 << 20)), "cuCtxDetach": (None,),
    "cuStreamEndCapture": (None, here(pool)), "cuGraphLaunch": (None, None), "cuCtxSynchronize": (),
    "cuDevicePrimaryCtxRetain": (here(context), 0), "cuCtxCreate_v2": (here(context), 0, 0),
}
for name, arguments in calls.items():
    for device in (0, 70) if 0 in arguments and "Ctx" in name else (0,):
        given = [device if type(argument) is int and argument == 0 else argument for argument in arguments]
        print(name, device, getattr(driver, name)(*given), flush=True)
"""
"""Prints the result of each call before cuInit, without a context, or after its context ended."""


@pytest.mark.parametrize("state", ["before cuInit", "no context", "ended context"])
@pytest.mark.parametrize("release", ["11.8", "12", "13"])
def test_calls_answer_as_the_driver_where_there_is_nothing_to_do_them_in(node: Node, release: str, state: str) -> None:
    """A library takes "not initialized" from a child of a fork for what it is, and "invalid device" for a fault."""
    node.driver = Path(BUILD / "simgpu" / release)
    given = node.container("a", SLICE).environment()
    answers = []
    for shim in (True, False):
        if not shim:
            del given["LD_PRELOAD"]
        command = [sys.executable, "-c", IN_ODD_STATES, state]
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout.splitlines())
    assert answers[0] == answers[1]
