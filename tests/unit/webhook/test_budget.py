"""The budget's state decides the class or the gate of a new pod, and the warning to its author."""

from __future__ import annotations

import pytest

from fairgpu.states import BudgetState
from tests.support.admission import CA, admitted, ask, container, gpu_container, gpu_pod, knowing, mutate, pod
from webhook.admission.knowledge import DEFAULT_PRICES, BudgetStates, Knowledge
from webhook.settings import StatesSettings, Webhook

GATE = {"name": "fairgpu.io/budget"}


@pytest.mark.parametrize("state", list(BudgetState))
def test_the_state_is_written_down(state: BudgetState) -> None:
    stored = admitted(gpu_pod(), knowing(state))
    assert stored["metadata"]["annotations"]["fairgpu.io/budget-state"] == state.value


def test_a_held_budget_puts_the_pod_behind_the_gate() -> None:
    stored = admitted(gpu_pod(schedulingGates=[{"name": "example.com/quota"}]), knowing(BudgetState.HELD))
    assert stored["spec"]["schedulingGates"] == [{"name": "example.com/quota"}, GATE]


def test_a_pod_of_a_namespace_without_a_state_of_its_own_waits_if_the_default_is_held() -> None:
    knowledge = Knowledge(states=BudgetStates({}, BudgetState.HELD, DEFAULT_PRICES, 0.0), timekeeper_ca=CA)
    assert admitted(gpu_pod(), knowledge)["spec"]["schedulingGates"] == [GATE]


def test_the_gate_is_not_doubled() -> None:
    assert admitted(gpu_pod(schedulingGates=[GATE]), knowing(BudgetState.HELD))["spec"]["schedulingGates"] == [GATE]


def test_a_gate_that_was_copied_is_taken_off_while_there_is_money() -> None:
    assert admitted(gpu_pod(schedulingGates=[GATE]), knowing())["spec"]["schedulingGates"] == []


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (BudgetState.GRACE, "in its grace"),
        (BudgetState.OVER, "gpu-over-budget"),
        (BudgetState.HELD, "fairgpu.io/budget"),
    ],
)
def test_a_spent_budget_is_said_in_a_warning(state: BudgetState, words: str) -> None:
    [warning] = mutate(gpu_pod(), knowing(state, remaining_hours=-1.5)).warnings
    assert warning.startswith('GPU budget "research": spent')
    assert words in warning
    assert "It is 1.5 GPU-hours over its 100" in warning
    assert "this pod costs about 0.3 GPU-hours an hour" in warning


def test_a_budget_that_runs_out_within_a_day_is_said_in_a_warning() -> None:
    [warning] = mutate(gpu_pod(), knowing(remaining_hours=10, rate=2_000_000)).warnings
    assert "runs out in about 5 hours at the present rate" in warning


@pytest.mark.parametrize(("remaining", "rate"), [(49, 2_000_000), (10, 0), (100, 0)])
def test_a_budget_that_lasts_a_day_is_not_spoken_of(remaining: float, rate: int) -> None:
    assert mutate(gpu_pod(), knowing(remaining_hours=remaining, rate=rate)).warnings == []


def test_the_cost_is_a_range_where_models_have_prices() -> None:
    prices = {"*": 1.0, "H100": 2.5, "T4": 0.5}
    knowledge = knowing(BudgetState.GRACE, prices=prices)
    assert "about 0.15 to 0.75 GPU-hours an hour" in mutate(gpu_pod(), knowledge).warnings[0]
    chosen = pod(gpu_container(), annotations={"fairgpu.io/use-gpu-model": "H100"})
    assert "about 0.75 GPU-hours an hour" in mutate(chosen, knowledge).warnings[0]


@pytest.mark.parametrize(
    ("choice", "cost"),
    [
        ("NVIDIA A100-SXM4-80GB", "about 0.9 GPU-hours"),
        ("a100", "about 0.6 to 0.9 GPU-hours"),
        ("A10", "about 0.3 to 0.9 GPU-hours"),
        ("L40S", "about 0.3 GPU-hours"),
        ("Made Next Year", "about 0.3 GPU-hours"),
    ],
)
def test_the_cost_is_that_of_the_models_that_the_pod_may_get(choice: str, cost: str) -> None:
    knowledge = knowing(BudgetState.GRACE, prices={"*": 1.0, "A100": 2.0, "A100 SXM4": 3.0, "L40": 4.0})
    chosen = pod(gpu_container(), annotations={"fairgpu.io/use-gpu-model": choice})
    assert f"{cost} an hour" in mutate(chosen, knowledge).warnings[0]


def test_memory_is_paid_for_where_it_is_more_than_the_time() -> None:
    limits = {"fairgpu.io/gpu-core": "10", "fairgpu.io/gpu-memory-percentage": "80"}
    [warning] = mutate(pod(container(limits=limits)), knowing(BudgetState.GRACE)).warnings
    assert "about 0.8 GPU-hours an hour" in warning


def test_memory_in_mib_makes_the_cost_a_range_up_to_what_the_event_of_a_held_pod_shows() -> None:
    limits = {"fairgpu.io/gpu-core": "0", "fairgpu.io/gpu-memory": "3000"}
    [warning] = mutate(pod(container(limits=limits)), knowing(BudgetState.HELD)).warnings
    assert "about 0.1 to 0.183 GPU-hours an hour" in warning


def test_warnings_fit_what_the_api_server_shows() -> None:
    for state in BudgetState:
        for warning in mutate(gpu_pod(), knowing(state, remaining_hours=-12345.678)).warnings:
            assert len(warning) <= 256


def test_a_state_once_known_counts_however_old_and_the_audit_log_says_so() -> None:
    answered = ask("mutate", gpu_pod(), knowing(BudgetState.OVER), now=7200.0)
    assert answered.audit == {"stale-budget-state": "7200 seconds old"}
    assert {"op": "add", "path": "/spec/priorityClassName", "value": "gpu-over-budget"} in answered.patch
    assert ask("mutate", gpu_pod(), knowing(), now=119.0).audit == {}


@pytest.mark.parametrize(("choice", "name"), [("in-budget", "gpu-in-budget"), ("over-budget", "gpu-over-budget")])
def test_the_admin_chooses_what_holds_while_nothing_is_known(choice: str, name: str) -> None:
    settings = Webhook(states=StatesSettings.model_validate({"when_unknown": choice}))
    stored = admitted(gpu_pod(), settings=settings)
    assert stored["spec"]["priorityClassName"] == name
    assert stored["metadata"]["annotations"]["fairgpu.io/budget-state"] == "unknown"


def test_pods_can_be_refused_while_nothing_is_known() -> None:
    settings = Webhook(states=StatesSettings(when_unknown="refuse"))
    refused = mutate(gpu_pod(), settings=settings)
    assert not refused.allowed
    assert "not known yet" in refused.message
