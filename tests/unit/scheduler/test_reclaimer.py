"""Reclaim over a state that follows an API server: earmark, notice, eviction, and the place that follows."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Thread
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fairgpu.cluster.api import ApiError
from fairgpu.states import BudgetState, NamespaceState, StatesDocument
from scheduler.cluster.earmarks import EarmarkError, decode, fallen
from scheduler.cluster.eligible import Site
from scheduler.cluster.objects import read_note
from scheduler.cluster.state import State
from scheduler.extender.filtering import filter_nodes
from scheduler.measures import Measures
from scheduler.reclaim import reclaimer
from scheduler.reclaim.plan import plan_reclaim
from scheduler.reclaim.reclaimer import RETRY_SECONDS, Clocks, Reclaimer
from scheduler.settings import ReclaimSettings
from tests.unit.scheduler.extended import arguments, deleted, pod
from tests.unit.scheduler.fleets import node

RECLAIM_AT, EARMARK, ALLOCATION = "fairgpu.io/reclaim-at", "fairgpu.io/earmark", "fairgpu.io/allocation"
UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
EPOCH = 1_700_000_000.0


class Cluster:
    """An API server with pods, a replica that sees each change at once, and a clock."""

    def __init__(self, *nodes: str, over: tuple[str, ...] = ("spent",)) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.done: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.events_tried = 0
        self.refuses: dict[str, Exception] = {}
        self.breaks: set[str] = set()
        self.shows = True
        self.silent = False
        self.enabled = True
        self.acts = True
        self.now = 0.0
        self.registry = CollectorRegistry()
        self.nodes = nodes
        self.replica()
        self.stand(*over)

    def replica(self) -> None:
        """A replica that takes over: it knows what the API server has, and nothing else."""
        before = getattr(self, "state", None)
        self.state = State()
        for name in self.nodes:
            self.state.put_node(node(name, 1))
            self.state.put_site(Site(name, {"name": name}, pods=10))
        for item in self.pods.values():
            self.state.put_pod(read_note(item))
        if before is not None:
            self.state.budgets = before.budgets
        settings = ReclaimSettings(enabled=self.enabled, notice_seconds=60, placed_seconds=30, give_up_seconds=600)
        clocks = Clocks(lambda: self.now, lambda: EPOCH + self.now)
        self.registry = CollectorRegistry()
        self.reclaimer = Reclaimer(self.state, self, settings, clocks, Measures(self.registry), lambda: self.acts)

    def stand(self, *over: str) -> None:
        """The budgets of these namespaces are spent, and of no other."""
        states = tuple(NamespaceState(name, name, BudgetState.OVER, 0, 0, 0) for name in over)
        self.state.budgets.learn_states(StatesDocument("e.1", True, states, BudgetState.UNLIMITED, {}), 0.0)

    def runs(
        self, name: str, on: str, namespace: str = "spent", core: int = 100, since: float = 0, **changes: Any
    ) -> None:
        """A pod that runs."""
        item = pod(name, core=core, **changes)
        item["metadata"]["namespace"] = namespace
        item["spec"]["nodeName"] = on
        device = {"uuid": f"{on}-0", "model": "A100", "totalMiB": 1000, "core": core, "memoryMiB": core * 10}
        allocation = {"v": 1, "node": on, "containers": [{"name": "main", "devices": [device]}]}
        item["metadata"]["annotations"][ALLOCATION] = json.dumps(allocation)
        item["status"] = {
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(since)}]
        }
        self.put(name, item)

    def waits(self, name: str, namespace: str = "rich", core: int = 100, **changes: Any) -> dict[str, Any]:
        """A pod that waits, and the API server's copy of it."""
        annotations = changes.pop("annotations", {})
        item = pod(name, core=core, **changes)
        item["metadata"]["namespace"] = namespace
        item["metadata"]["annotations"] |= annotations
        item["status"] = copy.deepcopy(UNSCHEDULABLE)
        item["spec"]["priority"] = 100
        self.put(name, item)
        return item

    def put(self, name: str, item: dict[str, Any]) -> None:
        self.pods[name] = item
        self.show(name)

    def show(self, name: str) -> None:
        """The watch shows a pod."""
        if self.shows:
            self.state.put_pod(read_note(copy.deepcopy(self.pods[name])))

    def ends(self, name: str) -> None:
        self.state.remove_pod(self.pods.pop(name)["metadata"]["uid"])

    def step(self, seconds: float = 0.0) -> None:
        self.now += seconds
        if not self.silent:
            self.state.budgets.confirmed_at = self.now
        self.reclaimer.step()

    def notes(self, key: str) -> dict[str, str]:
        """An annotation of each pod that has it."""
        found = {name: item["metadata"]["annotations"].get(key) for name, item in self.pods.items()}
        return {name: value for name, value in found.items() if value}

    def filter(self, name: str) -> list[str]:
        """Returns the nodes on which kube-scheduler may place a pod."""
        return filter_nodes(self.state, arguments(self.pods[name], list(self.nodes)), self.now).node_names

    def count(self, name: str, outcome: str) -> float:
        return self.registry.get_sample_value(f"fairgpu_scheduler_{name}_total", {"outcome": outcome}) or 0.0

    # The API server.

    def patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
        assert content_type == "application/merge-patch+json"
        name = path.split("/")[-2]
        [(key, value)] = body["metadata"]["annotations"].items()
        if key in self.refuses:
            raise self.refuses[key]
        if name in self.breaks:
            raise RuntimeError(f"an error that the scheduler does not know, at {name}")
        item = self.pods[name]
        assert item["metadata"]["uid"] == body["metadata"]["uid"]
        self.done.append(f"{'-' if value is None else '+'}{key.partition('/')[2]} {name}")
        annotations = item["metadata"]["annotations"]
        item["metadata"]["annotations"] = {k: v for k, v in {**annotations, key: value}.items() if v is not None}
        self.show(name)
        return item

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/events"):
            self.events_tried += 1
            if "event" in self.refuses:
                raise self.refuses["event"]
            if any(event["metadata"]["name"] == body["metadata"]["name"] for event in self.events):
                raise ApiError(409, "AlreadyExists", body["metadata"]["name"])
            self.events.append(body)
            return body
        assert body["metadata"]["labels"] == {"fairgpu.io/pod": "gpu"}
        name = body["metadata"]["name"]
        assert body["metadata"]["annotations"] == {RECLAIM_AT: self.pods[name]["metadata"]["annotations"][RECLAIM_AT]}
        if "eviction" in self.refuses:
            raise self.refuses["eviction"]
        self.done.append(f"evict {name}")
        self.pods[name]["metadata"]["deletionTimestamp"] = stamp(self.now)
        self.show(name)
        return body


