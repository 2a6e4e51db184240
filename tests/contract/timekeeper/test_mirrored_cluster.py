from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fairgpu.names import METER_FINALIZER
from tests.support.ledger.fake_cluster import MirroredCluster, budget_object
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
from timekeeper.ledger.reading import highest_fencing_token
from timekeeper.ledger.writing import take_fencing_token
from timekeeper.sources.base import Mirror

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from tests.support.servers.redis_server import RedisServer


Json = dict[str, Any]


class Cluster(MirroredCluster):
    """A cluster whose objects the test holds, and its leader."""

    def __init__(self, client: redis.Redis, tmp_path: Path) -> None:
        self.now = NOON
        super().__init__(lambda: self.now)
        self.client = client
        self.harness = LedgerHarness(tmp_path, client)
        self.reconciler = self.lead()

    def lead(self) -> Reconciler:
        self.reconciler = Reconciler(
            self.client,
            self,
            ControllerRules(),
            take_fencing_token(self.client, highest_fencing_token(self.client) + 1),
        )
        self.writer = StatusWriter(self, self.reconciler.books)
        self.answers = OrderAnswers(self, self.reconciler.books)
        self.jobs = PodJobs(self, self.reconciler.books, lambda: self.now / SECOND)
        return self.reconciler

    def pass_time(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        self.harness.now = self.now
        for name in self.mirrors.__slots__:
            getattr(self.mirrors, name).confirmed()

    def reconcile(self, seconds: float = 0) -> None:
        self.pass_time(seconds)
        self.reconciler.reconcile(self.now)

    def written_back(self) -> None:
        """The API server's view after the statuses were written."""
        objects = [copy.deepcopy(item) for item in self.mirrors.budgets.items()]
        for item in objects:
            item["status"] = self.budget_statuses.get(item["metadata"]["name"], {})
        self.replace("budgets", objects)


@pytest.fixture
def cluster(redis_server: RedisServer, tmp_path: Path) -> Iterator[Cluster]:
    with redis_server.client() as client:
        yield Cluster(client, tmp_path)


def node(ready: str, name: str = "n1") -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


def lease(renewed: int) -> dict[str, Any]:
    return {"metadata": {"name": "n1"}, "spec": {"renewTime": format_exact(renewed)}}


def test_a_silent_node_stops_the_meter_at_its_last_sign_of_life_and_its_return_charges_the_gap(
    cluster: Cluster,
) -> None:
    cluster.replace("budgets", [budget_object("a", ["team-a"])])
    cluster.replace("pods", [cluster.harness.pod("p1", "team-a")])
    cluster.replace("nodes", [node("True")])
    cluster.reconcile(40)
    cluster.replace("node_leases", [lease(NOON + 30 * SECOND)])
    cluster.replace("nodes", [node("Unknown")])
    cluster.reconcile(60)
    assert cluster.harness.spent("a") == 30 * GPU_SECOND
    cluster.replace("nodes", [node("True")])
    cluster.reconcile(100)
    assert cluster.harness.spent("a") == 200 * GPU_SECOND


def test_a_pod_removed_behind_a_silent_node_is_charged_to_the_last_sign_of_life(cluster: Cluster) -> None:
    cluster.replace("budgets", [budget_object("a", ["team-a"])])
    pod = cluster.harness.pod("p1", "team-a")
    cluster.replace("pods", [pod])
    cluster.reconcile(40)
    cluster.replace("node_leases", [lease(NOON + 30 * SECOND)])
    cluster.replace("nodes", [node("Unknown")])
    cluster.reconcile(60)
    cluster.mirrors.pods.changed("DELETED", pod)
    cluster.reconcile(60)
    assert cluster.harness.spent("a") == 30 * GPU_SECOND


def fall_silent(cluster: Cluster) -> Json:
    """A pod begins; its node is last heard of after 30 seconds, and found silent. Returns the pod."""
    cluster.replace("budgets", [budget_object("a", ["team-a"])])
    pod = cluster.harness.pod("p1", "team-a")
    cluster.replace("pods", [pod])
    cluster.replace("nodes", [node("True")])
    cluster.reconcile(40)
    cluster.replace("node_leases", [lease(NOON + 30 * SECOND)])
    cluster.replace("nodes", [node("Unknown")])
    cluster.reconcile(60)
    assert cluster.harness.spent("a") == 30 * GPU_SECOND
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
    cluster: Cluster,
    held: bool,  # noqa: FBT001
) -> None:
    cluster.replace("budgets", [budget_object("a", ["team-a"])])
    pod = cluster.harness.pod("p1", "team-a")
    cluster.pass_time(100)
    pod = collected(held_by_the_meter(pod) if held else pod, cluster.now)
    cluster.replace("node_leases", [lease(NOON + 30 * SECOND)])
    cluster.replace("nodes", [node("Unknown")])
    cluster.replace("pods", [pod])
    cluster.reconcile(60)
    assert cluster.harness.spent("a") == 30 * GPU_SECOND


