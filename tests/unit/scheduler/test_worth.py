from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.placement.choosing import Chooser
from scheduler.placement.fleet import Node
from scheduler.placement.learning import learn_waste
from scheduler.placement.mix import MAX_KINDS, MixCounter
from scheduler.placement.request import Need, Request, Wanted
from scheduler.placement.worth import Left, device_gains, host_parts, single_gains, values
from tests.unit.scheduler.fleets import fleet_of, learned, node, nodes, place, requests


@settings(max_examples=30)
@given(nodes, st.lists(requests, min_size=1, max_size=12), st.integers(0, 100), st.sampled_from([0, 1000, 8000]))
def test_the_gain_of_a_device_is_what_the_node_is_worth_then_less_what_it_is_worth_now(
    fleet_nodes: list[Node], seen: list[Request], left: int, cpu: int
) -> None:
    chooser = Chooser(fleet_of(*fleet_nodes))
    for number, request in enumerate(seen[:4]):
        place(chooser, str(number), request)
    worth = learned(chooser.fleet, seen)
    fleet = chooser.fleet
    rows = np.arange(fleet.size)
    now = Left(fleet.cls[rows], fleet.idle[rows], fleet.cpu[rows], fleet.host[rows])
    after = np.minimum(now.idle, left)
    gains = single_gains(worth, now, values(worth, now), now._replace(idle=after, cpu=now.cpu - cpu))
    for at in range(now.idle.shape[1]):
        one = now.idle.copy()
        one[:, at] = after[:, at]
        then = values(worth, now._replace(idle=one, cpu=now.cpu - cpu))
        assert gains[:, at] == pytest.approx(then - values(worth, now))


MIXED = [
    Request((Need(1, 20),), cpu_milli=4000, host_mib=1000),
    Request((Need(1, 50),), cpu_milli=16_000, host_mib=64_000),
    Request((Need(2, 30),), cpu_milli=1000, host_mib=16_000),
]
COMMON = learned(fleet_of(node("n0")), MIXED)


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 100), min_size=4, max_size=4),
    st.integers(0, 100),
    st.lists(st.tuples(st.integers(0, 120_000), st.integers(0, 80_000)), min_size=30, max_size=30),
)
@example([100] * 4, 50, [(3000, 9999), (15_000, 9999), (17_000, 9999), (80_000, 9999), (90_000, 9999)])
@example([50, 60, 0, 10], 40, [(90_000, 999), (90_000, 1000), (90_000, 63_999), (90_000, 64_000)])
def test_nodes_whose_processor_time_and_memory_count_alike_gain_alike_by_each_device(
    idle: list[int], left: int, hosts: list[tuple[int, int]]
) -> None:
    cpu, host = np.array(hosts).T
    now = np.array([idle] * len(hosts))
    free = Left(np.ones_like(now), now, cpu, host)
    gains: dict[tuple[int, int], list[float]] = {}
    parts = zip(*host_parts(COMMON, free), strict=True)
    for part, own in zip(parts, device_gains(COMMON, free, np.minimum(now, left)).tolist(), strict=True):
        assert gains.setdefault(part, own) == own


def test_processor_time_that_strands_nothing_makes_no_difference() -> None:
    idle = np.full((2, 4), 10)
    place, stranding = host_parts(COMMON, Left(np.ones_like(idle), idle, np.array([60_000, 90_000]), np.full(2, 99)))
    assert len(set(place)) == len(set(stranding)) == 1


@pytest.mark.parametrize(
    "request_",
    [
        Request((Need(1, 40),)),
        Request((Need(2, 40),)),
        Request((Need(1, 30), Need(1, 30))),
        Request((Need(2, 100), Need(1, 30))),
    ],
)
def test_a_node_of_a_model_that_came_after_the_learning_takes_pods_and_keeps_none_from_others(
    request_: Request,
) -> None:
    seen = [Request((Need(1, 33, memory_percent=33),)), Request((Need(2, 66, memory_percent=66),))]
    fleet = fleet_of(node("n0"), node("n1"))
    worth = learned(fleet, seen)
    for number in range(3):
        fleet.put(node(f"new-{number}", model=f"NVIDIA NEW-{number}"))
    chooser = Chooser(fleet, worth)

    gains = chooser.gains(request_)

    assert len(gains) == fleet.size
    assert np.isfinite(gains[[fleet.rows[name] for name in ("n0", "n1", "new-0", "new-1", "new-2")]]).all()


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(1, 100), st.floats(0.01, 1)), max_size=6, unique_by=lambda pair: pair[0]))
def test_no_more_is_wasted_than_is_left_and_nothing_of_an_untouched_gpu(demands: list[tuple[int, float]]) -> None:
    waste = learn_waste(demands, np.random.default_rng(1), gpus=50)
    assert waste[100] == 0
    assert (waste >= 0).all()
    assert (waste <= np.arange(101)).all()


def test_where_all_requests_are_of_a_third_what_is_left_of_the_last_third_is_wasted() -> None:
    waste = learn_waste([(33, 1.0)], np.random.default_rng(1), gpus=50)
    assert [waste[level] for level in (1, 34, 67)] == [1, 1, 1]


def test_a_request_goes_where_it_leaves_nothing_that_nobody_can_use() -> None:
    fleet = fleet_of(node("n0", 1), node("n1", 1))
    chooser = Chooser(fleet)
    half, rest = Request((Need(1, 50, 500),)), Request((Need(1, 70, 700),))
    place(chooser, "a", rest)
    place(chooser, "b", half)
    chooser.worth = learned(chooser.fleet, [half] * 9 + [rest])
    fleet.put(node("n2", 1))
    assert (holding := place(chooser, "c", half)) is not None
    assert holding.node == "n1"


def test_devices_that_others_ask_for_by_name_are_kept_for_them() -> None:
    fleet = fleet_of(node("n0", 1, model="A100"), node("n1", 1, model="T4"))
    chooser = Chooser(fleet)
    any_gpu = Request((Need(1, 100, memory_percent=100),))
    chooser.worth = learned(chooser.fleet, [any_gpu] * 5 + [Request(any_gpu.containers, wanted=Wanted(("A100",)))] * 5)
    assert (holding := place(chooser, "p", any_gpu)) is not None
    assert holding.node == "n1"


def test_a_mix_of_ever_new_kinds_is_bounded() -> None:
    counter = MixCounter()
    for number in range(3 * MAX_KINDS):
        counter.see(Request((Need(1, 1, number + 1),)))
    assert len(counter.mix().kinds) <= MAX_KINDS
    assert counter.pods == 3 * MAX_KINDS


def test_a_learned_worth_places_more_than_the_first_fit() -> None:
    random = np.random.default_rng(5)
    half, most = (Need(1, core, memory_percent=core) for core in (50, 70))
    kinds = [Request((half,)), Request((most,)), Request((half,), wanted=Wanted(("A100",)))]
    asked = [kinds[number] for number in random.integers(0, 3, 300)]

    def allocated(*, learning: bool) -> int:
        models = ["A100"] * 15 + ["T4"] * 25
        chooser = Chooser(fleet_of(*(node(f"n{number}", 4, model=model) for number, model in enumerate(models))))
        for number, request in enumerate(asked):
            if learning and number == 50:
                chooser.worth = learned(chooser.fleet, asked[:50])
            place(chooser, str(number), request)
        return int(16_000 - chooser.fleet.idle.sum())

    assert allocated(learning=True) > 1.02 * allocated(learning=False)
