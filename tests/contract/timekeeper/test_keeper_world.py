from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fairgpu.names import METER_FINALIZER
from tests.support.ledger.fake_cluster import MirroredWorld, budget_object
from tests.support.ledger.harness import MONTH, NOON, LedgerHarness
from tests.support.ledger.pod_jobs import PodJobs
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.audit.cluster import read_cluster
from timekeeper.audit.difference import Figure
from timekeeper.controller.reconcile.reconciler import NotReadyError, Reconciler
from timekeeper.controller.report.status_writer import OrderAnswers, StatusWriter
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND
from timekeeper.domain.timestamps import format_exact, format_instant
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import StoreEmptyError
from timekeeper.ledger.reading import highest_epoch
from timekeeper.ledger.writing import take_epoch
from timekeeper.sources.base import Mirror

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from tests.support.servers.redis_server import RedisServer


Json = dict[str, Any]


class World(MirroredWorld):
    """A cluster whose objects the test holds, and its leader."""

    def __init__(self, client: redis.Redis, tmp_path: Path) -> None:
        self.now = NOON
        super().__init__(lambda: self.now)
        self.client = client
        self.harness = LedgerHarness(tmp_path, client)
        self.keeper = self.lead()

    def lead(self) -> Reconciler:
        self.keeper = Reconciler(
            self.client, self, ControllerRules(), take_epoch(self.client, highest_epoch(self.client) + 1)
        )
        self.writer = StatusWriter(self, self.keeper.books)
        self.answers = OrderAnswers(self, self.keeper.books)
        self.jobs = PodJobs(self, self.keeper.books, lambda: self.now / SECOND)
        return self.keeper

    def pass_time(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        self.harness.now = self.now
        for name in self.mirrors.__slots__:
            getattr(self.mirrors, name).confirmed()

    def round(self, seconds: float = 0) -> None:
        self.pass_time(seconds)
        self.keeper.reconcile(self.now)

    def written_back(self) -> None:
        """The API server's view after the statuses were written."""
        objects = [copy.deepcopy(item) for item in self.mirrors.budgets.items()]
        for item in objects:
            item["status"] = self.budget_statuses.get(item["metadata"]["name"], {})
        self.replace("budgets", objects)


@pytest.fixture
def world(redis_server: RedisServer, tmp_path: Path) -> Iterator[World]:
    with redis_server.client() as client:
        yield World(client, tmp_path)


def node(ready: str, name: str = "n1") -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


def lease(renewed: int) -> dict[str, Any]:
    return {"metadata": {"name": "n1"}, "spec": {"renewTime": format_exact(renewed)}}


def test_a_silent_node_stops_the_meter_at_its_last_sign_of_life_and_its_return_charges_the_gap(world: World) -> None:
    world.replace("budgets", [budget_object("a", ["team-a"])])
    world.replace("pods", [world.harness.pod("p1", "team-a")])
    world.replace("nodes", [node("True")])
    world.round(40)
    world.replace("node_leases", [lease(NOON + 30 * SECOND)])
    world.replace("nodes", [node("Unknown")])
    world.round(60)
    assert world.harness.spent("a") == 30 * GPU_SECOND
    world.replace("nodes", [node("True")])
    world.round(100)
    assert world.harness.spent("a") == 200 * GPU_SECOND


def test_a_pod_removed_behind_a_silent_node_is_charged_to_the_last_sign_of_life(world: World) -> None:
    world.replace("budgets", [budget_object("a", ["team-a"])])
    pod = world.harness.pod("p1", "team-a")
    world.replace("pods", [pod])
    world.round(40)
    world.replace("node_leases", [lease(NOON + 30 * SECOND)])
    world.replace("nodes", [node("Unknown")])
    world.round(60)
    world.mirrors.pods.changed("DELETED", pod)
    world.round(60)
    assert world.harness.spent("a") == 30 * GPU_SECOND


def fall_silent(world: World) -> Json:
    """A pod begins; its node is last heard of after 30 seconds, and found silent. Returns the pod."""
    world.replace("budgets", [budget_object("a", ["team-a"])])
    pod = world.harness.pod("p1", "team-a")
    world.replace("pods", [pod])
    world.replace("nodes", [node("True")])
    world.round(40)
    world.replace("node_leases", [lease(NOON + 30 * SECOND)])
    world.replace("nodes", [node("Unknown")])
    world.round(60)
    assert world.harness.spent("a") == 30 * GPU_SECOND
    return pod


def collected(pod: Json, now: int) -> Json:
    """Returns a pod of a lost node as Kubernetes' pod garbage collector leaves it before it deletes the object.

    No kubelet says when its containers ended. See markFailedAndDeletePod in
    https://github.com/kubernetes/kubernetes/blob/v1.31.0/pkg/controller/podgc/gc_controller.go.
    """
    condition = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": format_instant(now)}
    conditions = [*pod["status"]["conditions"], condition]
    return {**pod, "status": {**pod["status"], "phase": "Failed", "conditions": conditions}}


def held_by_the_meter(pod: Json) -> Json:
    return {**pod, "metadata": {**pod["metadata"], "finalizers": [METER_FINALIZER]}}


@pytest.mark.parametrize("held", [False, True])
def test_a_pod_that_no_leader_saw_before_it_was_collected_is_charged_to_the_last_sign_of_life(
    world: World,
    held: bool,  # noqa: FBT001
) -> None:
    world.replace("budgets", [budget_object("a", ["team-a"])])
    pod = world.harness.pod("p1", "team-a")
    world.pass_time(100)
    pod = collected(held_by_the_meter(pod) if held else pod, world.now)
    world.replace("node_leases", [lease(NOON + 30 * SECOND)])
    world.replace("nodes", [node("Unknown")])
    world.replace("pods", [pod])
    world.round(60)
    assert world.harness.spent("a") == 30 * GPU_SECOND


@pytest.mark.parametrize("another", [False, True])
def test_a_pod_that_the_meter_holds_when_it_is_collected_is_charged_to_the_last_sign_of_life(
    world: World,
    another: bool,  # noqa: FBT001
) -> None:
    pod = held_by_the_meter(fall_silent(world))
    world.mirrors.pods.changed("MODIFIED", collected(pod, world.now))
    if another:
        world.lead()
    world.round(60)
    assert world.harness.spent("a") == 30 * GPU_SECOND


@pytest.mark.parametrize("another", [False, True])
def test_a_pod_whose_deletion_behind_a_silent_node_nobody_saw_is_charged_to_the_last_sign_of_life(
    world: World,
    another: bool,  # noqa: FBT001
) -> None:
    fall_silent(world)
    world.replace("pods", [])
    if another:
        world.lead()
    world.round(60)
    assert world.harness.spent("a") == 30 * GPU_SECOND


def test_a_pod_that_ended_before_its_node_fell_silent_is_charged_to_when_it_was_last_seen(world: World) -> None:
    fall_silent(world)
    world.replace("node_leases", [lease(world.now + 50 * SECOND)])
    world.replace("nodes", [node("True")])
    world.round()
    world.replace("pods", [])
    world.pass_time(60)
    world.replace("nodes", [node("Unknown")])
    world.round()
    assert world.harness.spent("a") == 100 * GPU_SECOND


def delete_node(world: World) -> None:
    world.replace("nodes", [])
    world.replace("node_leases", [])


@pytest.mark.parametrize("becomes", ["stays", "is collected", "is collected and held", "is missing", "is deleted"])
def test_a_leader_that_begins_after_a_silent_node_was_deleted_charges_its_pods_to_the_last_sign_of_life(
    world: World, becomes: str
) -> None:
    pod = fall_silent(world)
    delete_node(world)
    world.pass_time(600)
    if becomes == "is collected":
        world.replace("pods", [collected(pod, world.now)])
    if becomes == "is collected and held":
        world.replace("pods", [collected(held_by_the_meter(pod), world.now)])
    if becomes == "is missing":
        world.replace("pods", [])
    world.lead()
    world.round(60)
    assert world.harness.spent("a") == 30 * GPU_SECOND
    if becomes == "is deleted":
        world.mirrors.pods.changed("DELETED", collected(pod, world.now))
    world.lead()
    world.round(60)
    assert world.harness.spent("a") == 30 * GPU_SECOND


def test_a_node_that_returns_after_its_deletion_charges_the_gap_under_another_leader(world: World) -> None:
    fall_silent(world)
    delete_node(world)
    world.lead()
    world.round(20)
    world.replace("nodes", [node("True")])
    world.lead()
    world.round(80)
    assert world.harness.spent("a") == 200 * GPU_SECOND
    delete_node(world)
    world.lead()
    world.round(100)
    assert world.harness.spent("a") == 300 * GPU_SECOND


def test_a_silent_node_without_an_object_is_forgotten_with_its_last_pod(world: World) -> None:
    pod = fall_silent(world)
    delete_node(world)
    world.round(20)
    world.mirrors.pods.changed("DELETED", pod)
    world.round(20)
    world.round(20)
    assert reading.silent(world.client) == {}


def test_what_a_leader_knows_of_silent_nodes_outlives_an_emptied_store(world: World) -> None:
    fall_silent(world)
    delete_node(world)
    world.round(20)
    world.client.flushall()
    with suppress(StoreEmptyError):
        world.round(20)
    world.round(20)
    assert world.harness.spent("a") == 30 * GPU_SECOND
    world.lead()
    world.round(20)
    assert world.harness.spent("a") == 30 * GPU_SECOND


@pytest.mark.parametrize("broken", ["nonsense", b"\xff", "[]", '{"n1":"noon"}', '{"n1":1.5}'])
def test_silent_nodes_that_cannot_be_read_stop_no_leader_and_are_written_anew(
    world: World, broken: str | bytes
) -> None:
    fall_silent(world)
    world.client.set(keys.SILENT, broken)
    world.lead()
    world.round(60)
    assert world.harness.spent("a") == 30 * GPU_SECOND
    assert reading.silent(world.client) == {"n1": NOON + 30 * SECOND}


def test_a_silent_node_whose_sessions_cannot_be_read_yet_is_not_forgotten(world: World) -> None:
    fall_silent(world)
    delete_node(world)
    sessions = keys.AccountKeys("a").sessions
    record = world.client.hget(sessions, "p1")
    world.client.hset(sessions, "p1", "broken")
    world.replace("pods", [])
    world.lead()
    world.round(60)
    world.client.hset(sessions, "p1", record)
    world.round(600)
    world.round(10)
    assert world.harness.spent("a") == 30 * GPU_SECOND


@pytest.mark.parametrize("node_deleted", [False, True])
@pytest.mark.parametrize("seen", [False, True])
def test_a_pod_that_is_collected_behind_a_silent_node_is_charged_to_the_last_sign_of_life(
    world: World,
    node_deleted: bool,  # noqa: FBT001
    seen: bool,  # noqa: FBT001
) -> None:
    pod = fall_silent(world)
    if node_deleted:
        world.replace("nodes", [])
        world.replace("node_leases", [])
        world.round(20)
        assert world.harness.spent("a") == 30 * GPU_SECOND
    pod = collected(pod, world.now)
    world.mirrors.pods.changed("MODIFIED", pod)
    if seen:
        world.round(1)
    world.mirrors.pods.changed("DELETED", pod)
    world.round(60)
    assert world.harness.spent("a") == 30 * GPU_SECOND


def test_a_pod_that_is_collected_did_not_end_when_its_init_container_finished(world: World) -> None:
    pod = fall_silent(world)
    done = {"name": "init", "state": {"terminated": {"exitCode": 0, "finishedAt": format_instant(NOON + SECOND)}}}
    main = {"name": "main", "state": {"running": {"startedAt": format_instant(NOON + SECOND)}}}
    pod["status"] |= {"initContainerStatuses": [done], "containerStatuses": [main]}
    pod = collected(pod, world.now)
    world.mirrors.pods.changed("MODIFIED", pod)
    world.round(1)
    world.mirrors.pods.changed("DELETED", pod)
    world.round(60)
    assert world.harness.spent("a") == 30 * GPU_SECOND


def test_the_audit_takes_no_pod_of_a_deleted_node_for_one_that_nobody_settles(world: World) -> None:
    fall_silent(world)
    world.replace("nodes", [node("True", "n2")])
    world.round(60)
    around = AuditEnvironment(world.client, lambda: read_cluster(world.mirrors, None), lambda: world.now, bool)
    found = audit(around, AuditRequest(patience_seconds=0)).differences
    assert [each for each in found if each.figure is not Figure.STATUS] == []


def test_the_return_of_a_node_that_was_deleted_while_it_was_silent_charges_the_gap(world: World) -> None:
    fall_silent(world)
    world.replace("nodes", [])
    world.round(20)
    world.replace("nodes", [node("True")])
    world.round(80)
    assert world.harness.spent("a") == 200 * GPU_SECOND


def test_a_node_that_is_deleted_and_was_not_silent_stops_no_meter(world: World) -> None:
    world.replace("budgets", [budget_object("a", ["team-a"])])
    world.replace("pods", [world.harness.pod("p1", "team-a")])
    world.replace("nodes", [node("True")])
    world.round(40)
    world.replace("nodes", [])
    world.round(60)
    assert world.harness.spent("a") == 100 * GPU_SECOND


def test_nothing_is_done_before_the_whole_world_was_seen(world: World) -> None:
    world.mirrors = type(world.mirrors)(
        **{name: Mirror(name, lambda: world.now) for name in type(world.mirrors).__slots__}
    )
    with pytest.raises(NotReadyError):
        world.keeper.reconcile(world.now)
    assert world.client.exists("fairgpu:{book}:namespaces") == 0


def test_pods_are_metered_where_quotas_were_never_read(world: World) -> None:
    unread = Mirror("quotas", lambda: world.now)
    world.mirrors = replace(world.mirrors, quotas=unread)
    world.replace("budgets", [budget_object("a", ["team-a"])])
    world.replace("pods", [world.harness.pod("p1", "team-a")])
    world.keeper.reconcile(world.now)

    assert unread.confirmed_at is None
    assert [metered.session.pod for metered in world.keeper.books.pods.sessions.of_namespaces(["team-a"])] == ["p1"]


def test_a_new_process_fills_an_emptied_redis_from_the_checkpoint_and_the_pods_that_are_there(world: World) -> None:
    world.replace("budgets", [budget_object("a", ["team-a"])])
    gone, done, runs = (world.harness.pod(uid, "team-a") for uid in ("gone", "done", "runs"))
    world.replace("pods", [gone, done, runs])
    world.round()
    world.pass_time(10)
    world.mirrors.pods.changed("DELETED", gone)
    world.harness.finish(done)
    world.mirrors.pods.changed("MODIFIED", done)
    world.round()
    world.writer.write(world.now)
    world.written_back()
    world.client.flushall()
    world.lead()
    world.round(10)
    assert world.harness.spent("a") == (10 + 10 + 20) * GPU_SECOND
    assert [notice.reason for notice in world.notices] == ["LedgerRestored"]
    world.mirrors.pods.changed("DELETED", done)
    world.round(10)
    assert world.harness.spent("a") == (10 + 10 + 30) * GPU_SECOND
    standing = reading.period_totals(world.client, "a", MONTH)
    assert standing is not None
    assert standing.finalized == 20 * GPU_SECOND


def test_a_status_is_written_for_the_version_of_the_budget_that_it_was_drafted_for(world: World) -> None:
    budget = budget_object("a", ["team-a"])
    budget["metadata"]["resourceVersion"] = "41"
    world.replace("budgets", [budget])
    world.round()
    world.writer.write(world.now)
    assert world.versions_written == {"a": "41"}


def test_a_status_says_what_is_spent_what_is_left_and_until_when(world: World) -> None:
    world.replace("budgets", [budget_object("a", ["team-a"], allowance={"gpuHours": "0.01"})])
    world.replace("pods", [world.harness.pod("p1", "team-a", core=50)])
    world.round()
    world.round(40)
    assert world.writer.write(world.now) == 1
    status = world.budget_statuses["a"]
    assert status["spent"] == {"gpuHours": "0.005556", "microGPUSeconds": str(20 * GPU_SECOND)}
    assert status["remaining"]["microGPUSeconds"] == str(16 * GPU_SECOND)
    assert (status["state"], status["burnRate"]) == ("open", "0.50")
    assert status["projectedExhaustion"] == format_instant(NOON + 72 * SECOND)
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "Ready": "True",
        "Conflict": "False",
        "HalfSpent": "True",
        "MostlySpent": "False",
        "Exhausted": "False",
        "RunsOutEarly": "False",
    }
    world.written_back()
    assert world.writer.write(world.now) == 0
    world.round(5)
    assert world.writer.write(world.now) == 0
    world.round(60)
    assert world.writer.write(world.now) == 1
    assert world.budget_statuses["a"]["exhaustedAt"] == format_instant(NOON + 105 * SECOND)