@pytest.mark.parametrize("another", [False, True])
def test_a_pod_that_the_meter_holds_when_it_is_collected_is_charged_to_the_last_sign_of_life(
    cluster: Cluster,
    another: bool,  # noqa: FBT001
) -> None:
    pod = held_by_the_meter(fall_silent(cluster))
    cluster.mirrors.pods.changed("MODIFIED", collected(pod, cluster.now))
    if another:
        cluster.lead()
    cluster.reconcile(60)
    assert cluster.harness.spent("a") == 30 * GPU_SECOND


@pytest.mark.parametrize("another", [False, True])
def test_a_pod_whose_deletion_behind_a_silent_node_nobody_saw_is_charged_to_the_last_sign_of_life(
    cluster: Cluster,
    another: bool,  # noqa: FBT001
) -> None:
    fall_silent(cluster)
    cluster.replace("pods", [])
    if another:
        cluster.lead()
    cluster.reconcile(60)
    assert cluster.harness.spent("a") == 30 * GPU_SECOND


def test_a_pod_that_ended_before_its_node_fell_silent_is_charged_to_when_it_was_last_seen(cluster: Cluster) -> None:
    fall_silent(cluster)
    cluster.replace("node_leases", [lease(cluster.now + 50 * SECOND)])
    cluster.replace("nodes", [node("True")])
    cluster.reconcile()
    cluster.replace("pods", [])
    cluster.pass_time(60)
    cluster.replace("nodes", [node("Unknown")])
    cluster.reconcile()
    assert cluster.harness.spent("a") == 100 * GPU_SECOND


def delete_node(cluster: Cluster) -> None:
    cluster.replace("nodes", [])
    cluster.replace("node_leases", [])


@pytest.mark.parametrize("becomes", ["stays", "is collected", "is collected and held", "is missing", "is deleted"])
def test_a_leader_that_begins_after_a_silent_node_was_deleted_charges_its_pods_to_the_last_sign_of_life(
    cluster: Cluster, becomes: str
) -> None:
    pod = fall_silent(cluster)
    delete_node(cluster)
    cluster.pass_time(600)
    if becomes == "is collected":
        cluster.replace("pods", [collected(pod, cluster.now)])
    if becomes == "is collected and held":
        cluster.replace("pods", [collected(held_by_the_meter(pod), cluster.now)])
    if becomes == "is missing":
        cluster.replace("pods", [])
    cluster.lead()
    cluster.reconcile(60)
    assert cluster.harness.spent("a") == 30 * GPU_SECOND
    if becomes == "is deleted":
        cluster.mirrors.pods.changed("DELETED", collected(pod, cluster.now))
    cluster.lead()
    cluster.reconcile(60)
    assert cluster.harness.spent("a") == 30 * GPU_SECOND


