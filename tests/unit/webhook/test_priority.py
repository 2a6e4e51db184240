"""The priority class is the budget's to give: name, value and policy together."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.states import BudgetState
from tests.support.admission import SETTINGS, admitted, gpu_pod, knowing, mutate
from webhook.admission.knowledge import PriorityClass, read_priority_class
from webhook.settings import Priorities, Webhook

IN_BUDGET = {"priorityClassName": "gpu-in-budget", "priority": 1000, "preemptionPolicy": "Never"}
OVER_BUDGET = {"priorityClassName": "gpu-over-budget", "priority": 0, "preemptionPolicy": "Never"}


def priority_of(item: Any) -> dict[str, Any]:
    return {key: item["spec"].get(key) for key in IN_BUDGET}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (BudgetState.UNLIMITED, IN_BUDGET),
        (BudgetState.OPEN, IN_BUDGET),
        (BudgetState.GRACE, IN_BUDGET),
        (BudgetState.HELD, IN_BUDGET),
        (BudgetState.OVER, OVER_BUDGET),
    ],
)
def test_the_budgets_state_decides_the_class(state: BudgetState, expected: dict[str, Any]) -> None:
    assert priority_of(admitted(gpu_pod(), knowing(state))) == expected


def test_a_priority_that_priority_admission_filled_in_before_is_overwritten() -> None:
    item = gpu_pod(priority=0, preemptionPolicy="PreemptLowerPriority")
    assert priority_of(admitted(item, knowing())) == IN_BUDGET


def test_a_live_class_wins_over_the_settings() -> None:
    live = PriorityClass("gpu-in-budget", 77, "PreemptLowerPriority")
    stored = admitted(gpu_pod(), knowing(classes={"gpu-in-budget": live}))
    assert stored["spec"]["priority"] == 77
    assert stored["spec"]["preemptionPolicy"] == "PreemptLowerPriority"


def test_a_live_class_without_a_policy_preempts_as_kubernetes_has_it() -> None:
    assert read_priority_class({"metadata": {"name": "x"}, "value": 5}) == PriorityClass("x", 5, "PreemptLowerPriority")


def test_preemption_by_the_scheduler_is_the_admins_choice() -> None:
    settings = Webhook(priorities=Priorities(preemption="scheduler"))
    assert admitted(gpu_pod(), knowing(), settings)["spec"]["preemptionPolicy"] == "PreemptLowerPriority"


def test_the_clusters_default_class_counts_as_unset() -> None:
    item = gpu_pod(priorityClassName="everyday", priority=10)
    assert priority_of(admitted(item, knowing(default_class="everyday"))) == IN_BUDGET


@pytest.mark.parametrize("given", ["gpu-in-budget", "gpu-over-budget", ""])
def test_a_class_of_ours_is_given_anew(given: str) -> None:
    assert priority_of(admitted(gpu_pod(priorityClassName=given), knowing())) == IN_BUDGET


def test_any_other_class_is_refused_with_what_to_do_instead() -> None:
    refused = mutate(gpu_pod(priorityClassName="urgent", priority=5000), knowing())
    assert not refused.allowed
    assert 'spec.priorityClassName: given "urgent"' in refused.message
    assert "gpu-in-budget and gpu-over-budget" in refused.message


def test_a_class_that_the_admin_keeps_stays_with_its_value() -> None:
    settings = Webhook(priorities=Priorities(keep=("production",)))
    item = gpu_pod(priorityClassName="production", priority=100000, preemptionPolicy="PreemptLowerPriority")
    stored = admitted(item, knowing(BudgetState.OVER), settings)
    assert stored["spec"]["priorityClassName"] == "production"
    assert stored["spec"]["priority"] == 100000


def test_the_names_of_the_classes_are_settings() -> None:
    settings = Webhook(priorities=Priorities(in_budget_class="rich", in_budget_value=9))
    stored = admitted(gpu_pod(), knowing(), settings)
    assert priority_of(stored) == {"priorityClassName": "rich", "priority": 9, "preemptionPolicy": "Never"}
    assert SETTINGS.priorities.in_budget_class == "gpu-in-budget"
