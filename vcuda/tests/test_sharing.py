"""Memory that a process opens of another's is charged once: to its maker, then to the container that the maker left it
to."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from agent import Agent, Tenant
from node import MIB, OUT_OF_MEMORY, Container, Node, Share, until

CONTEXT = 256 * MIB
HELD = 64 * MIB
Ask = Callable[[str], list[int]]


@contextmanager
def two(container: Container) -> Iterator[tuple[Ask, Ask]]:
    """Two programs of the container, each with a context."""
    with container.session() as maker, container.session() as opener:
        for ask in (maker, opener):
            assert [ask("init")[0], ask("ctx")[0]] == [0, 0]
        yield maker, opener


@pytest.fixture
def watched(node: Node) -> Iterator[Container]:
    """A container of 1 GiB whose driver's memory the node reads all the time."""
    page = node.folder / "page"
    with Agent(node, page, Tenant("a", 0)):
        yield node.container("a", Share(schedule=str(page)))


def done(ask: Ask, *lines: str) -> list[int]:
    """Asks for each and returns the last answer; all must succeed."""
    answers = [ask(line) for line in lines]
    assert [answer[0] for answer in answers] == [0] * len(lines), lines
    return answers[-1]


def descriptor(ask: Ask, number: int) -> str:
    return f"/proc/{done(ask, 'pid')[1]}/fd/{number}"


def shared(kind: str, maker: Ask, opener: Ask, folder: Path) -> tuple[str, str]:
    """The maker has 64 MiB under "m", the opener opened it under "o": how each lets go of it."""
    if kind == "physical":
        number = done(maker, f"create m {HELD}", "export m")[1]
        done(opener, f"import o {descriptor(maker, number)}", f"map o {HELD}")
        done(maker, f"close {number}", f"map m {HELD}", "drop m")
        done(opener, "drop o")
        return f"unmap m {HELD}", f"unmap o {HELD}"
    if kind == "ipc":
        done(maker, f"alloc m {HELD}", f"ipcget m {folder / 'handle'}")
        done(opener, f"ipcopen o {folder / 'handle'}")
        return "free m", "ipcclose o"
    number = done(maker, "newpool 1 0", f"from m {HELD} 1", "poolshare 1")[1]
    done(maker, f"tell m {folder / 'pointer'}")
    done(opener, f"poolopen 1 {descriptor(maker, number)}", f"hear o {folder / 'pointer'} 1")
    return "freeasync m", "freeasync o"


KINDS = pytest.mark.parametrize("kind", ["physical", "ipc", "pool"])


@KINDS
def test_memory_that_others_open_is_charged_once(node: Node, kind: str) -> None:
    container = node.container("a")
    with two(container) as (maker, opener):
        lets_go, closes = shared(kind, maker, opener, node.folder)
        assert container.charged() == node.truth("a")[0] == 2 * CONTEXT + HELD
        done(opener, closes)
        assert container.charged() == node.truth("a")[0] == 2 * CONTEXT + HELD
        done(maker, lets_go)
        assert node.truth("a")[0] == 2 * CONTEXT


@KINDS
def test_an_open_session_is_counted_once_each_until_it_is_closed(node: Node, kind: str) -> None:
    container = node.container("a")
    with two(container) as (maker, opener):
        lets_go, closes = shared(kind, maker, opener, node.folder)
        assert container.shared() == (HELD, 1)
        if kind == "ipc":
            done(maker, f"ipcget m {node.folder / 'handle'}")
            done(opener, f"ipcopen p {node.folder / 'handle'}")
            assert container.shared() == (HELD, 2), "exported again, it is no more; opened again, it is closed twice"
            done(opener, "ipcclose p")
        done(opener, closes)
        assert container.shared() == (HELD, 0)
        done(maker, lets_go)
        assert container.shared() == (HELD, 0), "the container's orphans, until the node speaks"
        assert container.unsettled() == 0


def test_a_handle_of_its_middle_shares_the_whole_allocation(node: Node) -> None:
    container = node.container("a")
    with two(container) as (maker, _):
        done(maker, f"alloc m {HELD}", f"ipcwithin m {node.folder / 'handle'}")
        assert container.shared() == (HELD, 0)


@pytest.mark.parametrize("kind", ["ipc", "pool"])
def test_an_open_handle_is_closed_with_the_context(node: Node, kind: str) -> None:
    container = node.container("a")
    with container.session() as maker, container.session() as opener:
        done(maker, "init", "ctx")
        done(opener, "init", "newctx")
        shared(kind, maker, opener, node.folder)
        assert container.shared()[1] == 1
        done(opener, "endctx")
        assert container.shared()[1] == 0


