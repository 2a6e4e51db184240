"""Fleets for the tests of placement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from hypothesis import strategies as st

from fairgpu.inventory import Device, Health, Inventory, Link
from fairgpu.request import Placement
from scheduler.placement.choosing import Chooser
from scheduler.placement.fleet import DeviceClass, Fleet, Ints, Node
from scheduler.placement.holding import Holding, Piece
from scheduler.placement.mix import Mix, MixCounter
from scheduler.placement.request import Need, Request, Wanted
from scheduler.placement.worth import Worth, learn

A100 = "NVIDIA A100-SXM4-80GB"
T4 = "Tesla T4"


def pairs(gpus: int) -> tuple[tuple[Link, ...], ...]:
    """Links of a node whose GPUs are bridged two by two, four of them on each socket."""

    def link(one: int, other: int) -> Link:
        if one == other:
            return Link.SELF
        if one // 2 == other // 2:
            return Link.NVLINK
        return Link.NODE if one // 4 == other // 4 else Link.SYSTEM

    return tuple(tuple(link(one, other) for other in range(gpus)) for one in range(gpus))


def node(name: str, gpus: int = 4, *, model: str = A100, memory_mib: int = 1000, fenced: Sequence[int] = ()) -> Node:
    """A node with GPUs of one model, uuids NAME-0 and so on."""
    devices = tuple(
        Device(f"{name}-{at}", model, memory_mib, at // 4, f"pci-{at}", Health.FENCED if at in fenced else Health.OK)
        for at in range(gpus)
    )
    return Node(name, Inventory("nvidia", "580.1", 64, devices, pairs(gpus)), cpu_milli=64_000, host_mib=256_000)


def learned(fleet: Fleet, seen: Iterable[Request]) -> Worth:
    """Returns the worth that is learned of requests on a fleet; each case is learned once, since that takes long."""
    counter = MixCounter()
    for request in seen:
        counter.see(request)
    return _learned(counter.mix(), tuple(fleet.classes), tuple(fleet.capacity().items()))


@cache
def _learned(mix: Mix, classes: tuple[DeviceClass, ...], capacity: tuple[tuple[int, int], ...]) -> Worth:
    return learn(mix, classes, dict(capacity), np.random.default_rng(1))


def fleet_of(*nodes: Node) -> Fleet:
    """A fleet of these nodes, on which nothing is held."""
    fleet = Fleet()
    for one in nodes:
        fleet.put(one)
    return fleet


def all_rows(fleet: Fleet) -> Ints:
    """Every row."""
    return np.arange(fleet.size)


def place(chooser: Chooser, uid: str, request: Request) -> Holding | None:
    """Places a request where it wins most, and notes what it holds."""
    row = chooser.best(request, all_rows(chooser.fleet))
    if row is None:
        return None
    placed = chooser.place(request, row)
    assert placed is not None
    holding = Holding(placed.node, placed.pieces(request), request.cpu_milli, request.host_mib)
    chooser.fleet.hold(uid, holding)
    return holding


def fill(fleet: Fleet, uuid: str, *, core: int = 0, memory: int = 0, slots: int = 1) -> None:
    """Takes something of one device."""
    row, _ = fleet.places[uuid]
    found = fleet.nodes[row]
    assert found is not None
    fleet.hold(f"on-{uuid}-{core}-{memory}-{slots}", Holding(found.name, (Piece(uuid, core, memory, slots),)))


needs = st.builds(
    lambda gpus, core, memory, percent: Need(gpus, core, memory, 0 if memory else max(percent, 1)),
    st.integers(1, 3),
    st.sampled_from([0, 10, 30, 50, 60, 100]),
    st.sampled_from([0, 0, 100, 400, 600, 1000]),
    st.sampled_from([10, 33, 50, 100]),
)
wanted = st.builds(
    Wanted,
    use_models=st.sampled_from([(), (), ("a100",), ("T4", "H100")]),
    avoid_models=st.sampled_from([(), (), ("tesla",)]),
    use_uuids=st.sampled_from([(), (), ("n0-0", "n1-1", "gone")]),
    avoid_uuids=st.sampled_from([(), (), ("n0-1", "n2-0")]),
    placement=st.sampled_from(Placement),
)
requests = st.builds(
    Request,
    containers=st.lists(needs, min_size=1, max_size=3).map(tuple),
    init=st.just(()) | st.lists(st.tuples(needs, st.booleans()), max_size=2).map(tuple),
    wanted=wanted,
    cpu_milli=st.sampled_from([0, 1000, 8000]),
)
nodes = st.builds(
    lambda gpus, models, fenced: [
        node(
            f"n{at}", gpus, model=model, memory_mib=1000 if model == A100 else 600, fenced=(0,) if at == fenced else ()
        )
        for at, model in enumerate(models)
    ],
    st.integers(1, 4),
    st.lists(st.sampled_from([A100, T4]), min_size=1, max_size=3),
    st.integers(0, 5),
)
