from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.timestamps import HOUR
from timekeeper.domain.usage import Dimensions, Row, UsageFigures, Use
from timekeeper.domain.usage_folding import fold, pack, read_folded, totals_of, unfold

TO = (Dimensions("team-a"), Dimensions("team-b", "n1", "A100", "Job/x", "alice", (("team", "vision"),)))
amounts = st.integers(-(10**23), 10**23)
rows = st.lists(
    st.builds(
        Row,
        st.integers(491_000, 491_100),
        st.just(1),
        st.sampled_from(TO),
        st.builds(UsageFigures, amounts, amounts, amounts, st.none() | amounts),
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
def test_use_in_a_period_is_distinguished_from_use_beside_it(found: list[Row], at: list[int]) -> None:
    hours = [edge // HOUR for edge in at]
    for first, end in pairwise(hours):
        assert sums(fold(found, at), first, end) == sums(found, first, end)


@given(rows, st.integers(490_990, 491_110), st.integers(0, 120), st.sampled_from([1, 10]))
def test_sums_of_a_packed_value_say_what_its_rows_say_of_any_hours(
    found: list[Row], first: int, hours: int, times: int
) -> None:
    # Ten times, so that there are fewer sums than rows.
    found = [row._replace(hour=row.hour + later) for row in found for later in range(times)]
    detailed, summed = Use(), Use()
    read_folded(pack(found), detailed, first, first + hours)
    read_folded(pack(found), summed, first, first + hours, sums=True)
    assert by_user(summed) == by_user(detailed)


def test_one_sum_takes_the_place_of_many_rows() -> None:
    found = [Row(491_000 + hour, 1, TO[1], UsageFigures(2**62, 1, 1, None)) for hour in range(100)]
    summed = Use()
    read_folded(pack(found), summed, 491_000, 491_100, sums=True)
    (row,) = summed.rows()
    assert (row.hour, row.hours, row.dimensions.user) == (491_000, 100, "alice")
    assert row.figures == UsageFigures(100 * 2**62, 100, 100, None)


def by_user(use: Use) -> dict[tuple[str, str, str], tuple[int, int, int, int]]:
    """Returns the sums of rows by the dimensions that sums are kept by."""
    result: dict[tuple[str, str, str], tuple[int, int, int, int]] = {}
    for row in use.rows():
        to, one = (row.dimensions.namespace, row.dimensions.model, row.dimensions.user), row.figures
        billed, core, memory, used = result.get(to, (0, 0, 0, 0))
        result[to] = (billed + one.billed, core + one.core, memory + one.memory, used + (one.used or 0))
    return result


@given(rows)
def test_every_section_of_a_packed_value_adds_up_to_the_same(found: list[Row]) -> None:
    totals = totals_of(pack(found))
    assert all(total == totals[0] for total in totals)


@given(rows)
def test_packed_rows_come_back(found: list[Row]) -> None:
    assert unfold(pack(found)) == sorted(found, key=lambda row: row.hour)
