"""Every way to get device memory is charged: by pools, physical memory of its own, arrays, heaps."""

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from agent import Agent, Tenant
from node import BUILD, MIB, OUT_OF_MEMORY, Node, Share, seeded, until

CONTEXT = 256 * MIB
INVALID_VALUE = 1
INVALID_DEVICE = 101
INVALID_HANDLE = 400
Ask = Callable[[str], list[int]]


def begun(ask: Ask) -> None:
    assert [ask("init")[0], ask("ctx")[0]] == [0, 0]


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


def test_memory_under_a_sparse_array_is_charged_after_its_handle_is_gone(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    with Agent(node, page, Tenant("a", 0)), container.session() as ask:
        begun(ask)
        assert [ask(f"create a {64 * MIB}")[0], ask("tile a")[0], ask("drop a")[0]] == [0, 0, 0]
        assert node.truth("a")[0] == container.charged() == CONTEXT + 64 * MIB
        assert ask(f"alloc b {760 * MIB}")[0] == OUT_OF_MEMORY


@pytest.mark.parametrize("release", ["11.8", "12", "13"])
def test_physical_memory_of_the_host_is_the_drivers_own_affair(node: Node, release: str) -> None:
    """NCCL and ggml ask for it; drivers before CUDA 12.2 refuse it."""
    node.driver = BUILD / "simgpu" / release
    container = node.container("a")
    lines = [f"createhost a {4096 * MIB}", f"map a {4096 * MIB}", "retain a 1", "export a", "drop a", "drop a"]
    with container.session() as ask:
        begun(ask)
        assert [ask(line)[0] for line in lines] == [INVALID_VALUE if release == "11.8" else 0] * len(lines)
        assert ask(f"alloc b {768 * MIB}")[0] == 0, "it takes nothing of the container's memory"
        assert container.charged() == node.truth("a")[0] == CONTEXT + 768 * MIB
        assert container.shared() == (0, 0)
        assert ask(f"unmap a {4096 * MIB}")[0] == (INVALID_VALUE if release == "11.8" else 0)
        assert container.unsettled() == 0


def test_physical_memory_in_a_part_of_a_device_is_the_devices(node: Node) -> None:
    """CUDA 13 asks for it by a locality domain, with the device's ordinal in another field of the location."""
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert ask(f"createpart a {4096 * MIB}")[0] == OUT_OF_MEMORY
        assert ask(f"createpart a {64 * MIB}")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB
        assert ask("drop a")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT


def test_each_of_many_references_to_physical_memory_counts(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        lines = [f"create a {64 * MIB}", f"map a {64 * MIB}", "retain a 3", "drop a", f"unmap a {64 * MIB}"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert [ask("drop a")[0], ask("drop a")[0]] == [0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB
        assert ask("drop a")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT


@pytest.mark.parametrize(
    ("kind", "between"),
    [("physical", 32 * MIB), ("multicast", 0), ("graph", 64 * MIB), ("green", True), ("limit", 32 * MIB)],
)
def test_what_another_thread_is_given_or_sets_before_the_first_call_is_back_is_the_second_ones(
    node: Node, kind: str, between: int
) -> None:
    given = {name: value for name, value in node.container("a").environment().items() if name != "LD_PRELOAD"}
    command = [str(BUILD / "tests" / "unit" / "handles_overtaken"), kind]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(int(between)), "0"]


def test_one_call_unmaps_several_mappings(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        lines = [f"create a {64 * MIB}", f"map a {64 * MIB}", f"mapagain a {64 * MIB}", "drop a"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB
        assert ask(f"unmap a {128 * MIB}")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT


@pytest.mark.parametrize(("first", "second"), [("createhost", "create"), ("create", "createhost")])
def test_one_call_unmaps_memory_of_the_host_and_of_a_device(node: Node, first: str, second: str) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        lines = [f"{first} a {64 * MIB}", f"map a {64 * MIB}", f"{second} b {64 * MIB}", f"mapbehind b a {64 * MIB}"]
        assert [ask(line)[0] for line in (*lines, "drop a", "drop b")] == [0] * 6
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB
        assert ask(f"unmap a {128 * MIB}")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT


@pytest.mark.parametrize("part", [32 * MIB, 96 * MIB])
def test_a_part_of_a_mapping_cannot_be_unmapped_and_nothing_is(node: Node, part: int) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        lines = [f"create a {64 * MIB}", f"map a {64 * MIB}", f"mapagain a {64 * MIB}", "drop a"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert ask(f"unmap a {part}")[0] == INVALID_VALUE
        assert ask(f"unmap a {64 * MIB}")[0] == 0, "the first is mapped as before"
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB


def test_physical_memory_on_a_device_of_somebody_else_is_refused(node: Node) -> None:
    node.settings["SIMGPU_DEVICES"] = "2"
    container = node.container("a", Share(ordinal=1, slot=1))
    assert container.run("init", "ctx 1", f"create a {64 * MIB}")[-1][0] == INVALID_DEVICE
    assert container.run("init", "ctx 1", "object o")[-1][0] == INVALID_DEVICE
    assert container.run("init", "ctx 1", f"node - {MIB}")[-1][0] == INVALID_DEVICE


@pytest.mark.parametrize("gone", ["unbind o", "drop o"])
def test_mapped_memory_is_bound_by_its_address_too(node: Node, gone: str) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        lines = [f"create a {64 * MIB}", f"map a {64 * MIB}", "object o", "bindat a o", f"unmap a {64 * MIB}", "drop a"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB
        assert ask(gone)[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT


def test_memory_bound_to_an_object_of_others_too_stays_charged(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    with Agent(node, page, Tenant("a", 0)), container.session() as ask:
        begun(ask)
        lines = [f"create a {64 * MIB}", "object o", "bind a o", "drop a", "export o", "drop o"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB, "a descriptor of the object holds it"


@pytest.mark.parametrize("gone", ["unbind o", "drop o"])
def test_memory_bound_to_a_multicast_object_is_charged_until_it_is_unbound_or_the_object_is_freed(
    node: Node, gone: str
) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        lines = [f"create a {64 * MIB}", "object o", "bind a o", "drop a"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB
        assert ask(gone)[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT


def test_a_mapped_multicast_object_keeps_what_is_bound_when_its_handle_is_gone(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        lines = [f"create a {64 * MIB}", "object o", "bind a o", "drop a", f"map o {2 * MIB}", "drop o"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB
        assert ask(f"unmap o {2 * MIB}")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT


@pytest.mark.parametrize(("memory", "recommended"), [(80 * 1024 * MIB, 512 * MIB), (512 * MIB, 2 * MIB)])
def test_the_granularity_recommended_for_multicast_is_one_that_the_slice_can_use(
    node: Node, memory: int, recommended: int
) -> None:
    container = node.container("a", Share(memory=memory))
    assert container.run("init", "ctx", "granularity")[-1] == [0, recommended, 0]


def test_plain_memory_freed_in_a_streams_order_is_discharged(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert [ask(f"alloc a {40 * MIB}")[0], ask("alloc b 1000")[0]] == [0, 0]
        assert [ask("freeasync a")[0], ask("freeasync b")[0], ask(f"alloc c {768 * MIB}")[0], ask("free c")[0]] == [
            0
        ] * 4
        until(lambda: container.charged() == node.truth("a")[0] == CONTEXT)


@pytest.mark.parametrize("verb", ["node", "anynode"])
def test_a_graphs_allocation_that_can_never_fit_is_refused_when_it_is_added(node: Node, verb: str) -> None:
    container = node.container("a")
    answers = container.run("init", "ctx", f"{verb} - {1024 * MIB}", f"{verb} - {1026 * MIB}")
    assert [answer[0] for answer in answers] == [0, 0, 0, OUT_OF_MEMORY]


def test_a_green_context_is_charged_as_the_primary_context_that_it_keeps(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        assert [ask("init")[0], ask("newgreen")[0]] == [0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT
        assert ask("ctx")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT
        assert [ask("release")[0], ask("endgreen")[0]] == [0, 0]
        assert container.charged() == node.truth("a")[0] == 0


@pytest.mark.parametrize(
    ("takes", "gives"),
    [
        (f"alloc a {64 * MIB}", "free a"),
        ("alloc a 1000", "free a"),
        (f"managed a {64 * MIB}", "free a"),
        ("pitch a 1000 1000", "free a"),
        ("array a 2000 2000", "freearray a"),
        (f"async a {64 * MIB}", "freeasync a"),
        (f"heap - {64 * MIB}", "heap - 0"),
        (f"external a {64 * MIB}", "endexternal a"),
        (f"module a {64 * MIB}", "unmodule a"),
        (f"graph a {64 * MIB}; upload a", "endgraph a; trimgraphs"),
    ],
    ids=lambda lines: lines.split()[0],
)
def test_what_is_allocated_in_a_green_context_is_the_primary_ones(node: Node, takes: str, gives: str) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert {ask(line)[0] for line in ("newgreen", "ingreen", *takes.split("; "))} == {0}
        charged = container.charged()
        assert charged > CONTEXT
        assert [ask("outgreen")[0], ask("endgreen")[0]] == [0, 0]
        assert container.charged() == charged
        assert ask(f"alloc b {768 * MIB}")[0] == OUT_OF_MEMORY
        assert {ask(line)[0] for line in gives.split("; ")} == {0}
        until(lambda: ask("trim")[0] == 0 and container.charged() == CONTEXT)
        assert container.unsettled() == 0


def test_a_green_context_that_does_not_fit_is_refused(node: Node) -> None:
    container = node.container("a", Share(memory=128 * MIB))
    assert container.run("init", "newgreen") == [[0, 0, 0], [OUT_OF_MEMORY, 0, 0]]


@pytest.mark.parametrize("made", ["graph", "capture"])
@pytest.mark.parametrize("bring", ["upload", "launchgraph"])
def test_memory_that_a_graph_allocates_is_charged_when_it_is_uploaded_or_launched(
    node: Node, made: str, bring: str
) -> None:
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


def test_a_graphs_managed_memory_that_prefers_the_host_is_charged_to_the_current_device(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert [ask(f"managedgraph a {400 * MIB}")[0], ask("upload a")[0]] == [0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT + 400 * MIB
        assert [ask(f"managedgraph b {400 * MIB}")[0], ask("upload b")[0]] == [0, OUT_OF_MEMORY]


def test_a_captured_allocation_takes_nothing_yet(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert [ask(f"alloc a {760 * MIB}")[0], ask(f"capture b {400 * MIB}")[0]] == [0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT + 760 * MIB
        assert ask("upload b")[0] == OUT_OF_MEMORY


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


@pytest.mark.parametrize("limit", ["heap", "prints"])
def test_a_limit_that_is_set_anew_takes_the_place_of_the_old_one(node: Node, limit: str) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        for size in (500 * MIB, 500 * MIB, 700 * MIB, 100 * MIB, 0):
            assert ask(f"{limit} - {size}")[0] == 0
            assert container.charged() == CONTEXT + size
        assert [ask(f"{limit} - {700 * MIB}")[0], ask(f"{limit} - {800 * MIB}")[0]] == [0, OUT_OF_MEMORY]
        assert container.charged() == CONTEXT + 700 * MIB
        assert container.unsettled() == 0


def test_a_mipmapped_array_is_charged_once_whatever_is_done_with_its_levels(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert ask("mipmap m 1000 1000")[0] == 0
        charged = container.charged()
        assert charged >= CONTEXT + 16 * MIB * 4 // 3
        assert [ask("level one m")[0], ask("level again m")[0]] == [0, 0]
        assert ask("freearray one")[0] == INVALID_HANDLE
        assert container.charged() == charged
        assert ask("freemipmap m")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT


def test_memory_that_the_driver_holds_beyond_the_charges_is_found_within_a_second(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(context=64 * MIB, schedule=str(page)))
    with Agent(node, page, Tenant("a", 0)), container.session() as ask:
        begun(ask)
        until(lambda: ask("info")[1] == 1024 * MIB - CONTEXT)
        assert ask(f"alloc a {800 * MIB}")[0] == OUT_OF_MEMORY, "it counts against the limit"
        assert ask(f"alloc a {700 * MIB}")[0] == 0


class Walk:
    """A program that allocates and frees at random, in every way."""

    def __init__(self, ask: Ask, seed: int) -> None:
        self.ask, self.chance, self.number = ask, seeded(seed), 0
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
def test_a_program_is_charged_what_the_driver_holds_whatever_it_does(node: Node, seed: int) -> None:
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
        assert container.unsettled() == 0


@pytest.mark.parametrize("lines", [("module", "unmodule"), ("moduleex", "unmodule"), ("library", "unlibrary")])
def test_variables_of_a_module_are_charged_until_it_is_unloaded(node: Node, lines: tuple[str, str]) -> None:
    container = node.container("a", CUDA_MODULE_LOADING="EAGER")
    with container.session() as ask:
        begun(ask)
        assert ask(f"{lines[0]} a {512 * MIB}")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT + 512 * MIB
        assert ask(f"alloc b {400 * MIB}")[0] == OUT_OF_MEMORY
        assert ask(f"{lines[0]} c {512 * MIB}")[0] == OUT_OF_MEMORY
        assert [ask(f"{lines[1]} a")[0], ask(f"alloc b {400 * MIB}")[0]] == [0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT + 400 * MIB


def test_a_module_larger_than_the_slice_is_refused_before_it_is_launched(node: Node) -> None:
    with node.container("a").session() as ask:
        begun(ask)
        assert ask(f"launch holds_{2048 * MIB}")[0] == OUT_OF_MEMORY
        assert node.truth("a")[1] == CONTEXT


def test_variables_in_a_file_or_a_fat_binary_are_charged_and_small_ones_are_not(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert ask(f"module small {MIB}")[0] == 0
        assert container.charged() == CONTEXT
        assert ask(f"modulefile a {node.folder / 'image'} {64 * MIB}")[0] == 0
        assert ask(f"libraryfile b {node.folder / 'image'} {32 * MIB}")[0] == 0
        assert container.charged() == CONTEXT + 96 * MIB
        assert ask("as cuModuleLoadData cuModuleLoadFatBinary")[0] == ask(f"module c {16 * MIB}")[0] == 0
        assert container.charged() == CONTEXT + 112 * MIB


def test_variables_end_with_their_context_and_are_charged_no_longer(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        assert [ask("init")[0], ask("newctx")[0], ask(f"module a {64 * MIB}")[0], ask("endctx")[0]] == [0] * 4
        assert container.charged() == 0


def test_two_processes_that_load_and_allocate_in_turn_get_all_that_fits_and_no_more(node: Node) -> None:
    container = node.container("a", Share(memory=2048 * MIB), CUDA_MODULE_LOADING="EAGER")
    with container.session() as one, container.session() as other:
        begun(one)
        begun(other)
        for _ in range(10):
            lines = [(one, f"module a {512 * MIB}"), (other, f"alloc b {512 * MIB}"), (one, f"alloc c {512 * MIB}")]
            assert [ask(line)[0] for ask, line in lines] == [0, 0, 0]
            assert other(f"module d {64 * MIB}")[0] == OUT_OF_MEMORY
            assert container.charged() == node.truth("a")[0] == 2048 * MIB
            assert [one("unmodule a")[0], other("free b")[0], one("free c")[0]] == [0, 0, 0]


def at_once(one: tuple[Ask, str, str], other: tuple[Ask, str, str], rounds: int) -> list[tuple[int, int]]:
    """Returns, for each round, the answers to two processes that take memory in the same moment."""
    both = Barrier(2, timeout=60)

    def takes(ask: Ask, take: str, give: str) -> list[int]:
        answers = []
        for _ in range(rounds):
            both.wait()
            answers.append(ask(take)[0])
            both.wait()
            assert answers[-1] != 0 or ask(give)[0] == 0
        return answers

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(takes, *one), pool.submit(takes, *other)
        return list(zip(first.result(), second.result(), strict=True))


@pytest.mark.parametrize(("mib", "fits"), [(700, True), (900, False)])
def test_of_a_module_and_an_allocation_in_one_moment_all_that_fits_is_granted_and_no_more(
    node: Node, mib: int, *, fits: bool
) -> None:
    loading = "EAGER" if fits else "LAZY"
    container = node.container("a", Share(memory=2048 * MIB), CUDA_MODULE_LOADING=loading)
    with container.session() as loads, container.session() as allocates:
        begun(loads)
        begun(allocates)
        module, allocation = (
            (loads, f"module a {mib * MIB}", "unmodule a"),
            (allocates, f"alloc b {mib * MIB}", "free b"),
        )
        answers = at_once(module, allocation, 60)
        assert set(answers) <= ({(0, 0)} if fits else {(0, OUT_OF_MEMORY), (OUT_OF_MEMORY, 0)})
        assert container.charged() == node.truth("a")[0] == 2 * CONTEXT
        assert node.truth("a")[1] <= 2048 * MIB
        assert container.unsettled() == 0
