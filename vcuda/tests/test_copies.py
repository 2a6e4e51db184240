"""Large fills, and large copies from a device's memory to a device's memory, are launches; other copies are not."""

import pytest
from agent import Agent, Tenant
from node import BUILD, MIB, Container, Node, Share
from test_spans import reported
from test_time import HOLD_LIMIT_US, SLEEP_US

INVALID = 1
BYTES = 64 * MIB
SMALL = 8 * MIB - 4096
MOST_ASKED = 100
"""The most of a batch's 200 copies that the shim may ask the driver about."""
ON_DEVICE_US = 50
"""The least that the simulated GPU takes for BYTES on a device, or between two."""

FILLS = (
    "cuMemsetD8_v2",
    "cuMemsetD8_v2_ptds",
    "cuMemsetD8Async",
    "cuMemsetD8Async_ptsz",
    "cuMemsetD16_v2",
    "cuMemsetD16_v2_ptds",
    "cuMemsetD16Async",
    "cuMemsetD16Async_ptsz",
    "cuMemsetD32_v2",
    "cuMemsetD32_v2_ptds",
    "cuMemsetD32Async",
    "cuMemsetD32Async_ptsz",
    "cuMemsetD2D8_v2",
    "cuMemsetD2D8_v2_ptds",
    "cuMemsetD2D8Async",
    "cuMemsetD2D8Async_ptsz",
    "cuMemsetD2D16_v2",
    "cuMemsetD2D16_v2_ptds",
    "cuMemsetD2D16Async",
    "cuMemsetD2D16Async_ptsz",
    "cuMemsetD2D32_v2",
    "cuMemsetD2D32_v2_ptds",
    "cuMemsetD2D32Async",
    "cuMemsetD2D32Async_ptsz",
)
BY_BYTES = (
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoD_v2_ptds",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoDAsync_v2_ptsz",
    "cuMemcpyDtoA_v2",
    "cuMemcpyDtoA_v2_ptds",
    "cuMemcpyAtoD_v2",
    "cuMemcpyAtoD_v2_ptds",
    "cuMemcpyAtoA_v2",
    "cuMemcpyAtoA_v2_ptds",
    "cuMemcpyPeer",
    "cuMemcpyPeer_ptds",
    "cuMemcpyPeerAsync",
    "cuMemcpyPeerAsync_ptsz",
)
BY_ADDRESS = (
    "cuMemcpy",
    "cuMemcpy_ptds",
    "cuMemcpyAsync",
    "cuMemcpyAsync_ptsz",
)
BOXES = (
    "cuMemcpy2D_v2",
    "cuMemcpy2D_v2_ptds",
    "cuMemcpy2DUnaligned_v2",
    "cuMemcpy2DUnaligned_v2_ptds",
    "cuMemcpy2DAsync_v2",
    "cuMemcpy2DAsync_v2_ptsz",
    "cuMemcpy3D_v2",
    "cuMemcpy3D_v2_ptds",
    "cuMemcpy3DAsync_v2",
    "cuMemcpy3DAsync_v2_ptsz",
    "cuMemcpy3DPeer",
    "cuMemcpy3DPeer_ptds",
    "cuMemcpy3DPeerAsync",
    "cuMemcpy3DPeerAsync_ptsz",
)
BATCHES = (
    "cuMemcpyBatchAsync",
    "cuMemcpyBatchAsync_ptsz",
    "cuMemcpyBatchAsync_v2",
    "cuMemcpyBatchAsync_v2_ptsz",
    "cuMemcpy3DBatchAsync",
    "cuMemcpy3DBatchAsync_ptsz",
    "cuMemcpy3DBatchAsync_v2",
    "cuMemcpy3DBatchAsync_v2_ptsz",
)
LARGE_ONES = (*FILLS, *BY_BYTES, *BY_ADDRESS, *BOXES, *BATCHES)
INTO_STREAMS = tuple(call for call in LARGE_ONES if "Async" in call and "Batch" not in call)


