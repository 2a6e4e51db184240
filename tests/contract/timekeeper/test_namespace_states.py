"""The published states of namespaces, as money runs out and comes back."""

from __future__ import annotations

import json

import pytest

from tests.support.ledger.harness import NOON, LedgerHarness, published, state_answer
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.budgets import Budget
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND
from timekeeper.domain.state import Admission, Enforcement, OnExhausted
from timekeeper.ledger.reading import read_changes


def test_a_budget_goes_from_open_to_grace_to_over_and_a_grant_brings_it_back(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], "0.01", grace={"gpuHours": "0.005"})
    harness.pod("p1", "team-a")
    harness.reconcile()
    assert state_answer(harness, "team-a")["state"] == "open"
    harness.reconcile(36)
    assert state_answer(harness, "team-a")["state"] == "grace"
    assert published(harness, "a").exhausted_at == NOON + 36 * SECOND
    harness.reconcile(18)
    assert state_answer(harness, "team-a")["state"] == "over"
    harness.grant("more", "a", 1)
    harness.reconcile(1, full=False)
    assert state_answer(harness, "team-a") == {
        "namespace": "team-a",
        "budget": "a",
        "state": "open",
        "available": str(GPU_HOUR + GPU_HOUR // 100),
        "remaining": str(GPU_HOUR + GPU_HOUR // 100 - 55 * GPU_SECOND),
        "rate": "1000000",
    }
    assert published(harness, "a").exhausted_at is None
    harness.reconcile(1)
    assert published(harness, "a").granted == GPU_HOUR


def test_a_state_that_is_due_changes_without_a_full_reconciliation(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], "0.01", onExhausted="hold")
    harness.pod("p1", "team-a")
    harness.reconcile()
    harness.reconcile(35.9, full=False)
    assert state_answer(harness, "team-a")["state"] == "open"
    harness.reconcile(0.1, full=False)
    assert state_answer(harness, "team-a")["state"] == "held"


def test_a_namespace_without_a_budget_is_metered_and_unlimited(harness: LedgerHarness) -> None:
    harness.pod("p1", "nobodys")
    harness.reconcile()
    harness.reconcile(10)
    assert harness.spent("namespace:nobodys") == 10 * GPU_SECOND
    assert (state_answer(harness, "nobodys")["state"], state_answer(harness, "nobodys")["budget"]) == ("unlimited", "")


@pytest.mark.parametrize(
    ("template", "state"),
    [
        (Budget("default"), "unlimited"),
        (Budget("default", allowance=1), "open"),
        (Budget("default", allowance=0), "over"),
        (Budget("default", allowance=0, on_exhausted=OnExhausted.HOLD), "held"),
        (Budget("default", allowance=0, on_exhausted=OnExhausted.HOLD, grace_amount=1), "grace"),
        (Budget("default", allowance=0, on_exhausted=OnExhausted.HOLD, enforcement=Enforcement.OBSERVE), "open"),
    ],
)
def test_a_namespace_that_has_had_no_pod_is_in_the_state_of_a_default_budget_that_is_not_used(
    harness: LedgerHarness, template: Budget, state: str
) -> None:
    harness.lead(ControllerRules(template=template))
    harness.reconcile()
    changes = read_changes(harness.client, None)
    assert changes is not None
    assert (changes.default, changes.states) == (state, ())
    harness.pod("p1", "first")
    harness.reconcile()
    assert state_answer(harness, "first")["state"] == state


@pytest.mark.parametrize(
    ("template", "safe"),
    [
        (
            Budget("default", allowance=GPU_HOUR, admission=Admission.SAFE, on_exhausted=OnExhausted.HOLD),
            {"committed": "0", "defaultCommitSeconds": 3600, "hold": True},
        ),
        (
            Budget("default", allowance=GPU_HOUR, admission=Admission.SAFE, default_commit=60 * SECOND),
            {"committed": "0", "defaultCommitSeconds": 60, "hold": False},
        ),
        (Budget("default", allowance=GPU_HOUR), None),
        (Budget("default", admission=Admission.SAFE), None),
        (Budget("default", allowance=1, admission=Admission.SAFE, enforcement=Enforcement.OBSERVE), None),
    ],
)
def test_a_default_budget_with_safe_admission_publishes_the_amounts_by_which_first_pods_are_judged(
    harness: LedgerHarness, template: Budget, safe: dict[str, object] | None
) -> None:
    harness.lead(ControllerRules(template=template))
    harness.reconcile()
    changes = read_changes(harness.client, None)
    assert changes is not None
    if safe is None:
        assert changes.unused == b""
        return
    amount = str(GPU_HOUR)
    figures = {"namespace": "", "budget": "", "state": "open", "available": amount, "remaining": amount, "rate": "0"}
    assert json.loads(changes.unused) == figures | {"safe": safe}


def test_a_leader_with_another_default_budget_replaces_the_published_amounts(harness: LedgerHarness) -> None:
    harness.lead(ControllerRules(template=Budget("default", allowance=GPU_HOUR, admission=Admission.SAFE)))
    harness.reconcile()
    harness.lead(ControllerRules(template=Budget("default", allowance=GPU_HOUR)))
    harness.reconcile()
    changes = read_changes(harness.client, None)
    assert changes is not None
    assert (changes.default, changes.unused) == ("open", b"")


def test_a_default_budget_is_one_for_each_namespace(harness: LedgerHarness) -> None:
    harness.lead(ControllerRules(template=Budget("default", allowance=5 * GPU_SECOND)))
    harness.pod("p1", "one")
    harness.pod("p2", "two", core=10)
    harness.reconcile()
    harness.reconcile(10)
    assert (state_answer(harness, "one")["state"], state_answer(harness, "two")["state"]) == ("over", "open")
