"""Whatever comes in whatever order, no device holds more than it has."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairgpu.demand import peak
from fairgpu.request import Placement
from scheduler.placement.choosing import NONE, Chooser, Placed
from scheduler.placement.fleet import Node, NodeSet
from scheduler.placement.holding import Holding
from scheduler.placement.mix import MixCounter, allowed
from scheduler.placement.request import Need, Request, Wanted
from scheduler.placement.worth import learn
from tests.unit.scheduler.fleets import A100, T4, all_rows, fill, fleet_of, node, nodes, place, requests


def holds_to_capacity(chooser: Chooser) -> None:
    """Adds up all that is held, apart from the fleet's own arrays."""
    core: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    slots: Counter[str] = Counter()
    for found in chooser.fleet.nodes:
        assert found is not None
        devices = {device.uuid: device for device in found.inventory.devices}
        for holding in chooser.fleet.holders(found.name).values():
            for piece in holding.pieces:
                core[piece.uuid] += piece.core_percent
                memory[piece.uuid] += piece.memory_mib
                slots[piece.uuid] += piece.slots
        for uuid, device in devices.items():
            assert core[uuid] <= 100
            assert memory[uuid] <= device.memory_mib
            assert slots[uuid] <= 64


def suits(request: Request, placed: Placed, found: Node) -> None:
    """Each vGPU of a container on another GPU that may be used, and init steps on what the main ones hold."""
    devices = {device.uuid: device for device in found.inventory.devices}
    wanted = request.wanted
    beside: set[str] = set()
    for (need, keeps), shares in zip(request.steps, placed.shares, strict=True):
        uuids = [share.uuid for share in shares]
        assert len(set(uuids)) == len(uuids) == need.gpus
        for share in shares:
            device = devices[share.uuid]
            assert allowed(device.model, wanted.use_models, wanted.avoid_models)
            assert not wanted.use_uuids or share.uuid in wanted.use_uuids
            assert share.uuid not in wanted.avoid_uuids
            assert device.health == "ok"
            assert share.core_percent == need.core_percent
            assert share.memory_mib == (need.memory_mib or device.memory_mib * need.memory_percent // 100)
        if keeps is not False:
            beside |= set(uuids)
    for (need, keeps), shares in zip(request.steps, placed.shares, strict=True):
        if keeps is False and need.gpus <= len(beside):
            assert {share.uuid for share in shares} <= beside


@settings(max_examples=150)
@given(nodes, st.lists(st.tuples(requests, st.integers(0, 9), st.booleans()), max_size=25), st.booleans())
def test_no_device_is_given_beyond_what_it_has(
    fleet_nodes: list[Node],
    steps: list[tuple[Request, int, bool]],
    learned: bool,  # noqa: FBT001 - drawn
) -> None:
    chooser = Chooser(fleet_of(*fleet_nodes))
    counter = MixCounter()
    for number, (request, other, ends) in enumerate(steps):
        counter.see(request)
        row = chooser.best(request, all_rows(chooser.fleet))
        if row is not None:
            placed = chooser.place(request, row)
            assert placed is not None
            suits(request, placed, fleet_nodes[row])
            chooser.fleet.hold(str(number), Holding(placed.node, placed.pieces(request)))
        holds_to_capacity(chooser)
        if ends:
            chooser.fleet.release(str(other))
        if learned and number == 5:
            random = np.random.default_rng(1)
            chooser.worth = learn(counter.mix(), chooser.fleet.classes, chooser.fleet.capacity(), random)


@given(nodes, st.lists(requests, max_size=12), requests)
def test_gains_that_are_kept_are_those_computed_anew(
    fleet_nodes: list[Node], before: list[Request], request: Request
) -> None:
    chooser = Chooser(fleet_of(*fleet_nodes))
    for number, other in enumerate(before):
        chooser.gains(request)
        place(chooser, str(number), other)
        if number % 3 == 2:
            chooser.fleet.release(str(number - 1))
    assert chooser.gains(request).tolist() == Chooser(chooser.fleet).gains(request).tolist()


def fits_somehow(request: Request, free: dict[str, tuple[int, int, int]]) -> bool:
    """Whether any of all assignments keeps every device within what is free of it: (core, MiB, MiB in all)."""
    ways = [combinations(free, need.gpus) for need, _ in request.steps]
    return any(_within(request, way, free) for way in product(*ways))


def _within(request: Request, way: tuple[tuple[str, ...], ...], free: dict[str, tuple[int, int, int]]) -> bool:
    beside = {
        uuid for (_, keeps), uuids in zip(request.steps, way, strict=True) if keeps is not False for uuid in uuids
    }
    for (need, keeps), uuids in zip(request.steps, way, strict=True):
        if keeps is False and len(set(uuids) - beside) > max(need.gpus - len(beside), 0):
            return False
    for uuid, (core, memory, total) in free.items():
        figures = [
            (need.core_percent, need.mib_of(total)) if uuid in uuids else (0, 0)
            for (need, _), uuids in zip(request.steps, way, strict=True)
        ]
        for at, most in ((0, core), (1, memory)):
            init = [(figures[n][at], keeps) for n, (_, keeps) in enumerate(request.init)]
            if peak([figure[at] for figure in figures[len(request.init) :]], init) > most:
                return False
    return True


@settings(max_examples=200)
@given(requests.filter(lambda request: len(request.steps) <= 3), st.lists(requests, max_size=3), st.integers(1, 3))
def test_a_request_is_placed_wherever_it_fits(request: Request, before: list[Request], gpus: int) -> None:
    chooser = Chooser(fleet_of(node("n0", gpus)))
    for number, other in enumerate(before):
        place(chooser, str(number), other)
    fleet = chooser.fleet
    wanted = request.wanted
    free = {
        f"n0-{at}": (int(fleet.core[0, at]), int(fleet.memory[0, at]), 1000)
        for at in range(gpus)
        if allowed(A100, wanted.use_models, wanted.avoid_models)
        and (not wanted.use_uuids or f"n0-{at}" in wanted.use_uuids)
        and f"n0-{at}" not in wanted.avoid_uuids
    }
    assert (chooser.gains(request)[0] != NONE) == fits_somehow(request, free)


def test_at_most_64_containers_share_a_gpu() -> None:
    chooser = Chooser(fleet_of(node("n0", 1)))
    tiny = Request((Need(1, 1, 1),))
    placed = [place(chooser, str(number), tiny) for number in range(65)]
    assert [holding is not None for holding in placed] == [True] * 64 + [False]


def test_before_anything_is_learned_the_first_node_that_fits_is_taken() -> None:
    chooser = Chooser(fleet_of(node("n0", 1), node("n1", 1)))
    half = Request((Need(1, 60, memory_percent=10),))
    assert [holding.node if (holding := place(chooser, str(number), half)) else None for number in range(3)] == [
        "n0",
        "n1",
        None,
    ]


def test_spread_takes_the_node_and_the_gpu_of_which_most_is_left() -> None:
    fleet = fleet_of(node("n0", 2), node("n1", 2))
    fill(fleet, "n0-0", core=10, memory=10)
    fill(fleet, "n1-0", core=5, memory=5)
    holding = place(Chooser(fleet), "p", Request((Need(1, 10, 10),), wanted=Wanted(placement=Placement.SPREAD)))
    assert holding is not None
    assert holding.pieces[0].uuid == "n1-1"


def test_topology_takes_the_node_whose_free_gpus_are_linked_best() -> None:
    fleet = fleet_of(node("n0", 4), node("n1", 4))
    for uuid in ("n0-0", "n0-2"):
        fill(fleet, uuid, core=100)
    request = Request((Need(2, 100, memory_percent=100),), wanted=Wanted(placement=Placement.TOPOLOGY))
    holding = place(Chooser(fleet), "p", request)
    assert holding is not None
    assert [piece.uuid for piece in holding.pieces] == ["n1-0", "n1-1"]


@pytest.mark.parametrize("placement", Placement)
def test_gpus_that_are_equally_full_are_taken_by_their_links(placement: Placement) -> None:
    fleet = fleet_of(node("n0", 4))
    fill(fleet, "n0-0", core=100)
    request = Request((Need(2, 50, memory_percent=50),), wanted=Wanted(placement=placement))
    holding = place(Chooser(fleet), "p", request)
    assert holding is not None
    assert [piece.uuid for piece in holding.pieces] == ["n0-2", "n0-3"]


def test_a_percentage_of_memory_is_rounded_down_on_each_device() -> None:
    chooser = Chooser(fleet_of(node("n0", 1, memory_mib=999)))
    holding = place(chooser, "p", Request((Need(1, 50, memory_percent=33),)))
    assert holding is not None
    assert holding.pieces[0].memory_mib == 329


def test_an_init_container_is_charged_with_the_larger_of_its_share_and_that_of_the_main_ones() -> None:
    chooser = Chooser(fleet_of(node("n0", 1)))
    request = Request((Need(1, 30, 500),), init=((Need(1, 80, 100), False), (Need(1, 10, 50), True)))
    holding = place(chooser, "p", request)
    assert holding is not None
    assert holding.pieces == ((("n0-0", 80, 550, 2)),)


def test_a_node_that_goes_is_chosen_no_more_and_one_that_comes_back_is_held_as_before() -> None:
    fleet = fleet_of(node("n0", 1), node("n1", 1))
    chooser = Chooser(fleet)
    whole = Request((Need(1, 100, memory_percent=100),))
    assert place(chooser, "p0", whole)
    fleet.remove("n0")
    assert (holding := place(chooser, "p1", whole)) is not None
    assert holding.node == "n1"
    fleet.put(node("n0", 1))
    assert place(chooser, "p2", whole) is None
    fleet.release("p0")
    assert place(chooser, "p3", whole) is not None


@given(nodes, st.lists(requests, max_size=6))
def test_a_fleet_whose_pods_all_ended_is_like_one_that_held_none(
    fleet_nodes: list[Node], before: list[Request]
) -> None:
    used, unused = (fleet_of(*fleet_nodes, node("gone")) for _ in range(2))
    for number, request in enumerate(before):
        place(Chooser(used), str(number), request)
    for fleet in (used, unused):
        fleet.remove("gone")
    used.release_all()
    for name in ("cls", "core", "memory", "slots", "total", "idle", "offered", "cpu", "host"):
        np.testing.assert_array_equal(getattr(used, name), getattr(unused, name), name)
    assert not any(used.held_by(str(number)) for number in range(len(before)))


def test_more_devices_and_nodes_than_before_are_taken_in() -> None:
    fleet = fleet_of(*(node(f"n{number}", 1, model=T4) for number in range(100)), node("large", 16))
    holding = place(Chooser(fleet), "p", Request((Need(16, 100, memory_percent=100),)))
    assert holding is not None
    assert (holding.node, len(holding.pieces)) == ("large", 16)


@given(
    st.lists(st.tuples(st.sampled_from(["put", "remove", "set"]), st.integers(0, 9)), max_size=60),
    st.integers(1, 70),
)
def test_a_set_has_the_nodes_of_which_it_was_made_as_long_as_they_stay(
    steps: list[tuple[str, int]], first: int
) -> None:
    fleet = fleet_of(*(node(f"first-{number}", 1) for number in range(first)))
    made: list[tuple[NodeSet, set[str]]] = []
    for kind, number in steps:
        name = f"n{number}"
        if kind == "set":
            rows = np.flatnonzero((np.arange(fleet.size) % 10 >= number) & (fleet.names[: fleet.size] != ""))
            made.append((fleet.set_of(rows), {str(name) for name in fleet.names[rows]}))
            continue
        if kind == "put":
            fleet.put(node(name, 1))
        else:
            fleet.remove(name)
            for _, names in made:
                names.discard(name)
        for one, names in made:
            within = np.flatnonzero(fleet.within(one))
            assert {str(name) for name in fleet.names[within]} == names
