"""Pods of several GPU containers: links count, and so does what later requests can use of what is left."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairgpu.inventory import Device, Inventory, Link
from fairgpu.request import Placement
from scheduler.placement.choosing import NONE, Chooser, Placed
from scheduler.placement.containers import Free, emptiest, fullest, give
from scheduler.placement.fleet import Fleet, Node
from scheduler.placement.holding import Holding
from scheduler.placement.request import Need, Request, Wanted
from scheduler.placement.topology import Spread, spread_of
from scheduler.placement.worth import STEP_PERCENT, Left, Worth, values
from tests.unit.scheduler.fleets import A100, all_rows, fill, fleet_of, learned, node

TOPOLOGY = Wanted(placement=Placement.TOPOLOGY)


def whole(gpus: int) -> Need:
    return Need(gpus, 100, memory_percent=100)


def half(gpus: int) -> Need:
    return Need(gpus, 50, memory_percent=50)


def columns(placed: Placed | None) -> list[list[int]]:
    """The GPUs of each container, by their numbers on the node."""
    assert placed is not None
    return [[int(share.uuid.rpartition("-")[2]) for share in shares] for shares in placed.shares]


MIXES = tuple(
    tuple(Request((Need(gpus, percent, memory_percent=percent),), cpu_milli=cpu) for gpus, percent, cpu in mix)
    for mix in (
        [(1, 10, 1000)],
        [(1, 30, 1000), (1, 60, 4000), (1, 50, 0)],
        [(2, 50, 1000), (1, 25, 8000)],
        [(2, 100, 1000), (3, 30, 1000), (1, 60, 30_000)],
        [(4, 100, 16_000), (1, 10, 100), (1, 70, 100)],
    )
)
"""The requests seen before, by which worth is learned."""


def worth_of(mix: tuple[Request, ...]) -> Worth:
    """Returns the worth that is learned of a mix on nodes of four GPUs."""
    return learned(fleet_of(node("n0", 4)), mix)


@st.composite
def linked(draw: st.DrawFn) -> Node:
    """A node of up to six GPUs with any links."""
    gpus = draw(st.integers(2, 6))
    tiers = draw(st.lists(st.sampled_from([Link.NVLINK, Link.NODE, Link.SYSTEM]), min_size=36, max_size=36))
    links = tuple(
        tuple(Link.SELF if a == b else tiers[min(a, b) * 6 + max(a, b)] for b in range(gpus)) for a in range(gpus)
    )
    devices = tuple(Device(f"n0-{at}", A100, 1000, draw(st.integers(0, 1)), f"pci-{at}") for at in range(gpus))
    return Node("n0", Inventory("nvidia", "580.1", 64, devices, links), 64_000, 256_000)


def together(fleet: Fleet, sets: list[Any]) -> Spread:
    """The distance within the sets of GPUs of several containers."""
    links, numa = fleet.link_sets[int(fleet.links[0])]
    spreads = [spread_of(links, numa, devices) for devices in sets]
    return Spread(max(s.worst for s in spreads), sum(s.total for s in spreads), sum(s.numa_nodes for s in spreads))


def ways(free: list[int], counts: list[int]) -> Iterator[list[tuple[int, ...]]]:
    """All ways to give containers so many whole GPUs each."""
    if not counts:
        yield []
        return
    for first in combinations(free, counts[0]):
        for others in ways([at for at in free if at not in first], counts[1:]):
            yield [first, *others]


@settings(max_examples=200)
@given(
    linked(),
    st.lists(st.integers(1, 3), min_size=2, max_size=4),
    st.sets(st.integers(0, 5), max_size=2),
    st.sampled_from(Placement),
    st.none() | st.sampled_from(MIXES),
)
def test_whole_gpus_are_those_that_are_linked_best_of_all_ways(
    one: Node,
    counts: list[int],
    busy: set[int],
    placement: Placement,
    mix: tuple[Request, ...] | None,
) -> None:
    fleet = fleet_of(one)
    gpus = len(one.inventory.devices)
    for at in busy & set(range(gpus)):
        fill(fleet, f"n0-{at}", core=10)
    request = Request(tuple(whole(count) for count in counts), wanted=Wanted(placement=placement))
    chooser = Chooser(fleet, worth_of(mix) if mix is not None else None)
    possible = list(ways([at for at in range(gpus) if at not in busy], counts))
    placed = chooser.place(request, 0)
    assert (placed is not None) == bool(possible)
    if placed is not None:
        # A container of one GPU has no links.
        all_ways: list[Any] = [columns(placed), *possible]
        linked_sets = [[list(s) for s in way if len(s) > 1] or [[0]] for way in all_ways]
        assert together(fleet, linked_sets[0]) == min(together(fleet, way) for way in linked_sets[1:])


def left_of(fleet: Fleet) -> Left:
    rows = all_rows(fleet)
    return Left(fleet.cls[rows], fleet.idle[rows], fleet.cpu[rows], fleet.host[rows])


shares = st.sampled_from([10, 25, 30, 50, 60, 100])
needs = st.builds(lambda gpus, percent: Need(gpus, percent, memory_percent=percent), st.integers(1, 3), shares)
singles = st.builds(lambda percent: Need(1, percent, memory_percent=percent), shares)
seen = st.sampled_from(MIXES)
held = st.lists(st.lists(st.sampled_from([0, 10, 30, 50, 70, 100]), min_size=4, max_size=4), min_size=1, max_size=3)


def fleet_with(used: list[list[int]]) -> Fleet:
    """Nodes of four GPUs, so many percent of which are held."""
    fleet = fleet_of(*(node(f"n{at}", 4) for at in range(len(used))))
    for at, percents in enumerate(used):
        for gpu, percent in enumerate(percents):
            fill(fleet, f"n{at}-{gpu}", core=percent, memory=10 * percent)
    return fleet


@settings(max_examples=200)
@given(
    held | held.map(lambda used: used[:1] * 3),
    seen,
    st.lists(needs, min_size=2, max_size=3).map(tuple) | st.lists(singles, min_size=2, max_size=4).map(tuple),
    st.sampled_from([0, 2000, 30_000]),
    st.lists(st.sampled_from([0, 20_000, 40_000, 50_000, 62_000]), min_size=3, max_size=3),
)
def test_the_gain_of_a_node_is_what_it_is_worth_with_the_pod_less_what_it_is_worth_now(
    used: list[list[int]], mix: tuple[Request, ...], containers: tuple[Need, ...], cpu: int, held_cpu: list[int]
) -> None:
    fleet, request = fleet_with(used), Request(containers, cpu_milli=cpu)
    for at in range(len(used)):
        fleet.hold(f"cpu-{at}", Holding(f"n{at}", (), held_cpu[at]))
    worth = worth_of(mix)
    chooser = Chooser(fleet, worth)
    now = values(worth, left_of(fleet))
    for row, gain in enumerate(chooser.gains(request).tolist()):
        placed = chooser.place(request, row)
        assert (placed is None) == (gain == NONE)
        if placed is not None:
            after = fleet.copy()
            after.hold("pod", Holding(placed.node, placed.pieces(request), cpu))
            change = values(worth, left_of(after))[row] - now[row]
            # Gains are rounded down to steps.
            assert gain - 1e-6 <= change / STEP_PERCENT <= gain + 1 + 1e-6


@settings(max_examples=100)
@given(held, seen, st.lists(singles, min_size=2, max_size=4).map(tuple), st.sampled_from([0, 2000, 64_000]))
def test_each_container_of_one_gpu_takes_the_one_that_leaves_the_node_worth_most(
    used: list[list[int]], mix: tuple[Request, ...], containers: tuple[Need, ...], cpu: int
) -> None:
    fleet, request = fleet_with(used[:1]), Request(containers, cpu_milli=cpu)
    worth = worth_of(mix)
    expected: dict[int, int] = {}
    model = fleet.copy()
    model.hold("pod", Holding("n0", (), cpu))
    for at in sorted(range(len(containers)), key=lambda at: -containers[at].core_percent):
        percent, able = containers[at].core_percent, []
        now = values(worth, left_of(model))[0]
        for gpu in range(4):
            if model.core[0, gpu] >= percent:
                then = model.copy()
                fill(then, f"n0-{gpu}", core=percent, memory=10 * percent, slots=at + 10)
                gain = (values(worth, left_of(then))[0] - now) / STEP_PERCENT
                able.append((np.floor(gain + 1e-9), -gpu, then))
        if not able:
            # Taken in turn they do not fit; another way may.
            return
        _, column, model = max(able, key=lambda found: found[:2])
        expected[at] = -column
    assert columns(Chooser(fleet, worth).place(request, 0)) == [[expected[at]] for at in range(len(containers))]


def test_two_containers_get_the_two_pairs_of_which_the_worst_link_is_best() -> None:
    # The best pair of all, 1 and 2, would leave 0 and 3, which are linked worst.
    near, middle, far = Link.NVLINK, Link.NODE, Link.SYSTEM
    links = (
        (Link.SELF, middle, far, far),
        (middle, Link.SELF, near, far),
        (far, near, Link.SELF, middle),
        (far, far, middle, Link.SELF),
    )
    devices = tuple(Device(f"n0-{at}", A100, 1000, None, f"pci-{at}") for at in range(4))
    chooser = Chooser(fleet_of(Node("n0", Inventory("nvidia", "580.1", 64, devices, links))))
    assert columns(chooser.place(Request((whole(2), whole(2))), 0)) == [[0, 1], [2, 3]]


def test_topology_takes_the_node_on_which_the_containers_are_linked_best() -> None:
    fleet = fleet_of(*(node(f"n{at}", 8) for at in range(3)))
    for row, gpus in ((0, (0, 2, 4)), (1, (0, 2)), (2, (0, 1, 2))):
        for gpu in gpus:
            fill(fleet, f"n{row}-{gpu}", core=100)
    request = Request((whole(2), whole(2)), wanted=TOPOLOGY)
    chooser = Chooser(fleet)
    row = chooser.best(request, all_rows(fleet))
    assert row == 1
    assert columns(chooser.place(request, row)) == [[4, 5], [6, 7]]


@pytest.mark.parametrize(("placement", "taken"), [(Placement.TOPOLOGY, [2, 3]), (Placement.PACK, [0, 2])])
def test_links_decide_before_fullness_for_topology_alone(placement: Placement, taken: list[int]) -> None:
    fleet = fleet_of(node("n0", 4))
    fill(fleet, "n0-0", core=50, memory=500)
    fill(fleet, "n0-1", core=60, memory=600)
    request = Request((half(2), Need(1, 10, memory_percent=10)), wanted=Wanted(placement=placement))
    assert columns(Chooser(fleet).place(request, 0))[0] == taken


def test_the_best_linked_of_equally_full_gpus_are_taken() -> None:
    fleet = fleet_of(node("n0", 8))
    for gpu in (1, 2, 6):
        fill(fleet, f"n0-{gpu}", core=100)
    request = Request((half(2), Need(1, 10, memory_percent=10)))
    assert columns(Chooser(fleet).place(request, 0))[0] == [4, 5]


def test_where_the_best_linked_gpus_leave_no_way_another_is_found() -> None:
    fleet = fleet_of(node("n0", 4))
    for gpu in (2, 3):
        fill(fleet, f"n0-{gpu}", core=40, memory=400)
    # Both pairs are linked alike; the first of them would leave no whole GPU.
    request = Request((Need(2, 60, memory_percent=60), whole(1)), wanted=TOPOLOGY)
    assert columns(Chooser(fleet).place(request, 0)) == [[2, 3], [0]]


def test_where_only_the_emptiest_gpus_leave_a_way_those_that_are_linked_best_are_taken_among_them() -> None:
    fleet = fleet_of(node("n0", 8))
    for gpu, percent in ((0, 100), (5, 30), (6, 30)):
        fill(fleet, f"n0-{gpu}", core=percent, memory=10 * percent)
    seventy = Need(2, 70, memory_percent=70)
    request = Request((whole(2), seventy, seventy, Need(3, 30, memory_percent=30)))
    columns_of = (fleet.core, fleet.memory, fleet.slots, fleet.total, fleet.offered, fleet.idle)
    free = Free._make((*(column[:1] for column in columns_of), all_rows(fleet)))
    assert [give(request, free, way).fits.tolist() for way in (fullest, emptiest)] == [[False], [True]]
    assert columns(Chooser(fleet).place(request, 0))[1] == [2, 3]


@settings(max_examples=300)
@given(
    linked(),
    st.lists(st.sampled_from([0, 0, 30, 40, 50, 70]), min_size=6, max_size=6),
    st.lists(
        st.builds(Need, st.integers(1, 3), st.sampled_from([20, 30, 50, 60]), st.just(10)), min_size=2, max_size=5
    ),
)
def test_with_topology_no_container_could_have_better_linked_gpus_beside_the_others(
    one: Node, used: list[int], containers: list[Need]
) -> None:
    fleet = fleet_of(one)
    gpus = len(one.inventory.devices)
    for at, percent in enumerate(used[:gpus]):
        fill(fleet, f"n0-{at}", core=percent)
    links, numa = fleet.link_sets[int(fleet.links[0])]
    placed = Chooser(fleet).place(Request(tuple(containers), wanted=TOPOLOGY), 0)
    sets = columns(placed) if placed is not None else []
    for at, own in enumerate(sets):
        left = [100 - percent for percent in used[:gpus]]
        for other, devices in enumerate(sets):
            for device in devices if other != at else ():
                left[device] -= containers[other].core_percent
        able = [device for device in range(gpus) if left[device] >= containers[at].core_percent]
        others = (spread_of(links, numa, way) for way in combinations(able, containers[at].gpus))
        assert spread_of(links, numa, own) == min(others)


@pytest.mark.parametrize(
    ("placement", "used", "containers", "taken"),
    [
        (
            Placement.TOPOLOGY,
            (50, 40, 0, 0),
            (Need(1, 60, 10), Need(2, 50, 10), Need(2, 50, 10)),
            [[1], [0, 3], [2, 3]],
        ),
        # GPUs 0 and 3 have as much left beside the others, so that the second container may take either.
        (
            Placement.PACK,
            (30, 30, 0, 40),
            (Need(3, 40, 10), Need(3, 20, 10), Need(2, 30, 10)),
            [[0, 1, 2], [0, 1, 2], [2, 3]],
        ),
    ],
)
def test_where_the_fullest_gpus_leave_no_way_containers_change_to_gpus_that_are_linked_better(
    placement: Placement, used: tuple[int, ...], containers: tuple[Need, ...], taken: list[list[int]]
) -> None:
    near, middle, far = Link.NVLINK, Link.NODE, Link.SYSTEM
    links = (
        (Link.SELF, near, far, middle),
        (near, Link.SELF, near, middle),
        (far, near, Link.SELF, far),
        (middle, middle, far, Link.SELF),
    )
    devices = tuple(Device(f"n0-{at}", A100, 1000, None, f"pci-{at}") for at in range(4))
    fleet = fleet_of(Node("n0", Inventory("nvidia", "580.1", 64, devices, links), 64_000, 256_000))
    for at, percent in enumerate(used):
        fill(fleet, f"n0-{at}", core=percent)
    request = Request(containers, wanted=Wanted(placement=placement))
    columns_of = (fleet.core, fleet.memory, fleet.slots, fleet.total, fleet.offered, fleet.idle)
    free = Free._make((*(column[:1] for column in columns_of), all_rows(fleet)))
    assert give(request, free, fullest).fits.tolist() == [False]
    assert columns(Chooser(fleet).place(request, 0)) == taken


@pytest.mark.parametrize("mib", [1, 2**7, 1000, 2**15, 2**31 // 100, 2**31 // 100 + 1, 2**31, 2**40, 2**53 - 1])
@pytest.mark.filterwarnings("error")
def test_containers_fit_by_the_mib_on_devices_of_any_size(mib: int) -> None:
    chooser = Chooser(fleet_of(node("n0", 2, memory_mib=mib)))
    percent = Need(2, 10, memory_percent=100)
    for request, fits in (
        (Request((percent, Need(1, 10))), True),
        (Request((Need(2, 10, mib), Need(1, 10))), True),
        (Request((Need(1, 10, mib), Need(1, 10, mib), Need(1, 10))), True),
        (Request((percent, Need(1, 10, 1))), False),
        (Request((Need(1, 10, mib + 1), Need(1, 10))), False),
        (Request((Need(1, 10, 2**60), Need(1, 10))), False),
    ):
        assert (chooser.gains(request)[0] != NONE, chooser.place(request, 0) is not None) == (fits, fits)


def test_an_init_container_of_several_gpus_takes_the_best_linked_of_those_that_are_held() -> None:
    fleet = fleet_of(node("n0", 4))
    request = Request((whole(4),), init=((half(2), False),), wanted=TOPOLOGY)
    assert columns(Chooser(fleet).place(request, 0)) == [[0, 1], [0, 1, 2, 3]]


def test_an_init_container_takes_what_the_main_ones_hold_whatever_another_one_before_it_takes() -> None:
    fleet = fleet_of(node("n0", 4))
    tenth = Need(1, 0, memory_percent=10)
    request = Request(
        (tenth._replace(gpus=2),),
        init=((tenth._replace(gpus=3), False), (tenth, False), (tenth._replace(gpus=3), False)),
        wanted=Wanted(avoid_uuids=("n0-1",)),
    )
    first, second, third, main = columns(Chooser(fleet).place(request, 0))
    assert main == [2, 3]
    assert set(second) < set(main) < set(first) == set(third) == {0, 2, 3}


def test_an_init_container_never_needs_room_on_what_only_another_one_before_it_takes() -> None:
    fleet = fleet_of(node("n0", 2))
    fill(fleet, "n0-1", core=60, memory=600)
    # The second init container fits on the first GPU alone, and the main one on either.
    request = Request((Need(1, 30, 10),), init=((Need(2, 10, 10), False), (Need(1, 50, 10), False)))
    chooser = Chooser(fleet)
    assert columns(chooser.place(request, 0)) == [[0, 1], [0], [0]]
