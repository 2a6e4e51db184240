"""Programs that replace themselves, change their user, make contexts without end, or load a second driver."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent import Agent, Tenant
from node import BUILD, MIB, OUT_OF_MEMORY, Container, Node, Share, until

Ask = Callable[[str], list[int]]

TWO_DRIVERS = """
import ctypes, sys
first, second = (ctypes.CDLL(path) for path in sys.argv[1:])
context, pointer, version = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
steps = [first.cuInit(0), second.cuInit(0), second.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
         first.cuCtxPushCurrent_v2(context), second.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(500 << 20)),
         first.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(500 << 20)),
         second.cuDriverGetVersion(ctypes.byref(version)), version.value]
print(*steps)
"""

CLOSING = """
import _ctypes, ctypes
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
for _ in range(3):
    library = ctypes.CDLL("libcuda.so.1")
    print(library.cuInit(0), library.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
          *[library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(700 << 20)) for _ in range(2)])
    library.cuCtxDestroy_v2(context)
    _ctypes.dlclose(library._handle)
"""


def test_the_memory_of_a_program_before_exec_is_given_back(node: Node) -> None:
    page = node.folder / "page"
    container, other = node.container("a", Share(schedule=str(page))), node.container("b")
    with Agent(node, page, Tenant("a", 0)), container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0], ask(f"alloc a {700 * MIB}")[0]] == [0, 0, 0]
        assert container.charged() == 956 * MIB
        assert ask("exec\ninit")[0] == 0
        # The simulated driver tears the dead down when a process joins; a real one does by itself.
        until(lambda: other.run("init") == [[0, 0, 0]] and ask("ctx")[0] == 0)
        until(lambda: ask(f"alloc a {700 * MIB}")[0] == 0)
        assert container.charged() == node.truth("a")[0] == 956 * MIB


def busy_ns(container: Container) -> int:
    """GPU time reported so far; 0 also in the moment in which another user's file is being replaced."""
    try:
        return int.from_bytes(container.usage.read_bytes()[48 + 48 :][:8], "little")
    except FileNotFoundError:
        return 0


@pytest.fixture
def entered_node() -> Iterator[Node]:
    """A node in a folder that other users may enter. Each session of pytest that begins shuts pytest's own to them."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Node(Path(name))


def test_a_program_that_gives_up_its_rights_is_held_and_counted_as_before(entered_node: Node) -> None:
    node, page = entered_node, entered_node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    container.ledger.chmod(0o666)
    container.folder.chmod(0o777)
    user = "65534" if os.getuid() == 0 else str(os.getuid())
    with Agent(node, page, Tenant("a", 0)), container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0], ask(f"setuid {user}")[0]] == [0, 0, 0]
        assert ask(f"alloc a {800 * MIB}")[0] == OUT_OF_MEMORY
        assert [ask(f"alloc a {700 * MIB}")[0], ask("launch spin_ms_20")[0]] == [0, 0]
        until(lambda: busy_ns(container) > 15_000_000)


def test_ten_thousand_contexts_leave_nothing_behind(node: Node) -> None:
    container = node.container("a")
    cycles = ["newctx 0", f"alloc a {500 * MIB}", "alloc b 1000", "endctx"] * 10_000
    answers = container.run("init", *cycles)
    assert {answer[0] for answer in answers} == {0}
    assert container.charged() == 0


@pytest.mark.parametrize(("releases", "version"), [(("13", "12"), "13000"), (("12", "13"), "12090")])
def test_the_first_of_two_drivers_in_one_process_serves_all_callers(
    node: Node, releases: tuple[str, str], version: str
) -> None:
    container = node.container("a")
    paths = [str(BUILD / "simgpu" / release / "libcuda.so.1") for release in releases]
    done = subprocess.run(
        [sys.executable, "-c", TWO_DRIVERS, *paths],
        env=container.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["0", "0", "0", "0", "0", "2", "0", version]
    assert node.truth("a")[1] == 756 * MIB


def test_a_program_that_closes_the_driver_and_opens_it_again_is_held_as_before(node: Node) -> None:
    container = node.container("a")
    done = subprocess.run(
        [sys.executable, "-c", CLOSING], env=container.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "0", "0", str(OUT_OF_MEMORY)] * 3
    assert node.truth("a")[1] == 956 * MIB


def test_above_the_soft_limit_memory_is_managed_and_below_it_is_plain(node: Node) -> None:
    container = node.container("a", Share(memory=2048 * MIB, soft=1024 * MIB))
    with container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0]] == [0, 0]
        assert [ask(f"alloc a {700 * MIB}")[0], ask("managed? a")] == [0, [0, 0, 0]]
        assert [ask(f"alloc b {700 * MIB}")[0], ask("managed? b")] == [0, [0, 1, 0]]
        assert ask(f"alloc c {700 * MIB}")[0] == OUT_OF_MEMORY, "the hard limit holds for both together"
        assert [ask("free a")[0], ask(f"alloc c {200 * MIB}")[0], ask("managed? c")] == [0, 0, [0, 1, 0]]
        assert [ask("free b")[0], ask("free c")[0], ask(f"alloc a {700 * MIB}")[0], ask("managed? a")] == [
            0,
            0,
            0,
            [0, 0, 0],
        ]
        assert container.charged() == 956 * MIB
