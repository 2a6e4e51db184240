"""A budget's state decides whether its pods are placed, and their conditions follow when that changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fairgpu.cluster.api import ApiError
from fairgpu.keeping import keep_running
from fairgpu.states import BudgetState, NamespaceState, StatesDocument
from scheduler.cluster.earmarks import Earmark, encode
from scheduler.cluster.eligible import Site
from scheduler.cluster.objects import PodNote, read_note, read_waiting
from scheduler.cluster.state import State
from scheduler.cluster.watches import PodsView
from scheduler.extender import waking
from scheduler.extender.binding import BindError, Clock, settle
from scheduler.extender.filtering import UNDECIDED
from scheduler.extender.waking import BETWEEN_SECONDS, LOOK_SECONDS, Conditions, keep_waking, wake
from scheduler.gangs.holding import release_overdue
from scheduler.measures import Measures
from scheduler.placement.holding import Piece
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
        self.breaks: set[str] = set()
        self.acts = True
        self.registry = CollectorRegistry()
        self.measures = Measures(self.registry)

    def patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
        """A patch: pod, status and message of the condition."""
        assert content_type == "application/strategic-merge-patch+json"
        [condition] = body["status"]["conditions"]
        if self.error is not None:
            raise self.error
        name = path.split("/")[-2]
        if name in self.breaks:
            raise RuntimeError(f"an error that the scheduler does not know, at {name}")
        self.messages.append((name, condition["status"], condition["message"]))
        return {}

    def wait(self, seconds: float) -> bool:
        """Notes how long was waited."""
        self.waits.append(seconds)
        return False

    @property
    def conditions(self) -> Conditions:
        """Returns the writer of conditions whose writes come here."""
        return Conditions(self, lambda: self.acts, lambda: "2026-01-01T00:00:00Z", self.measures)

    def wake(self, state: State) -> list[tuple[str, str, str]]:
        """Wakes waiting pods; returns the messages that are written."""
        self.messages = []
        wake(state, self.conditions, self.wait)
        return self.messages


def test_an_answer_follows_from_one_state_of_the_budget_though_it_changes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = state_of("n0")
    learn(state, BudgetState.HELD)
    monkeypatch.setattr(state.waiting, "refuse", lambda *_, **__: learn(state, BudgetState.OPEN))
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


def test_a_default_budget_that_holds_is_named_as_the_namespaces() -> None:
    state = state_of("n0")
    state.budgets.learn_states(StatesDocument("e.1", True, (), BudgetState.HELD, {}), 0.0)
    text = "budget: the namespace's GPU budget is spent and holds its pods until it has money again"
    assert ask(state, pod("a")).failed_and_unresolvable_nodes == {"n0": text}


class Ticking:
    """A clock whose seconds pass when somebody waits, until its end; `at` acts once an instant has come."""

    def __init__(self, end: float) -> None:
        self.seconds, self.end = 0.0, end
        self.to_do: list[tuple[float, Callable[[], object]]] = []

    def at(self, second: float, act: Callable[[], object]) -> None:
        self.to_do.append((second, act))

    def wait(self, seconds: float) -> bool:
        self.seconds += seconds
        for item in [item for item in self.to_do if item[0] <= self.seconds]:
            self.to_do.remove(item)
            item[1]()
        return self.seconds >= self.end

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.seconds, self.wait)


def held(state: State, *names: str) -> None:
    """Pods of a held budget, which all wait."""
    learn(state, BudgetState.HELD)
    for name in names:
        ask(state, pod(name))


class OftenRefusing(WakingApi):
    """Never writes the condition of one pod, and notes when each pod was tried."""

    def __init__(self, time: Ticking, error: Exception) -> None:
        super().__init__()
        self.time, self.refusal = time, error
        self.tried: dict[str, list[float]] = {}

    def patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
        name = path.split("/")[-2]
        self.tried.setdefault(name, []).append(self.time.seconds)
        if name == "bad":
            raise self.refusal
        return super().patch(path, body, content_type)


UNWRITABLE = [
    pytest.param(ApiError(503, "ServiceUnavailable", "a webhook does not answer"), id="the API server's refusal"),
    pytest.param(ApiError(0, "Unanswered", "read timed out"), id="no answer"),
    pytest.param(RuntimeError("an error that the scheduler does not know"), id="an unknown error"),
]


@pytest.mark.parametrize("error", UNWRITABLE)
def test_a_pod_whose_condition_can_never_be_written_keeps_no_other_pod_from_being_woken(error: Exception) -> None:
    time, state = Ticking(30.0), state_of("n0", "n1", "n2")
    api = OftenRefusing(time, error)
    held(state, "bad", "behind", "later")
    time.at(1.0, lambda: learn(state, BudgetState.OPEN))
    time.at(9.0, lambda: held(state, "later"))
    time.at(10.0, lambda: learn(state, BudgetState.OPEN))
    keep_waking(state, api.conditions, time.clock)
    assert api.tried["behind"][0] - api.tried["bad"][0] == pytest.approx(BETWEEN_SECONDS + LOOK_SECONDS)
    assert any(10.0 <= second < 10.3 for second in api.tried["later"])


def test_a_pod_whose_condition_cannot_be_written_is_tried_less_and_less_often() -> None:
    time, state = Ticking(70.0), state_of("n0")
    api = OftenRefusing(time, ApiError(500, "InternalError", "always"))
    held(state, "bad")
    time.at(1.0, lambda: learn(state, BudgetState.OPEN))
    keep_waking(state, api.conditions, time.clock)
    pauses = [later - one for one, later in pairwise(api.tried["bad"])]
    assert pauses == pytest.approx([2, 4, 8, 16, 16, 16], abs=2 * LOOK_SECONDS)


def test_writes_that_fail_slowly_keep_no_reservation_from_being_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    time, state, looks = Ticking(100.0), state_of("n0"), list[float]()

    def fail_slowly(*_arguments: Any) -> dict[str, Any]:
        time.seconds += 10
        raise ApiError(0, "Unanswered", "read timed out")

    monkeypatch.setattr(State, "expire", lambda _state, now: looks.append(now))
    held(state, *(f"p{number}" for number in range(9)))
    time.at(1.0, lambda: learn(state, BudgetState.OPEN))
    api = WakingApi()
    monkeypatch.setattr(api, "patch", fail_slowly)
    keep_waking(state, api.conditions, time.clock)
    assert max(later - one for one, later in pairwise(looks)) < 11


def test_writes_that_fail_count_among_the_fifty_a_second() -> None:
    time, state = Ticking(40.0), state_of("n0")
    api = OftenRefusing(time, ApiError(500, "InternalError", "always"))
    api.error = api.refusal
    held(state, *(f"p{number}" for number in range(200)))
    time.at(1.0, lambda: learn(state, BudgetState.OPEN))
    keep_waking(state, api.conditions, time.clock)
    tried = sorted(second for seconds in api.tried.values() for second in seconds)
    assert len(api.tried) == 200
    assert all(later - one >= 1.0 - 1e-6 for one, later in zip(tried, tried[50:], strict=False))


def test_an_unknown_error_at_one_pod_keeps_no_other_pod_from_its_condition_and_is_tried_again() -> None:
    time, state, api = Ticking(5.0), state_of("n0", "n1"), WakingApi()
    held(state, "a", "b")
    learn(state, BudgetState.OPEN)
    api.breaks = {"a"}
    time.at(1.0, api.breaks.clear)
    keep_waking(state, api.conditions, time.clock)
    assert [(name, status) for name, status, _ in api.messages] == [("b", "True"), ("a", "True")]
    assert api.registry.get_sample_value("fairgpu_scheduler_part_failures_total", {"part": "waking"}) == 1


def test_an_unknown_error_at_a_pod_that_an_end_returns_to_the_queue_is_tried_again() -> None:
    time, state, api = Ticking(5.0), state_of("n0"), WakingApi()
    state.put_pod(bound_note("a"))
    api.breaks = {"c"}
    time.at(0.2, lambda: ask(state, pod("c")))
    time.at(0.3, lambda: state.remove_pod("uid-a"))
    time.at(1.0, api.breaks.clear)
    keep_waking(state, api.conditions, time.clock)
    assert [name for name, _, _ in api.messages] == ["c"]


def test_a_change_is_not_lost_at_which_an_unknown_error_ended_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    state, api, looks = state_of("n0"), WakingApi(), list[float]()
    learn(state, BudgetState.HELD)
    ask(state, pod("a"))

    def fails_once(*_: object) -> None:
        monkeypatch.setattr(waking, "release_overdue", release_overdue)
        learn(state, BudgetState.OPEN)
        raise RuntimeError("an error that the scheduler does not know")

    monkeypatch.setattr(waking, "release_overdue", fails_once)

    def wait(seconds: float) -> bool:
        looks.append(seconds)
        return len(looks) > 10

    keep_running("waking", lambda: keep_waking(state, api.conditions, Clock(lambda: 1000.0, wait)), wait)
    assert [name for name, _, _ in api.messages] == ["a"]


NO_ROOM = "gpu-memory: 100 percent on each of 2 GPUs asked, at most 0 free"


def test_a_pod_that_was_shown_that_it_fits_and_was_refused_is_shown_why_and_then_that_it_fits_again() -> None:
    state, waking_api = state_of("n0"), WakingApi()
    ask(state, pod("a", core=100, gpus=2))
    state.put_node(node("n0", 2))
    assert len(waking_api.wake(state)) == 1
    ask(state, pod("other", core=100, gpus=2))
    ask(state, pod("a", core=100, gpus=2))
    assert waking_api.wake(state) == [("a", "False", NO_ROOM)]
    state.remove_pod("uid-other")
    state.put_node(node("n0", 2))
    assert waking_api.wake(state) == [("a", "True", "a node has room for it")]


def test_a_pod_that_was_shown_that_it_fits_is_shown_why_it_was_refused_though_nothing_changes() -> None:
    state, api, looks = state_of("n0"), WakingApi(), list[int]()
    ask(state, pod("a", core=100, gpus=2))

    def wait(_: float) -> bool:
        looks.append(1)
        if len(looks) == 2:
            state.put_node(node("n0", 2))
        if len(looks) == 5:
            ask(state, pod("other", core=100, gpus=2))
            ask(state, pod("a", core=100, gpus=2))
        return len(looks) > 30

    keep_waking(state, api.conditions, Clock(lambda: 1000.0, wait))
    assert api.messages == [("a", "True", "a node has room for it"), ("a", "False", NO_ROOM)]


def test_a_pod_that_was_shown_that_it_fits_is_shown_why_not_though_kube_scheduler_never_asks() -> None:
    """kube-scheduler itself refuses a node that is full in sum."""
    state, api, time = state_of("n0"), WakingApi(), Ticking(60)
    ask(state, pod("a", core=100, gpus=2), time.seconds)
    time.at(1, lambda: state.put_node(node("n0", 2)))
    time.at(2, lambda: ask(state, pod("other", core=100, gpus=2), time.seconds))
    time.at(3, lambda: bind_pod(state, ApiServer(pod("other", core=100, gpus=2)), pod("other"), "n0"))
    keep_waking(state, api.conditions, time.clock)
    assert api.messages == [("a", "True", "a node has room for it"), ("a", "False", NO_ROOM)]


@pytest.mark.parametrize("shown_at", [5, 20], ids=["before it was chosen", "after it was refused"])
def test_a_pod_that_was_shown_that_it_fits_and_was_not_bound_is_shown_why_it_waits(shown_at: int) -> None:
    state, api, time = state_of("n0"), WakingApi(), Ticking(60)
    large, other = pod("a", core=100, gpus=2), pod("other", core=100, gpus=2)
    fits = {"type": "fairgpu.io/Placeable", "status": "True", "message": "a node has room for it"}
    shown = large | {"status": {"conditions": [{"type": "PodScheduled", "reason": "Unschedulable"}, fits]}}

    def refuse_the_binding() -> None:
        assert ask(state, large, time.seconds).node_names == ["n0"]
        server = ApiServer(copy.deepcopy(large))
        server.answers = [(ApiError(403, "Forbidden", "no"), False)]
        with pytest.raises(BindError):
            bind_pod(state, server, large, "n0")
        assert ask(state, other, time.seconds).node_names == ["n0"]
        bind_pod(state, ApiServer(other), other, "n0")
        assert ask(state, large, time.seconds).node_names == []

    ask(state, large, time.seconds)
    time.at(1, lambda: state.put_node(node("n0", 2)))
    time.at(shown_at, lambda: state.put_pod(read_note(shown)))
    time.at(10, refuse_the_binding)
    keep_waking(state, api.conditions, time.clock)
    assert api.messages == [("a", "True", "a node has room for it"), ("a", "False", NO_ROOM)]


@pytest.mark.parametrize("outcome", ["written", "failed"])
def test_a_pod_that_is_refused_while_its_condition_is_being_written_is_shown_that_it_fits_again(outcome: str) -> None:
    class Asking(WakingApi):
        def patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
            """kube-scheduler sees the condition, and asks, before this patch is answered."""
            if not asked:
                asked.append(path)
                ask(state, pod("other", core=100, gpus=2))
                ask(state, pod("a", core=100, gpus=2))
                if outcome == "failed":
                    raise ApiError(0, "Unanswered", "read timed out")
            return super().patch(path, body, content_type)

    state, api, asked = state_of("n0"), Asking(), list[str]()
    ask(state, pod("a", core=100, gpus=2))
    state.put_node(node("n0", 2))
    api.wake(state)
    state.remove_pod("uid-other")
    assert api.wake(state) == [("a", "False", NO_ROOM)]
    assert api.wake(state) == [("a", "True", "a node has room for it")]


def test_a_pod_that_is_placed_while_conditions_of_others_are_written_gets_none() -> None:
    class Binding(WakingApi):
        def patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
            """The other pod is bound meanwhile."""
            state.put_pod(bound_note("b", 100))
            return super().patch(path, body, content_type)

    state, api = state_of("n0"), Binding()
    learn(state, BudgetState.HELD)
    for name in ("a", "b"):
        ask(state, pod(name, core=100))
    learn(state, BudgetState.OPEN)
    assert [name for name, _, _ in api.wake(state)] == ["a"]


def test_a_pod_without_a_condition_gets_none_when_only_a_figure_of_its_cause_changes() -> None:
    state, waking_api = state_of("n0"), WakingApi()
    state.put_pod(bound_note("a", 40))
    ask(state, pod("waits", core=100))
    assert waking_api.wake(state) == []
    state.put_pod(bound_note("b", 30))
    assert waking_api.wake(state) == []


def test_pods_are_woken_when_their_budget_is_enforced_no_more() -> None:
    state = state_of("n0")
    learn(state, BudgetState.HELD)
    ask(state, pod("a"))
    assert woken_by(state, lambda: learn(state, BudgetState.HELD, enforced=False)) == ["a"]


def test_pods_over_budget_are_woken_when_the_last_one_within_its_budget_is_placed_or_gone() -> None:
    state = state_of("n0", "n1")
    learn(state, BudgetState.OVER, "spent")
    state.put_pod(bound_note("a", 60))
    ask(state, of("rich", "large", core=100), names=["n0"])
    ask(state, of("spent", "small", core=20))
    assert woken_by(state, lambda: ask(state, of("rich", "large", core=100))) == ["small"]


def test_a_budget_that_is_only_observed_keeps_no_pod() -> None:
    state = state_of("n0")
    learn(state, BudgetState.HELD, enforced=False)
    assert ask(state, pod("a")).node_names == ["n0"]


def test_a_budget_that_is_held_since_filter_is_not_bound_and_gives_its_devices_back() -> None:
    state, item = state_of("n0"), pod("a", core=100)
    ask(state, item)
    learn(state, BudgetState.HELD)
    with pytest.raises(BindError, match=r"since the node was chosen: budget: .* is spent and holds its pods"):
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


def test_a_pod_that_is_over_budget_since_filter_is_not_bound_while_one_within_its_budget_waits() -> None:
    state, item = state_of("n0"), of("spent", "a")
    ask(state, item)
    ask(state, of("rich", "large", core=100))
    learn(state, BudgetState.OVER, "spent")
    with pytest.raises(BindError, match=r"since the node was chosen: budget: .* pods within theirs wait for GPUs"):
        bind_pod(state, ApiServer(item), item, "n0")
    assert ask(state, of("rich", "large", core=100)).node_names == ["n0"]


def test_a_pod_over_budget_of_a_lower_class_takes_what_the_others_leave() -> None:
    state = state_of("n0")
    learn(state, BudgetState.OVER, "spent")
    state.put_pod(bound_note("a", 60))
    ask(state, of("rich", "large", core=100, priority=1000))
    assert ask(state, of("spent", "low", core=40, priority=100)).node_names == ["n0"]
    assert ask(state, of("spent", "admitted-before", core=40, priority=1000)).node_names == []


def test_a_gang_of_which_pods_are_still_to_be_created_keeps_nobody_waiting() -> None:
    state = state_of("n0")
    learn(state, BudgetState.OVER, "spent")
    ask(state, of("rich", "one-of-two", gang="train/2"))
    assert ask(state, of("spent", "p")).node_names == ["n0"]


def test_a_pod_that_can_never_be_placed_keeps_nobody_waiting() -> None:
    state = state_of("n0")
    learn(state, BudgetState.OVER, "spent")
    ask(state, of("rich", "impossible", gpus=8))
    assert ask(state, of("spent", "p")).node_names == ["n0"]


def asking(core: int, mib: int, gpus: int = 1, **requests: str) -> dict[str, Any]:
    """The resources of a container."""
    limits = {"gpu": gpus, "gpu-core": core * gpus, "gpu-memory": mib * gpus}
    own = {f"fairgpu.io/{name}": str(amount) for name, amount in limits.items()}
    return {"resources": {"limits": own, "requests": own | requests}}


@pytest.mark.parametrize(
    "containers",
    [
        [asking(10, 10, cpu="1000")],
        [asking(10, 10, memory="1Ti")],
        [asking(100, 10), asking(10, 1000), asking(60, 600)],
        [asking(60, 10, gpus=2), asking(10, 5000)],
    ],
    ids=["processor time", "memory of the node", "GPUs of several containers", "memory of one container"],
)
def test_a_pod_that_would_fit_on_no_empty_node_keeps_nobody_waiting(containers: list[dict[str, Any]]) -> None:
    state = State()
    state.put_node(node("n0", 2))
    learn(state, BudgetState.OVER, "spent")
    named = [one | {"name": f"c{at}"} for at, one in enumerate(containers)]
    ask(state, of("rich", "impossible", containers=named), names=[])
    assert ask(state, of("spent", "p", core=50)).node_names == ["n0"]
    # What is held meanwhile makes it no more possible.
    assert ask(state, of("spent", "q", core=50)).node_names == ["n0"]


def test_a_gang_that_would_not_fit_into_the_empty_cluster_keeps_nobody_waiting() -> None:
    state = state_of("n0")
    learn(state, BudgetState.OVER, "spent")
    for number in range(2):
        ask(state, of("rich", f"member-{number}", core=60, gang="train/2"))
    assert ask(state, of("spent", "p")).node_names == ["n0"]
    state.put_node(node("n1", 1))
    assert ask(state, of("spent", "q")).node_names == []


@pytest.mark.parametrize("rule", [{"nodeSelector": {"zone": "b"}}, {"tolerations": []}], ids=["selector", "taint"])
def test_a_pod_that_no_node_may_take_keeps_nobody_waiting_until_one_may(rule: dict[str, Any]) -> None:
    state = state_of("n0", "n1")
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    state.put_site(Site("n0", {"zone": "a"}, (taint,) if "tolerations" in rule else (), pods=10))
    state.put_site(Site("n1", {"zone": "a"}, (taint,) if "tolerations" in rule else (), pods=10))
    learn(state, BudgetState.OVER, "spent")
    ask(state, of("rich", "impossible", **rule), names=[])
    assert ask(state, of("spent", "p")).node_names == ["n0"]
    state.put_site(Site("n1", {"zone": "b"}, pods=10))
    [text] = set(ask(state, of("spent", "q")).failed_nodes.values())
    assert text == "budget: the GPU budget research is spent, and pods within theirs wait for GPUs"
    assert woken_by(
        state, lambda: state.put_site(Site("n1", {"zone": "b"}, (taint,), unschedulable=True, pods=10))
    ) == ["q"]


def test_a_pod_that_waits_for_a_volume_keeps_nobody_waiting_until_it_lacks_devices() -> None:
    def waits(text: str) -> dict[str, Any]:
        reason = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}
        claims = of("rich", "claims", core=100, volumes=[{"persistentVolumeClaim": {"claimName": "c"}}])
        return claims | {"status": {"conditions": [reason]}}

    state = state_of("n0")
    unbound = waits("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
    learn(state, BudgetState.OVER, "spent")
    state.put_pod(read_note(unbound))
    assert ask(state, of("spent", "p", core=10)).node_names == ["n0"]
    state.put_pod(read_note(waits("0/1 nodes are available: 1 Insufficient fairgpu.io/gpu-core.")))
    assert ask(state, of("spent", "q", core=10)).node_names == []
    assert woken_by(state, lambda: state.put_pod(read_note(unbound))) == ["q"]
    assert ask(state, unbound).node_names == []
    assert ask(state, of("spent", "r", core=10)).node_names == []


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


def test_a_replica_that_loses_the_lease_writes_no_further_condition_and_the_rest_when_it_leads_again() -> None:
    class Deposed(WakingApi):
        def patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
            self.acts = False
            return super().patch(path, body, content_type)

    state, waking_api = state_of("n0"), Deposed()
    for name in ("a", "b", "c"):
        ask(state, pod(name, gpus=2))
    state.put_node(node("n0", 2))
    assert [name for name, _, _ in waking_api.wake(state)] == ["a"]
    waking_api.acts = True
    assert [name for name, _, _ in waking_api.wake(state)] == ["b"]


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

    keep_waking(state, api.conditions, Clock(lambda: 1000.0, wait))
    assert [name for name, _, _ in api.messages] == woken


def test_a_pod_that_was_refused_while_the_watch_of_pods_was_interrupted_is_woken_by_an_end_seen_after_it() -> None:
    state, api, looks = state_of("n0"), WakingApi(), list[int]()
    view = PodsView(state)
    state.put_pod(bound_note("a"))

    def wait(_: float) -> bool:
        looks.append(1)
        if len(looks) == 2:
            view.failed(ApiError(0, "Unreachable", "the connection ended"))
            assert ask(state, pod("c")).node_names == []
        if len(looks) == 300:
            state.remove_pod("uid-a")
            view.confirmed()
        return len(looks) > 310

    keep_waking(state, api.conditions, Clock(lambda: 1000.0, wait))
    assert [name for name, _, _ in api.messages] == ["c"]


def woken_by(state: State, *steps: Callable[[], object], now: Callable[[], float] = lambda: 1000.0) -> list[str]:
    """Returns the pods whose conditions are written after the last step; the steps come one look after the other."""
    api, looks = WakingApi(), list(steps)

    def wait(_: float) -> bool:
        if looks:
            api.messages = []
            looks.pop(0)()
            return False
        api.waits.append(1)
        return len(api.waits) > 5

    keep_waking(state, api.conditions, Clock(now, wait))
    return [name for name, _, _ in api.messages]


def test_room_that_kube_scheduler_keeps_a_pod_from_is_written_once() -> None:
    state, waking_api = state_of("n0", "n1"), WakingApi()
    ask(state, pod("other", core=100), names=["n0"])
    for _ in range(3):
        assert ask(state, pod("a", core=100), names=["n0"]).node_names == []
        state.put_node(node("n1", 1))
        assert waking_api.wake(state) == []
    state.put_node(node("n2", 1))
    assert waking_api.wake(state) == [("a", "True", "a node has room for it")]


def test_room_on_a_node_where_a_pod_may_not_run_is_no_room_for_it() -> None:
    state, waking_api = state_of("n0", "n1"), WakingApi()
    state.put_site(Site("n1", {}, ({"key": "k", "effect": "NoSchedule"},)))
    ask(state, pod("other", core=100), names=["n0"])
    state.waiting.refuse(read_waiting(pod("a", core=100)), "gpu-memory: no")
    state.waiting.refuse(read_waiting(pod("b", core=100, nodeSelector={"zone": "z"})), "gpu: no")
    assert waking_api.wake(state) == []
    state.put_site(Site("n1"))
    assert waking_api.wake(state) == [("a", "True", "a node has room for it")]


def test_the_pods_of_a_gang_are_woken_once_all_of_them_fit() -> None:
    state, waking_api = state_of("n0"), WakingApi()
    gang = [pod(f"train-{at}", core=100, gang="train/2") for at in range(2)]
    for item in gang:
        state.put_pod(read_note(item))
    for item in gang:
        assert ask(state, item).node_names == []
    state.put_node(node("n0", 1))
    assert waking_api.wake(state) == []
    state.put_node(node("n1", 1))
    assert [name for name, _, _ in waking_api.wake(state)] == ["train-0", "train-1"]
    assert not state.gangs.held()


def test_a_condition_is_written_when_the_cause_is_another_and_not_when_only_a_figure_is() -> None:
    state, waking_api = state_of("n0"), WakingApi()
    item = pod("a")
    item["metadata"]["annotations"]["fairgpu.io/use-gpu-model"] = "H100"
    assert set(ask(state, item).failed_and_unresolvable_nodes) == {"n0"}
    ask(state, pod("most", core=60))
    assert ask(state, pod("b")).node_names == []
    ask(state, pod("more", core=20))
    state.put_node(node("n1", 1, model="NVIDIA H100 PCIe"))
    assert ask(state, pod("c", core=100), names=["n1"]).node_names == ["n1"]
    [(name, status, text)] = waking_api.wake(state)
    assert (name, status, "gpu-memory: " in text) == ("a", "False", True)
    assert waking_api.wake(state) == []


def earmarked(name: str) -> dict[str, Any]:
    """A waiting pod for which the GPU of n0 is kept."""
    item = pod(name, core=100, priority=100)
    item["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    kept = Earmark("n0", (Piece("n0-0", 100, 1000, 1),), (), 2**40)
    item["metadata"]["annotations"]["fairgpu.io/earmark"] = encode(kept)
    return item


def test_pods_are_woken_when_an_earmark_falls_or_comes() -> None:
    state, kept = state_of("n0"), earmarked("new")
    free = {**kept, "metadata": {**kept["metadata"], "annotations": {}}}
    state.put_pod(read_note(kept))
    assert ask(state, pod("other")).node_names == []
    woken = woken_by(state, lambda: state.put_pod(read_note(free)))
    assert "other" in woken
    woken = woken_by(state, lambda: state.put_pod(read_note(kept)))
    assert "other" in woken


def test_pods_are_woken_when_the_reservation_of_another_pod_expires() -> None:
    state, seconds = state_of("n0"), [0.0]
    ask(state, pod("lost", core=100), now=0.0)
    assert ask(state, pod("other"), now=1.0).node_names == []
    assert woken_by(state, lambda: seconds.append(29.0), now=lambda: seconds[-1]) == []
    assert woken_by(state, lambda: seconds.append(31.0), now=lambda: seconds[-1]) == ["other"]


def test_pods_are_woken_when_a_binding_that_was_sent_is_found_not_to_have_been_made() -> None:
    state, item = state_of("n0"), pod("lost", core=100)
    api = ApiServer(item)
    api.answers = [(ApiError(0, "Unanswered", "read timed out"), False)] * 99
    ask(state, item)
    with pytest.raises(BindError):
        bind_pod(state, api, item, "n0")
    assert ask(state, pod("other")).node_names == []
    assert woken_by(state, lambda: settle(state, api, 9999.0)) == ["other"]


def waits(item: dict[str, Any]) -> dict[str, Any]:
    """The pod once kube-scheduler has found no node for it."""
    return item | {"status": {"conditions": [{"type": "PodScheduled", "reason": "Unschedulable"}]}}


def test_a_pod_whose_own_binding_is_found_not_to_have_been_made_is_woken() -> None:
    """kube-scheduler asked once while that was not known, about other nodes alone."""
    state, item = state_of("n0", "n1"), pod("lost", core=100)
    api = ApiServer(item)
    api.answers = [(ApiError(0, "Unanswered", "read timed out"), False)] * 99
    ask(state, item, names=["n0"])
    with pytest.raises(BindError):
        bind_pod(state, api, item, "n0")
    assert set(ask(state, item, names=["n1"]).failed_nodes.values()) == {UNDECIDED}
    state.put_pod(read_note(waits(item)))
    assert woken_by(state, lambda: settle(state, api, 9999.0)) == ["lost"]


def test_a_pod_that_was_shown_that_it_fits_and_whose_reservation_expires_is_woken_again() -> None:
    state, item, seconds = state_of("n0"), waits(pod("lost", core=100)), [0.0]
    fits = {"type": "fairgpu.io/Placeable", "message": "a node has room for it"}
    ask(state, item, now=0.0)
    state.put_pod(read_note(item | {"status": {"conditions": [*item["status"]["conditions"], fits]}}))
    assert woken_by(state, lambda: seconds.append(31.0), now=lambda: seconds[-1]) == ["lost"]


def test_pods_are_woken_when_what_was_held_for_a_gang_is_released() -> None:
    state = state_of("n0", "n1")
    seconds = [1000.0]
    gang = [pod(f"train-{at}", core=100, gang="train/2") for at in range(2)]
    for item in gang:
        state.put_pod(read_note(item))
    assert ask(state, gang[0])
    assert ask(state, pod("other")).node_names == []
    assert "other" in woken_by(state, lambda: seconds.append(1031.0), now=lambda: seconds[-1])


def bound_note(name: str, core: int = 100) -> PodNote:
    """A pod that holds so many percent of a GPU of n0."""
    item = pod(name, core=core)
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
