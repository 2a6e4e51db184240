"""A call has many forms: of older releases, for default streams of each thread. Each is charged as the one of today."""

import re
import sys
from pathlib import Path

import pytest
from agent import Agent, Tenant
from node import BUILD, MIB, OUT_OF_MEMORY, Container, Node, Share, until

sys.path.append(str(BUILD.parent / "src" / "hooks"))
import every_function

CONTEXT = 256 * MIB
HELD = 64 * MIB
UINT_MAX = 0xFFFFFFFF
TESTS = BUILD.parent / "tests"


@pytest.mark.parametrize(
    ("call", "form", "make", "end"),
    [
        ("cuMemAllocAsync", "cuMemAllocAsync_ptsz", [f"async a {HELD}"], ["freeasync a", "trim"]),
        ("cuMemFreeAsync", "cuMemFreeAsync_ptsz", [f"async a {HELD}"], ["freeasync a", "trim"]),
        ("cuMemFreeAsync", "cuMemFreeAsync_ptsz", [f"alloc a {HELD}"], ["freeasync a"]),
        (
            "cuMemAllocFromPoolAsync",
            "cuMemAllocFromPoolAsync_ptsz",
            ["newpool 1 0", f"from a {HELD} 1"],
            ["freeasync a", "endpool 1"],
        ),
        ("cuCtxCreate_v2", "cuCtxCreate", ["newctx", f"alloc a {HELD}"], ["endctx"]),
        ("cuCtxDestroy_v2", "cuCtxDestroy", ["newctx", f"alloc a {HELD}"], ["endctx"]),
        ("cuCtxDestroy_v2", "cuCtxDetach", ["newctx", f"alloc a {HELD}"], ["endctx"]),
        ("", "cuCtxCreate_v3", ["newctx3", f"alloc a {HELD}"], ["endctx"]),
        ("", "cuCtxCreate_v4", ["newctx4", f"alloc a {HELD}"], ["endctx"]),
        ("cuGraphUpload", "cuGraphUpload_ptsz", [f"graph a {HELD}", "upload a"], ["endgraph a", "trimgraphs"]),
        ("cuGraphLaunch", "cuGraphLaunch_ptsz", [f"graph a {HELD}", "launchgraph a"], ["endgraph a", "trimgraphs"]),
        *(
            (call, form, [f"{verb} a {HELD}", "upload a"], ["endgraph a", "trimgraphs"])
            for call, form, verb in [
                ("cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz", "capture"),
                ("cuStreamBeginCapture", "cuStreamBeginCapture_ptsz", "capture1"),
                ("", "cuStreamBeginCapture", "capture1"),
                ("", "cuStreamBeginCaptureToGraph", "captureto"),
                ("cuStreamBeginCaptureToGraph", "cuStreamBeginCaptureToGraph_ptsz", "captureto"),
                ("cuStreamEndCapture", "cuStreamEndCapture_ptsz", "capture"),
                ("cuStreamDestroy_v2", "cuStreamDestroy", "capture"),
            ]
        ),
    ],
)
def test_every_form_charges_what_the_driver_takes(
    node: Node, call: str, form: str, make: list[str], end: list[str]
) -> None:
    container = node.container("a")
    with container.session() as ask:
        lines = ["init", "ctx", *([f"as {call} {form}"] if call else []), *make]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == node.truth("a")[0] >= CONTEXT + HELD
        assert [ask(line)[0] for line in end] == [0] * len(end)
        until(lambda: container.charged() == node.truth("a")[0] == CONTEXT and container.unsettled() == 0)


@pytest.mark.parametrize("how", ["flags", "log", "log2", "with"])
def test_a_graph_is_charged_when_it_is_brought_however_it_was_instantiated(node: Node, how: str) -> None:
    container = node.container("a")
    with container.session() as ask:
        lines = ["init", "ctx", f"how {how}", f"graph a {HELD}"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == CONTEXT
        assert ask("upload a")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT + HELD


@pytest.mark.parametrize(
    ("how", "form"),
    [
        ("upload", "cuGraphInstantiateWithParams"),
        ("withupload", "cuGraphInstantiateWithParams"),
        ("withupload", "cuGraphInstantiateWithParams_ptsz"),
    ],
)
def test_a_graph_that_is_uploaded_with_its_instantiation_is_charged_then(node: Node, how: str, form: str) -> None:
    container = node.container("a")
    with container.session() as ask:
        lines = ["init", "ctx", f"as cuGraphInstantiateWithParams {form}", f"how {how}", f"graph a {700 * MIB}"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == node.truth("a")[0] == CONTEXT + 700 * MIB
        assert ask(f"graph b {HELD * 2}")[0] == OUT_OF_MEMORY
        assert ask("upload a")[0] == 0, "what is mapped already is not charged again"
        assert container.charged() == node.truth("a")[0] == CONTEXT + 700 * MIB


@pytest.mark.parametrize("depth", [1, 40])
def test_memory_that_a_graph_inside_others_allocates_is_charged(node: Node, depth: int) -> None:
    container = node.container("a")
    with container.session() as ask:
        lines = ["init", "ctx", f"nested a {HELD} {depth}", "upload a"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == node.truth("a")[0] == CONTEXT + HELD


def test_the_first_form_of_adding_a_node_refuses_what_can_never_fit(node: Node) -> None:
    answers = node.container("a").run("init", "ctx", f"oldnode - {1024 * MIB}", f"oldnode - {1026 * MIB}")
    assert [answer[0] for answer in answers] == [0, 0, 0, OUT_OF_MEMORY]


@pytest.mark.parametrize("make", ["newctx", "newctx3", "newctx4"])
def test_no_form_makes_a_context_that_does_not_fit(node: Node, make: str) -> None:
    container = node.container("a", Share(memory=300 * MIB))
    assert [answer[0] for answer in container.run("init", make, make)] == [0, 0, OUT_OF_MEMORY]
    assert node.truth("a")[1] == CONTEXT


@pytest.mark.parametrize("make", ["array32 a 1000 1000", "cube a 100", "cube32 a 200"])
def test_arrays_of_every_form_and_dimension_are_charged_while_they_are_there(node: Node, make: str) -> None:
    container = node.container("a")
    with container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0], ask(make)[0]] == [0, 0, 0]
        assert container.charged() >= node.truth("a")[0] >= CONTEXT + 4 * MIB
        assert ask("freearray a")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT


def test_memory_of_other_interfaces_is_charged_while_it_is_imported(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0], ask(f"external a {HELD - 1}")[0]] == [0, 0, 0]
        assert container.charged() == CONTEXT + HELD
        assert ask(f"external b {800 * MIB}")[0] == OUT_OF_MEMORY
        assert ask("endexternal a")[0] == 0
        assert container.charged() == CONTEXT


