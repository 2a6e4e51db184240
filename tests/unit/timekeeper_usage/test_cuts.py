from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timekeeper.metering.attribution import Attribution
from timekeeper.metering.cuts import Cut, cuts
from timekeeper.metering.segments import Span, amounts
from timekeeper.rules.money import SECOND
from timekeeper.rules.timestamps import HOUR

SHOWN = Attribution(core_rate=300_000, memory_rate=50_000)
KEY = ("a", 0)
instants = st.integers(0, 30 * HOUR)


def stretches(edges: list[int]) -> list[Span]:
    ordered = sorted(set(edges))
    return [Span(*KEY, low, high) for low, high in zip(ordered[::2], ordered[1::2], strict=False)]


spans = st.lists(instants, min_size=2, max_size=6, unique=True).map(stretches).filter(bool)
tariffs = st.lists(st.tuples(instants, st.integers(0, 8_000_000)), min_size=1, max_size=4, unique_by=lambda x: x[0])


@given(spans, tariffs, st.none() | instants, st.none() | st.integers(0, 10**15))
def test_the_hours_of_a_session_add_up_to_its_amount_and_each_holds_what_an_hour_can(
    found: list[Span], tariff: list[tuple[int, int]], since: int | None, used: int | None
) -> None:
    rates = tuple(sorted(tariff))
    amount = amounts(rates, found)[KEY]
    result = cuts(found, rates, SHOWN, since, amount, used)
    assert result[-1].until == found[-1].end
    assert (result[-1].billed, result[-1].used) == (amount, used)
    before = cuts(found, rates, SHOWN, None, amount, used)
    assert result == before[-len(result) :]
    for one, two in zip([Cut(0, 0, 0, 0), *before], before, strict=False):
        assert one.hour < two.hour or one.until == 0
        assert 0 <= two.billed - one.billed <= max(rate for _, rate in rates) * 3600 + len(rates) * len(found)
        assert 0 <= two.core - one.core <= SHOWN.core_rate * 3600 + 1


@given(spans, st.integers(0, 10**15))
def test_what_is_billed_by_use_is_shared_by_the_hours_as_the_reservation_is(found: list[Span], billed: int) -> None:
    result = cuts(found, ((0, 1_000_000),), SHOWN, None, billed)
    held = sum(span.end - span.start for span in found)
    assert result[-1].billed == billed
    for cut in result:
        part = sum(max(min(span.end, cut.until) - span.start, 0) for span in found)
        assert abs(cut.billed - billed * part // held) <= 1 + billed * SECOND // held
