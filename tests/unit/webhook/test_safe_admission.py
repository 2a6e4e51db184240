"""Safe admission: a pod comes in where what is left, less what others may still spend, pays for its whole run."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.states import BudgetState, NamespaceState, SafeAdmission
from tests.support.admission import CA, GPU_HOUR, admitted, container, knowing, mutate, pod
from webhook.admission.knowledge import DEFAULT_PRICES, BudgetStates, Knowledge

WHOLE = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": "100"}
GATE = {"name": "fairgpu.io/budget"}


def safe(left: float, committed: float, *, hold: bool = False, **fields: Any) -> Knowledge:
    """A budget of which so many GPU-hours are left, and of these so many committed."""
    terms = SafeAdmission(int(committed * GPU_HOUR), 7200, hold)
    return knowing(remaining_hours=left, changes={"safe": terms, **fields.pop("changes", {})}, **fields)


def running(hours: float | None, limits: dict[str, str] | None = None) -> dict[str, Any]:
    """A pod of a whole GPU that runs for so long at most."""
    item = pod(container(limits=limits or WHOLE))
    if hours is not None:
        item["spec"]["activeDeadlineSeconds"] = int(hours * 3600)
    return item


def state_met(item: dict[str, Any], knowledge: Knowledge) -> str:
    state: str = admitted(item, knowledge)["metadata"]["annotations"]["fairgpu.io/budget-state"]
    return state


@pytest.mark.parametrize(
    ("left", "committed", "hours", "state"),
    [
        (10, 0, 10, "open"),
        (10, 0, 10.001, "over"),
        (10, 6, 4, "open"),
        (10, 6, 5, "over"),
        (10, 8, None, "open"),  # defaultCommit is two hours
        (10, 8.5, None, "over"),
        (1, 5, 0.5, "over"),
    ],
)
def test_a_pod_comes_in_where_the_money_pays_for_its_whole_run(
    left: float, committed: float, hours: float | None, state: str
) -> None:
    assert state_met(running(hours), safe(left, committed)) == state


def test_one_that_does_not_fit_waits_where_the_budget_holds() -> None:
    stored = admitted(running(5), safe(10, 6, hold=True))
    assert stored["spec"]["schedulingGates"] == [GATE]
    assert stored["spec"]["priorityClassName"] == "gpu-in-budget"
    assert stored["metadata"]["annotations"]["fairgpu.io/budget-state"] == "held"


def test_one_that_does_not_fit_gets_the_class_of_those_over_budget_otherwise() -> None:
    stored = admitted(running(5), safe(10, 6))
    assert "schedulingGates" not in stored["spec"]
    assert stored["spec"]["priorityClassName"] == "gpu-over-budget"


@pytest.mark.parametrize(("hours", "state"), [(10, "open"), (10.001, "held")])
def test_a_first_pod_of_a_namespace_is_judged_by_the_default_budget(hours: float, state: str) -> None:
    amount = 10 * GPU_HOUR
    unused = NamespaceState("", "", BudgetState.OPEN, amount, amount, 0, safe=SafeAdmission(0, 7200, hold=True))
    states = BudgetStates({}, BudgetState.OPEN, DEFAULT_PRICES, 0.0, unused=unused)
    assert state_met(running(hours), Knowledge(states=states, timekeeper_ca=CA)) == state


def test_the_warning_about_a_default_budget_names_no_budget() -> None:
    [warning] = mutate(running(5), safe(10, 6, changes={"budget": ""})).warnings
    assert warning.startswith("The namespace's GPU budget: the pod ")


def test_its_author_is_shown_what_it_needs_and_what_there_is() -> None:
    [warning] = mutate(running(5), safe(10, 6)).warnings
    assert "It may spend 5 GPU-hours (its activeDeadlineSeconds), and 10 less 6 committed are left." in warning
    [warning] = mutate(running(None), safe(10, 9, hold=True)).warnings
    assert "It may spend 2 GPU-hours (defaultCommit), and 10 less 9 committed are left." in warning


def test_the_dearest_price_that_it_may_meet_counts() -> None:
    prices = {"*": 1.0, "H100": 2.5}
    assert state_met(running(4), safe(10, 0, prices=prices)) == "open"
    assert state_met(running(5), safe(10, 0, prices=prices)) == "over"


def test_its_memory_counts_against_a_device_that_nobody_knows() -> None:
    limits = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": "10", "fairgpu.io/gpu-memory": "8192"}
    assert state_met(running(10, limits), safe(5, 0)) == "open"
    assert state_met(running(10.1, limits), safe(5, 0)) == "over"


@pytest.mark.parametrize("state", [BudgetState.OVER, BudgetState.HELD, BudgetState.UNLIMITED])
def test_where_the_state_already_decides_it_does(state: BudgetState) -> None:
    assert state_met(running(0.01), safe(100, 0, state=state)) == state.value


@pytest.mark.parametrize("value", [0, -1, "600", True, 1.5, None, []])
def test_a_deadline_that_is_none_is_read_as_none(value: Any) -> None:
    item = running(None)
    item["spec"]["activeDeadlineSeconds"] = value
    assert state_met(item, safe(10, 8)) == "open"


def test_no_warning_outgrows_what_the_api_server_shows() -> None:
    for hold in (True, False):
        [warning] = mutate(running(12345.678), safe(98765.4321, 98765.4, hold=hold)).warnings
        assert len(warning) <= 256


@pytest.mark.parametrize("state", [BudgetState.OPEN])
def test_users_get_no_event_of_a_budget_that_is_only_observed(state: BudgetState) -> None:
    observed = knowing(state, remaining_hours=-5, rate=10_000_000, changes={"enforced": False})
    assert mutate(running(None), observed).warnings == []


def test_best_effort_costs_at_least_the_floor_in_the_warning() -> None:
    limits = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": "0", "fairgpu.io/gpu-memory": "1024"}
    [warning] = mutate(pod(container(limits=limits)), knowing(BudgetState.GRACE)).warnings
    assert "this pod costs about 0.1 GPU-hours an hour" in warning
