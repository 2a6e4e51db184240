from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from timekeeper.rules.timestamps import HOUR
from timekeeper.usage.dimensions import Dimensions
from timekeeper.usage.folding import fold, pack, unfold
from timekeeper.usage.rows import Figures, Row

TO = (Dimensions("team-a"), Dimensions("team-b", "n1", "A100", "Job/x", "alice", (("team", "vision"),)))
amounts = st.integers(-(10**23), 10**23)
rows = st.lists(
    st.builds(
        Row,
        st.integers(491_000, 491_100),
        st.just(1),
        st.sampled_from(TO),
        st.builds(Figures, amounts, amounts, amounts, st.none() | amounts),
    ),
    max_size=30,
)
edges = st.lists(st.integers(491_000, 491_100), max_size=4).map(lambda found: sorted(hour * HOUR for hour in found))


def sums(found: list[Row], first: int, end: int) -> dict[Dimensions, tuple[int, int, int, int]]:
    result: dict[Dimensions, tuple[int, int, int, int]] = {}
    for row in found:
        if first <= row.hour and row.hour + row.hours <= end:
            billed, core, memory, used = result.get(row.dimensions, (0, 0, 0, 0))
            one = row.figures
            result[row.dimensions] = (billed + one.billed, core + one.core, memory + one.memory, used + (one.used or 0))
    return {to: found for to, found in result.items() if any(found)}


@given(rows, edges, st.integers(0, 30))
def test_days_hold_what_their_hours_held_whenever_they_are_folded(found: list[Row], at: list[int], split: int) -> None:
    once = fold(found, at)
    twice = fold([*fold(found[:split], at), *found[split:]], at)
    assert sums(once, 0, 10**6) == sums(twice, 0, 10**6) == sums(found, 0, 10**6)
    assert [row[:3] for row in once] == [row[:3] for row in twice]
    assert all(row.hour // 24 == (row.hour + row.hours - 1) // 24 for row in once)


@given(rows, edges)
def test_what_lies_in_a_period_is_told_from_what_lies_beside_it(found: list[Row], at: list[int]) -> None:
    hours = [edge // HOUR for edge in at]
    for first, end in pairwise(hours):
        assert sums(fold(found, at), first, end) == sums(found, first, end)


@given(rows)
def test_what_is_packed_comes_back(found: list[Row]) -> None:
    assert unfold(pack(found)) == sorted(found, key=lambda row: row.hour)
