"""Kueue's writes to GPU pods that it evicts (kubernetes-sigs/kueue, pkg/controller/jobs/pod), under rights like its.

It says by a condition that a pod is about to be deleted, with server-side apply, and deletes the pod afterwards.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from fairgpu.cluster.api import JSON_PATCH, STRATEGIC_MERGE_PATCH, ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, place
from tests.cluster.pods import canonical_pod
from tests.support.waiting import wait_until

RBAC = "rbac.authorization.k8s.io"
APPLY = "application/apply-patch+yaml"
PREEMPTED = {
    "type": "TerminationTarget",
    "status": "True",
    "reason": "StoppedByKueue",
    "message": "Preempted to accommodate a workload (UID: 6a2c) due to prioritization in the ClusterQueue",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture(scope="module")
def kueue(control_plane: ControlPlane) -> Identity:
    """An account with what kueue-manager-role has of pods, in the whole cluster."""
    api = control_plane.admin.api
    api.create("/api/v1/namespaces", {"metadata": {"name": "kueue-system"}})
    accounts = "/api/v1/namespaces/kueue-system/serviceaccounts"
    api.create(accounts, {"metadata": {"name": "kueue-controller-manager"}})
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "update", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["get", "patch"]},
    ]
    api.create(f"/apis/{RBAC}/v1/clusterroles", {"metadata": {"name": "kueue-manager-role"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "kueue-controller-manager", "namespace": "kueue-system"}
    binding = {
        "metadata": {"name": "kueue-manager-rolebinding"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "kueue-manager-role"},
        "subjects": [subject],
    }
    api.create(f"/apis/{RBAC}/v1/clusterrolebindings", binding)
    account = control_plane.service_account("kueue-system", "kueue-controller-manager")
    wait_until(lambda: account.may("patch", "pods/status"), "Kueue may write the status of pods")
    return account


@pytest.fixture
def running(control_plane: ControlPlane, editor: Identity, namespace: str, pods: str, node: StandInNode) -> str:
    """The path of a GPU pod that runs."""
    pod = editor.api.create(pods, canonical_pod())
    scheduler = control_plane.service_account("fairgpu-system", "fairgpu-scheduler")
    place(scheduler, pod, node.name)
    node.set_pod_phase(namespace, "gpu", "Running")
    return f"{pods}/gpu"


def applied(who: Identity, pod: str, status: dict[str, Any]) -> dict[str, Any]:
    """Writes a status with server-side apply, as Kueue does."""
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gpu"}, "status": status}
    query = {"fieldManager": "kueue", "force": "true"}
    return who.api.patch(f"{pod}/status", document, APPLY, query=query)


def test_kueue_says_that_it_evicts_a_gpu_pod_and_deletes_it(
    control_plane: ControlPlane, kueue: Identity, running: str
) -> None:
    before = control_plane.admin.api.get(running)["status"]
    after = applied(kueue, running, {"conditions": [PREEMPTED]})["status"]
    assert [condition for condition in after["conditions"] if condition["type"] == "TerminationTarget"]
    assert after["phase"] == before["phase"] == "Running"
    again = {**PREEMPTED, "message": "Preempted once more"}
    applied(kueue, running, {"conditions": [again]})
    kueue.api.delete(running)
    assert "deletionTimestamp" in control_plane.admin.api.get(running)["metadata"]


def test_kueue_deletes_a_gpu_pod_at_once_though_a_notice_promised_it_half_an_hour(
    control_plane: ControlPlane, kueue: Identity, running: str
) -> None:
    """A notice binds FairGPU alone, as docs/kueue.md says."""
    later = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=30)
    notice = {"metadata": {"annotations": {"fairgpu.io/eviction-at": later.strftime("%Y-%m-%dT%H:%M:%SZ")}}}
    control_plane.service_account("fairgpu-system", "fairgpu-timekeeper").api.patch(running, notice)
    applied(kueue, running, {"conditions": [PREEMPTED]})
    kueue.api.delete(running)
    metadata = control_plane.admin.api.get(running)["metadata"]
    assert metadata["deletionTimestamp"] < metadata["annotations"]["fairgpu.io/eviction-at"]


def ended(container: str) -> dict[str, Any]:
    """The status of a container that ended earlier than its pod's present status says."""
    return {
        "name": container,
        "image": "example.org/train:1",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:00Z"}},
    }


ENDS: dict[str, dict[str, Any]] = {
    "failed": {"phase": "Failed"},
    "failed, with the condition": {"phase": "Failed", "conditions": [PREEMPTED]},
    "of another reason": {"reason": "Preempted", "conditions": [PREEMPTED]},
    "started later": {"startTime": "2030-01-01T00:00:00Z", "conditions": [PREEMPTED]},
    "of another node": {"hostIP": "192.0.2.7", "conditions": [PREEMPTED]},
    "not ready": {"conditions": [PREEMPTED, {"type": "Ready", "status": "False"}]},
    "not scheduled": {
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2030-01-01T00:00:00Z"}]
    },
    "with a condition of its own": {"conditions": [PREEMPTED, {"type": "example.org/own", "status": "True"}]},
    "with an essay": {"conditions": [{**PREEMPTED, "message": "x" * 4097}]},
    "with a container that ended": {"containerStatuses": [ended("main")]},
    "with an init container that ended": {"initContainerStatuses": [ended("fairgpu-sidecar")]},
    "with a debugger that ended": {"ephemeralContainerStatuses": [ended("debugger")]},
}


@pytest.mark.parametrize("claim", ENDS)
def test_a_pod_is_not_said_to_be(kueue: Identity, running: str, claim: str) -> None:
    """The end time decides how long a pod is paid for; Kueue's patch of the status claims as much as it can."""
    with pytest.raises(ApiError, match="the status of a GPU pod decides how long it is paid for") as refusal:
        kueue.api.patch(f"{running}/status", {"status": ENDS[claim]}, STRATEGIC_MERGE_PATCH)
    assert refusal.value.status == 403


def test_nor_is_its_deletion_announced_many_times(kueue: Identity, running: str) -> None:
    """A pod that conditions filled up to etcd's limit could be given no notice."""
    count = len(kueue.api.get(running)["status"]["conditions"])
    add = {"op": "add", "path": "/status/conditions/-", "value": {**PREEMPTED, "message": "x" * 4096}}
    with pytest.raises(ApiError, match="the status of a GPU pod decides how long it is paid for"):
        kueue.api.patch(f"{running}/status", [add] * 2, JSON_PATCH)
    after = kueue.api.patch(f"{running}/status", [add], JSON_PATCH)
    assert len(after["status"]["conditions"]) == count + 1


def test_its_gates_and_labels_come_and_go(control_plane: ControlPlane, kueue: Identity, pods: str) -> None:
    pod = canonical_pod()
    pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}, {"name": "fairgpu.io/budget"}]
    control_plane.admin.api.create(pods, pod)
    admitted = {
        "metadata": {"labels": {"kueue.x-k8s.io/podset": "main"}},
        "spec": {"schedulingGates": [{"name": "fairgpu.io/budget"}], "nodeSelector": {"pool": "gpu"}},
    }
    kueue.api.patch(f"{pods}/gpu", admitted)
    with pytest.raises(ApiError, match="the timekeeper lifts the gate"):
        kueue.api.patch(f"{pods}/gpu", {"spec": {"schedulingGates": []}})
