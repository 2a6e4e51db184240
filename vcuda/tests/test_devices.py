"""A container with several GPUs has its own share of each, and reports each by itself."""

import subprocess
import sys

import pytest
from agent import PERIOD_NS, Agent, Tenant
from node import BUILD, MIB, Node, Share
from test_time import on_a_virtual_clock

sys.path.append(str(BUILD.parent / "simgpu"))
sys.path.append(str(BUILD.parent.parent))
import truth

from nodeagent.schedule_page import LEDGER_PAGE_SIZE, unpack_activity

MILLISECONDS = 1_000
NEAR_POINTS = 3
"""The most by which a share may differ: each look cuts a period, and the first launches ask one by one."""

ELSEWHERE = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
first, second, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
pointer, free, total = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
def free_bytes(context):
    assert driver.cuCtxSetCurrent(context) == driver.cuMemGetInfo_v2(ctypes.byref(free), None) == 0
    return free.value
assert driver.cuInit(0) == 0
for ordinal, context in enumerate((first, second)):
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal) == 0
before = free_bytes(first), free_bytes(second)
assert driver.cuStreamCreate(ctypes.byref(stream), 1) == driver.cuCtxSetCurrent(first) == 0
assert driver.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(32 << 20), stream) == 0
print(before[0] - free_bytes(first), before[1] - free_bytes(second))
"""


def test_a_stream_ordered_allocation_is_of_the_streams_gpu_whichever_is_current(node: Node) -> None:
    node.settings["SIMGPU_DEVICES"] = "2"
    container = node.container("a", Share(), Share(ordinal=1))
    command = [sys.executable, "-c", ELSEWHERE]
    done = subprocess.run(command, env=container.environment(), capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout.split()) == ("", ["0", str(32 * MIB)])


@pytest.mark.parametrize("percent", [(30, 60), (70, 20, 100)])
def test_a_thread_for_each_gpu_completes_and_tells_what_the_turns_on_it_allow(
    node: Node, percent: tuple[int, ...]
) -> None:
    node.settings["SIMGPU_DEVICES"] = str(len(percent))
    shares = []
    for ordinal, core in enumerate(percent):
        page = node.folder / f"page-{ordinal}"
        Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS * core // 100),), core=core))
        shares.append(Share(4096 * MIB, core, ordinal=ordinal, schedule=str(page)))
    container = node.container("a", *shares)
    assert on_a_virtual_clock(node, container, "launches", "devices", str(MILLISECONDS)) == [len(percent)]
    contexts = truth.Truth(node.folder / "gpu").contexts()
    done = {context.device: context.solo_ns / MILLISECONDS / 1e4 for context in contexts}
    reported = unpack_activity(container.ledger.read_bytes()[:LEDGER_PAGE_SIZE])
    assert done == pytest.approx(dict(enumerate(percent)), abs=NEAR_POINTS)
    for ordinal, completed in done.items():
        assert reported[ordinal].busy_ns / MILLISECONDS / 1e4 == pytest.approx(completed, abs=NEAR_POINTS)