def kept(cluster: Cluster) -> dict[str, str]:
    """The node of each pod for which devices are kept."""
    return {name: node for name, text in cluster.notes(EARMARK).items() if (node := decode(text).node)}


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(EPOCH + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_pod_gets_notice_after_the_earmark_and_is_evicted_once_that_has_passed() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.step()
    cluster.step(0.5)
    assert cluster.done == ["+earmark new", "+reclaim-at old"]
    assert cluster.notes(RECLAIM_AT) == {"old": stamp(60)}
    cluster.step(59)
    assert cluster.done[2:] == []
    cluster.step(1)
    assert cluster.done[2:] == ["evict old"]
    cluster.step(1)
    assert cluster.done[3:] == []
    cluster.ends("old")
    assert cluster.filter("new") == ["n0"]


def unlabel(cluster: Cluster, name: str) -> None:
    """Makes a pod one of a namespace that webhook and policies leave out."""
    del cluster.pods[name]["metadata"]["labels"]
    cluster.show(name)


def test_a_pod_without_the_label_is_reclaimed_for_as_any_other() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    unlabel(cluster, "new")
    for seconds in (0, 1, 60, 1):
        cluster.step(seconds)
    assert cluster.done == ["+earmark new", "+reclaim-at old", "evict old"]
    cluster.ends("old")
    cluster.put("other", pod("other", core=100))
    assert cluster.filter("other") == []
    assert cluster.filter("new") == ["n0"]


def test_a_pod_without_the_label_keeps_its_gpu_and_its_notice_is_called_off() -> None:
    """The policy fairgpu-eviction lets no pod go whose label the scheduler cannot copy."""
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.step()
    cluster.step(1)
    unlabel(cluster, "old")
    for seconds in (60, 600, 1, 1):
        cluster.step(seconds)
    assert "evict old" not in cluster.done
    assert (cluster.notes(RECLAIM_AT), kept(cluster)) == ({}, {})


@pytest.mark.parametrize("noticed", [pytest.param(True, id="after its notice"), pytest.param(False, id="before")])
def test_devices_are_not_kept_for_a_pod_where_the_pod_that_was_to_go_has_lost_the_label(
    noticed: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("old", "n0", since=10)
    cluster.runs("other", "n1", since=0)
    cluster.waits("new")
    cluster.step()
    if noticed:
        cluster.step(1)
    assert kept(cluster) == {"new": "n0"}
    unlabel(cluster, "old")
    for seconds in (1, 1, 1, 1, 60, 1):
        cluster.step(seconds)
    assert kept(cluster) == {"new": "n1"}
    assert "evict old" not in cluster.done
    assert "evict other" in cluster.done
    assert set(cluster.notes(RECLAIM_AT)) <= {"other"}


@pytest.mark.parametrize(
    ("broken", "notices"),
    [
        pytest.param("claimant", {"n1-runs"}, id="its earmark"),
        pytest.param("n0-runs", {"n1-runs"}, id="the notice of its victim"),
    ],
)
def test_an_unknown_error_at_one_pod_keeps_no_other_pod_from_being_reclaimed_for(
    broken: str, notices: set[str]
) -> None:
    cluster = Cluster("n0", "n1")
    for name in cluster.nodes:
        cluster.runs(f"{name}-runs", name)
    cluster.waits("claimant", nodeSelector={"name": "n0"})
    cluster.waits("other", nodeSelector={"name": "n1"})
    cluster.breaks = {broken}
    for _ in range(3):
        cluster.step()
    assert cluster.notes(RECLAIM_AT).keys() == notices
    cluster.breaks = set()
    for _ in range(3):
        cluster.step(RETRY_SECONDS)
    assert cluster.notes(RECLAIM_AT).keys() == {"n0-runs", "n1-runs"}


def test_an_unknown_error_in_a_plan_keeps_no_other_pod_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("n0", "n1")
    for name in cluster.nodes:
        cluster.runs(f"{name}-runs", name)
    cluster.waits("claimant", nodeSelector={"name": "n0"})
    cluster.waits("other", nodeSelector={"name": "n1"})
    planned: list[str] = []

    def plan(fleet: Any, victims: Any, pods: Any, spare: Any) -> Any:
        planned.append(pods[0].uid)
        if pods[0].uid == "uid-claimant":
            raise RuntimeError("an error that the planner does not know")
        return plan_reclaim(fleet, victims, pods, spare)

    monkeypatch.setattr(reclaimer, "plan_reclaim", plan)
    for _ in range(3):
        cluster.step()
    assert kept(cluster) == {"other": "n1"}
    assert planned.count("uid-claimant") == 1
    cluster.step(RETRY_SECONDS)
    assert planned.count("uid-claimant") == 2


def test_no_pod_goes_for_a_gang_whose_earmarks_cannot_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, judged = Cluster("n0", "n1"), list[float]()
    cluster.runs("a", "n0")
    cluster.runs("b", "n1")
    for at in range(2):
        cluster.waits(f"train-{at}", gang="train/2")
    cluster.step()
    cluster.step()
    assert sorted(cluster.notes(RECLAIM_AT)) == ["a", "b"]

    def fails(*_: Any) -> None:
        judged.append(cluster.now)
        raise RuntimeError("an error that the planner does not know")

    monkeypatch.setattr(reclaimer, "plan_reclaim", fails)
    for seconds in (60, 1, 1, RETRY_SECONDS):
        cluster.step(seconds)
    assert judged == [60, 62 + RETRY_SECONDS]
    assert cluster.registry.get_sample_value("fairgpu_scheduler_part_failures_total", {"part": "reclaim"}) == 2
    assert not any(line.startswith("evict") for line in cluster.done)
    monkeypatch.setattr(reclaimer, "plan_reclaim", plan_reclaim)
    cluster.step(RETRY_SECONDS)
    assert [line for line in cluster.done if line.startswith("evict")] == ["evict a", "evict b"]


def change_something(cluster: Cluster) -> None:
    """Lets a pod without a GPU run, as in a cluster in which something always happens."""
    name = f"web-{len(cluster.pods)}"
    cluster.put(name, pod(name, nodeName="n1", containers=[{"name": "main"}]))


def test_pods_that_no_eviction_helps_keep_no_other_pod_from_its_plan() -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("old", "n0")
    cluster.runs("stays", "n1", namespace="rich")
    for gpus in (2, 3, 4, 5):
        cluster.waits(f"a-vain-{gpus}", gpus=gpus)
    for _ in range(4):
        change_something(cluster)
        cluster.step(1)
    cluster.waits("new")
    for _ in range(2):
        change_something(cluster)
        cluster.step(1)
    assert kept(cluster) == {"new": "n0"}


def test_a_pod_whose_plan_was_fruitless_has_its_turn_again_though_new_pods_keep_coming() -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("old", "n0")
    cluster.runs("stays", "n1", namespace="rich")
    cluster.waits("first", nodeSelector={"name": "n1"})
    cluster.step(1)
    assert cluster.done == []
    cluster.ends("stays")
    cluster.runs("may go", "n1")
    for at in range(10):
        for gpus in (2, 3):
            cluster.waits(f"a-vain-{at}-{gpus}", gpus=gpus, nodeSelector={"at": str(at)})
        cluster.step(1)
    assert kept(cluster) == {"first": "n1"}


def test_a_pod_is_planned_for_again_once_a_pod_that_stays_is_deleted() -> None:
    """It may take hours to end, and what it holds counts as free at once."""
    cluster = Cluster("n0")
    cluster.runs("old", "n0", core=50)
    cluster.runs("beside", "n0", core=50, namespace="rich")
    cluster.waits("new")
    cluster.step()
    assert cluster.notes(EARMARK) == {}
    cluster.put("beside", deleted(cluster.pods["beside"]))
    cluster.step(RETRY_SECONDS)
    assert kept(cluster) == {"new": "n0"}


def test_a_pod_is_planned_for_again_once_a_pod_that_may_go_has_the_label() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0", core=50)
    cluster.runs("beside", "n0", core=50)
    label = cluster.pods["beside"]["metadata"]["labels"]
    unlabel(cluster, "beside")
    cluster.waits("new")
    cluster.step()
    assert cluster.notes(EARMARK) == {}
    cluster.pods["beside"]["metadata"]["labels"] = label
    cluster.show("beside")
    cluster.step(RETRY_SECONDS)
    assert kept(cluster) == {"new": "n0"}


def give_high_priority(cluster: Cluster, name: str) -> None:
    """Gives a pod high task priority, against the policies."""
    cluster.pods[name]["metadata"]["annotations"]["fairgpu.io/task-priority"] = "0"
    cluster.show(name)


@pytest.mark.parametrize("change", [unlabel, give_high_priority])
def test_no_plan_is_made_by_facts_about_a_pod_that_have_changed(change: Callable[[Cluster, str], None]) -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0", namespace="rich", core=50)
    cluster.waits("larger", gpus=2, annotations={"fairgpu.io/task-priority": "0"})
    cluster.step()
    change(cluster, "old")
    cluster.waits("new", annotations={"fairgpu.io/task-priority": "0"})
    cluster.step(RETRY_SECONDS)
    assert cluster.done == []


def test_a_pod_whose_earmark_is_refused_or_whose_plan_is_overtaken_again_and_again_keeps_no_other_from_its_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster("n0", "n1", "n2")
    for name in cluster.nodes:
        cluster.runs(f"{name}-runs", name, core=60)
    cluster.waits("a", core=80, nodeSelector={"name": "n0"})
    cluster.waits("b", core=80, nodeSelector={"name": "n1"})
    cluster.waits("c", gpus=2)

    def plan(fleet: Any, victims: Any, pods: Any, spare: Any) -> Any:
        if pods[0].uid == "uid-b":
            cluster.runs("overtakes", "n1", core=40, namespace="rich")
        return plan_reclaim(fleet, victims, pods, spare)

    def refusing(path: str, body: Any, content_type: str) -> dict[str, Any]:
        if "/pods/a/" in path:
            raise ApiError(403, "Forbidden", "a policy")
        return patch(path, body, content_type)

    patch = cluster.patch
    monkeypatch.setattr(reclaimer, "plan_reclaim", plan)
    cluster.patch = refusing  # type: ignore[method-assign]
    for _ in range(3):
        cluster.step(1)
        if "overtakes" in cluster.pods:
            cluster.ends("overtakes")
    cluster.waits("d", core=80, nodeSelector={"name": "n2"})
    for _ in range(2):
        cluster.step(1)
        if "overtakes" in cluster.pods:
            cluster.ends("overtakes")
    assert kept(cluster) == {"d": "n2"}


def is_free(state: State) -> bool:
    """Returns whether another thread can decide now."""
    taken: list[bool] = []

    def take() -> None:
        taken.append(state.lock.acquire(timeout=1))
        if taken[0]:
            state.lock.release()

    thread = Thread(target=take)
    thread.start()
    thread.join()
    return taken[0]


def test_kube_scheduler_is_answered_while_a_plan_is_made_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, free = Cluster("n0"), dict[str, bool]()
    cluster.runs("old", "n0")
    cluster.waits("new")

    def plan(*arguments: Any) -> Any:
        free["the plan"] = is_free(cluster.state)
        return plan_reclaim(*arguments)

    patch = cluster.patch

    def slow(*arguments: Any) -> dict[str, Any]:
        free["the write"] = is_free(cluster.state)
        return patch(*arguments)

    monkeypatch.setattr(reclaimer, "plan_reclaim", plan)
    cluster.patch = slow  # type: ignore[method-assign]
    cluster.step()
    assert free == {"the plan": True, "the write": True}
    assert kept(cluster) == {"new": "n0"}


@pytest.mark.parametrize("happens", ["its own place", "the place of another"])
def test_a_plan_that_was_overtaken_while_it_was_made_is_not_carried_out(
    happens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("old", "n0", core=60)
    cluster.runs("whole", "n1", namespace="rich")
    cluster.waits("new", core=80)

    def plan(*arguments: Any) -> Any:
        if happens == "its own place":
            cluster.ends("whole")
            assert cluster.filter("new") == ["n1"]
        else:
            cluster.runs("other", "n0", core=40, namespace="rich")
        return plan_reclaim(*arguments)

    monkeypatch.setattr(reclaimer, "plan_reclaim", plan)
    cluster.step()
    assert cluster.done == []
    assert not any(uid.startswith("earmark/") for uid in cluster.state.fleet.holders("n0"))


class Trying(Cluster):
    """A cluster that notes when each write of a pod's annotation was tried, by the annotation."""

    def __init__(self, *nodes: str) -> None:
        self.tried: dict[str, list[float]] = {RECLAIM_AT: [], EARMARK: []}
        super().__init__(*nodes)

    def patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
        self.tried[next(iter(body["metadata"]["annotations"]))].append(self.now)
        return super().patch(path, body, content_type)


@pytest.mark.parametrize("error", [ApiError(500, "InternalError", "no"), RuntimeError("an error that is not known")])
@pytest.mark.parametrize("key", [RECLAIM_AT, EARMARK])
def test_a_reclaim_that_cannot_be_called_off_is_not_tried_again_at_once(error: Exception, key: str) -> None:
    cluster = Trying("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.step()
    cluster.step()
    cluster.refuses = {key: error}
    cluster.stand()
    cluster.tried[key].clear()
    for seconds in (1, 1, 1, RETRY_SECONDS):
        cluster.step(seconds)
    assert len(cluster.tried[key]) == 2
    cluster.refuses = {}
    for _ in range(3):
        cluster.step(RETRY_SECONDS)
    assert (cluster.notes(RECLAIM_AT), kept(cluster)) == ({}, {})


def test_the_event_of_a_notice_at_which_an_unknown_error_arose_is_not_tried_again_at_once() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.refuses = {"event": RuntimeError("an error that is not known")}
    for seconds in (0, 1, 1, 1, 1):
        cluster.step(seconds)
    assert cluster.events_tried == 1
    cluster.step(RETRY_SECONDS)
    assert cluster.events_tried == 2


def test_the_event_of_a_pod_under_notice_says_when_it_goes_and_names_no_other_pod() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.step()
    cluster.step()
    [event] = cluster.events
    assert (event["reason"], event["involvedObject"]["name"]) == ("PodReclaimNotice", "old")
    assert event["message"] == (
        f"a pod within its GPU budget waits for the GPUs of this one, which goes first: it is evicted at {stamp(60)}"
    )


def test_a_pod_gets_one_notice_while_the_watch_has_not_shown_it() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.step()
    cluster.shows = False
    for _ in range(4):
        cluster.step(2)
    assert cluster.done == ["+earmark new", "+reclaim-at old"]
    assert cluster.notes(RECLAIM_AT) == {"old": stamp(62)}
    assert len(cluster.events) == 1


@pytest.mark.parametrize("takes_over", [False, True], ids=["same replica", "another replica"])
def test_the_event_of_a_notice_is_written_once_though_the_api_server_refused_it_at_first(*, takes_over: bool) -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.refuses["event"] = ApiError(503, "ServiceUnavailable", "etcd")
    cluster.step()
    cluster.step()
    assert (cluster.notes(RECLAIM_AT), cluster.events) == ({"old": stamp(60)}, [])
    if takes_over:
        cluster.replica()
    del cluster.refuses["event"]
    for _ in range(3):
        cluster.step(10)
    assert [event["involvedObject"]["name"] for event in cluster.events] == ["old"]
    assert cluster.notes(RECLAIM_AT) == {"old": stamp(60)}


@pytest.mark.parametrize("is_refused", [False, True])
def test_the_event_of_a_notice_is_not_tried_again_at_once_though_the_watch_shows_the_notice_later(
    *, is_refused: bool
) -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.step()
    if is_refused:
        cluster.refuses["event"] = ApiError(503, "ServiceUnavailable", "etcd")
    cluster.shows = False
    cluster.step()
    cluster.shows = True
    cluster.show("old")
    cluster.step(RETRY_SECONDS / 2)
    assert cluster.events_tried == 1
    cluster.step(RETRY_SECONDS / 2)
    assert cluster.events_tried == (2 if is_refused else 1)


@pytest.mark.parametrize(
    ("waits_in", "runs_in"),
    [("spent", "spent"), ("rich", "rich"), ("spent", "rich")],
    ids=["over over", "in in", "over in"],
)
def test_no_pod_goes_for_one_that_does_not_stand_above_it(waits_in: str, runs_in: str) -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0", namespace=runs_in)
    cluster.waits("new", namespace=waits_in)
    for _ in range(3):
        cluster.step(100)
    assert cluster.done == []


def test_a_pod_of_high_task_priority_takes_the_place_of_one_of_normal() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0", namespace="other")
    cluster.waits("new", annotations={"fairgpu.io/task-priority": "0"})
    cluster.step()
    assert cluster.done == ["+earmark new"]


def test_a_pod_of_a_gang_that_is_deleted_while_plans_are_made_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster("n0")
    cluster.runs("v", "n0")
    cluster.waits("a")
    for name in ("g-0", "g-1"):
        cluster.waits(name, gang="g/2")
    kind_of = cluster.reclaimer._kind

    def kind_after_the_end(pods: Any) -> Any:
        if "g-0" in cluster.pods:
            cluster.ends("g-0")
        return kind_of(pods)

    monkeypatch.setattr(cluster.reclaimer, "_kind", kind_after_the_end)
    cluster.step()
    assert cluster.state.gangs.uids() == {"uid-g-1"}


def test_no_pod_goes_by_a_notice_that_is_to_be_called_off() -> None:
    cluster = Cluster("n0")
    cluster.runs("v", "n0", since=-1000)
    cluster.pods["v"]["metadata"]["annotations"][RECLAIM_AT] = stamp(-100)
    cluster.show("v")
    cluster.waits("new")
    cluster.refuses[RECLAIM_AT] = ApiError(503, "ServiceUnavailable", "not now")
    cluster.step()
    cluster.refuses.clear()
    for seconds in (1, RETRY_SECONDS, 1, 1):
        cluster.step(seconds)
    assert "evict v" not in cluster.done
    assert cluster.notes(RECLAIM_AT) == {"v": stamp(cluster.now - 1 + 60)}


def test_the_pod_that_has_run_for_the_shortest_time_goes() -> None:
    cluster = Cluster("n0", "n1", "n2")
    for at, since in enumerate((-900, -10, -500)):
        cluster.runs(f"old-{at}", f"n{at}", since=since)
    cluster.waits("new")
    cluster.step()
    cluster.step()
    assert list(cluster.notes(RECLAIM_AT)) == ["old-1"]


def test_a_pod_that_ends_anyway_is_waited_for() -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("ends", "n0")
    cluster.runs("stays", "n1")
    cluster.pods["ends"]["metadata"]["deletionTimestamp"] = stamp(0)
    cluster.show("ends")
    cluster.waits("new")
    cluster.step()
    assert cluster.done == []


def test_a_node_that_is_full_of_pods_has_room_for_another_once_one_has_ended() -> None:
    cluster = Cluster("n0")
    cluster.state.put_site(Site("n0", {"name": "n0"}, pods=2))
    for name in ("ends", "stays"):
        cluster.runs(name, "n0", core=50)
    cluster.pods["ends"]["metadata"]["deletionTimestamp"] = stamp(0)
    cluster.show("ends")
    cluster.waits("new", core=50)
    cluster.step()
    assert cluster.done == []


def test_freed_devices_are_kept_from_pods_of_no_higher_class() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.step()
    cluster.ends("old")
    cluster.waits("later")
    assert cluster.filter("later") == []
    cluster.waits("urgent")
    cluster.pods["urgent"]["spec"]["priority"] = 101
    assert cluster.filter("urgent") == ["n0"]


def test_a_replica_that_takes_over_finds_what_was_promised_once_the_victims_are_gone() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.step()
    cluster.ends("old")
    cluster.replica()
    cluster.waits("later")
    assert cluster.filter("later") == []
    assert cluster.filter("new") == ["n0"]


def test_a_replica_that_takes_over_in_between_goes_on() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.step()
    cluster.replica()
    cluster.step()
    cluster.replica()
    cluster.step(60)
    assert cluster.done == ["+earmark new", "+reclaim-at old", "evict old"]


def test_no_pod_has_two_plans_while_the_watch_has_not_shown_the_first() -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("a", "n0")
    cluster.runs("b", "n1")
    cluster.waits("new")
    cluster.shows = False
    cluster.step()
    cluster.step(1)
    assert cluster.done == ["+earmark new"]


def test_an_earmark_that_is_never_shown_keeps_nothing_for_good() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.shows = False
    cluster.step()
    cluster.shows = True
    cluster.ends("old")
    cluster.waits("later")
    assert cluster.filter("later") == []
    cluster.ends("new")
    cluster.step(11)
    assert cluster.filter("later") == ["n0"]


def test_two_pods_that_wait_are_not_promised_the_same_devices() -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("a", "n0")
    cluster.runs("b", "n1")
    cluster.waits("first")
    cluster.waits("second")
    for _ in range(3):
        cluster.step()
    marks = {name: decode(text).node for name, text in cluster.notes(EARMARK).items()}
    assert sorted(marks) == ["first", "second"]
    assert sorted(marks.values()) == ["n0", "n1"]


def end_claimant(cluster: Cluster) -> None:
    cluster.ends("new")


def delete_claimant_with_a_finalizer(cluster: Cluster) -> None:
    cluster.put("new", deleted(cluster.pods["new"]))


def spend(cluster: Cluster) -> None:
    cluster.stand("spent", "rich")


def earn(cluster: Cluster) -> None:
    cluster.stand()


def make_room(cluster: Cluster) -> None:
    cluster.ends("other")


@pytest.mark.parametrize(
    "change",
    [end_claimant, delete_claimant_with_a_finalizer, spend, earn, make_room],
    ids=lambda change: change.__name__,
)
def test_a_reclaim_whose_need_is_gone_is_called_off(change: Callable[[Cluster], None]) -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("old", "n0")
    cluster.runs("other", "n1", since=-1000)
    cluster.waits("new")
    cluster.step()
    cluster.step()
    assert cluster.notes(RECLAIM_AT) == {"old": stamp(60)}
    change(cluster)
    for _ in range(3):
        cluster.step(1)
    assert cluster.notes(RECLAIM_AT) == {}
    cluster.step(60)
    assert not any(line.startswith("evict") for line in cluster.done)
    assert cluster.count("reclaims", "in_vain") == 0


def test_where_the_pod_is_not_placed_in_time_the_node_is_left_out_for_it() -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("cheap", "n0")
    cluster.runs("dear", "n1", since=-1000)
    cluster.waits("new")
    cluster.step()
    cluster.step()
    cluster.step(60)
    cluster.ends("cheap")
    cluster.runs("other", "n0", namespace="rich", core=10)
    cluster.step(1)
    assert decode(cluster.notes(EARMARK)["new"]).node == "n0"
    cluster.step(30)
    cluster.step(1)
    cluster.step(1)
    assert cluster.count("reclaims", "in_vain") == 1
    assert decode(cluster.notes(EARMARK)["new"]).node == "n1"
    assert list(cluster.notes(RECLAIM_AT)) == ["dear"]


def test_a_node_that_was_freed_for_a_pod_whose_budget_is_spent_then_is_not_left_out_for_it() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.step()
    cluster.step()
    cluster.step(60)
    cluster.ends("old")
    cluster.step(1)
    cluster.stand("spent", "rich")
    cluster.step(1)
    assert cluster.notes(EARMARK) == {}
    assert cluster.count("reclaims", "in_vain") == 0
    cluster.runs("late", "n0")
    cluster.stand("spent")
    cluster.step(1)
    assert decode(cluster.notes(EARMARK)["new"]).victims == ("uid-late",)


def test_a_replica_that_takes_over_evicts_nobody_again_where_it_was_in_vain() -> None:
    cluster = Cluster("n0")
    cluster.runs("cheap", "n0")
    cluster.waits("new")
    cluster.step()
    cluster.step()
    cluster.step(60)
    cluster.ends("cheap")
    for seconds in (1, 30, 1):
        cluster.step(seconds)
    assert cluster.count("reclaims", "in_vain") == 1
    cluster.runs("second", "n0")
    cluster.replica()
    for _ in range(3):
        cluster.step(1)
    assert (kept(cluster), cluster.notes(RECLAIM_AT)) == ({}, {})
    cluster.waits("another")
    cluster.step(1)
    assert kept(cluster) == {"another": "n0"}


def test_nodes_that_are_left_out_stay_so_beside_the_next_earmark_and_are_bounded() -> None:
    many = tuple(f"n{at}" for at in range(100))
    text = fallen(many)
    assert text is not None
    assert decode(text).left_out == many[-64:]
    assert len(fallen(tuple(f"{at:0253}" for at in range(100))) or "") < 20_000
    cluster = Cluster("n0", "n1")
    cluster.runs("cheap", "n0")
    cluster.runs("dear", "n1", since=-1000)
    cluster.waits("new", annotations={EARMARK: fallen(("n0",))})
    cluster.step()
    found = decode(cluster.notes(EARMARK)["new"])
    assert (found.node, found.left_out) == ("n1", ("n0",))


def test_no_pod_goes_for_one_that_as_many_nodes_did_not_help_as_an_earmark_names() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    names = tuple(f"x{at}" for at in range(64))
    cluster.waits("new", annotations={EARMARK: fallen(names)})
    cluster.step()
    assert cluster.done == []
    cluster.waits("newer", annotations={EARMARK: fallen(names[:63])})
    cluster.step()
    assert kept(cluster) == {"newer": "n0"}


def test_a_disruption_budget_holds_until_the_earmark_falls() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.step()
    cluster.step()
    cluster.refuses["eviction"] = ApiError(429, "TooManyRequests", "disruption budget")
    cluster.step(60)
    cluster.step(1)
    cluster.step(5)
    assert cluster.count("reclaim_evictions", "blocked") == 2
    assert "new" in cluster.notes(EARMARK)
    cluster.step(600)
    cluster.step(5)
    cluster.step(1)
    assert (kept(cluster), cluster.notes(RECLAIM_AT)) == ({}, {})
    assert cluster.count("reclaims", "in_vain") == 1


def test_a_gang_is_reclaimed_for_as_a_whole_or_not_at_all() -> None:
    cluster = Cluster("n0", "n1", "n2")
    cluster.runs("a", "n0")
    cluster.runs("b", "n1", namespace="rich")
    cluster.runs("c", "n2")
    for at in range(3):
        cluster.waits(f"train-{at}", gang="train/3")
    cluster.step()
    assert cluster.done == []
    cluster.ends("b")
    cluster.step()
    cluster.step()
    assert sorted(cluster.notes(EARMARK)) == ["train-0", "train-1", "train-2"]
    assert sorted(cluster.notes(RECLAIM_AT)) == ["a", "c"]
    cluster.ends("a")
    cluster.ends("c")
    assert sorted(cluster.filter(f"train-{at}")[0] for at in range(3)) == ["n0", "n1", "n2"]


def test_a_notice_for_a_gang_is_called_off_once_there_is_room_for_all_of_it() -> None:
    cluster = Cluster("n0", "n1", "n2", "n3")
    cluster.runs("a", "n0")
    cluster.runs("b", "n1")
    cluster.runs("x", "n2", namespace="rich")
    cluster.runs("y", "n3", namespace="rich")
    for at in range(2):
        cluster.waits(f"train-{at}", gang="train/2")
    cluster.step()
    cluster.step()
    assert sorted(cluster.notes(RECLAIM_AT)) == ["a", "b"]
    cluster.ends("x")
    cluster.step(1)
    assert sorted(cluster.notes(RECLAIM_AT)) == ["a", "b"]
    cluster.ends("y")
    cluster.step(1)
    cluster.step(1)
    assert (cluster.notes(EARMARK), cluster.notes(RECLAIM_AT)) == ({}, {})
    cluster.step(60)
    assert not any(line.startswith("evict") for line in cluster.done)
    assert cluster.count("reclaims", "in_vain") == 0


def test_devices_kept_for_a_gang_wait_for_the_end_of_all_of_its_victims() -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("a", "n0")
    for at in range(2):
        cluster.waits(f"train-{at}", gang="train/2")
    cluster.step()
    for _ in range(6):
        cluster.step(9)
    assert sorted(cluster.notes(EARMARK)) == ["train-0", "train-1"]
    assert cluster.count("reclaims", "in_vain") == 0


def test_where_reclaim_is_switched_off_notices_are_called_off_and_nobody_is_evicted() -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("old", "n0")
    cluster.runs("dear", "n1", since=-1000)
    cluster.waits("new")
    cluster.step()
    cluster.step()
    assert list(cluster.notes(RECLAIM_AT)) == ["old"]
    cluster.enabled = False
    cluster.waits("second")
    cluster.replica()
    for _ in range(3):
        cluster.step(30)
    assert (cluster.notes(EARMARK), cluster.notes(RECLAIM_AT)) == ({}, {})
    assert not any(line.startswith("evict") for line in cluster.done)


def test_where_reclaim_is_switched_off_what_is_free_already_is_kept_for_its_time() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.step()
    cluster.ends("old")
    cluster.enabled = False
    cluster.replica()
    cluster.step(1)
    assert list(cluster.notes(EARMARK)) == ["new"]
    cluster.step(30)
    cluster.step(1)
    assert kept(cluster) == {}


def test_a_pod_within_its_budget_goes_for_a_gang_of_which_one_pod_has_high_task_priority() -> None:
    cluster = Cluster("n0", over=())
    cluster.runs("old", "n0", "other")
    cluster.waits("a", core=30, gang="train/2", annotations={"fairgpu.io/task-priority": "0"})
    cluster.waits("b", core=50, gang="train/2")
    for _ in range(3):
        cluster.step(1)
    assert cluster.done == ["+earmark a", "+earmark b", "+reclaim-at old"]
    cluster.step(60)
    assert cluster.done[3:] == ["evict old"]


@pytest.mark.parametrize("error", [ApiError(500, "InternalError", "no"), RuntimeError("an error that is not known")])
def test_earmarks_of_a_gang_that_cannot_all_be_written_are_taken_back(error: Exception) -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("a", "n0")
    cluster.runs("b", "n1")
    for at in range(2):
        cluster.waits(f"train-{at}", gang="train/2")
    patch, calls = cluster.patch, []

    def failing(path: str, body: Any, content_type: str) -> dict[str, Any]:
        calls.append(path)
        if len(calls) == 2:
            raise error
        return patch(path, body, content_type)

    cluster.patch = failing  # type: ignore[method-assign]
    cluster.step()
    assert (cluster.notes(EARMARK), cluster.notes(RECLAIM_AT)) == ({}, {})
    assert [uid for name in cluster.nodes for uid in cluster.state.fleet.holders(name)] == ["uid-a", "uid-b"]


def test_nodes_are_judged_as_kube_scheduler_will() -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("tainted", "n0")
    cluster.runs("fine", "n1", since=-1000)
    cluster.state.put_site(Site("n0", {}, ({"key": "k", "effect": "NoSchedule"},), pods=10))
    cluster.waits("new")
    cluster.step()
    assert decode(cluster.notes(EARMARK)["new"]).node == "n1"


def test_a_node_whose_taint_is_gone_is_thought_of_again() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.state.put_site(Site("n0", {}, ({"key": "k", "effect": "NoSchedule"},), pods=10))
    cluster.waits("new")
    cluster.step()
    assert cluster.done == []
    cluster.state.put_site(Site("n0", {}, pods=10))
    cluster.step()
    assert cluster.done == ["+earmark new"]


def test_a_pod_with_required_pod_affinity_is_planned_only_on_nodes_that_were_named_for_it() -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("a", "n0")
    cluster.runs("b", "n1", since=-1000)
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}
    cluster.waits("new", affinity=near)
    cluster.step()
    assert cluster.done == []
    filter_nodes(cluster.state, arguments(cluster.pods["new"], ["n1"]), 0.0)
    cluster.step()
    assert decode(cluster.notes(EARMARK)["new"]).node == "n1"


@pytest.mark.parametrize("taken", [True, False], ids=["full of pods that may go", "free"])
def test_a_node_without_another_resource_that_the_pod_asks_for_is_neither_freed_nor_room_for_it(*, taken: bool) -> None:
    cluster = Cluster("n0", "n1")
    cluster.state.put_site(Site("n1", {"name": "n1"}, pods=10, others={"rdma/hca": 1}))
    if taken:
        cluster.runs("a", "n0")
    cluster.runs("b", "n1", since=-1000)
    cluster.waits("new", initContainers=[{"name": "nic", "resources": {"requests": {"rdma/hca": "1"}}}])
    for _ in range(3):
        cluster.step(1)
    assert kept(cluster) == {"new": "n1"}
    assert list(cluster.notes(RECLAIM_AT)) == ["b"]


NIC = {"name": "nic", "resources": {"requests": {"rdma/hca": "1"}}}


def with_a_nic(*nodes: str) -> Cluster:
    """A cluster whose nodes have one network card each."""
    cluster = Cluster(*nodes)
    for name in nodes:
        cluster.state.put_site(Site(name, {"name": name}, pods=10, others={"rdma/hca": 1}))
    return cluster


def test_the_pod_that_holds_another_resource_goes_and_the_free_gpu_beside_it_is_no_room() -> None:
    cluster = with_a_nic("n0", "n1")
    cluster.runs("stays", "n0", core=10, namespace="rich", initContainers=[NIC])
    cluster.runs("goes", "n1", core=10, initContainers=[NIC])
    cluster.waits("new", core=50, initContainers=[NIC])
    cluster.step()
    cluster.step()
    assert (kept(cluster), list(cluster.notes(RECLAIM_AT))) == ({"new": "n1"}, ["goes"])
    cluster.waits("second", core=40, initContainers=[NIC])
    cluster.step(1)
    assert kept(cluster) == {"new": "n1"}
    cluster.ends("stays")
    for _ in range(3):
        cluster.step(1)
    assert (kept(cluster), cluster.notes(RECLAIM_AT)) == ({}, {})


def test_the_pods_of_a_gang_count_on_another_resource_once_it_is_free() -> None:
    cluster = with_a_nic("n0", "n1")
    cluster.runs("goes", "n0", core=10, initContainers=[NIC])
    cluster.runs("stays", "n1", core=10, namespace="rich", initContainers=[NIC])
    for at in range(2):
        cluster.waits(f"train-{at}", core=50, gang="train/2", initContainers=[NIC])
    cluster.step()
    assert cluster.done == []
    cluster.ends("stays")
    cluster.step()
    cluster.step()
    assert sorted(kept(cluster).values()) == ["n0", "n1"]
    assert list(cluster.notes(RECLAIM_AT)) == ["goes"]
    cluster.state.put_site(Site("n1", {"name": "n1"}, pods=10, others={"rdma/hca": 2}))
    for _ in range(3):
        cluster.step(1)
    assert (kept(cluster), cluster.notes(RECLAIM_AT)) == ({}, {})


def test_a_pod_that_is_ending_frees_its_other_resources_and_is_waited_for() -> None:
    cluster = with_a_nic("n0", "n1")
    cluster.runs("ends", "n0", core=10, initContainers=[NIC])
    cluster.runs("stays", "n1", core=10, initContainers=[NIC])
    cluster.pods["ends"]["metadata"]["deletionTimestamp"] = stamp(0)
    cluster.show("ends")
    cluster.waits("new", core=50, initContainers=[NIC])
    cluster.step()
    assert cluster.done == []


def test_by_states_that_nobody_confirms_any_more_nobody_gets_notice_or_is_evicted() -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("a", "n0")
    cluster.runs("b", "n1")
    cluster.waits("first")
    cluster.step()
    cluster.step()
    cluster.silent = True
    cluster.waits("second")
    cluster.step(121)
    assert cluster.done == ["+earmark first", "+reclaim-at a"]
    cluster.silent = False
    cluster.step()
    assert cluster.done[2:] == ["evict a", "+earmark second"]


def test_a_replica_that_loses_the_lease_within_a_step_writes_nothing_more() -> None:
    cluster = Cluster("n0", "n1")
    for at in range(2):
        cluster.runs(f"old-{at}", f"n{at}")
        cluster.waits(f"new-{at}")
    writes = {"patch": cluster.patch, "create": cluster.create}

    def last(name: str) -> Callable[..., dict[str, Any]]:
        def write(*arguments: Any) -> dict[str, Any]:
            cluster.acts = cluster.acts and arguments[0].endswith("/events")
            return writes[name](*arguments)

        return write

    cluster.patch, cluster.create = last("patch"), last("create")  # type: ignore[method-assign]
    for seconds in (0, 0, 0, 0, 60, 0, 0):
        before, cluster.acts = len(cluster.done), True
        cluster.step(seconds)
        assert len(cluster.done) <= before + 1
    assert sorted(cluster.done[-2:]) == ["evict old-0", "evict old-1"]


def test_pods_of_the_system_are_no_victims() -> None:
    cluster = Cluster("n0", over=("kube-system",))
    cluster.runs("old", "n0", namespace="kube-system")
    cluster.waits("new")
    cluster.step()
    assert cluster.done == []


def test_nothing_is_evicted_that_got_no_notice() -> None:
    cluster = Cluster("n0")
    cluster.runs("old", "n0")
    cluster.waits("new")
    cluster.refuses[RECLAIM_AT] = ApiError(403, "Forbidden", "no")
    for _ in range(3):
        cluster.step(100)
    assert cluster.done == ["+earmark new"]


NEGATIVE = '{"v":1,"node":"n","devices":[{"uuid":"u","core":-1,"memoryMiB":1}],"victims":[],"until":1}'
OF_ANOTHER_VERSION = '{"v":2,"node":"n","devices":[],"victims":[],"until":1}'


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", OF_ANOTHER_VERSION, '{"v":1,"node":1}', "\ud800", "x" * 70_000, NEGATIVE], ids=range(8)
)
def test_an_annotation_that_is_no_earmark_is_refused(text: str) -> None:
    with pytest.raises(EarmarkError):
        decode(text)


def test_a_pod_is_planned_for_again_once_the_old_notice_of_its_victim_is_called_off() -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("elsewhere", "n1")
    cluster.runs("old", "n0")
    cluster.pods["old"]["metadata"]["annotations"][RECLAIM_AT] = "2023-11-14T22:14:00Z"
    cluster.show("old")
    cluster.waits("a", nodeSelector={"name": "n0"})
    cluster.refuses[RECLAIM_AT] = ApiError(500, "InternalError", "no")
    cluster.step()
    assert cluster.notes(EARMARK) == {}
    del cluster.refuses[RECLAIM_AT]
    for _ in range(3):
        cluster.step(RETRY_SECONDS + 1)
    assert list(cluster.notes(EARMARK)) == ["a"]


def test_a_pod_is_planned_for_again_once_the_pod_that_reserved_its_devices_is_bound() -> None:
    cluster = Cluster("n0", "n1")
    cluster.runs("elsewhere", "n1")
    cluster.waits("victim", namespace="spent", nodeSelector={"name": "n0"})
    assert cluster.filter("victim") == ["n0"]
    cluster.waits("a", nodeSelector={"name": "n0"})
    cluster.step()
    assert cluster.notes(EARMARK) == {}
    cluster.runs("victim", "n0")
    cluster.step(1)
    assert list(cluster.notes(EARMARK)) == ["a"]
