"""Tests which pods are evicted so that others can be placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler.placement.choosing import Chooser
from scheduler.placement.fleet import Fleet
from scheduler.placement.holding import Holding, Piece
from scheduler.placement.request import Need, Request, Wanted
from scheduler.placement.together import holding_of
from scheduler.reclaim.plan import Plan, PodToPlace, Spare, Victims, plan_reclaim
from scheduler.reclaim.roster import Roster, Running
from tests.unit.scheduler.fleets import all_rows, fill, fleet_of, node


@dataclass(frozen=True)
class Runs:
    """A pod that runs: how much of which device, and what its end costs."""

    uid: str
    device: str
    core: int = 50
    spent: float = 0.0
    in_budget: bool = False
    high: bool = False
    cpu: int = 0
    nics: int = 0


def hold(fleet: Fleet, *pods: Runs) -> Victims:
    """Lets pods run."""
    for one in pods:
        holding = Holding(one.device.partition("-")[0], (Piece(one.device, one.core, one.core * 10, 1),), one.cpu)
        fleet.hold(one.uid, holding)
    known = {one.uid: one for one in pods}
    roster = Roster()
    holders = roster.read(fleet, lambda uid: Running("team", known[uid].high, 0.0) if uid in known else None)
    return Victims(
        holders,
        np.ones(len(holders.uids), np.bool_),
        np.array([known[uid].in_budget for uid in holders.uids], np.bool_),
        np.array([known[uid].spent for uid in holders.uids], np.float64),
        {one.uid: {"nic": one.nics} for one in pods if one.nics},
    )


def share(core: int, gpus: int = 1, cpu: int = 0, wanted: Wanted | None = None) -> Request:
    return Request((Need(gpus, core, memory_percent=core),), cpu_milli=cpu, wanted=wanted or Wanted())


def plan(fleet: Fleet, victims: Victims, *requests: Request, high: bool = False, spare: int = 100) -> Plan | None:
    pods = [PodToPlace(f"c{at}", request, all_rows(fleet), high) for at, request in enumerate(requests)]
    return plan_reclaim(fleet.copy(), victims, pods, Spare(np.full(fleet.size, spare)))


def plan_with_nics(fleet: Fleet, victims: Victims, left: dict[str, int], *asked: tuple[Request, int]) -> Plan | None:
    """A plan for pods that ask for network cards, of which each node has some left."""
    pods = [
        PodToPlace(f"c{at}", request, all_rows(fleet), others=(("nic", nics),) if nics else ())
        for at, (request, nics) in enumerate(asked)
    ]
    others = {fleet.rows[name]: {"nic": amount} for name, amount in left.items()}
    return plan_reclaim(fleet.copy(), victims, pods, Spare(np.full(fleet.size, 100), others))


def victims_of(found: Plan | None) -> set[str] | None:
    return None if found is None else set(found.victims)


def test_the_pod_that_lost_least_goes() -> None:
    fleet = fleet_of(node("n0", 2))
    victims = hold(fleet, Runs("old", "n0-0", 100, 900.0), Runs("young", "n0-1", 100, 5.0))
    assert victims_of(plan(fleet, victims, share(100))) == {"young"}


def test_no_pod_goes_where_there_is_room() -> None:
    fleet = fleet_of(node("n0", 2))
    victims = hold(fleet, Runs("a", "n0-0", 100))
    assert victims_of(plan(fleet, victims, share(100))) == set()


def test_devices_that_are_free_in_sum_but_not_together_are_freed() -> None:
    fleet = fleet_of(node("n0", 2))
    victims = hold(fleet, Runs("a", "n0-0", 60, 3.0), Runs("b", "n0-1", 60, 2.0))
    found = plan(fleet, victims, share(80))
    assert found is not None
    assert found.victims == ("b",)
    assert found.places["c0"].shares[0][0].uuid == "n0-1"


def test_a_pod_of_high_priority_goes_after_one_of_normal_priority() -> None:
    fleet = fleet_of(node("n0", 2))
    victims = hold(fleet, Runs("high", "n0-0", 100, 1.0, high=True), Runs("normal", "n0-1", 100, 900.0))
    assert victims_of(plan(fleet, victims, share(100))) == {"normal"}


@pytest.mark.parametrize(
    ("high_claim", "high_victim", "goes"), [(False, False, None), (True, False, {"a"}), (True, True, None)]
)
def test_a_pod_within_its_budget_goes_only_for_one_of_higher_task_priority(
    goes: set[str] | None, *, high_claim: bool, high_victim: bool
) -> None:
    fleet = fleet_of(node("n0", 1))
    victims = hold(fleet, Runs("a", "n0-0", 100, in_budget=True, high=high_victim))
    assert victims_of(plan(fleet, victims, share(100), high=high_claim)) == goes


def test_one_dear_pod_is_cheaper_than_two_that_together_cost_more() -> None:
    fleet = fleet_of(node("n0", 2))
    victims = hold(fleet, Runs("dear", "n0-0", 100, 10.0), Runs("a", "n0-1", 50, 6.0), Runs("b", "n0-1", 50, 6.0))
    assert victims_of(plan(fleet, victims, share(100))) == {"dear"}


def test_the_node_whose_pods_cost_least_is_freed() -> None:
    fleet = fleet_of(*(node(f"n{at}", 1) for at in range(50)))
    victims = hold(fleet, *(Runs(f"p{at}", f"n{at}-0", 100, 100.0 - at) for at in range(50)))
    assert victims_of(plan(fleet, victims, share(100))) == {"p49"}


def test_processor_time_that_victims_free_counts_and_what_is_short_without_them_forbids() -> None:
    fleet = fleet_of(node("n0", 1), node("n1", 1))
    victims = hold(fleet, Runs("a", "n0-0", 100, 1.0, cpu=1000), Runs("b", "n1-0", 100, 9.0, cpu=60_000))
    assert victims_of(plan(fleet, victims, share(100, cpu=64_000))) == {"a"}
    fleet.hold("cpu", Holding("n0", (), 2000))
    assert victims_of(plan(fleet, victims, share(100, cpu=64_000))) == {"b"}
    fleet.hold("more", Holding("n1", (), 2000))
    assert plan(fleet, victims, share(100, cpu=64_000)) is None


def test_a_node_that_is_full_of_pods_has_room_for_one_for_each_that_goes() -> None:
    fleet = fleet_of(node("n0", 1))
    victims = hold(fleet, Runs("a", "n0-0", 40))
    assert victims_of(plan(fleet, victims, share(50), spare=0)) == {"a"}
    assert plan(fleet, victims, share(50), spare=-1) is None


@pytest.mark.parametrize(
    ("left", "nics", "goes"),
    [
        (1, 1, {"cheap"}),
        (0, 1, {"nic"}),
        (0, 2, {"nics"}),
        (1, 3, {"nics"}),
        (0, 3, {"nic", "nics"}),
        (0, 4, None),
        (1, 0, {"cheap"}),
    ],
)
def test_other_resources_that_victims_free_count(left: int, nics: int, goes: set[str] | None) -> None:
    fleet = fleet_of(node("n0", 3))
    victims = hold(
        fleet,
        Runs("cheap", "n0-0", 100, 1.0),
        Runs("nic", "n0-1", 100, 5.0, nics=1),
        Runs("nics", "n0-2", 100, 9.0, nics=2),
    )
    found = plan_with_nics(fleet, victims, {"n0": left}, (share(100), nics))
    assert victims_of(found) == goes


def test_a_free_gpu_is_no_room_where_another_resource_is_taken() -> None:
    fleet = fleet_of(node("n0", 2), node("n1", 1))
    victims = hold(fleet, Runs("nic", "n0-0", 10, 5.0, nics=1), Runs("other", "n1-0", 100, 1.0))
    assert victims_of(plan_with_nics(fleet, victims, {"n0": 0, "n1": 0}, (share(100), 1))) == {"nic"}
    assert victims_of(plan_with_nics(fleet, victims, {"n0": 0, "n1": 1}, (share(100), 1))) == {"other"}
    assert victims_of(plan_with_nics(fleet, victims, {"n0": 1}, (share(100), 1))) == set()
    kept = hold(fleet, Runs("nic", "n0-0", 10, 5.0, nics=1, in_budget=True), Runs("other", "n1-0", 100, 1.0))
    assert plan_with_nics(fleet, kept, {"n0": 0, "n1": 0}, (share(100), 1)) is None


def test_two_pods_of_a_gang_do_not_count_on_the_same_other_resource() -> None:
    fleet = fleet_of(node("n0", 3))
    victims = hold(fleet, Runs("nic", "n0-0", 10, 5.0, nics=1))
    asked = [(share(100), 1)] * 2
    assert victims_of(plan_with_nics(fleet, victims, {"n0": 1}, *asked)) == {"nic"}
    assert victims_of(plan_with_nics(fleet, victims, {"n0": 2}, *asked)) == set()
    assert plan_with_nics(fleet, victims, {"n0": 0}, *asked) is None


def test_only_nodes_on_which_the_pod_may_run_are_freed() -> None:
    fleet = fleet_of(node("n0", 1), node("n1", 1))
    victims = hold(fleet, Runs("a", "n0-0", 100, 1.0), Runs("b", "n1-0", 100, 9.0))
    found = plan_reclaim(fleet.copy(), victims, [PodToPlace("c", share(100), np.array([1]))], Spare(np.full(2, 9)))
    assert victims_of(found) == {"b"}


def test_devices_that_the_pod_may_not_use_are_not_freed_for_it() -> None:
    fleet = fleet_of(node("n0", 2, fenced=(0,)), node("n1", 1, model="Tesla T4"))
    victims = hold(fleet, Runs("a", "n0-0", 100, 1.0), Runs("b", "n0-1", 100, 9.0), Runs("c", "n1-0", 100, 2.0))
    assert victims_of(plan(fleet, victims, share(100, wanted=Wanted(use_models=("A100",))))) == {"b"}


def test_several_gpus_of_one_container_are_freed_on_one_node() -> None:
    fleet = fleet_of(node("n0", 1), node("n1", 3))
    victims = hold(
        fleet,
        Runs("x", "n0-0", 100),
        *(Runs(f"p{at}", f"n1-{at}", 100, spent) for at, spent in enumerate((5.0, 1.0, 3.0))),
    )
    assert victims_of(plan(fleet, victims, share(100, gpus=2))) == {"p1", "p2"}


def test_a_gang_is_planned_as_a_whole() -> None:
    fleet = fleet_of(*(node(f"n{at}", 1) for at in range(3)))
    victims = hold(fleet, Runs("a", "n0-0", 100, 3.0), Runs("b", "n1-0", 100, 1.0))
    fill(fleet, "n2-0", core=100)
    assert victims_of(plan(fleet, victims, share(100), share(100))) == {"a", "b"}
    assert plan(fleet, victims, share(100), share(100), share(100)) is None


def test_containers_of_one_pod_are_placed_together() -> None:
    fleet = fleet_of(node("n0", 1), node("n1", 2))
    victims = hold(fleet, Runs("a", "n0-0", 100, 1.0), Runs("b", "n1-0", 100, 5.0), Runs("c", "n1-1", 100, 5.0))
    two = Request((Need(1, 80, memory_percent=80), Need(1, 80, memory_percent=80)))
    assert victims_of(plan(fleet, victims, two)) == {"b", "c"}


running = st.builds(
    lambda at, device, core, spent, in_budget, high: Runs(f"p{at}", device, core, float(spent), in_budget, high),
    st.just(0),
    st.sampled_from(["n0-0", "n0-1", "n1-0", "n1-1"]),
    st.sampled_from([10, 30, 50]),
    st.integers(0, 20),
    st.booleans(),
    st.booleans(),
)
claimed = st.builds(share, st.sampled_from([30, 60, 100]), st.integers(1, 2))


def sound(pods: Sequence[Runs]) -> list[Runs]:
    """The pods that fit together, with names of their own."""
    left: dict[str, int] = {}
    kept = []
    for at, one in enumerate(pods):
        if left.setdefault(one.device, 100) >= one.core:
            left[one.device] -= one.core
            kept.append(Runs(f"p{at}", one.device, one.core, one.spent, one.in_budget, one.high))
    return kept


def fits_without(fleet: Fleet, gone: Sequence[str], requests: Sequence[Request]) -> bool:
    """Whether requests fit one after the other once some pods are gone."""
    fleet = fleet.copy()
    chooser = Chooser(fleet)
    for uid in gone:
        fleet.release(uid)
    for at, request in enumerate(requests):
        row = chooser.best(request, all_rows(fleet))
        placed = None if row is None else chooser.place(request, row)
        if placed is None:
            return False
        fleet.hold(f"new-{at}", holding_of(placed, request))
    return True


@settings(deadline=None)
@given(st.lists(running, max_size=9), claimed, st.booleans())
def test_no_pod_goes_in_vain_and_none_of_them_could_stay(
    pods: list[Runs],
    request: Request,
    high: bool,  # noqa: FBT001 - hypothesis gives it
) -> None:
    fleet = fleet_of(node("n0", 2), node("n1", 2))
    pods = sound(pods)
    victims = hold(fleet, *pods)
    by_uid = {one.uid: one for one in pods}
    found = plan(fleet, victims, request, high=high)
    may_go = [one.uid for one in pods if not one.in_budget or (high and not one.high)]
    assert (found is not None) == fits_without(fleet, may_go, [request])
    assume(found is not None)
    assert found is not None
    assert set(found.victims) <= set(may_go)
    assert fits_without(fleet, found.victims, [request])
    for count in range(len(found.victims)):
        for fewer in combinations(found.victims, count):
            assert not fits_without(fleet, fewer, [request])
    if all(one.in_budget for one in (by_uid[uid] for uid in found.victims)) and found.victims:
        cheap = [uid for uid in may_go if not by_uid[uid].in_budget]
        assert not fits_without(fleet, cheap, [request])


@settings(deadline=None)
@given(st.lists(running, max_size=7), st.lists(st.integers(0, 2), min_size=7, max_size=7), claimed, st.integers(1, 3))
def test_no_pod_goes_in_vain_for_another_resource_and_none_of_them_could_stay(
    pods: list[Runs], cards: list[int], request: Request, nics: int
) -> None:
    fleet, left = fleet_of(node("n0", 2), node("n1", 2)), {"n0": 0, "n1": 1}
    pods = [replace(one, nics=card, in_budget=False) for one, card in zip(sound(pods), cards, strict=False)]
    victims = hold(fleet, *pods)
    by_uid = {one.uid: one for one in pods}

    def fits(gone: Sequence[str]) -> bool:
        freed = {
            name: amount + sum(by_uid[uid].nics for uid in gone if by_uid[uid].device.startswith(name))
            for name, amount in left.items()
        }
        open_to = np.array([row for name, row in fleet.rows.items() if freed[name] >= nics], np.int64)
        without = fleet.copy()
        for uid in gone:
            without.release(uid)
        return Chooser(without).best(request, open_to) is not None

    found = plan_with_nics(fleet, victims, left, (request, nics))
    assert (found is not None) == fits(list(by_uid))
    if found is not None:
        assert fits(found.victims)
        for count in range(len(found.victims)):
            assert not any(fits(fewer) for fewer in combinations(found.victims, count))


@settings(deadline=None)
@given(st.lists(running, max_size=9), st.lists(claimed, min_size=2, max_size=3))
def test_pods_that_go_for_a_gang_make_room_for_all_of_it(pods: list[Runs], requests: list[Request]) -> None:
    fleet = fleet_of(node("n0", 2), node("n1", 2))
    victims = hold(fleet, *sound(pods))
    found = plan(fleet, victims, *requests)
    assume(found is not None)
    assert found is not None
    after = fleet.copy()
    for uid in found.victims:
        after.release(uid)
    for at, request in enumerate(requests):
        after.hold(f"c{at}", holding_of(found.places[f"c{at}"], request))
    assert min(after.core.min(), after.memory.min(), after.slots.min()) >= 0
    assert not found.victims or not fits_without(fleet, (), requests) or len(requests) > 1


@settings(deadline=None)
@given(st.lists(running, max_size=9), claimed)
def test_pods_that_go_cost_no_more_than_any_pod_that_would_suffice_alone(pods: list[Runs], request: Request) -> None:
    assume(request.containers[0].gpus == 1)
    fleet = fleet_of(node("n0", 2), node("n1", 2))
    pods = [one for one in sound(pods) if not one.in_budget]
    found = plan(fleet, hold(fleet, *pods), request)
    assume(found is not None)
    assert found is not None

    def cost(uids: Sequence[str]) -> tuple[int, float]:
        chosen = [one for one in pods if one.uid in uids]
        return sum(one.high for one in chosen), sum(one.spent for one in chosen)

    for one in pods:
        if fits_without(fleet, [one.uid], [request]):
            assert cost(found.victims) <= cost([one.uid])


def test_one_pod_goes_in_place_of_two_that_cost_more_on_the_same_gpu() -> None:
    fleet = fleet_of(node("n0", 1))
    tens = (Runs(f"ten-{at}", "n0-0", 10, 4.0) for at in range(3))
    victims = hold(fleet, Runs("thirty", "n0-0", 30, 5.0), *tens)
    assert victims_of(plan(fleet, victims, share(60))) == {"thirty"}
