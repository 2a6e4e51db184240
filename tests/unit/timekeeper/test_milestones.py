"""The milestones of a budget that are announced outside the cluster, once each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu.states import BudgetState
from timekeeper.domain.state import EXHAUSTION, Announced, Milestone, next_announced, reached

HALF, MOSTLY, EARLY, GRACE, OVER, HELD, REOPENED = Milestone


def test_thresholds_are_reached_at_50_and_80_percent() -> None:
    assert reached(BudgetState.OPEN, 49, 100, early=False) == set()
    assert reached(BudgetState.OPEN, 50, 100, early=False) == {HALF}
    assert reached(BudgetState.OPEN, 80, 100, early=True) == {HALF, MOSTLY, EARLY}
    assert reached(BudgetState.HELD, 100, 100, early=False) == {HALF, MOSTLY, HELD}
    assert reached(BudgetState.UNLIMITED, 10**9, None, early=False) == set()


def test_each_milestone_is_shown_once() -> None:
    shown, first = next_announced(None, 1, 100, frozenset({HALF}))
    assert first is HALF
    assert next_announced(shown, 1, 100, frozenset({HALF})) == (shown, None)
    shown, second = next_announced(shown, 1, 100, frozenset({HALF, MOSTLY}))
    assert second is MOSTLY


def test_the_weightiest_of_several_at_once_is_shown_and_none_of_them_later() -> None:
    shown, first = next_announced(None, 1, 100, frozenset({HALF, MOSTLY, GRACE}))
    assert first is GRACE
    assert next_announced(shown, 1, 100, frozenset({HALF, MOSTLY, GRACE, OVER}))[1] is OVER


def test_a_forecast_that_comes_and_goes_is_shown_once() -> None:
    shown, _ = next_announced(None, 1, 100, frozenset({EARLY}))
    shown, gone = next_announced(shown, 1, 100, frozenset())
    assert gone is None
    assert next_announced(shown, 1, 100, frozenset({EARLY}))[1] is None


def test_a_grant_reopens_and_what_comes_again_after_it_is_shown_again() -> None:
    shown, _ = next_announced(None, 1, 100, frozenset({HALF, MOSTLY, HELD}))
    shown, news = next_announced(shown, 1, 160, frozenset({HALF}))
    assert news is REOPENED
    shown, news = next_announced(shown, 1, 160, frozenset({HALF, MOSTLY}))
    assert news is MOSTLY


def test_a_correction_that_takes_spending_back_reopens_too() -> None:
    shown, _ = next_announced(None, 1, 100, frozenset({HALF, MOSTLY, OVER}))
    shown, news = next_announced(shown, 1, 100, frozenset({HALF, MOSTLY}))
    assert news is REOPENED
    assert next_announced(shown, 1, 100, frozenset({HALF, MOSTLY, OVER}))[1] is OVER


def test_the_next_period_begins_anew_and_says_so_only_after_a_spent_one() -> None:
    spent, _ = next_announced(None, 1, 100, frozenset({HALF, MOSTLY, OVER}))
    shown, news = next_announced(spent, 2, 100, frozenset())
    assert (shown, news) == (Announced(2, 100), REOPENED)
    half, _ = next_announced(None, 1, 100, frozenset({HALF}))
    assert next_announced(half, 2, 100, frozenset()) == (Announced(2, 100), None)


@given(st.lists(st.tuples(st.integers(1, 2), st.sampled_from([100, 200]), st.frozensets(st.sampled_from(Milestone)))))
def test_nothing_is_shown_twice_in_a_row_and_a_spent_budget_is_never_missed(
    steps: list[tuple[int, int, frozenset[Milestone]]],
) -> None:
    shown: Announced | None = None
    spent_up = False
    for period, available, holding in sorted(steps, key=lambda step: step[0]):
        shown, news = next_announced(shown, period, available, holding - {REOPENED})
        if holding & EXHAUSTION and not spent_up:
            assert news in EXHAUSTION
        if not holding & EXHAUSTION and spent_up:
            assert news is REOPENED
        spent_up = bool(holding & EXHAUSTION)
        assert next_announced(shown, period, available, holding - {REOPENED}) == (shown, None)


@pytest.mark.parametrize("milestone", Milestone)
def test_every_milestone_has_a_name_in_camel_case(milestone: Milestone) -> None:
    assert milestone.value[0].isupper()
    assert milestone.value.isalpha()
