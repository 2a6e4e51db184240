"""Where a budget stands decides whether its pods are placed, and its pods are told when that changes."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fairgpu.cluster.api import ApiError
from fairgpu.states import BudgetState, NamespaceState, StatesDocument
from scheduler.cluster.objects import PodNote, read_note
from scheduler.cluster.state import State
from scheduler.extender.binding import BindError
from scheduler.extender.waking import keep_waking, wake
from scheduler.measures import Measures
from tests.unit.scheduler.extended import ApiServer, ask, bind_pod, pod, state_of
from tests.unit.scheduler.fleets import node


def learn(state: State, stands: BudgetState, namespace: str = "team", *, enforced: bool = True) -> None:
    """The timekeeper publishes a state."""
    known = NamespaceState(namespace, "research", stands, 0, 0, 0, enforced)
    state.budgets.learn_states(StatesDocument("e.1", False, (known,), BudgetState.UNLIMITED, {}), 0.0)


def of(namespace: str, name: str, **changes: Any) -> dict[str, Any]:
    """A pod of a namespace."""
    item = pod(name, **changes)
    item["metadata"]["namespace"] = namespace
    return item


class WakingApi:
    """Takes patches of pods' status."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, str]] = []
        self.waits: list[float] = []
        self.error: ApiError | None = None
        self.registry = CollectorRegistry()
        self.measures = Measures(self.registry)

    def patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
        """A patch: pod, status and message of the condition."""
        assert content_type == "application/strategic-merge-patch+json"
        [condition] = body["status"]["conditions"]
        if self.error is not None:
            raise self.error
        self.messages.append((path.split("/")[-2], condition["status"], condition["message"]))
        return {}

    def wait(self, seconds: float) -> bool:
        """Notes how long was waited."""
        self.waits.append(seconds)
        return False

    def wake(self, state: State) -> list[tuple[str, str, str]]:
        """What is told now."""
        self.messages = []
        wake(state, self, self.wait, lambda: "2026-01-01T00:00:00Z", self.measures)
        return self.messages


def test_an_answer_follows_from_one_state_of_the_budget_though_it_changes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = state_of("n0")
    learn(state, BudgetState.HELD)
    monkeypatch.setattr(state.waiting, "refuse", lambda _: learn(state, BudgetState.OPEN))
    answer = ask(state, pod("a"))
    assert answer.failed_nodes == {}
    assert "n0" in answer.failed_and_unresolvable_nodes


@pytest.mark.parametrize("stands", [BudgetState.UNLIMITED, BudgetState.OPEN, BudgetState.GRACE, None])
def test_a_budget_with_money_and_one_that_was_never_known_keep_no_pod(stands: BudgetState | None) -> None:
    state = state_of("n0")
    if stands is not None:
        learn(state, stands)
    assert ask(state, pod("a")).node_names == ["n0"]


def test_a_held_budget_keeps_its_pods_from_every_node_and_lets_them_on_when_it_opens() -> None:
    state, waking_api = state_of("n0"), WakingApi()
    learn(state, BudgetState.HELD)
    text = "budget: the GPU budget research is spent and holds its pods until it has money again"
    assert ask(state, pod("a")).failed_and_unresolvable_nodes == {"n0": text}
    learn(state, BudgetState.OPEN)
    assert waking_api.wake(state) == [("a", "True", "a node has room for it")]
    assert waking_api.wake(state) == []
    assert ask(state, pod("a")).node_names == ["n0"]


def test_a_pod_that_was_shown_that_it_fits_and_was_refused_is_shown_again() -> None:
    state, waking_api = state_of("n0"), WakingApi()
    ask(state, pod("a", core=100, gpus=2))
    state.put_node(node("n0", 2))
    assert len(waking_api.wake(state)) == 1
    ask(state, pod("other", core=100, gpus=2))
    ask(state, pod("a", core=100, gpus=2))
    state.remove_pod("uid-other")
    state.put_node(node("n0", 2))
    assert waking_api.wake(state) == [("a", "True", "a node has room for it")]


def test_a_budget_that_is_only_observed_keeps_no_pod() -> None:
    state = state_of("n0")
    learn(state, BudgetState.HELD, enforced=False)
    assert ask(state, pod("a")).node_names == ["n0"]


def test_a_budget_that_is_held_since_filter_is_not_bound_and_gives_its_devices_back() -> None:
    state, item = state_of("n0"), pod("a", core=100)
    ask(state, item)
    learn(state, BudgetState.HELD)
    with pytest.raises(BindError, match="spent since the node was chosen"):
        bind_pod(state, ApiServer(item), item, "n0")
    assert ask(state, of("other", "b", core=100)).node_names == ["n0"]


