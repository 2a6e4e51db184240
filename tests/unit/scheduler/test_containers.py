"""Pods of several containers: they fit wherever there is a way, and no search for one takes long."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from fairgpu.request import Placement
from scheduler.measures import Figures, Measures
from scheduler.placement import choosing, search
from scheduler.placement.causes import explain
from scheduler.placement.choosing import NONE, Chooser
from scheduler.placement.fleet import Fleet, Node
from scheduler.placement.holding import Holding, Piece
from scheduler.placement.request import Need, Request, Wanted
from scheduler.placement.search import Tries
from scheduler.placement.together import MAX_SETS, Part, place_together
from tests.unit.scheduler.fleets import A100, T4, all_rows, fill, fleet_of, learned, node, requests

SIX_BY_FOUR = Request(tuple(Need(4, 16 + at, memory_percent=15 + at * 7 % 5) for at in range(6)))


def unequal(nodes: int, *, least: int = 20, most: int = 70) -> Fleet:
    """Nodes of eight GPUs, each of which has another amount left."""
    drawn, fleet = random.Random(1), fleet_of(*(node(f"n{at}", 8) for at in range(nodes)))
    for at in range(nodes):
        for gpu in range(8):
            fill(
                fleet, f"n{at}-{gpu}", core=drawn.randrange(least, most), memory=drawn.randrange(10 * least, 10 * most)
            )
    return fleet


def fits_somehow(needs: tuple[Need, ...], free: tuple[tuple[int, int], ...]) -> bool:
    """Whether any of all ways keeps every device within what is free of it: (core, MiB)."""
    if not needs:
        return True
    need, *later = needs
    able = [at for at, (core, mib) in enumerate(free) if core >= need.core_percent and mib >= need.mib_of(1000)]
    return any(
        fits_somehow(
            tuple(later),
            tuple(
                (core - need.core_percent, mib - need.mib_of(1000)) if at in chosen else (core, mib)
                for at, (core, mib) in enumerate(free)
            ),
        )
        for chosen in combinations(able, need.gpus)
    )


shares = st.sampled_from([0, 10, 20, 25, 30, 40, 50, 60])
containers = st.lists(
    st.builds(Need, st.integers(1, 3), shares, st.just(0), shares.map(lambda percent: percent or 5)),
    min_size=2,
    max_size=5,
)


@settings(max_examples=300)
@given(containers.map(tuple), st.lists(st.tuples(shares, shares), min_size=3, max_size=4))
def test_containers_fit_wherever_there_is_a_way(needs: tuple[Need, ...], held: list[tuple[int, int]]) -> None:
    fleet = fleet_of(node("n0", len(held)))
    for at, (core, percent) in enumerate(held):
        fill(fleet, f"n0-{at}", core=core, memory=percent * 10)
    free = tuple((100 - core, 1000 - percent * 10) for core, percent in held)
    chooser = Chooser(fleet)
    assert (chooser.gains(Request(needs))[0] != NONE) == fits_somehow(needs, free)
    assert chooser.cut == 0


ALIKE = [(2, A100), (2, T4), (2, A100)]
BOTH = Request((Need(2, 50, 100), Need(2, 20, 100)))
WHOLE = Request((Need(2, 100, memory_percent=100),) * 2, wanted=Wanted(placement=Placement.TOPOLOGY))
SINGLE = Request((Need(1, 10, memory_percent=50), Need(1, 10, memory_percent=20)), cpu_milli=8000)


@settings(max_examples=200)
@example(Request(BOTH.containers, wanted=Wanted(use_models=("a100",))), ALIKE, [], False)
@example(Request(BOTH.containers, wanted=Wanted(use_uuids=("n2-0", "n2-1"))), ALIKE, [], False)
@example(Request(BOTH.containers, wanted=Wanted(avoid_uuids=("n0-1",))), ALIKE, [], False)
@example(WHOLE, [(4, A100), (4, A100)], [], False)
@example(SINGLE, ALIKE, [(0, (0, 0, 1, 64_000)), (2, (0, 0, 1, 0))], True)
@example(BOTH, ALIKE, [(0, (60, 0, 1, 0)), (2, (0, 0, 1, 0))], False)
@example(BOTH, ALIKE, [(0, (0, 900, 1, 0)), (2, (0, 0, 1, 0))], False)
@example(BOTH, ALIKE, [(0, (0, 0, 63, 0))], False)
@given(
    requests,
    st.lists(st.tuples(st.sampled_from([2, 5, 9]), st.sampled_from([A100, T4])), max_size=9),
    st.lists(
        st.tuples(
            st.integers(0, 8),
            st.tuples(
                shares, st.sampled_from([0, 500]), st.sampled_from([1, 63, 64]), st.sampled_from([0, 60_000, 64_000])
            ),
        )
    ),
    st.booleans(),
)
def test_a_request_gains_on_each_of_many_nodes_what_it_would_were_the_node_alone(
    request: Request,
    drawn: list[tuple[int, str]],
    changes: list[tuple[int, tuple[int, int, int, int]]],
    learns: bool,  # noqa: FBT001 - drawn
) -> None:
    """Nodes of which the same is left are decided together."""
    fleet, worth = fleet_of(), None
    for at, (gpus, model) in enumerate(drawn):
        one = node(f"n{at}", gpus, model=model)
        fleet.put(bridged_otherwise(one) if at % 2 else one)
        Chooser(fleet).gains(request)
    for at, (core, memory, slots, cpu_milli) in changes:
        if at < len(drawn):
            fleet.hold(f"on-n{at}", Holding(f"n{at}", (Piece(f"n{at}-0", core, memory, slots),), cpu_milli))
            Chooser(fleet).gains(request)
    if learns:
        worth = learned(fleet, [request])
    alone = []
    for row in range(len(drawn)):
        other = fleet.copy()
        for name in fleet.rows.keys() - {f"n{row}"}:
            other.remove(name)
        alone.append(Chooser(other, worth).gains(request)[row])
    assert Chooser(fleet, worth).gains(request).tolist() == alone


def bridged_otherwise(one: Node) -> Node:
    """A node like this one, each GPU of which has the links of the next."""
    links, order = one.inventory.links, [*range(1, len(one.inventory.links)), 0]
    return replace(one, inventory=replace(one.inventory, links=tuple(tuple(links[i][j] for j in order) for i in order)))


def test_four_hundred_unequal_nodes_are_decided_within_seconds() -> None:
    """kube-scheduler waits 60 s for an answer, in which it places no other pod."""
    chooser = Chooser(unequal(400))
    started = time.process_time()
    chooser.gains(SIX_BY_FOUR)
    assert time.process_time() - started < 5


def test_all_nodes_together_get_so_many_tries() -> None:
    tries = Tries(300)
    chooser = Chooser(unequal(400), tries=tries)
    first = chooser.gains(SIX_BY_FOUR)
    assert tries.left == 0
    assert chooser.cut > 0
    # By no clock: another engine finds the same.
    assert Chooser(unequal(400), tries=Tries(300)).gains(SIX_BY_FOUR).tolist() == first.tolist()


NEEDS_A_SEARCH = Request((Need(2, 50, 10), Need(1, 60, 10), Need(2, 20, 10), Need(2, 20, 10), Need(2, 20, 10)))
"""Fits on three empty GPUs, but neither with the fullest nor with the emptiest that fit taken in turn."""


def test_a_node_whose_search_was_cut_counts_as_not_fitting_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleet_of(node("n0", 3), node("n1", 1))
    chooser = Chooser(fleet)
    monkeypatch.setattr(search, "MAX_TRIES", 1)
    assert chooser.best(NEEDS_A_SEARCH, all_rows(fleet)) is None
    assert chooser.place(NEEDS_A_SEARCH, 0) is None
    shown = [
        explain(shortage, NEEDS_A_SEARCH)
        for shortage, rows in chooser.why(NEEDS_A_SEARCH, all_rows(fleet))
        if 0 in rows
    ]
    together = "gpu: enough is free of each resource, but not on the same GPUs; 1 node has it in sum"
    assert shown == [f"{together}; 1 node was not searched to the end"]
    assert chooser.cut == 1
    monkeypatch.undo()
    # It is searched again once something changes on it.
    fill(fleet, "n0-0", memory=1)
    assert chooser.best(NEEDS_A_SEARCH, all_rows(fleet)) == 0
    assert chooser.place(NEEDS_A_SEARCH, 0) is not None


def test_a_node_that_the_tries_did_not_reach_is_searched_once_any_node_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = fleet_of(node("n0", 3), node("n1", 1))
    chooser = Chooser(fleet)
    monkeypatch.setattr(choosing, "CALL_TRIES", 0)
    assert chooser.best(NEEDS_A_SEARCH, all_rows(fleet)) is None
    monkeypatch.undo()
    # The answer of one state of the cluster stays the same.
    assert chooser.best(NEEDS_A_SEARCH, all_rows(fleet)) is None
    fill(fleet, "n1-0", core=1)
    assert chooser.best(NEEDS_A_SEARCH, all_rows(fleet)) == 0


def test_the_searches_of_a_whole_gang_share_their_tries() -> None:
    """Sixteen pods, after each of which nodes are searched anew."""
    fleet = unequal(400)
    chooser = Chooser(fleet)
    parts = [Part(str(at), SIX_BY_FOUR, all_rows(fleet)) for at in range(16)]
    spent: list[int] = []
    monkey = Tries.one

    def counted(self: Tries) -> bool:
        spent.append(1)
        return monkey(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tries, "one", counted)
        place_together(chooser, parts)
    assert 0 < sum(spent) <= 3 * MAX_SETS
    assert chooser.tries is None


def test_nodes_whose_search_was_cut_are_counted() -> None:
    registry = CollectorRegistry()
    measures = Measures(registry)
    for cut in (2, 2, 5):
        measures.show(Figures(searches_cut=cut), acting=True)
    assert registry.get_sample_value("fairgpu_scheduler_searches_cut_total") == 5


def test_a_pod_of_many_containers_gets_devices_on_as_many_nodes_as_a_call_has_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = fleet_of(*(node(f"n{at}", 2, memory_mib=1000 + at) for at in range(4)))
    monkeypatch.setattr("scheduler.placement.containers.MAX_STEPS", 21)
    chooser, request = Chooser(fleet), Request((Need(1, 1, 1),) * 10)
    assert np.isfinite(chooser.gains(request)).tolist() == [True, True, False, False]
    fill(fleet, "n3-0", core=1)
    assert np.isfinite(chooser.gains(request)).tolist() == [True] * 4
