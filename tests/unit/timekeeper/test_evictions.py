"""Tests which running pods of a spent budget are evicted, in which order, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu.states import BudgetState
from timekeeper.controller.eviction import Due, due
from timekeeper.controller.pod_writes import Step
from timekeeper.controller.state.figures import Figures
from timekeeper.domain.budgets import Budget
from timekeeper.domain.periods import Period
from timekeeper.domain.pods import PodFacts
from timekeeper.domain.reservations import Reservation
from timekeeper.domain.state import Enforcement, Limits, OnExhausted

NOTICE = 600
NOW = 10_000
HOLDING = Budget("a", enforcement=Enforcement.EVICT, on_exhausted=OnExhausted.HOLD, eviction_notice=NOTICE)
DEPRIORITIZING = replace(HOLDING, on_exhausted=OnExhausted.DEPRIORITIZE)


def figures(state: BudgetState = BudgetState.HELD, exhausted_at: int = 9_000) -> Figures:
    return Figures(Period(0, 10**6), 0, Limits(100), 100, 1, exhausted_at, state, state, 0)


def pod(name: str, started: int = 0, **fields: Any) -> PodFacts:
    facts = PodFacts(name, "ns", name, "n1", 0, started, True, True, False, None, False, None, guarded=True)
    return facts._replace(**fields)


def steps(pods: list[PodFacts], budget: Budget = HOLDING, found: Figures | None = None, now: int = NOW) -> list[str]:
    return [f"{step.step} {step.pod.name}" for step in due(budget, found or figures(), pods, now)]


def test_a_running_pod_is_shown_first_and_evicted_once_the_notice_is_over() -> None:
    assert due(HOLDING, figures(), [pod("p")], NOW) == [Due(pod("p"), Step.NOTICE, NOW + NOTICE)]
    shown = pod("p", evict_at=NOW + NOTICE)
    assert steps([shown]) == []
    assert steps([shown], now=NOW + NOTICE - 1) == []
    assert steps([shown], now=NOW + NOTICE) == ["evict p"]


@pytest.mark.parametrize("state", [BudgetState.OPEN, BudgetState.GRACE, BudgetState.UNLIMITED])
def test_nothing_goes_while_there_is_money_or_grace_and_what_was_shown_is_called_off(state: BudgetState) -> None:
    pods = [pod("quiet"), pod("warned", evict_at=NOW - 1)]
    assert steps(pods, found=figures(state)) == ["call-off warned"]


@pytest.mark.parametrize("enforcement", [Enforcement.OBSERVE, Enforcement.ENFORCE])
def test_nothing_goes_of_a_budget_that_does_not_say_evict(enforcement: Enforcement) -> None:
    budget = replace(HOLDING, enforcement=enforcement)
    assert steps([pod("quiet"), pod("warned", evict_at=NOW - 1)], budget) == ["call-off warned"]


def test_the_pod_that_loses_least_goes_first() -> None:
    pods = [
        pod("old", started=10),
        pod("young", started=900),
        pod("urgent", started=950, high_priority=True),
        pod("came-over", started=1, admitted_over_budget=True),
    ]
    order = ["came-over", "young", "old", "urgent"]
    assert steps(pods) == [f"notice {name}" for name in order]
    assert steps([p._replace(evict_at=NOW) for p in pods]) == [f"evict {name}" for name in order]


def test_pods_that_came_in_as_over_budget_stay_where_the_budget_deprioritizes() -> None:
    pods = [pod("over", admitted_over_budget=True), pod("in"), pod("warned", admitted_over_budget=True, evict_at=NOW)]
    assert sorted(steps(pods, DEPRIORITIZING, figures(BudgetState.OVER))) == ["call-off warned", "notice in"]


@pytest.mark.parametrize("fields", [{"bound": False}, {"terminal": True}, {"deletion_grace": 600}])
def test_pods_that_hold_nothing_or_end_anyway_are_left_alone(fields: dict[str, Any]) -> None:
    assert steps([pod("p", evict_at=NOW, **fields)]) == []


@pytest.mark.parametrize("seconds", [601, 366 * 86_400, 2**63 - 1])
def test_deleting_a_pod_with_more_grace_than_an_eviction_gives_saves_it_from_none(seconds: int) -> None:
    dodging = pod("p", deleted=1, deletion_grace=seconds)
    assert steps([dodging]) == ["notice p"]
    assert steps([dodging._replace(evict_at=NOW)]) == ["evict p"]


@pytest.mark.parametrize("fields", [{"reservation": Reservation(())}, {"reserves_claims": True}, {}])
def test_a_pod_without_the_label_of_gpu_pods_gets_no_notice(fields: dict[str, Any]) -> None:
    """It may be older than the label, have a claim for another device, or wait for a scheduler that also gives GPUs."""
    assert steps([pod("p", guarded=False, **fields)]) == []


def test_a_notice_of_an_earlier_exhaustion_does_not_count() -> None:
    assert steps([pod("p", evict_at=8_999)]) == ["notice p"]


def test_a_notice_that_is_longer_than_the_budget_gives_is_given_anew() -> None:
    assert steps([pod("p", evict_at=NOW + NOTICE + 1)]) == ["notice p"]


@given(st.lists(st.tuples(st.integers(0, 900), st.booleans(), st.none() | st.integers(8_000, 12_000)), max_size=8))
def test_no_pod_is_evicted_before_a_notice_of_this_exhaustion_is_over(
    runners: list[tuple[int, bool, int | None]],
) -> None:
    pods = [
        pod(f"p{number}", start, admitted_over_budget=over, evict_at=at)
        for number, (start, over, at) in enumerate(runners)
    ]
    for step in due(HOLDING, figures(), pods, NOW):
        if step.step is Step.EVICT:
            assert step.pod.evict_at is not None
            assert 9_000 <= step.pod.evict_at <= NOW