def test_memory_that_a_pool_shared_is_closed_by_any_free(node: Node) -> None:
    container = node.container("a")
    with two(container) as (maker, opener):
        shared("pool", maker, opener, node.folder)
        done(opener, "free o")
        assert container.shared()[1] == 0


def test_a_pool_that_grows_after_it_was_shared_shares_what_it_grew_by(node: Node) -> None:
    container = node.container("a")
    with two(container) as (maker, _):
        done(maker, "newpool 1 0", f"from m {HELD} 1", "poolshare 1", "poolshare 1", f"from n {HELD} 1")
        assert container.shared() == (2 * HELD, 0)


def test_the_first_form_of_opening_counts_too(watched: Container) -> None:
    with two(watched) as (maker, opener):
        done(opener, "as cuIpcOpenMemHandle_v2 cuIpcOpenMemHandle")
        lets_go, closes = shared("ipc", maker, opener, watched.node.folder)
        done(maker, lets_go)
        assert watched.charged() == watched.node.truth("a")[0] == 2 * CONTEXT + HELD
        done(opener, closes)
        until(lambda: watched.charged() == 2 * CONTEXT)


@KINDS
def test_memory_that_its_maker_frees_stays_charged_while_others_have_it_open(watched: Container, kind: str) -> None:
    node = watched.node
    with two(watched) as (maker, opener):
        lets_go, closes = shared(kind, maker, opener, node.folder)
        done(maker, lets_go)
        assert node.truth("a")[0] == 2 * CONTEXT + HELD
        assert maker(f"alloc n {450 * MIB}")[0] == OUT_OF_MEMORY
        assert watched.charged() >= 2 * CONTEXT + HELD
        done(opener, closes)
        assert node.truth("a")[0] == 2 * CONTEXT
        until(lambda: watched.charged() == 2 * CONTEXT)
        done(maker, f"alloc n {450 * MIB}")


@KINDS
@pytest.mark.parametrize("end", ["exit 0", "kill"])
def test_memory_that_outlives_its_maker_is_charged_to_the_container(watched: Container, kind: str, end: str) -> None:
    node = watched.node
    with ExitStack() as stack:
        opener = stack.enter_context(watched.session())
        done(opener, "init", "ctx")
        with watched.session() as maker:
            done(maker, "init", "ctx")
            _, closes = shared(kind, maker, opener, node.folder)
            assert maker(end) == []
        until(lambda: done(opener, "info")[1] == 768 * MIB - HELD and node.truth("a")[0] == CONTEXT + HELD)
        assert opener(f"alloc n {710 * MIB}")[0] == OUT_OF_MEMORY
        done(opener, closes)
        until(lambda: opener(f"alloc n {710 * MIB}")[0] == 0)


def test_a_small_allocation_keeps_its_whole_block(watched: Container) -> None:
    node = watched.node
    with two(watched) as (maker, opener):
        done(maker, "alloc m 1000", f"ipcget m {node.folder / 'handle'}")
        done(opener, f"ipcopen o {node.folder / 'handle'}")
        done(maker, "free m")
        assert node.truth("a")[0] == 2 * CONTEXT + 2 * MIB
        assert watched.charged() >= 2 * CONTEXT + 2 * MIB
        done(opener, "ipcclose o")
        until(lambda: watched.charged() == node.truth("a")[0] == 2 * CONTEXT)


def test_ending_the_context_frees_nothing_that_others_have_open(watched: Container) -> None:
    node = watched.node
    with two(watched) as (maker, opener):
        done(maker, "newctx", f"alloc m {HELD}", f"ipcget m {node.folder / 'handle'}")
        done(opener, f"ipcopen o {node.folder / 'handle'}")
        done(maker, "endctx")
        assert node.truth("a")[0] == 2 * CONTEXT + HELD
        assert watched.charged() >= 2 * CONTEXT + HELD
        done(opener, "ipcclose o")
        until(lambda: watched.charged() == node.truth("a")[0] == 2 * CONTEXT)


def test_a_program_that_imports_what_it_exported_holds_one_reference_more(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        number = done(ask, "init", "ctx", f"create m {HELD}", "export m")[1]
        done(ask, f"import n {descriptor(ask, number)}", "drop m")
        assert container.charged() == node.truth("a")[0] == CONTEXT + HELD


def test_nothing_can_be_allocated_from_an_imported_pool(node: Node) -> None:
    container = node.container("a")
    with two(container) as (maker, opener):
        shared("pool", maker, opener, node.folder)
        assert opener(f"from n {MIB} 1")[0] != 0
        assert done(opener, "reserved 1")[1] == HELD, "the driver says it, as of any other pool"
        until(lambda: container.charged() == 2 * CONTEXT + HELD)
