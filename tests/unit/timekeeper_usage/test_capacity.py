"""The capacity of steps, from the points at which it changed."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.usage import capacity_of
from timekeeper.domain.windows import Window

INSTANTS = st.integers(0, 60)


@given(
    points=st.dictionaries(INSTANTS, st.integers(0, 9), max_size=8),
    edges=st.lists(INSTANTS, min_size=2, max_size=8, unique=True).map(sorted),
    now=INSTANTS,
)
def test_each_step_has_what_was_there_in_each_of_its_seconds_so_far(
    points: dict[int, int], edges: list[int], now: int
) -> None:
    rates = {since * SECOND: gpus * GPU_SECOND for since, gpus in points.items()}
    windows = [Window(start * SECOND, end * SECOND) for start, end in pairwise(edges)]

    def present(second: int) -> int:
        return points[max(since for since in points if since <= second)] if second >= min(points, default=99) else 0

    assert capacity_of(rates, windows, now * SECOND) == [
        sum(present(second) for second in range(start, min(end, now))) * GPU_SECOND for start, end in pairwise(edges)
    ]