def test_a_budget_that_cannot_be_used_says_why_and_goes_on_as_it_was(world: World) -> None:
    world.replace("budgets", [budget_object("a", ["team-a"])])
    world.replace("pods", [world.harness.pod("p1", "team-a")])
    world.round()
    world.replace("budgets", [budget_object("a", ["team-a"], allowance={"gpuHours": "many"})])
    world.round(10)
    world.writer.write(world.now)
    (ready,) = [item for item in world.budget_statuses["a"]["conditions"] if item["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "Invalid")
    assert "spec.allowance.gpuHours" in ready["message"]
    assert world.harness.spent("a") == 10 * GPU_SECOND


def test_a_namespace_in_two_budgets_is_the_olders_and_the_other_says_so(world: World) -> None:
    older, younger = budget_object("z", ["team-a"]), budget_object("a", ["team-a", "own"])
    older["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    younger["metadata"]["creationTimestamp"] = "2025-01-02T00:00:00Z"
    world.replace("budgets", [older, younger])
    world.replace("pods", [world.harness.pod("p1", "team-a")])
    world.round()
    world.round(10)
    world.writer.write(world.now)
    (conflict,) = [item for item in world.budget_statuses["a"]["conditions"] if item["type"] == "Conflict"]
    assert (conflict["status"], conflict["message"]) == ("True", "team-a is paid for by the older budget z")
    assert (world.harness.spent("z"), world.harness.spent("a")) == (10 * GPU_SECOND, 0)


def grant(name: str, **spec: Any) -> dict[str, Any]:
    base = {"budget": "a", "gpuHours": 1, "reason": "deadline"}
    return {"metadata": {"name": name, "creationTimestamp": format_instant(NOON)}, "spec": {**base, **spec}}


def test_grants_say_whether_they_were_applied_and_an_invalid_one_stops_no_other(world: World) -> None:
    world.replace("budgets", [budget_object("a", ["team-a"])])
    lapsed = grant("lapsed")
    lapsed["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    world.replace("grants", [grant("good"), grant("bad", gpuHours="-0"), grant("early", budget="later"), lapsed])
    world.round()
    world.answers.write(world.now)
    world.answers.write(world.now)
    assert world.grant_statuses.keys() == {"good", "bad", "lapsed"}
    assert (world.grant_statuses["good"]["applied"], world.grant_statuses["good"]["microGPUSeconds"]) == (
        True,
        str(GPU_HOUR),
    )
    assert "spec.gpuHours" in world.grant_statuses["bad"]["conditions"][0]["message"]
    assert world.grant_statuses["lapsed"]["conditions"][0]["reason"] == "Lapsed"
    world.replace("budgets", [budget_object("a", ["team-a"]), budget_object("later", ["team-b"])])
    world.round(1)
    world.answers.write(world.now)
    assert world.grant_statuses["early"]["applied"] is True


def test_a_held_pod_is_released_once_a_grant_pays_for_it(world: World) -> None:
    spec = {"allowance": {"gpuHours": 0}, "onExhausted": "hold", "minRuntime": "30m"}
    world.replace("budgets", [budget_object("a", ["team-a"], **spec)])
    pods = [world.harness.pod(uid, "team-a") for uid in ("p1", "p2")]
    for number, pod in enumerate(pods):
        pod["metadata"]["creationTimestamp"] = format_instant(NOON + number * SECOND)
        pod["metadata"]["annotations"] = {}
        pod["spec"] = {"containers": pod["spec"]["containers"], "schedulingGates": [{"name": "fairgpu.io/budget"}]}
        pod["status"] = {"phase": "Pending"}
    world.replace("pods", pods)
    world.round(10)
    assert world.jobs.release(world.now) == 0
    world.replace("grants", [grant("some", gpuHours="0.75")])
    world.round(1)
    assert world.jobs.release(world.now) == 1
    world.round(1)
    assert world.jobs.release(world.now) == 0
    gates = {item["metadata"]["uid"]: item["spec"]["schedulingGates"] for item in world.mirrors.pods.items()}
    assert gates == {"p1": [], "p2": [{"name": "fairgpu.io/budget"}]}


def namespace_object(uid: str) -> dict[str, Any]:
    return {"metadata": {"name": "team-a", "uid": uid}}


def test_a_namespace_that_is_deleted_and_made_again_keeps_its_spend_and_the_ledger_shows_the_two_apart(
    world: World,
) -> None:
    world.replace("budgets", [budget_object("a", ["team-a"])])
    world.replace("namespaces", [namespace_object("first")])
    pod = world.harness.pod("p1", "team-a")
    world.replace("pods", [pod])
    world.round(10)
    world.mirrors.pods.changed("DELETED", pod)
    world.mirrors.namespaces.changed("DELETED", namespace_object("first"))
    world.round(10)
    assert world.harness.spent("a") == 10 * GPU_SECOND
    world.mirrors.namespaces.changed("ADDED", namespace_object("second"))
    later = world.harness.pod("p2", "team-a")
    world.mirrors.pods.changed("ADDED", later)
    world.round(10)
    assert world.harness.spent("a") == 20 * GPU_SECOND
    (running,) = reading.sessions(world.client, [("p2", "a")]).values()
    assert running.namespace_uid == "second"
    world.mirrors.pods.changed("DELETED", later)
    world.round()
    notes = [entry.note for entry in reading.ledger_page(world.client, "a", "", 10)]
    assert [note.split(" ")[-1] for note in notes] == ["first", "second"]


def test_a_namespace_that_is_seen_after_its_pod_is_still_recorded(world: World) -> None:
    world.replace("budgets", [budget_object("a", ["team-a"])])
    pod = world.harness.pod("p1", "team-a")
    world.replace("pods", [pod])
    world.round()
    world.replace("namespaces", [namespace_object("first")])
    world.mirrors.pods.changed("MODIFIED", copy.deepcopy(pod))
    world.round(10)
    (running,) = reading.sessions(world.client, [("p1", "a")]).values()
    assert running.namespace_uid == "first"
