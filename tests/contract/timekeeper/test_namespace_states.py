"""The states that namespaces are told, as money runs out and comes back."""

from __future__ import annotations

from tests.support.ledger.harness import NOON, LedgerHarness, published, state_answer
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.budgets import Budget
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND


def test_a_budget_goes_from_open_to_grace_to_over_and_a_grant_brings_it_back(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], "0.01", grace={"gpuHours": "0.005"})
    stage.pod("p1", "team-a")
    stage.round()
    assert state_answer(stage, "team-a")["state"] == "open"
    stage.round(36)
    assert state_answer(stage, "team-a")["state"] == "grace"
    assert published(stage, "a").exhausted_at == NOON + 36 * SECOND
    stage.round(18)
    assert state_answer(stage, "team-a")["state"] == "over"
    stage.grant("more", "a", 1)
    stage.round(1, full=False)
    assert state_answer(stage, "team-a") == {
        "namespace": "team-a",
        "budget": "a",
        "state": "open",
        "available": str(GPU_HOUR + GPU_HOUR // 100),
        "remaining": str(GPU_HOUR + GPU_HOUR // 100 - 55 * GPU_SECOND),
        "rate": "1000000",
    }
    assert published(stage, "a").exhausted_at is None
    stage.round(1)
    assert published(stage, "a").granted == GPU_HOUR


def test_a_state_that_is_due_changes_without_a_full_round(stage: LedgerHarness) -> None:
    stage.budget("a", ["team-a"], "0.01", onExhausted="hold")
    stage.pod("p1", "team-a")
    stage.round()
    stage.round(35.9, full=False)
    assert state_answer(stage, "team-a")["state"] == "open"
    stage.round(0.1, full=False)
    assert state_answer(stage, "team-a")["state"] == "held"


def test_a_namespace_without_a_budget_is_metered_and_unlimited(stage: LedgerHarness) -> None:
    stage.pod("p1", "nobodys")
    stage.round()
    stage.round(10)
    assert stage.spent("namespace:nobodys") == 10 * GPU_SECOND
    assert (state_answer(stage, "nobodys")["state"], state_answer(stage, "nobodys")["budget"]) == ("unlimited", "")


def test_a_default_budget_is_one_for_each_namespace(stage: LedgerHarness) -> None:
    stage.lead(ControllerRules(template=Budget("default", allowance=5 * GPU_SECOND)))
    stage.pod("p1", "one")
    stage.pod("p2", "two", core=10)
    stage.round()
    stage.round(10)
    assert (state_answer(stage, "one")["state"], state_answer(stage, "two")["state"]) == ("over", "open")
