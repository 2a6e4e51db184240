"""The capacity of steps, from the points at which it changed."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.timestamps import DAY, HOUR
from timekeeper.domain.usage import MOST_CHANGES_A_DAY, capacity_of, means_of_days
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


CHANGES = st.dictionaries(
    st.integers(0, 4 * 24).map(lambda hours: hours * HOUR),
    st.dictionaries(st.sampled_from(["A100", "H100"]), st.integers(0, 9 * GPU_SECOND)),
    max_size=40,
)


def thinned(points: dict[int, dict[str, int]], before: int) -> dict[int, dict[str, int]]:
    """The points with days replaced by their means."""
    found = dict(points)
    for day in means_of_days(points, before):
        assert set(day.replaced) <= set(found)
        found.setdefault(day.end, dict(day.last))
        found[day.since] = dict(day.mean)
        for instant in day.replaced:
            del found[instant]
    return found


def of_each_day(points: dict[int, dict[str, int]], model: str) -> list[int]:
    rates = {since: rate.get(model, 0) for since, rate in points.items()}
    return capacity_of(rates, [Window(day * DAY, (day + 1) * DAY) for day in range(5)], 5 * DAY)


@given(points=CHANGES, before=st.integers(0, 5).map(lambda days: days * DAY))
def test_a_day_that_is_kept_by_its_mean_has_the_capacity_that_it_had(
    points: dict[int, dict[str, int]], before: int
) -> None:
    found = thinned(points, before)
    assert min(found, default=None) == min(points, default=None), "what was known from an instant on is known from it"
    assert len(found) <= len(points)
    for model in ("A100", "H100"):
        for was, now in zip(of_each_day(points, model), of_each_day(found, model), strict=True):
            # A rate is a whole number; each stretch that was summed before was rounded too.
            assert abs(was - now) <= DAY // SECOND // 2 + 25
    for day in range(before // DAY):
        assert sum(day * DAY < instant < (day + 1) * DAY for instant in found) <= MOST_CHANGES_A_DAY
    assert {at: rate for at, rate in found.items() if at > before} == {
        at: rate for at, rate in points.items() if at > before
    }
    assert thinned(found, before) == found
