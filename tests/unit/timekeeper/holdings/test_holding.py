"""The most that a pod holds for its whole life, where init containers hold devices before the others."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.holdings.holding import FEW, Holding, InitStep, holding_rate, most_of

FLOORS = (1, 10, 50, 100)
PERCENTS = st.integers(0, 100).map(lambda percent: Fraction(percent, 100))
PARTS = st.builds(Holding, st.just("hami"), st.just("A10"), st.integers(1, 3), PERCENTS, PERCENTS)


def part(memory: int, time: int = 0) -> Holding:
    """A part of a device with these percent of its memory and time; 0 for no bound of its time."""
    return Holding("hami", "A10", 1, Fraction(time, 100), Fraction(memory, 100))


def cost(parts: Sequence[Holding], floor: int) -> int:
    """The cost of the parts, in microGPU-seconds a second."""
    return sum(holding_rate(each, Fraction(1), floor) for each in parts)


@pytest.mark.parametrize(
    ("lasting", "held", "floor", "expected"),
    [
        ([part(25, 25)], [part(50, 50)], 10, 500_000),
        ([part(50, 50)], [part(25, 25)], 10, 500_000),
        ([part(20)], [part(30)], 10, 300_000),
        ([part(2)], [part(3)], 10, 100_000),
        # The floor of a main container without a bound stays, although the init container has more of everything.
        ([part(2)], [part(3, 1)], 10, 130_000),
        # Each of several containers pays its own larger share.
        ([part(10, 50), part(50, 10)], [part(61, 10)], 10, 1_000_000),
        ([part(10)] * 4, [part(41)], 50, 2_500_000),
        ([], [part(41)], 50, 500_000),
    ],
)
def test_an_init_container_holds_its_devices_in_place_of_the_others(
    lasting: list[Holding], held: list[Holding], floor: int, expected: int
) -> None:
    assert cost(most_of(lasting, [InitStep(tuple(held))]), floor) == expected


@given(st.lists(PARTS, max_size=FEW), st.lists(st.lists(PARTS, max_size=3), max_size=4), st.integers(0, FEW))
def test_the_most_costs_no_less_than_what_lasts_and_than_each_step_at_any_floor(
    lasting: list[Holding], init: list[list[Holding]], sidecars: int
) -> None:
    beside = tuple(lasting[:sidecars])
    steps = [InitStep(tuple(held), beside) for held in init]
    found = most_of(lasting, steps)
    for floor in FLOORS:
        # Each part's cost is rounded up, so that fewer parts may cost less by a millionth each.
        least = max(cost(parts, floor) - 3 * len(parts) for parts in (lasting, *((*beside, *held) for held in init)))
        assert cost(found, floor) >= least


@given(st.lists(PARTS, max_size=3), st.integers(0, 3))
def test_a_step_of_nothing_but_sidecars_adds_nothing(lasting: list[Holding], sidecars: int) -> None:
    assert most_of(lasting, [InitStep((), tuple(lasting[:sidecars]))]) == tuple(lasting)