def test_a_node_that_returns_after_its_deletion_charges_the_gap_under_another_leader(cluster: Cluster) -> None:
    fall_silent(cluster)
    delete_node(cluster)
    cluster.lead()
    cluster.reconcile(20)
    cluster.replace("nodes", [node("True")])
    cluster.lead()
    cluster.reconcile(80)
    assert cluster.harness.spent("a") == 200 * GPU_SECOND
    delete_node(cluster)
    cluster.lead()
    cluster.reconcile(100)
    assert cluster.harness.spent("a") == 300 * GPU_SECOND


def test_a_silent_node_without_an_object_is_forgotten_with_its_last_pod(cluster: Cluster) -> None:
    pod = fall_silent(cluster)
    delete_node(cluster)
    cluster.reconcile(20)
    cluster.mirrors.pods.changed("DELETED", pod)
    cluster.reconcile(20)
    cluster.reconcile(20)
    assert reading.silent(cluster.client) == {}


def test_a_leaders_knowledge_of_silent_nodes_outlives_an_emptied_store(cluster: Cluster) -> None:
    fall_silent(cluster)
    delete_node(cluster)
    cluster.reconcile(20)
    cluster.client.flushall()
    with suppress(StoreEmptyError):
        cluster.reconcile(20)
    cluster.reconcile(20)
    assert cluster.harness.spent("a") == 30 * GPU_SECOND
    cluster.lead()
    cluster.reconcile(20)
    assert cluster.harness.spent("a") == 30 * GPU_SECOND


@pytest.mark.parametrize("broken", ["nonsense", b"\xff", "[]", '{"n1":"noon"}', '{"n1":1.5}'])
def test_silent_nodes_that_cannot_be_read_stop_no_leader_and_are_written_anew(
    cluster: Cluster, broken: str | bytes
) -> None:
    fall_silent(cluster)
    cluster.client.set(keys.SILENT, broken)
    cluster.lead()
    cluster.reconcile(60)
    assert cluster.harness.spent("a") == 30 * GPU_SECOND
    assert reading.silent(cluster.client) == {"n1": NOON + 30 * SECOND}


def test_a_silent_node_whose_sessions_cannot_be_read_yet_is_not_forgotten(cluster: Cluster) -> None:
    fall_silent(cluster)
    delete_node(cluster)
    sessions = keys.AccountKeys("a").sessions
    record = cluster.client.hget(sessions, "p1")
    cluster.client.hset(sessions, "p1", "broken")
    cluster.replace("pods", [])
    cluster.lead()
    cluster.reconcile(60)
    cluster.client.hset(sessions, "p1", record)
    cluster.reconcile(600)
    cluster.reconcile(10)
    assert cluster.harness.spent("a") == 30 * GPU_SECOND


@pytest.mark.parametrize("node_deleted", [False, True])
@pytest.mark.parametrize("seen", [False, True])
def test_a_pod_that_is_collected_behind_a_silent_node_is_charged_to_the_last_sign_of_life(
    cluster: Cluster,
    node_deleted: bool,  # noqa: FBT001
    seen: bool,  # noqa: FBT001
) -> None:
    pod = fall_silent(cluster)
    if node_deleted:
        cluster.replace("nodes", [])
        cluster.replace("node_leases", [])
        cluster.reconcile(20)
        assert cluster.harness.spent("a") == 30 * GPU_SECOND
    pod = collected(pod, cluster.now)
    cluster.mirrors.pods.changed("MODIFIED", pod)
    if seen:
        cluster.reconcile(1)
    cluster.mirrors.pods.changed("DELETED", pod)
    cluster.reconcile(60)
    assert cluster.harness.spent("a") == 30 * GPU_SECOND


def test_a_pod_that_is_collected_did_not_end_when_its_init_container_finished(cluster: Cluster) -> None:
    pod = fall_silent(cluster)
    done = {"name": "init", "state": {"terminated": {"exitCode": 0, "finishedAt": format_instant(NOON + SECOND)}}}
    main = {"name": "main", "state": {"running": {"startedAt": format_instant(NOON + SECOND)}}}
    pod["status"] |= {"initContainerStatuses": [done], "containerStatuses": [main]}
    pod = collected(pod, cluster.now)
    cluster.mirrors.pods.changed("MODIFIED", pod)
    cluster.reconcile(1)
    cluster.mirrors.pods.changed("DELETED", pod)
    cluster.reconcile(60)
    assert cluster.harness.spent("a") == 30 * GPU_SECOND


