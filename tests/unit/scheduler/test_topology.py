from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.placement import topology
from scheduler.placement.topology import MAX_LOOKS, MAX_TOGETHER, Spread, best_set, best_sets, spread_of


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


def together(links: Any, numa: Any, sets: tuple[tuple[int, ...], ...]) -> Spread:
    """The distance within several sets."""
    spreads = [spread_of(links, numa, devices) for devices in sets]
    return Spread(
        max(one.worst for one in spreads), sum(one.total for one in spreads), sum(s.numa_nodes for s in spreads)
    )


def divided(candidates: tuple[int, ...], counts: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All ways to divide devices into sets of so many."""
    if not counts:
        yield ()
    else:
        for first in combinations(candidates, counts[0]):
            for others in divided(tuple(device for device in candidates if device not in first), counts[1:]):
                yield (first, *others)


@given(linked_nodes(), st.data())
def test_several_sets_are_the_best_of_all_ways_to_divide_the_devices(node: Any, data: st.DataObject) -> None:
    links, numa = node
    candidates = tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(links))), min_size=1))))
    counts: list[int] = []
    while sum(counts) < len(candidates) and len(counts) < 3:
        counts.append(data.draw(st.integers(1, min(len(candidates) - sum(counts), 4))))
    sizes = tuple(sorted(counts, reverse=True))
    found = best_sets(links, numa, candidates, sizes)
    ways = list(divided(candidates, sizes))
    assert found in ways
    assert together(links, numa, found) == min(together(links, numa, way) for way in ways)


def test_sets_of_more_devices_than_are_looked_at_together_are_taken_in_turn() -> None:
    size = 2 * MAX_TOGETHER
    links = tuple(tuple(0 if a == b else 1 if a // 4 == b // 4 else 4 for b in range(size)) for a in range(size))
    found = best_sets(links, (None,) * size, tuple(range(1, size)), (4, 4, 4))
    assert found == ((4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))


def test_the_worst_link_counts_before_the_sum_of_all() -> None:
    links = ((0, 1, 4, 3), (1, 0, 4, 3), (4, 4, 0, 3), (3, 3, 3, 0))
    assert best_set(links, (None,) * 4, (0, 1, 2, 3), 3) == (0, 1, 3)


def test_the_set_on_fewer_numa_nodes_is_taken_of_sets_that_are_linked_alike() -> None:
    links = tuple(tuple(0 if one == other else 1 for other in range(4)) for one in range(4))
    assert best_set(links, (0, 1, 1, None), (0, 1, 2), 2) == (1, 2)


@pytest.fixture
def whole_sets(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The sets whose distance is computed, those of the fixed devices among them."""
    looked_at: list[tuple[int, ...]] = []

    def noted(links: Any, numa: Any, devices: tuple[int, ...]) -> Spread:
        looked_at.append(devices)
        return spread_of(links, numa, devices)

    monkeypatch.setattr(topology, "spread_of", noted)
    return looked_at


@pytest.mark.parametrize(("count", "numa_nodes"), [(8, 1), (8, 2), (10, 2), (15, 4)])
def test_sixteen_devices_that_are_linked_alike_are_no_search(
    whole_sets: list[tuple[int, ...]], count: int, numa_nodes: int
) -> None:
    links = tuple(tuple(0 if one == other else 1 for other in range(16)) for one in range(16))
    numa = tuple(at * numa_nodes // 16 for at in range(16))
    assert best_set(links, numa, tuple(range(16)), count) == tuple(range(count))
    assert len(whole_sets) == 2


def test_the_best_of_the_first_sets_is_taken_of_more_devices_than_can_all_be_looked_at(
    whole_sets: list[tuple[int, ...]],
) -> None:
    random = Random(1)
    tiers = [[random.choice((1, 2, 3, 4, 5)) for _ in range(64)] for _ in range(64)]
    links = tuple(tuple(0 if a == b else tiers[min(a, b)][max(a, b)] for b in range(64)) for a in range(64))
    found = best_set(links, (None,) * 64, tuple(range(64)), 8)
    assert len(whole_sets) <= MAX_LOOKS
    assert spread_of(links, (None,) * 64, found) == min(spread_of(links, (None,) * 64, way) for way in whole_sets[1:])
