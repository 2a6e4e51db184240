from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu.states import BudgetState
from timekeeper.controller.releases import Candidate, first_minutes, pods_to_release, release_event
from timekeeper.controller.state.accounts import Account
from timekeeper.controller.state.figures import Figures
from timekeeper.domain.budgets import Budget
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.periods import Period
from timekeeper.domain.pods import PodFacts
from timekeeper.domain.state import Admission, Enforcement, Limits, OnExhausted

HOLDING = Account("a", Budget("a", allowance=1000 * GPU_SECOND, on_exhausted=OnExhausted.HOLD, min_runtime=10 * SECOND))


def candidate(created: int, gpus: int = 1) -> Candidate:
    pod = PodFacts(f"u{created}", "ns", f"p{created}", "", created, None, False, False, False, None, True, None)
    return Candidate(pod, gpus * GPU_SECOND, gpus * 10 * GPU_SECOND)


def figures(left: int, state: BudgetState = BudgetState.OPEN, on_exhausted: OnExhausted = OnExhausted.HOLD) -> Figures:
    available = 1000 * GPU_SECOND
    limits = Limits(available, on_exhausted=on_exhausted)
    return Figures(Period(0, 1), 0, limits, available - left * GPU_SECOND, 0, None, state, state, 0)


def test_pods_are_released_in_the_order_in_which_they_came_as_far_as_the_money_pays_their_first_minutes() -> None:
    queue = [candidate(3), candidate(1), candidate(2)]
    assert [c.pod.created for c in pods_to_release(HOLDING, figures(25), queue, 0)] == [1, 2]


def test_a_pod_that_the_money_does_not_reach_holds_back_those_behind_it() -> None:
    assert pods_to_release(HOLDING, figures(25), [candidate(1, gpus=4), candidate(2)], 0) == []


def test_a_pod_that_not_even_a_whole_periods_money_pays_for_holds_back_no_other() -> None:
    assert pods_to_release(HOLDING, figures(1000), [candidate(1, gpus=101), candidate(2)], 0) == [candidate(2)]


def test_money_that_released_pods_may_still_take_is_not_spent_twice() -> None:
    assert pods_to_release(HOLDING, figures(25), [candidate(1), candidate(2)], 10 * GPU_SECOND) == [candidate(1)]


def test_a_held_budget_releases_no_pod() -> None:
    assert pods_to_release(HOLDING, figures(25, BudgetState.HELD), [candidate(1)], 0) == []


def test_a_budget_whose_gate_is_off_releases_every_pod() -> None:
    spent = figures(-5, BudgetState.OVER, OnExhausted.DEPRIORITIZE)
    assert len(pods_to_release(HOLDING, spent, [candidate(1), candidate(2)], 0)) == 2
    observed = Account("a", replace(HOLDING.budget, enforcement=Enforcement.OBSERVE))
    assert len(pods_to_release(observed, figures(-5), [candidate(1), candidate(2)], 0)) == 2


@pytest.mark.parametrize(
    ("enforcement", "message"),
    [
        (Enforcement.ENFORCE, "There is money for this pod again"),
        (Enforcement.OBSERVE, "No budget holds this pod back any more."),
    ],
)
def test_the_event_of_a_release_promises_money_only_where_the_gate_waits_for_it(
    enforcement: Enforcement, message: str
) -> None:
    budget = replace(HOLDING.budget, enforcement=enforcement)
    event = release_event({}, candidate(1), budget, figures(25))
    assert event.message.startswith(message)


def test_safe_admission_has_no_grace_to_promise() -> None:
    limits = Limits(10 * GPU_SECOND, grace_amount=100 * GPU_SECOND, on_exhausted=OnExhausted.HOLD)
    found = figures(10)._replace(limits=limits, spent=5 * GPU_SECOND)
    assert pods_to_release(HOLDING, found, [candidate(1)], 0) == [candidate(1)]
    safe = Account("a", replace(HOLDING.budget, admission=Admission.SAFE))
    assert pods_to_release(safe, found, [candidate(1)], 0) == []


@given(st.lists(st.integers(1, 8), max_size=12), st.integers(0, 500))
def test_a_released_pod_can_always_be_paid(gpus: list[int], left: int) -> None:
    queue = [candidate(number, count) for number, count in enumerate(gpus)]
    chosen = pods_to_release(HOLDING, figures(left), queue, 0)
    assert chosen == queue[: len(chosen)]
    assert sum(c.rate * 10 for c in chosen) <= left * GPU_SECOND


def test_only_young_sessions_are_committed() -> None:
    running = [(5, 0), (7, 95 * SECOND)]
    assert first_minutes(running, min_runtime=10 * SECOND, now=100 * SECOND) == 35


@pytest.mark.parametrize(("seconds", "words"), [(10, "10 seconds"), (90, "90 seconds"), (600, "10 minutes")])
def test_the_event_of_a_released_pod_names_the_time_that_the_money_pays_for(seconds: int, words: str) -> None:
    assert HOLDING.budget is not None
    budget = replace(HOLDING.budget, min_runtime=seconds * SECOND)
    assert f"for its first {words}." in release_event({}, candidate(1), budget, figures(100)).message