def never_in_turn(node: Node) -> Container:
    """A container that holds parts of two GPUs and has no turn on either."""
    node.settings["SIMGPU_DEVICES"] = "2"
    shares = []
    for ordinal in range(2):
        page = node.folder / f"page-{ordinal}"
        Agent(node, page, Tenant("a", 0, turns=()))
        shares.append(Share(ordinal=ordinal, schedule=str(page)))
    return node.container("a", *shares)


def made(container: Container, call: str, size: int, how: str, *, shim: bool = True) -> tuple[int, int]:
    """Returns the CUresult of a call, made on a clock that only it moves, and the microseconds that it took."""
    clock = str(BUILD / "bench" / "virtual_time.so")
    container.settings["VIRTUAL_TIME"] = str(container.node.folder / "clock")
    container.settings["LD_PRELOAD"] = f"{clock}:{container.library}" if shim else clock
    out, errors = container.start("copies", call, str(size), how).communicate(timeout=240)
    assert errors == "", errors
    result, took_us = out.split()
    return int(result), int(took_us)


@pytest.mark.parametrize("call", LARGE_ONES)
def test_a_large_one_waits_for_its_turn_and_is_charged(node: Node, call: str) -> None:
    container = never_in_turn(node)
    result, took_us = made(container, call, BYTES, "device")
    figures = reported(container)
    assert (result, took_us >= HOLD_LIMIT_US - SLEEP_US, figures.launches) == (0, True, 1)
    assert figures.busy_ns >= ON_DEVICE_US * 1_000


@pytest.mark.parametrize("call", LARGE_ONES)
def test_a_small_one_is_left_alone(node: Node, call: str) -> None:
    assert_left_alone(node, call, SMALL, "device", 0)


@pytest.mark.parametrize("call", [*BY_ADDRESS, *BOXES, *BATCHES])
def test_so_is_one_that_reads_the_hosts_memory(node: Node, call: str) -> None:
    assert_left_alone(node, call, BYTES, "host", 0)


@pytest.mark.parametrize("call", [call for call in BATCHES if "3D" not in call])
def test_about_a_long_batch_from_the_host_the_driver_is_asked_a_few_times(node: Node, call: str) -> None:
    trace = node.folder / "trace"
    node.settings["SIMGPU_TRACE"] = str(trace)
    assert made(never_in_turn(node), call, BYTES, "host")[0] == 0
    assert 0 < trace.read_text().split().count("cuPointerGetAttributes") <= MOST_ASKED


@pytest.mark.parametrize("call", [*BOXES, *BATCHES])
def test_so_is_one_whose_description_is_null(node: Node, call: str) -> None:
    assert_left_alone(node, call, BYTES, "null", INVALID)


@pytest.mark.parametrize("call", [*BY_BYTES, *BY_ADDRESS, *BOXES])
def test_so_is_one_of_nothing(node: Node, call: str) -> None:
    assert_left_alone(node, call, BYTES, "empty", 0)


@pytest.mark.parametrize("call", INTO_STREAMS)
def test_so_is_one_that_a_stream_captures(node: Node, call: str) -> None:
    assert_left_alone(node, call, BYTES, "captured", 0)


@pytest.mark.parametrize("call", [call for call in (*BOXES, *BATCHES) if "3D" in call])
def test_a_box_of_more_bytes_than_can_be_counted_is_refused_by_the_driver(node: Node, call: str) -> None:
    assert made(never_in_turn(node), call, BYTES, "overflow")[0] == INVALID


def assert_left_alone(node: Node, call: str, size: int, how: str, result: int) -> None:
    """A call is answered as without the shim, and neither waits nor counts."""
    container = never_in_turn(node)
    assert made(node.container("plain"), call, size, how, shim=False)[0] == result
    answer, took_us = made(container, call, size, how)
    assert (answer, took_us < HOLD_LIMIT_US // 2, reported(container).launches) == (result, True, 0)
