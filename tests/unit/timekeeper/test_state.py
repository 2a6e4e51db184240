from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairgpu.states import BudgetState
from timekeeper.domain.state import Enforcement, Limits, OnExhausted, exhaustion, next_change, published, state

amounts = st.integers(0, 10**17)
limits = st.builds(
    Limits,
    available=st.none() | amounts,
    grace_amount=st.none() | st.integers(0, 10**15),
    grace_duration=st.none() | st.integers(0, 10**15),
    on_exhausted=st.sampled_from(OnExhausted),
)
ORDER = [BudgetState.OPEN, BudgetState.GRACE, BudgetState.OVER]


def severity(found: BudgetState) -> int:
    return ORDER.index(BudgetState.OVER if found is BudgetState.HELD else found)


@given(limits, amounts, amounts, st.integers(0, 10**16), st.integers(0, 10**16))
def test_more_spend_and_more_time_never_make_a_state_milder(
    limit: Limits, spend: int, more: int, now: int, later: int
) -> None:
    if limit.available is None:
        assert state(limit, spend, None, now) is BudgetState.UNLIMITED
        return
    before = state(limit, spend, exhaustion(limit, spend, None, now), now)
    exhausted = exhaustion(limit, spend, None, now)
    after = state(limit, spend + more, exhaustion(limit, spend + more, exhausted, now), now + later)
    assert severity(after) >= severity(before)


@given(limits, amounts, st.integers(0, 10**16))
def test_a_budget_is_open_exactly_below_what_is_available(limit: Limits, spend: int, now: int) -> None:
    found = state(limit, spend, now, now)
    assert (found is BudgetState.OPEN) == (limit.available is not None and spend < limit.available)


@given(limits, amounts, st.integers(1, 10**10), st.integers(0, 10**16))
def test_the_predicted_change_is_a_change_and_the_first_one(limit: Limits, spend: int, rate: int, now: int) -> None:
    exhausted = exhaustion(limit, spend, None, now)
    moment = next_change(limit, spend, rate, exhausted, now)
    present = state(limit, spend, exhausted, now)

    def at(instant: int) -> BudgetState:
        then = spend + rate * (instant - now) // 10**9
        return state(limit, then, exhaustion(limit, then, exhausted, instant), instant)

    if moment is None:
        assert present in {BudgetState.UNLIMITED, BudgetState.OVER, BudgetState.HELD}
        return
    assert moment > now
    assert at(moment - 1) is present
    no_grace_left = limit.grace_amount == 0 or limit.grace_duration == 0
    assert at(moment) is not present or no_grace_left


def test_money_that_lifts_a_budget_starts_its_grace_anew() -> None:
    limit = Limits(available=100, grace_duration=10)
    first = exhaustion(limit, 100, None, 1000)
    assert exhaustion(limit, 120, first, 1005) == 1000
    assert state(limit, 120, first, 1010) is BudgetState.OVER
    lifted = Limits(available=200, grace_duration=10)
    assert exhaustion(lifted, 150, first, 1020) is None
    assert exhaustion(lifted, 200, None, 1030) == 1030


def test_no_grace_where_neither_amount_nor_duration_is_given() -> None:
    assert state(Limits(100), 100, 5, 5) is BudgetState.OVER
    assert state(Limits(100, on_exhausted=OnExhausted.HOLD), 100, 5, 5) is BudgetState.HELD


def test_grace_ends_at_its_amount_or_its_duration_whichever_comes_first() -> None:
    limit = Limits(100, grace_amount=10, grace_duration=60)
    assert state(limit, 109, 0, 59) is BudgetState.GRACE
    assert state(limit, 110, 0, 59) is BudgetState.OVER
    assert state(limit, 109, 0, 60) is BudgetState.OVER


def test_an_observed_budget_is_published_as_open_whatever_its_state() -> None:
    assert published(BudgetState.HELD, Enforcement.OBSERVE) is BudgetState.OPEN
    assert published(BudgetState.HELD, Enforcement.ENFORCE) is BudgetState.HELD
    assert published(BudgetState.UNLIMITED, Enforcement.OBSERVE) is BudgetState.UNLIMITED
