"""The shim calls the driver under no lock of its own: the driver may wait for what another thread does."""

from collections import Counter

import pytest
from agent import PERIOD_NS, Agent, Tenant
from deck_programs import DECK, WAITING, Program
from node import BUILD, MIB, OUT_OF_MEMORY, Container, Node, Share, ended

SEES = BUILD / "tests" / "unit" / "locks_seen.so"
OTHERS: list[Program] = [
    ("waiting", "exit"),
    ("waiting", "green", "20"),
    ("waiting", "fills", "20"),
    ("unusual", "capture", "100"),
    ("unusual", "conditional", "5"),
    ("crowd", "16", "1", "20"),
]
LINES = (
    ("init", "ctx", "newpool 1 0", f"keep 1 {256 * MIB}", f"from a {256 * MIB} 1", "freeasync a", "keep 1 0", "wait"),
    ("trim", "endpool 1", f"async b {40 * MIB}", "freeasync b"),
    (f"graph g {64 * MIB}", "upload g", "launchgraph g", "endgraph g", "trimgraphs"),
    (f"create p {64 * MIB}", f"map p {64 * MIB}", "drop p", "object o", "alloc q 1000", "freeasync q"),
    (f"stack - {2 * 1024}", f"heap - {64 * MIB}", f"module m {64 * MIB}", "unmodule m", "array r 1000 1000"),
    ("newgreen", "launch spin_us_10", "endgreen", "reset", "release", "newctx", f"async z {40 * MIB}", "endctx"),
)
"""Calls of each kind of memory, in a container of 8 GiB."""


def watched(node: Node, **settings: str) -> Container:
    """A container whose programs say which of the driver's functions the shim calls under a lock."""
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS // 2),)))
    container = node.container("a", Share(8192 * MIB, schedule=str(page)), SIMGPU_TOOL=str(SEES), **settings)
    container.settings["LD_PRELOAD"] = f"{SEES}:{container.library}"
    return container


@pytest.mark.parametrize("program", [*DECK.values(), *WAITING, *OTHERS], ids=" ".join)
def test_no_program_makes_the_shim_call_the_driver_under_a_lock(node: Node, program: Program) -> None:
    with ended(watched(node).start(f"programs/{program[0]}", *program[1:])) as running:
        out, errors = running.communicate(timeout=120)
    assert (out.split()[0], Counter(errors.split())) == ("0", {})


def test_nor_does_any_call_that_takes_or_gives_back_memory(node: Node) -> None:
    lines = [line for several in LINES for line in several]
    out, errors = watched(node).start("actor").communicate("".join(f"{line}\n" for line in lines), timeout=120)
    assert ([line.split()[0] for line in out.splitlines()], Counter(errors.split())) == (["0"] * len(lines), {})


def test_nor_one_that_is_refused_after_its_pool_grew_past_the_limit(node: Node) -> None:
    node.settings["SIMGPU_POOL_STEP_MIB"] = "128"
    lines = ("init", "ctx", f"alloc a {8192 * MIB - 374 * MIB}", f"async b {10 * MIB}", "free a", f"async b {10 * MIB}")
    out, errors = watched(node).start("actor").communicate("".join(f"{line}\n" for line in lines), timeout=120)
    expected = [0, 0, 0, OUT_OF_MEMORY, 0, 0]
    assert ([int(line.split()[0]) for line in out.splitlines()], Counter(errors.split())) == (expected, {})