def test_a_pod_over_budget_is_placed_only_while_none_within_its_budget_waits() -> None:
    state, waking_api = state_of("n0"), WakingApi()
    learn(state, BudgetState.OVER, "spent")
    assert ask(state, of("spent", "first")).node_names == ["n0"]
    ask(state, of("rich", "large", core=100))
    text = "budget: the GPU budget research is spent, and pods within theirs wait for GPUs"
    assert ask(state, of("spent", "second")).failed_nodes == {"n0": text}
    state.remove_pod("uid-large")
    state.put_node(node("n0", 1))
    assert waking_api.wake(state) == [("second", "True", "a node has room for it")]
    assert ask(state, of("spent", "second")).node_names == ["n0"]


def test_a_pod_that_can_never_be_placed_keeps_nobody_waiting() -> None:
    state = state_of("n0")
    learn(state, BudgetState.OVER, "spent")
    ask(state, of("rich", "impossible", gpus=8))
    assert ask(state, of("spent", "p")).node_names == ["n0"]


def test_pods_are_shown_when_an_inventory_gives_them_room_in_order_of_class_and_age() -> None:
    state, waking_api = state_of("n0"), WakingApi()
    for name, priority, created in (("young", 1000, "T2"), ("low", 0, "T0"), ("old", 1000, "T1")):
        item = pod(name, gpus=2, priority=priority)
        item["metadata"]["creationTimestamp"] = created
        ask(state, item)
    assert waking_api.wake(state) == []
    state.put_node(node("n0", 2))
    assert [name for name, _, _ in waking_api.wake(state)] == ["old", "young", "low"]
    assert waking_api.waits == [0.02] * 3
    state.put_node(node("n0", 1))
    assert {status for _, status, _ in waking_api.wake(state)} == {"False"}


def test_one_pod_that_cannot_be_shown_keeps_no_other_from_it() -> None:
    class Refusing(WakingApi):
        def patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
            super().patch(path, body, content_type)
            raise ApiError(404, "NotFound", "gone")

    state, waking_api = state_of("n0"), Refusing()
    for name in ("a", "b"):
        ask(state, pod(name, gpus=2))
    state.put_node(node("n0", 2))
    assert len(waking_api.wake(state)) == 2


@pytest.mark.parametrize(("status", "again"), [(503, True), (429, True), (404, False), (409, False)])
def test_a_condition_that_could_not_be_written_is_written_later_unless_its_pod_is_gone(
    status: int,
    again: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    state, waking_api = state_of("n0"), WakingApi()
    ask(state, pod("a", core=100, gpus=2))
    state.put_node(node("n0", 2))
    waking_api.error = ApiError(status, "Refused", "not now")
    assert waking_api.wake(state) == []
    assert waking_api.registry.get_sample_value("fairgpu_scheduler_conditions_total", {"outcome": "failed"}) == again
    waking_api.error = None
    assert bool(waking_api.wake(state)) is again


@pytest.mark.parametrize(("looks_before", "woken"), [(1, ["c"]), (30, [])])
def test_a_pod_that_was_refused_just_before_an_end_was_seen_is_woken(looks_before: int, woken: list[str]) -> None:
    """kube-scheduler may see the end of a pod before this replica does, and asks once."""
    state, api = state_of("n0"), WakingApi()
    state.put_pod(bound_note("a"))
    looks: list[int] = []

    def wait(_: float) -> bool:
        looks.append(1)
        if len(looks) == 2:
            assert ask(state, pod("c")).node_names == []
        if len(looks) == 2 + looks_before:
            state.remove_pod("uid-a")
        return len(looks) > 40

    keep_waking(state, api, lambda: True, wait, lambda: "2026-01-01T00:00:00Z", api.measures)
    assert [name for name, _, _ in api.messages] == woken


def bound_note(name: str) -> PodNote:
    """A pod that holds a whole GPU of n0."""
    item = pod(name, core=100)
    bind_pod(state_of("n0"), ApiServer(item), item, "n0")
    return read_note(item)


def test_a_replica_that_takes_over_knows_what_waiting_pods_were_shown() -> None:
    state, waking_api = state_of("n0"), WakingApi()
    item = pod("a", core=100, gpus=2, schedulerName="fairgpu-scheduler")
    item["status"] = {
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
            {"type": "fairgpu.io/Placeable", "status": "True", "message": "a node has room for it"},
        ]
    }
    state.put_pod(read_note(item))
    assert [status for _, status, _ in waking_api.wake(state)] == ["False"]
