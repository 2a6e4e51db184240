from __future__ import annotations

from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.placement.topology import best_set, spread_of


@st.composite
def linked_nodes(draw: Any) -> tuple[tuple[tuple[int, ...], ...], tuple[int | None, ...]]:
    size = draw(st.integers(1, 8))
    tiers = draw(st.lists(st.integers(1, 5), min_size=size * size, max_size=size * size))
    links = tuple(
        tuple(0 if one == other else tiers[min(one, other) * size + max(one, other)] for other in range(size))
        for one in range(size)
    )
    numa = draw(st.lists(st.none() | st.integers(0, 1), min_size=size, max_size=size))
    return links, tuple(numa)


@given(linked_nodes(), st.data())
def test_the_set_is_the_best_of_all(node: Any, data: st.DataObject) -> None:
    links, numa = node
    devices = list(range(len(links)))
    fixed = tuple(sorted(data.draw(st.sets(st.sampled_from(devices), max_size=len(devices) - 1))))
    candidates = tuple(device for device in devices if device not in fixed)
    count = data.draw(st.integers(0, len(candidates)))
    found = best_set(links, numa, candidates, count, fixed)
    ways = [tuple(sorted((*fixed, *chosen))) for chosen in combinations(candidates, count)]
    assert found in ways
    assert spread_of(links, numa, found) == min(spread_of(links, numa, way) for way in ways)


def test_the_worst_link_counts_before_the_sum_of_all() -> None:
    links = ((0, 1, 4, 3), (1, 0, 4, 3), (4, 4, 0, 3), (3, 3, 3, 0))
    assert best_set(links, (None,) * 4, (0, 1, 2, 3), 3) == (0, 1, 3)


def test_of_sets_that_are_linked_alike_one_on_fewer_numa_nodes_is_taken() -> None:
    links = tuple(tuple(0 if one == other else 1 for other in range(4)) for one in range(4))
    assert best_set(links, (0, 1, 1, None), (0, 1, 2), 2) == (1, 2)


def test_sixteen_devices_that_are_linked_alike_are_no_search() -> None:
    links = tuple(tuple(0 if one == other else 1 for other in range(16)) for one in range(16))
    assert best_set(links, (0,) * 16, tuple(range(16)), 8) == tuple(range(8))