def test_the_audit_takes_no_pod_of_a_deleted_node_for_one_that_nobody_settles(cluster: Cluster) -> None:
    fall_silent(cluster)
    cluster.replace("nodes", [node("True", "n2")])
    cluster.reconcile(60)
    around = AuditEnvironment(cluster.client, lambda: read_cluster(cluster.mirrors, None), lambda: cluster.now, bool)
    found = audit(around, AuditRequest(patience_seconds=0)).differences
    assert [each for each in found if each.figure is not Figure.STATUS] == []


def test_the_return_of_a_node_that_was_deleted_while_it_was_silent_charges_the_gap(cluster: Cluster) -> None:
    fall_silent(cluster)
    cluster.replace("nodes", [])
    cluster.reconcile(20)
    cluster.replace("nodes", [node("True")])
    cluster.reconcile(80)
    assert cluster.harness.spent("a") == 200 * GPU_SECOND


def test_a_node_that_is_deleted_and_was_not_silent_stops_no_meter(cluster: Cluster) -> None:
    cluster.replace("budgets", [budget_object("a", ["team-a"])])
    cluster.replace("pods", [cluster.harness.pod("p1", "team-a")])
    cluster.replace("nodes", [node("True")])
    cluster.reconcile(40)
    cluster.replace("nodes", [])
    cluster.reconcile(60)
    assert cluster.harness.spent("a") == 100 * GPU_SECOND


def test_nothing_is_done_before_the_whole_world_was_seen(cluster: Cluster) -> None:
    cluster.mirrors = type(cluster.mirrors)(
        **{name: Mirror(name, lambda: cluster.now) for name in type(cluster.mirrors).__slots__}
    )
    with pytest.raises(NotReadyError):
        cluster.reconciler.reconcile(cluster.now)
    assert cluster.client.exists("fairgpu:{book}:namespaces") == 0


def test_pods_are_metered_where_quotas_were_never_read(cluster: Cluster) -> None:
    unread = Mirror("quotas", lambda: cluster.now)
    cluster.mirrors = replace(cluster.mirrors, quotas=unread)
    cluster.replace("budgets", [budget_object("a", ["team-a"])])
    cluster.replace("pods", [cluster.harness.pod("p1", "team-a")])
    cluster.reconciler.reconcile(cluster.now)

    assert unread.confirmed_at is None
    assert [metered.session.pod for metered in cluster.reconciler.books.pods.sessions.of_namespaces(["team-a"])] == [
        "p1"
    ]


def test_a_new_process_fills_an_emptied_redis_from_the_checkpoint_and_the_pods_that_are_there(cluster: Cluster) -> None:
    cluster.replace("budgets", [budget_object("a", ["team-a"])])
    gone, done, runs = (cluster.harness.pod(uid, "team-a") for uid in ("gone", "done", "runs"))
    cluster.replace("pods", [gone, done, runs])
    cluster.reconcile()
    cluster.pass_time(10)
    cluster.mirrors.pods.changed("DELETED", gone)
    cluster.harness.finish(done)
    cluster.mirrors.pods.changed("MODIFIED", done)
    cluster.reconcile()
    cluster.writer.write(cluster.now)
    cluster.written_back()
    cluster.client.flushall()
    cluster.lead()
    cluster.reconcile(10)
    assert cluster.harness.spent("a") == (10 + 10 + 20) * GPU_SECOND
    assert [notice.reason for notice in cluster.notices] == ["LedgerRestored"]
    cluster.mirrors.pods.changed("DELETED", done)
    cluster.reconcile(10)
    assert cluster.harness.spent("a") == (10 + 10 + 30) * GPU_SECOND
    standing = reading.period_totals(cluster.client, "a", MONTH)
    assert standing is not None
    assert standing.finalized == 20 * GPU_SECOND


def test_a_status_is_written_for_the_version_of_the_budget_that_it_was_drafted_for(cluster: Cluster) -> None:
    budget = budget_object("a", ["team-a"])
    budget["metadata"]["resourceVersion"] = "41"
    cluster.replace("budgets", [budget])
    cluster.reconcile()
    cluster.writer.write(cluster.now)
    assert cluster.versions_written == {"a": "41"}


def test_a_status_says_what_is_spent_what_is_left_and_until_when(cluster: Cluster) -> None:
    cluster.replace("budgets", [budget_object("a", ["team-a"], allowance={"gpuHours": "0.01"})])
    cluster.replace("pods", [cluster.harness.pod("p1", "team-a", core=50)])
    cluster.reconcile()
    cluster.reconcile(40)
    assert cluster.writer.write(cluster.now) == 1
    status = cluster.budget_statuses["a"]
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
    cluster.written_back()
    assert cluster.writer.write(cluster.now) == 0
    cluster.reconcile(5)
    assert cluster.writer.write(cluster.now) == 0
    cluster.reconcile(60)
    assert cluster.writer.write(cluster.now) == 1
    assert cluster.budget_statuses["a"]["exhaustedAt"] == format_instant(NOON + 105 * SECOND)


def test_a_budget_that_cannot_be_used_says_why_and_goes_on_as_it_was(cluster: Cluster) -> None:
    cluster.replace("budgets", [budget_object("a", ["team-a"])])
    cluster.replace("pods", [cluster.harness.pod("p1", "team-a")])
    cluster.reconcile()
    cluster.replace("budgets", [budget_object("a", ["team-a"], allowance={"gpuHours": "many"})])
    cluster.reconcile(10)
    cluster.writer.write(cluster.now)
    (ready,) = [item for item in cluster.budget_statuses["a"]["conditions"] if item["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "Invalid")
    assert "spec.allowance.gpuHours" in ready["message"]
    assert cluster.harness.spent("a") == 10 * GPU_SECOND


def test_a_namespace_in_two_budgets_is_the_olders_and_the_other_says_so(cluster: Cluster) -> None:
    older, younger = budget_object("z", ["team-a"]), budget_object("a", ["team-a", "own"])
    older["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    younger["metadata"]["creationTimestamp"] = "2025-01-02T00:00:00Z"
    cluster.replace("budgets", [older, younger])
    cluster.replace("pods", [cluster.harness.pod("p1", "team-a")])
    cluster.reconcile()
    cluster.reconcile(10)
    cluster.writer.write(cluster.now)
    (conflict,) = [item for item in cluster.budget_statuses["a"]["conditions"] if item["type"] == "Conflict"]
    assert (conflict["status"], conflict["message"]) == ("True", "team-a is paid for by the older budget z")
    assert (cluster.harness.spent("z"), cluster.harness.spent("a")) == (10 * GPU_SECOND, 0)


def grant(name: str, **spec: Any) -> dict[str, Any]:
    base = {"budget": "a", "gpuHours": 1, "reason": "deadline"}
    return {"metadata": {"name": name, "creationTimestamp": format_instant(NOON)}, "spec": {**base, **spec}}


def test_grants_say_whether_they_were_applied_and_an_invalid_one_stops_no_other(cluster: Cluster) -> None:
    cluster.replace("budgets", [budget_object("a", ["team-a"])])
    lapsed = grant("lapsed")
    lapsed["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    cluster.replace("grants", [grant("good"), grant("bad", gpuHours="-0"), grant("early", budget="later"), lapsed])
    cluster.reconcile()
    cluster.answers.write(cluster.now)
    cluster.answers.write(cluster.now)
    assert cluster.grant_statuses.keys() == {"good", "bad", "lapsed"}
    assert (cluster.grant_statuses["good"]["applied"], cluster.grant_statuses["good"]["microGPUSeconds"]) == (
        True,
        str(GPU_HOUR),
    )
    assert "spec.gpuHours" in cluster.grant_statuses["bad"]["conditions"][0]["message"]
    assert cluster.grant_statuses["lapsed"]["conditions"][0]["reason"] == "Lapsed"
    cluster.replace("budgets", [budget_object("a", ["team-a"]), budget_object("later", ["team-b"])])
    cluster.reconcile(1)
    cluster.answers.write(cluster.now)
    assert cluster.grant_statuses["early"]["applied"] is True


def test_a_held_pod_is_released_once_a_grant_pays_for_it(cluster: Cluster) -> None:
    spec = {"allowance": {"gpuHours": 0}, "onExhausted": "hold", "minRuntime": "30m"}
    cluster.replace("budgets", [budget_object("a", ["team-a"], **spec)])
    pods = [cluster.harness.pod(uid, "team-a") for uid in ("p1", "p2")]
    for number, pod in enumerate(pods):
        pod["metadata"]["creationTimestamp"] = format_instant(NOON + number * SECOND)
        pod["metadata"]["annotations"] = {}
        pod["spec"] = {"containers": pod["spec"]["containers"], "schedulingGates": [{"name": "fairgpu.io/budget"}]}
        pod["status"] = {"phase": "Pending"}
    cluster.replace("pods", pods)
    cluster.reconcile(10)
    assert cluster.jobs.release(cluster.now) == 0
    cluster.replace("grants", [grant("some", gpuHours="0.75")])
    cluster.reconcile(1)
    assert cluster.jobs.release(cluster.now) == 1
    cluster.reconcile(1)
    assert cluster.jobs.release(cluster.now) == 0
    gates = {item["metadata"]["uid"]: item["spec"]["schedulingGates"] for item in cluster.mirrors.pods.items()}
    assert gates == {"p1": [], "p2": [{"name": "fairgpu.io/budget"}]}


def namespace_object(uid: str) -> dict[str, Any]:
    return {"metadata": {"name": "team-a", "uid": uid}}


def test_a_namespace_that_is_deleted_and_made_again_keeps_its_spend_and_the_ledger_shows_the_two_apart(
    cluster: Cluster,
) -> None:
    cluster.replace("budgets", [budget_object("a", ["team-a"])])
    cluster.replace("namespaces", [namespace_object("first")])
    pod = cluster.harness.pod("p1", "team-a")
    cluster.replace("pods", [pod])
    cluster.reconcile(10)
    cluster.mirrors.pods.changed("DELETED", pod)
    cluster.mirrors.namespaces.changed("DELETED", namespace_object("first"))
    cluster.reconcile(10)
    assert cluster.harness.spent("a") == 10 * GPU_SECOND
    cluster.mirrors.namespaces.changed("ADDED", namespace_object("second"))
    later = cluster.harness.pod("p2", "team-a")
    cluster.mirrors.pods.changed("ADDED", later)
    cluster.reconcile(10)
    assert cluster.harness.spent("a") == 20 * GPU_SECOND
    (running,) = reading.sessions(cluster.client, [("p2", "a")]).values()
    assert running.namespace_uid == "second"
    cluster.mirrors.pods.changed("DELETED", later)
    cluster.reconcile()
    notes = [entry.note for entry in reading.ledger_page(cluster.client, "a", "", 10)]
    assert [note.split(" ")[-1] for note in notes] == ["first", "second"]


def test_a_namespace_that_is_seen_after_its_pod_is_still_recorded(cluster: Cluster) -> None:
    cluster.replace("budgets", [budget_object("a", ["team-a"])])
    pod = cluster.harness.pod("p1", "team-a")
    cluster.replace("pods", [pod])
    cluster.reconcile()
    cluster.replace("namespaces", [namespace_object("first")])
    cluster.mirrors.pods.changed("MODIFIED", copy.deepcopy(pod))
    cluster.reconcile(10)
    (running,) = reading.sessions(cluster.client, [("p1", "a")]).values()
    assert running.namespace_uid == "first"