def test_the_oldest_forms_tell_the_slice_or_the_largest_number_that_they_can(node: Node) -> None:
    small, large = node.container("a"), node.container("b", Share(memory=9 * 1024 * MIB))
    assert small.run("init", "ctx", "info32", "total32 0")[2:] == [[0, 768 * MIB, 1024 * MIB], [0, 1024 * MIB, 0]]
    assert large.run("init", "ctx", "info32", "total32 0")[2:] == [[0, UINT_MAX, UINT_MAX], [0, UINT_MAX, 0]]


@pytest.mark.parametrize("line", [f"alloc32 - {HELD}", "alloc32 - 1000", "pitch32 - 1000 60000", "pitch32 - 10 10"])
def test_memory_that_the_oldest_forms_are_refused_is_not_charged(node: Node, line: str) -> None:
    container = node.container("a")
    with container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0], ask(line)[0]] == [0, 0, OUT_OF_MEMORY], "no pointer of today fits"
        assert container.charged() == node.truth("a")[0] == CONTEXT


@pytest.fixture
def watched(node: Node) -> Container:
    page = node.folder / "page"
    return node.container("a", Share(schedule=str(page)))


@pytest.mark.parametrize("form", ["cuMemMapArrayAsync", "cuMemMapArrayAsync_ptsz"])
def test_memory_under_a_sparse_array_stays_charged_by_every_form(watched: Container, form: str) -> None:
    node = watched.node
    with Agent(node, node.folder / "page", Tenant("a", 0)), watched.session() as ask:
        lines = ["init", "ctx", f"as cuMemMapArrayAsync {form}", f"create a {HELD}", "tile a", "drop a"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert node.truth("a")[0] == watched.charged() == CONTEXT + HELD


NOT_SIMULATED = {
    "cuMulticastBindMem_v2",
    "cuMulticastBindAddr_v2",
    "cuGraphAddNode_v3",
    "cuMemSetMemPool",
    *(
        f"cuStream{name}{twin}"
        for twin in ("", "_ptsz")
        for name in ("BeginRecaptureToGraph", "BeginCaptureToCig", "EndCaptureToCig")
    ),
    *(
        f"{name}{twin}"
        for twin in ("", "_ptsz")
        for name in (
            "cuLaunchHostFunc_v2",
            "cuStreamWaitValue32",
            "cuStreamWaitValue64",
            "cuStreamWaitValue64_v2",
            "cuStreamBatchMemOp",
            "cuWaitExternalSemaphoresAsync",
            "cuMemcpyWithAttributesAsync",
            "cuMemcpy3DWithAttributesAsync",
        )
    ),
}
"""Forms of CUDA 13; the simulated driver has the forms before, of captures the older ways to begin one, and of waits
for a value those of 32 bits."""


def test_every_hook_is_called_in_some_test() -> None:
    """But those of launches, which test_time.py is for."""
    table = (BUILD.parent / "src" / "hooks" / "hooks.def").read_text(encoding="utf-8")
    sections = re.split(r"^/\* (\w+)\.c.*$", table, flags=re.MULTILINE)
    named = dict(zip(sections[1::2], sections[2::2], strict=True))
    hooks = {
        name
        for section in named
        if section != "hook_launch"
        for name in re.findall(r"^HOOK\((\w+)\)", named[section], re.MULTILINE)
    }
    programs: list[Path] = [*TESTS.glob("actor/*.c"), *TESTS.glob("*.c"), *TESTS.glob("test_*.py")]
    called = set(re.findall(r"\bcu[A-Z]\w+", "".join(path.read_text(encoding="utf-8") for path in programs)))
    assert hooks - called - NOT_SIMULATED == set()


HEADER = """
#define cuThing __CUDA_API_PTSZ(cuThing_v2)
#define cuOther cuOther_v2
CUresult CUDAAPI cuNew(CUstream stream);
"""


def test_the_build_names_each_function_of_a_header_that_no_table_has_and_the_reverse() -> None:
    found = every_function.functions(HEADER)
    assert found == {"cuNew", "cuOther_v2", "cuThing_v2_ptsz"}
    tables = ["HOOK(cuOther_v2)\nHOOK(cuGone)\n", "HARMLESS(cuThing_v2_ptsz)\nPASSED(cuOther_v2)\n"]
    assert [line.split(":")[0] for line in every_function.faults(found, tables)] == ["cuNew", "cuGone", "cuOther_v2"]
