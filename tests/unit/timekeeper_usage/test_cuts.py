from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.attribution import Attribution
from timekeeper.domain.charges import HourlyPoint, Segment, amounts, hourly_points, with_used
from timekeeper.domain.timestamps import HOUR

SHOWN = Attribution(core_rate=300_000, memory_rate=50_000)
KEY = ("a", 0)
instants = st.integers(0, 30 * HOUR)


def stretches(edges: list[int]) -> list[Segment]:
    ordered = sorted(set(edges))
    return [Segment(*KEY, low, high) for low, high in zip(ordered[::2], ordered[1::2], strict=False)]


spans = st.lists(instants, min_size=2, max_size=6, unique=True).map(stretches).filter(bool)
tariffs = st.lists(st.tuples(instants, st.integers(0, 8_000_000)), min_size=1, max_size=4, unique_by=lambda x: x[0])


@given(spans, tariffs, st.none() | instants)
def test_the_hours_of_a_session_add_up_to_its_amount_and_each_holds_what_an_hour_can(
    found: list[Segment], tariff: list[tuple[int, int]], since: int | None
) -> None:
    rates = tuple(sorted(tariff))
    amount = amounts(rates, found)[KEY]
    result = hourly_points(found, rates, SHOWN, None if since is None else HourlyPoint(since, 0, 0, 0), amount)
    assert (result[-1].until, result[-1].billed) == (found[-1].end, amount)
    before = hourly_points(found, rates, SHOWN, None, amount)
    assert result == before[-len(result) :]
    for one, two in zip([HourlyPoint(0, 0, 0, 0), *before], before, strict=False):
        assert one.hour < two.hour or one.until == 0
        assert 0 <= two.billed - one.billed <= max(rate for _, rate in rates) * 3600 + len(rates) * len(found)
        assert 0 <= two.core - one.core <= SHOWN.core_rate * 3600 + 1


@given(spans, st.integers(0, 10**15), st.integers(0, 10**15))
def test_an_amount_billed_by_use_is_shared_by_the_time_since_it_was_last_written(
    found: list[Segment], before: int, added: int
) -> None:
    taken = HourlyPoint(found[0].start, before, 0, 0)
    result = hourly_points(found, ((0, 1_000_000_007),), SHOWN, taken, before + added)
    assert result[-1].billed == before + added
    length = found[-1].end - taken.until
    for cut in result:
        assert 0 <= (cut.until - taken.until) * added - (cut.billed - before) * length <= length


@given(spans, st.none() | st.integers(0, 10**15), st.integers(0, 10**15))
def test_use_goes_to_the_hours_since_it_was_last_written(found: list[Segment], before: int | None, added: int) -> None:
    taken = None if before is None else HourlyPoint(found[0].start, 0, 0, 0, before)
    total = added + (before or 0)
    result = with_used(hourly_points(found, ((0, 1),), SHOWN, taken, 0), taken, found[0].start, total)
    shown = [cut.used or 0 for cut in result]
    assert shown == sorted(shown)
    assert shown[-1] == total
    assert with_used([], taken, 0, total) == []
