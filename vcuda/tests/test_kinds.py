"""Every way to get device memory is charged: by pools, physical memory of its own, arrays, heaps."""

import random
from collections.abc import Callable

import pytest
from agent import Agent, Tenant
from node import MIB, OUT_OF_MEMORY, Node, Share, until

CONTEXT = 256 * MIB
Ask = Callable[[str], list[int]]


def begun(ask: Ask) -> None:
    assert [ask("init")[0], ask("ctx")[0]] == [0, 0]


def test_pools_are_charged_by_what_they_reserve(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert ask(f"async a {40 * MIB}")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB
        assert ask(f"async b {800 * MIB}")[0] == OUT_OF_MEMORY
        assert ask("freeasync a")[0] == ask("trim")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT


def test_physical_memory_is_charged_until_the_last_reference_is_gone(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert [ask(f"create a {64 * MIB}")[0], ask(f"map a {64 * MIB}")[0], ask("drop a")[0]] == [0, 0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB
        assert ask(f"create b {800 * MIB}")[0] == OUT_OF_MEMORY
        assert ask(f"unmap a {64 * MIB}")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT


def test_exported_memory_is_charged_to_the_container_while_a_descriptor_may_hold_it(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    with Agent(node, page, Tenant("a", 0)), container.session() as ask:
        begun(ask)
        assert ask(f"create a {64 * MIB}")[0] == 0
        assert ask("export a")[0] == ask("drop a")[0] == 0
        assert node.truth("a")[0] == CONTEXT + 64 * MIB
        assert container.charged() == CONTEXT + 64 * MIB
        assert ask(f"alloc b {760 * MIB}")[0] == OUT_OF_MEMORY


@pytest.mark.parametrize("reference", ["bind", "tile"])
def test_memory_under_an_array_or_a_multicast_object_is_charged_after_its_handle_is_gone(
    node: Node, reference: str
) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    with Agent(node, page, Tenant("a", 0)), container.session() as ask:
        begun(ask)
        assert [ask(f"create a {64 * MIB}")[0], ask(f"{reference} a")[0], ask("drop a")[0]] == [0, 0, 0]
        assert node.truth("a")[0] == container.charged() == CONTEXT + 64 * MIB
        assert ask(f"alloc b {760 * MIB}")[0] == OUT_OF_MEMORY


def test_a_green_context_is_charged_as_the_primary_context_that_it_keeps(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        assert [ask("init")[0], ask("newgreen")[0]] == [0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT
        assert ask("ctx")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT
        assert [ask("release")[0], ask("endgreen")[0]] == [0, 0]
        assert container.charged() == node.truth("a")[0] == 0


def test_a_green_context_that_does_not_fit_is_refused(node: Node) -> None:
    container = node.container("a", Share(memory=128 * MIB))
    assert container.run("init", "newgreen") == [[0, 0, 0], [OUT_OF_MEMORY, 0, 0]]


@pytest.mark.parametrize("made", ["graph", "capture"])
@pytest.mark.parametrize("bring", ["upload", "launchgraph"])
def test_what_a_graph_allocates_is_charged_when_it_is_uploaded_or_launched(node: Node, made: str, bring: str) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert [ask(f"{made} a {400 * MIB}")[0], ask(f"{made} b {400 * MIB}")[0]] == [0, 0]
        assert container.charged() == CONTEXT
        assert ask(f"{bring} a")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT + 400 * MIB
        assert ask(f"{bring} b")[0] == OUT_OF_MEMORY
        assert ask(f"{bring} a")[0] == 0, "what is mapped already is not charged again"
        assert container.charged() == node.truth("a")[0] == CONTEXT + 400 * MIB
        assert [ask("endgraph a")[0], ask(f"{bring} b")[0]] == [0, 0], "a graph takes over what another left"
        assert container.charged() == node.truth("a")[0] == CONTEXT + 400 * MIB
        assert [ask("endgraph b")[0], ask("trimgraphs")[0]] == [0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT


@pytest.mark.parametrize("bring", ["upload", "launchgraph"])
def test_a_graph_whose_nodes_take_over_memory_is_charged_once_for_it(node: Node, bring: str) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert [ask(f"regraph a {500 * MIB}")[0], ask(f"{bring} a")[0]] == [0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT + 500 * MIB
        assert ask(f"alloc b {300 * MIB}")[0] == OUT_OF_MEMORY


def test_memory_of_graphs_goes_with_the_context(node: Node) -> None:
    container = node.container("a")
    assert {a[0] for a in container.run("init", "newctx", f"graph a {400 * MIB}", "upload a", "endctx")} == {0}
    assert container.charged() == 0


def test_arrays_and_heaps_are_charged(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert [ask("array a 1000 1000")[0], ask(f"heap - {100 * MIB}")[0]] == [0, 0]
        assert container.charged() >= CONTEXT + 116 * MIB
        assert ask("array b 8000 8000")[0] == OUT_OF_MEMORY
        assert ask("freearray a")[0] == 0
        assert container.charged() == CONTEXT + 100 * MIB


def test_what_the_driver_holds_beyond_the_charges_is_found_within_a_second(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(context=64 * MIB, schedule=str(page)))
    with Agent(node, page, Tenant("a", 0)), container.session() as ask:
        begun(ask)
        until(lambda: ask("info")[1] == 1024 * MIB - CONTEXT)


class Walk:
    """A program that allocates and frees at random, in every way."""

    def __init__(self, ask: Ask, seed: int) -> None:
        self.ask, self.chance, self.number = ask, random.Random(seed), 0
        self.held: list[tuple[str, ...]] = []

    def step(self) -> None:
        if self.held and self.chance.random() < 0.45:
            gone = self.held.pop(self.chance.randrange(len(self.held)))
            assert [self.ask(line)[0] for line in gone] == [0] * len(gone)
            return
        name, size = f"n{self.number}", self.chance.choice([1, 4096, MIB, 3 * MIB, 50 * MIB, 200 * MIB])
        whole = (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        self.number += 1
        make, *free = self.chance.choice(
            [
                (f"alloc {name} {size}", f"free {name}"),
                (f"managed {name} {size}", f"free {name}"),
                (f"pitch {name} 1000 {size // 1000 + 1}", f"free {name}"),
                (f"async {name} {size}", f"freeasync {name}"),
                (f"create {name} {whole}", f"drop {name}"),
                (f"array {name} 100 {size // 1600 + 1}", f"freearray {name}"),
            ]
        )
        if self.ask(make)[0] == 0:
            self.held.append(tuple(free))


@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_program_does_it_is_charged_what_the_driver_holds(node: Node, seed: int) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        walk = Walk(ask, seed)
        for _ in range(150):
            walk.step()
            held, most = node.truth("a")
            assert held <= container.charged() <= 1024 * MIB
            assert most <= 1024 * MIB
        for lines in walk.held:
            for line in lines:
                assert ask(line)[0] == 0
        assert ask("trim")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT
