"""Pods that really cannot be written, on the real API server: others are given notice and evicted all the same."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairgpu.cluster.api import JSON_PATCH, ApiError
from fairgpu.pod_faults import MAX_DEBUGGERS_BYTES, oversized_debuggers, oversized_pod
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.stand_ins import StandInNode, create_node, place
from tests.cluster.pods import canonical_pod
from tests.cluster.services.replicas import timekeeper_jobs
from tests.support.ledger.periods import month_midway
from tests.support.ports import free_port
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import LIMIT_S, wait_until
from timekeeper.sources.kubernetes import KubernetesSource

pytestmark = [pytest.mark.usefixtures("installation"), pytest.mark.patient]

BUDGETS = "/apis/fairgpu.io/v1alpha1/gpubudgets"
EVICTION_AT = "fairgpu.io/eviction-at"
MERGE = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
MOST_BYTES = 1_600_000
"""More than etcd takes of a request (https://etcd.io/docs/v3.6/dev-guide/limit/)."""

Json = dict[str, Any]


def most(fits: int, too_much: int, takes: Callable[[int], bool], exact: int = 1) -> int:
    """The most that is taken, to within `exact`; the last that was tried may have been more."""
    while too_much - fits > exact:
        middle = (fits + too_much) // 2
        if takes(middle):
            fits = middle
        else:
            too_much = middle
    return fits


class Team:
    """A namespace whose budget evicts with a notice of three seconds, and its pods."""

    def __init__(self, plane: ControlPlane, namespace: str, node: StandInNode) -> None:
        self.plane, self.namespace, self.node = plane, namespace, node
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.api = plane.admin.api
        spec = {
            "namespaces": [namespace],
            "allowance": {"gpuHours": 10},
            "period": month_midway(),
            "enforcement": "evict",
            "onExhausted": "hold",
            "evictionNotice": "3s",
        }
        item = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": namespace}, "spec": spec}
        self.api.create(BUDGETS, item)

    def run(self, name: str, labels: dict[str, str] | None = None) -> Json:
        item = canonical_pod(name)
        item["metadata"].setdefault("labels", {}).update(labels or {})
        created = self.api.create(self.pods, item)
        scheduler = self.plane.service_account("fairgpu-system", "fairgpu-scheduler")
        place(scheduler, created, self.node.name)
        return self.node.set_pod_phase(self.namespace, name, "Running")

    def fill(self, name: str) -> None:
        """Fills a pod up to some bytes below etcd's limit."""
        most(0, MOST_BYTES, lambda size: self._takes_ballast(name, size), 8)

    def empty(self, name: str) -> None:
        """Takes out what `fill` put in: until then not even a deletion can be written."""
        assert self._takes_ballast(name, 0)

    def _takes_ballast(self, name: str, size: int) -> bool:
        """Whether so many bytes fit into a pod's status, written by its node, whom no policy bounds."""
        condition = {"type": "example.org/Ballast", "status": "True", "message": "x" * size}
        try:
            self.node.kubelet.api.patch(f"{self.pods}/{name}/status", {"status": {"conditions": [condition]}}, MERGE)
        except ApiError as error:
            if "request is too large" in error.message:
                return False
            raise
        return True

    def spend_all(self) -> None:
        self.api.patch(f"{BUDGETS}/{self.namespace}", {"spec": {"allowance": {"gpuHours": "0.0001"}}})

    def shown(self, name: str) -> bool:
        return EVICTION_AT in self.api.get(f"{self.pods}/{name}")["metadata"]["annotations"]

    def ending(self, name: str) -> bool:
        return "deletionTimestamp" in self.api.get(f"{self.pods}/{name}")["metadata"]

    def events(self, name: str) -> set[str]:
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        return {event["reason"] for event in self.api.get(path)["items"] if event["regarding"].get("name") == name}


@pytest.fixture(scope="module")
def metrics_port(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Starts a leader that evicts a pod without a notice after a second; yields the port of the leader's metrics."""
    port = free_port()
    impatient = {"FAIRGPU_TIMEKEEPER_JOBS_WITHOUT_NOTICE_SECONDS": "1"}
    with (
        RedisServer(tmp_path_factory.mktemp("redis")) as server,
        timekeeper_jobs(control_plane, "unwritable", port, server.url, **impatient),
    ):
        yield port


@pytest.fixture
def make_team(control_plane: ControlPlane, make_namespace: Callable[..., str], metrics_port: int) -> Callable[[], Team]:
    assert metrics_port

    def make() -> Team:
        namespace = make_namespace()
        return Team(control_plane, namespace, create_node(control_plane, f"node-{namespace}"))

    return make


def counted(port: int, name: str, **labels: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples]
    return next(each.value for each in samples if each.name == f"fairgpu_timekeeper_{name}" and each.labels == labels)


def test_a_pod_that_fills_etcds_limit_keeps_no_other_from_its_notice_and_its_eviction(
    make_team: Callable[[], Team], metrics_port: int, control_plane: ControlPlane
) -> None:
    bad, behind = make_team(), make_team()
    bad.run("filled")
    bad.fill("filled")
    timekeeper = control_plane.service_account("fairgpu-system", "fairgpu-timekeeper")
    notice = {"metadata": {"annotations": {EVICTION_AT: "2026-01-01T00:00:00.000000000Z"}}}
    with pytest.raises(ApiError, match="request is too large"):
        timekeeper.api.patch(f"{bad.pods}/filled", notice)
    bad.run("beside")
    behind.run("behind")
    try:
        bad.spend_all()
        failed = {"step": "notice", "outcome": "failed"}
        wait_until(lambda: counted(metrics_port, "pod_writes_total", **failed) >= 1, "the filled one is tried")
        behind.spend_all()
        wait_until(lambda: bad.ending("beside"), "the pod beside it is evicted")
        wait_until(lambda: behind.ending("behind"), "the pod of the other team is evicted")
        wait_until(lambda: "PodNotWritten" in bad.events("filled"), "an event says what is wrong with the filled one")
        assert not bad.shown("filled")
        assert not bad.ending("filled")
        wait_until(lambda: counted(metrics_port, "pods_not_written", step="notice") == 1, "it is counted")
    finally:
        bad.empty("filled")
    wait_until(lambda: bad.ending("filled"), "it is evicted once it can be written")


def test_a_pod_that_its_author_filled_with_managed_fields_is_evicted(
    control_plane: ControlPlane, namespace: str
) -> None:
    """Each field manager that applies an annotation is listed with it, and there may be any number of them."""
    pods, node = f"/api/v1/namespaces/{namespace}/pods", create_node(control_plane, f"node-{namespace}")
    author, path = control_plane.namespace_admin(namespace).api, f"{pods}/gpu"
    scheduler = control_plane.service_account("fairgpu-system", "fairgpu-scheduler")
    created = author.create(pods, canonical_pod())
    place(scheduler, created, node.name)
    running = node.set_pod_phase(namespace, "gpu", "Running")
    keys = [f"example.org/{number:050}" for number in range(900)]

    def applies(manager: int, count: int) -> bool:
        metadata = {"name": "gpu", "annotations": dict.fromkeys(keys[:count], "")}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        try:
            author.patch(path, document, APPLY, query={"fieldManager": f"manager-{manager}", "force": "true"})
        except ApiError as error:
            if "request is too large" in error.message:
                return False
            raise
        return True

    managers = next(manager for manager in range(100) if not applies(manager, len(keys)))
    most(0, len(keys), lambda count: applies(managers, count))
    timekeeper = control_plane.service_account("fairgpu-system", "fairgpu-timekeeper")
    KubernetesSource(timekeeper.api, time.time_ns, random.random).evict(running)
    assert "deletionTimestamp" in author.get(path)["metadata"]


def test_a_pod_that_its_author_and_its_kubelet_filled_as_far_as_they_can_gets_its_notice_and_is_evicted(
    control_plane: ControlPlane, namespace: str
) -> None:
    """Admission counts what the kubelet repeats in the status; here the policies alone are installed."""
    pods, node = f"/api/v1/namespaces/{namespace}/pods", create_node(control_plane, f"node-{namespace}")
    author, path = control_plane.namespace_admin(namespace).api, f"{pods}/gpu"
    timekeeper = control_plane.service_account("fairgpu-system", "fairgpu-timekeeper")
    source = KubernetesSource(timekeeper.api, time.time_ns, random.random)

    def admitted(count: int) -> bool:
        item = with_mounts(count)
        return not oversized_pod(len(json.dumps(item)), item["spec"])

    created = author.create(pods, with_mounts(most(0, 4000, admitted)))
    for field, value in GROWN.items():
        kept = created["spec"]["tolerations"] if field == "/spec/tolerations" else []
        author.patch(path, [{"op": "add", "path": field, "value": [*kept, *value] if kept else value}], JSON_PATCH)
    author.patch(path, [{"op": "remove", "path": "/spec/schedulingGates"}], JSON_PATCH)
    place(control_plane.service_account("fairgpu-system", "fairgpu-scheduler"), author.get(path), node.name)
    room = most(0, MAX_DEBUGGERS_BYTES, lambda size: not oversized_debuggers({"ephemeralContainers": [debugger(size)]}))
    author.patch(f"{path}/ephemeralcontainers", {"spec": {"ephemeralContainers": [debugger(room)]}}, MERGE)
    node.set_pod_phase(namespace, "gpu", "Running")
    node.kubelet.api.patch(f"{path}/status", {"status": repeated(author.get(path)["spec"])}, MERGE)
    announced = {"type": "TerminationTarget", "status": "True", "reason": "x" * 256, "message": "x" * 4096}
    author.patch(f"{path}/status", {"status": {"conditions": [announced]}}, MERGE)
    source.announce_eviction(author.get(path), "2026-01-01T00:00:00.000000000Z")
    source.evict(author.get(path))
    metadata = author.get(path)["metadata"]
    assert EVICTION_AT in metadata["annotations"]
    assert "deletionTimestamp" in metadata


def with_mounts(count: int) -> Json:
    """A GPU pod behind a gate of its author's, with so many mounts of long paths."""
    item = canonical_pod()
    mounts = [{"name": "fairgpu-usage", "mountPath": f"/{number:0600}"} for number in range(count)]
    item["spec"]["containers"][0]["volumeMounts"] += mounts
    item["spec"]["schedulingGates"] = [{"name": "example.org/own"}]
    return item


def debugger(size: int) -> Json:
    return {"name": "debugger", "image": "example.org/tools:1", "args": ["x" * size]}


def long_keys(count: int) -> list[str]:
    """Names as long as Kubernetes takes them."""
    return [f"{number:063}.{'x' * 63}.{'x' * 63}.{'x' * 61}/{'x' * 63}" for number in range(count)]


LONG = "x" * 63
REQUIRED = [{"key": key, "operator": "In", "values": ["x" * 253, "y" * 253]} for key in long_keys(64)]
GROWN: dict[str, Any] = {
    "/metadata/labels": dict.fromkeys(long_keys(255), LONG) | {"fairgpu.io/pod": "gpu"},
    "/metadata/finalizers": long_keys(64),
    "/metadata/ownerReferences": [
        {"apiVersion": "example.org/v1", "kind": "Run", "name": "n" * 100, "uid": f"{number:03}"}
        for number in range(64)
    ],
    "/metadata/annotations/note": "x" * 65_500,
    "/spec/tolerations": [{"key": key, "value": LONG, "effect": "NoExecute"} for key in long_keys(62)],
    "/spec/containers/0/image": "x" * 8_000,
    "/spec/nodeSelector": dict.fromkeys(long_keys(64), LONG),
    "/spec/affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": {"matchExpressions": REQUIRED[4 * number : 4 * number + 4]}}
                for number in range(16)
            ]
        }
    },
}
"""The most that the policies let the author of a GPU pod write on it."""


def repeated(spec: Json) -> Json:
    """Returns a kubelet's statuses of a pod's containers, with as much of their messages as it passes on (12 KiB)."""
    ended = {"exitCode": 1, "reason": "Error", "message": "x" * 4096, "containerID": f"containerd://{'0' * 64}"}

    def status(container: Json) -> Json:
        image, resources = container["image"], container.get("resources") or {}
        waits = f'couldn\'t parse image name "{image}": invalid reference format: "{image}"'
        return {
            "name": container["name"],
            "image": image,
            "imageID": image,
            "containerID": ended["containerID"],
            "ready": False,
            "restartCount": 3,
            "state": {"waiting": {"reason": "InvalidImageName", "message": waits}},
            "lastState": {"terminated": ended},
            "resources": resources,
            "allocatedResources": resources.get("requests", {}),
            "volumeMounts": [
                {"name": mount["name"], "mountPath": mount["mountPath"], "readOnly": False}
                for mount in container.get("volumeMounts", [])
            ],
        }

    return {
        f"{field}Statuses": [status(container) for container in spec[f"{field}s"]]
        for field in ("container", "initContainer", "ephemeralContainer")
    }


def test_a_pod_on_which_a_policy_refuses_the_notice_is_evicted_without(
    make_team: Callable[[], Team], control_plane: ControlPlane
) -> None:
    team = make_team()
    team.run("refused")
    with_policy(control_plane, team, "refuse-notices")

    def at_budget() -> list[str]:
        events = control_plane.admin.api.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        return [event["reason"] for event in events if event["regarding"].get("name") == team.namespace]

    try:
        team.spend_all()
        wait_until(lambda: team.ending("refused"), "it is evicted")
        assert not team.shown("refused")
        wait_until(lambda: "BudgetEviction" in team.events("refused"), "an event says so at the pod")
        wait_until(lambda: "BudgetEvictionWithoutNotice" in at_budget(), "an event says so at the budget")
    finally:
        for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            control_plane.admin.api.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}/refuse-notices")


def with_policy(plane: ControlPlane, team: Team, name: str) -> None:
    """A policy of somebody else that refuses notices in a namespace, in force."""
    path, api = "/apis/admissionregistration.k8s.io/v1", plane.admin.api
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "here", "expression": f"request.namespace == '{team.namespace}'"}],
        "validations": [{"expression": f"!object.metadata.?annotations.orValue({{}}).exists(k, k == '{EVICTION_AT}')"}],
    }
    version = "admissionregistration.k8s.io/v1"
    policy = {"apiVersion": version, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec}
    api.create(f"{path}/validatingadmissionpolicies", policy)
    binding = {
        "apiVersion": version,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    api.create(f"{path}/validatingadmissionpolicybindings", binding)
    timekeeper = plane.service_account("fairgpu-system", "fairgpu-timekeeper")
    notice = {"metadata": {"annotations": {EVICTION_AT: "2026-01-01T00:00:00Z"}}}

    def refused() -> bool:
        try:
            timekeeper.api.patch(f"{team.pods}/refused", notice, query={"dryRun": "All"})
        except ApiError as error:
            return error.status in {403, 422}
        return False

    wait_until(refused, "the policy is in force")


def test_a_pod_that_two_disruption_budgets_name_is_shown_that_they_keep_it(make_team: Callable[[], Team]) -> None:
    team = make_team()
    author = team.plane.namespace_admin(team.namespace).api
    budgets = f"/apis/policy/v1/namespaces/{team.namespace}/poddisruptionbudgets"
    # Of the budgets that name a pod, the controller updates only one when the pod changes; so the pod runs first.
    team.run("kept", {"app": "kept"})
    for name in ("one", "two"):
        spec = {"minAvailable": 0, "selector": {"matchLabels": {"app": "kept"}}}
        item = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
        author.create(budgets, item)
    wait_until(
        lambda: all(item.get("status", {}).get("disruptionsAllowed") == 1 for item in author.get(budgets)["items"]),
        "each of them alone allows the eviction",
    )
    team.spend_all()
    wait_until(lambda: "BudgetEvictionBlocked" in team.events("kept"), "an event says so")
    assert not team.ending("kept")
    author.delete(f"{budgets}/two")
    wait_until(lambda: team.ending("kept"), "it is evicted once one of them is gone")
