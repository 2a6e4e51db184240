"""A refusal by the driver changes nothing: its charge is given back, and nothing else."""

import pytest
from node import MIB, Node, until

CONTEXT = 256 * MIB
HELD = 64 * MIB
BLOCK = 2 * MIB  # one may be set aside for small allocations
UNKNOWN = 999

MAPPED = [f"create a {HELD}", f"map a {HELD}"]

MAKES = [
    ("cuMemAlloc_v2", [], f"alloc a {HELD}", ["free a"]),
    ("cuMemAlloc_v2", [], "alloc a 1000", ["free a"]),
    ("cuMemAlloc_v2", ["managed b 1000"], "alloc a 1000", ["free a", "free b"]),
    ("cuMemAllocManaged", [], f"managed a {HELD}", ["free a"]),
    ("cuMemAllocPitch_v2", [], "pitch a 1000 60000", ["free a"]),
    ("cuMemAllocAsync", [], f"async a {HELD}", ["freeasync a", "trim"]),
    ("cuMemAllocFromPoolAsync", ["newpool 1 0"], f"from a {HELD} 1", ["freeasync a", "endpool 1"]),
    ("cuMemPoolCreate", [], "newpool 1 0", [f"from a {HELD} 1", "freeasync a", "endpool 1"]),
    ("cuMemCreate", [], f"create a {HELD}", ["drop a"]),
    ("cuMemMap", [f"create a {HELD}"], f"map a {HELD}", ["drop a", f"unmap a {HELD}"]),
    ("cuMemRetainAllocationHandle", MAPPED, "retain a 1", ["drop a", f"unmap a {HELD}", "drop a"]),
    ("cuMulticastBindMem", [f"create a {HELD}", "object o"], "bind a o", ["drop a", "drop o"]),
    ("cuArrayCreate_v2", [], "array a 1000 1000", ["freearray a"]),
    ("cuMipmappedArrayCreate", [], "mipmap a 1000 1000", ["freemipmap a"]),
    ("cuCtxCreate_v2", [], "newctx", ["endctx"]),
    ("cuCtxAttach", ["newctx"], "attach", ["endctx"]),
    ("cuGreenCtxCreate", [], "newgreen", ["endgreen"]),
    ("cuCtxSetLimit", [], f"heap - {HELD}", ["heap - 0"]),
    ("cuGraphUpload", [f"graph a {HELD}"], "upload a", ["endgraph a", "trimgraphs"]),
    ("cuGraphLaunch", [f"graph a {HELD}"], "launchgraph a", ["endgraph a", "trimgraphs"]),
    ("cuGraphInstantiateWithFlags", ["how upload"], f"graph a {HELD}", ["endgraph a", "trimgraphs"]),
]  # fmt: skip

FREES = [
    ("cuMemFree_v2", [f"alloc a {HELD}"], "free a", []),
    ("cuMemFree_v2", ["alloc a 1000"], "free a", []),
    ("cuMemFreeAsync", [f"alloc a {HELD}"], "freeasync a", []),
    ("cuMemFreeAsync", ["alloc a 1000", "alloc b 1000"], "freeasync a", ["free b"]),
    ("cuMemFreeAsync", [f"async a {HELD}"], "freeasync a", ["trim"]),
    ("cuMemPoolTrimTo", [f"async a {HELD}", "freeasync a"], "trim", []),
    ("cuMemPoolDestroy", ["newpool 1 0", f"keep 1 {HELD}", f"from a {HELD} 1", "freeasync a"], "endpool 1", []),
    ("cuMemRelease", [f"create a {HELD}"], "drop a", []),
    ("cuMemUnmap", [*MAPPED, "drop a"], f"unmap a {HELD}", []),
    ("cuMulticastUnbind", [f"create a {HELD}", "object o", "bind a o", "drop a"], "unbind o", ["drop o"]),
    ("cuArrayDestroy", ["array a 1000 1000"], "freearray a", []),
    ("cuMipmappedArrayDestroy", ["mipmap a 1000 1000"], "freemipmap a", []),
    ("cuCtxDestroy_v2", ["newctx", f"alloc a {HELD}", "alloc b 1000"], "endctx", []),
    ("cuCtxDestroy_v2", ["newctx", f"async a {HELD}", f"graph b {HELD}", "upload b"], "endctx", []),
    ("cuGraphExecDestroy", [f"graph a {HELD}", "upload a"], "endgraph a", ["trimgraphs"]),
    ("cuDeviceGraphMemTrim", [f"graph a {HELD}", "upload a", "endgraph a"], "trimgraphs", []),
]  # fmt: skip


@pytest.mark.parametrize(("call", "before", "line", "after"), MAKES + FREES)
def test_a_call_that_the_driver_refuses_changes_nothing(
    node: Node, call: str, before: list[str], line: str, after: list[str]
) -> None:
    container = node.container("a", SIMGPU_FAULTS=f"{call}:1:error={UNKNOWN}")
    with container.session() as ask:
        lines = ["init", "ctx", *before]
        assert [ask(one)[0] for one in lines] == [0] * len(lines)
        most = container.charged() + BLOCK
        assert ask(line)[0] == UNKNOWN
        assert node.truth("a")[0] <= container.charged() <= most
        assert ask(line)[0] == 0
        assert node.truth("a")[0] <= container.charged()
        assert [ask(one)[0] for one in after] == [0] * len(after)
        until(lambda: container.charged() == node.truth("a")[0] == CONTEXT and container.unsettled() == 0)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("cuDevicePrimaryCtxRetain", "ctx"),
        ("cuDevicePrimaryCtxRelease_v2", "release"),
        ("cuDevicePrimaryCtxReset_v2", "reset"),
    ],
)
def test_a_primary_context_that_the_driver_refuses_to_make_or_end_is_charged_as_it_is(
    node: Node, call: str, line: str
) -> None:
    container = node.container("a", SIMGPU_FAULTS=f"{call}:1:error={UNKNOWN}")
    with container.session() as ask:
        for one in ("init", "ctx", "ctx", f"alloc a {HELD}", line, line):
            ask(one)
            assert container.charged() == node.truth("a")[0], one
