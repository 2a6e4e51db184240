"""Tests which rules of FairGPU the API server evaluates for a change of a pod, and that it waits for no webhook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairgpu.cluster.api import STRATEGIC_MERGE_PATCH, ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, bind, place
from tests.cluster.installation import WEBHOOK_CONFIGURATIONS, render
from tests.cluster.pods import Pod, canonical_pod, plain_pod
from tests.support.ports import free_port
from tests.support.waiting import wait_until

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CONDITIONS = "apiserver_admission_match_condition_evaluation_seconds_count"
"""Counts the conditions that came to false, by the policy or webhook
(https://kubernetes.io/docs/reference/instrumentation/metrics/)."""
SPENT = {"metadata": {"annotations": {"fairgpu.io/budget-state": "over"}}}

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture
def pod(control_plane: ControlPlane, editor: Identity, namespace: str, pods: str, node: StandInNode) -> Pod:
    """A GPU pod that runs, beside two that wait at gates, and one without a GPU."""
    for name in ("waits", "admitted"):
        editor.api.create(pods, canonical_pod(name, gated=True))
    scheduler = control_plane.service_account("fairgpu-system", "fairgpu-scheduler")
    made = editor.api.create(pods, canonical_pod())
    place(scheduler, made, node.name)
    bind(scheduler, editor.api.create(pods, plain_pod()), node.name, None)
    node.set_pod_phase(namespace, "plain", "Running")
    return node.set_pod_phase(namespace, "gpu", "Running")


@pytest.fixture
def webhooks_away(control_plane: ControlPlane, editor: Identity, namespace: str, pods: str, pod: Pod) -> Iterator[None]:
    """FairGPU's webhook configurations, for this test's namespace, without a server behind them."""
    assert pod
    api = control_plane.admin.api
    configurations = [
        item for item in render(control_plane, webhook_port=free_port()) if item["kind"] in WEBHOOK_CONFIGURATIONS
    ]
    made = []
    for item in configurations:
        item["metadata"]["name"] = f"zz-{namespace}"
        item["webhooks"] = [webhook for webhook in item["webhooks"] if "namespaceSelector" in webhook]
        for webhook in item["webhooks"]:
            webhook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        collection = f"{ADMISSION}/{item['kind'].lower()}s"
        api.create(collection, item)
        made.append(f"{collection}/zz-{namespace}")

    def refused() -> bool:
        try:
            editor.api.create(pods, canonical_pod("another"), {"dryRun": "All"})
        except ApiError as error:
            return "failed calling webhook" in error.message
        return False

    try:
        wait_until(refused, "GPU pods that are created wait for the webhook")
        yield
    finally:
        for path in made:
            api.delete(path)


def evaluated(plane: ControlPlane) -> Counter[str]:
    """Returns the number of times that a condition of FairGPU's was false so far for an update, by policy or webhook.

    Pods of other namespaces are deleted at any time, by the garbage collector above all.
    """
    text = plane.admin.kubectl("get", "--raw", "/metrics").stdout
    counts: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            of_ours = sample.name == CONDITIONS and "fairgpu" in sample.labels["name"]
            if of_ours and sample.labels["operation"] == "UPDATE":
                counts[sample.labels["name"]] += int(sample.value)
    return counts


def labelled(who: Identity, path: str) -> Callable[[], object]:
    return lambda: who.api.patch(path, {"metadata": {"labels": {"run": "7"}}})


def test_a_change_of_a_pod_without_a_gpu_meets_one_condition_and_its_status_none(
    control_plane: ControlPlane, editor: Identity, pods: str, pod: Pod, node: StandInNode
) -> None:
    assert pod
    before = evaluated(control_plane)
    labelled(editor, f"{pods}/plain")()
    assert evaluated(control_plane) - before == {"fairgpu-timekeeper": 1}
    before = evaluated(control_plane)
    node.kubelet.api.patch(f"{pods}/plain/status", {"status": {"message": "well"}})
    assert evaluated(control_plane) == before


def test_a_write_of_the_timekeeper_to_a_gpu_pod_meets_one_condition_of_a_policy(
    control_plane: ControlPlane, pods: str, pod: Pod, node: StandInNode
) -> None:
    assert pod
    timekeeper = control_plane.service_account("fairgpu-system", "fairgpu-timekeeper")
    before = evaluated(control_plane)
    timekeeper.api.patch(f"{pods}/gpu", SPENT)
    assert evaluated(control_plane) - before == {"fairgpu-metadata": 1}
    before = evaluated(control_plane)
    node.kubelet.api.patch(f"{pods}/gpu/status", {"status": {"message": "well"}})
    assert evaluated(control_plane) - before == {"fairgpu-metadata": 1}


CHANGES: dict[str, tuple[str, Any]] = {
    "a label": ("gpu", {"metadata": {"labels": {"kueue.x-k8s.io/podset": "main"}}}),
    "an annotation of a CNI": ("gpu", {"metadata": {"annotations": {"k8s.ovn.org/pod-networks": "{}"}}}),
    "a gate that is lifted": ("waits", {"spec": {"schedulingGates": [{"name": "fairgpu.io/budget"}]}}),
    "what Kueue writes on a pod that it admits": (
        "admitted",
        {
            "metadata": {"labels": {"kueue.x-k8s.io/podset": "main"}, "annotations": {"kueue.x-k8s.io/workload": "w"}},
            "spec": {
                "schedulingGates": [{"name": "fairgpu.io/budget"}],
                "nodeSelector": {"pool": "gpu"},
                "tolerations": [{"key": "pool", "operator": "Exists", "effect": "NoSchedule"}],
            },
        },
    ),
    "an owner that adopts it": (
        "gpu",
        {
            "metadata": {
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train", "uid": "1"}],
                "finalizers": ["batch.kubernetes.io/job-tracking"],
            }
        },
    ),
    "a finalizer that is removed": ("gpu", {"metadata": {"finalizers": None}}),
}
STATUS = {"status": {"conditions": [{"type": "TerminationTarget", "status": "True", "reason": "StoppedByKueue"}]}}


@pytest.mark.usefixtures("webhooks_away")
def test_while_the_webhook_is_away_gpu_pods_that_exist_are_changed(editor: Identity, pods: str) -> None:
    for name, change in CHANGES.values():
        editor.api.patch(f"{pods}/{name}", change)
    editor.api.patch(f"{pods}/gpu/status", STATUS, STRATEGIC_MERGE_PATCH)
