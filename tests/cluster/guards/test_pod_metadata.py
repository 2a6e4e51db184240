"""The policy fairgpu-metadata, tried by somebody who may do everything inside one namespace."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.cluster.api import JSON_PATCH, ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, allocation_of, bind
from tests.cluster.pods import Pod, canonical_pod, plain_pod
from tests.waiting import wait_until

SYSTEM = "fairgpu-system"
GATE = "fairgpu.io/budget"

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture
def bound(control_plane: ControlPlane, editor: Identity, pods: str, node: StandInNode) -> Pod:
    """A GPU pod that the editor made and the scheduler's account bound."""
    pod = editor.api.create(pods, canonical_pod())
    bind(control_plane.service_account(SYSTEM, "fairgpu-scheduler"), pod, node.name, allocation_of(pod, node.name))
    return editor.api.get(f"{pods}/gpu")


def annotate(annotations: dict[str, str | None]) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}}


def refused(who: Identity, path: str, patch: Any, content_type: str = "application/merge-patch+json") -> str:
    with pytest.raises(ApiError) as refusal:
        who.api.patch(path, patch, content_type)
    assert refusal.value.status == 403
    assert "fairgpu-metadata" in refusal.value.message
    return refusal.value.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fairgpu.io/allocation", "{}"),
        ("fairgpu.io/allocation", None),
        ("fairgpu.io/source-dialect", "hami"),
        ("fairgpu.io/budget-state", "open now"),
        ("fairgpu.io/created-by", "bob"),
        ("fairgpu.io/created-by", None),
        ("fairgpu.io/placement", "spread"),
        ("fairgpu.io/anything-new", "1"),
    ],
)
def test_an_annotation_of_fairgpu_can_be_neither_changed_nor_removed_nor_added(
    editor: Identity, pods: str, bound: Pod, key: str, value: str | None
) -> None:
    assert "fairgpu.io/allocation" in bound["metadata"]["annotations"]
    message = refused(editor, f"{pods}/gpu", annotate({key: value}))
    assert f"metadata.annotations: {key} changed by {editor.name}" in message
    assert "leave them as they are, or create a new pod" in message


def test_a_plain_pod_cannot_be_given_an_allocation(editor: Identity, pods: str) -> None:
    editor.api.create(pods, plain_pod())
    refused(editor, f"{pods}/plain", annotate({"fairgpu.io/allocation": "{}"}))


def test_other_annotations_and_labels_stay_free(editor: Identity, pods: str, bound: Pod) -> None:
    assert bound
    editor.api.patch(f"{pods}/gpu", annotate({"example.org/note": "mine", "notfairgpu.io/x": "1"}))
    editor.api.patch(f"{pods}/gpu", {"metadata": {"labels": {"run": "7"}}})


def test_the_status_endpoint_is_no_way_around_it(editor: Identity, pods: str) -> None:
    editor.api.create(pods, plain_pod())
    message = refused(editor, f"{pods}/plain/status", annotate({"fairgpu.io/allocation": "{}"}))
    assert "fairgpu.io/allocation changed" in message


def test_the_timekeeper_may_change_an_annotation(control_plane: ControlPlane, pods: str, bound: Pod) -> None:
    assert bound
    timekeeper = control_plane.service_account(SYSTEM, "fairgpu-timekeeper")
    changed = timekeeper.api.patch(f"{pods}/gpu", annotate({"fairgpu.io/budget-state": "over"}))
    assert changed["metadata"]["annotations"]["fairgpu.io/budget-state"] == "over"


def test_an_account_of_the_same_name_in_another_namespace_is_not_fairgpu(
    control_plane: ControlPlane, editor: Identity, namespace: str, pods: str, bound: Pod
) -> None:
    assert bound
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "fairgpu-timekeeper"}}
    editor.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "impostor"},
        "roleRef": role,
        "subjects": [{"kind": "ServiceAccount", "name": "fairgpu-timekeeper", "namespace": namespace}],
    }
    editor.api.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", binding)
    impostor = control_plane.service_account(namespace, "fairgpu-timekeeper")
    wait_until(lambda: impostor.may("patch", "pods", namespace=namespace), "the impostor may edit pods")
    refused(impostor, f"{pods}/gpu", annotate({"fairgpu.io/budget-state": "open now"}))


def test_the_budgets_gate_is_removed_by_the_timekeeper_alone(
    control_plane: ControlPlane, editor: Identity, pods: str
) -> None:
    editor.api.create(pods, canonical_pod(gated=True))
    own_only = {"spec": {"schedulingGates": [{"name": "example.org/own"}]}}
    message = refused(editor, f"{pods}/gpu", own_only)
    assert f"fairgpu.io/budget removed by {editor.name}" in message
    assert "ask for a GPUGrant" in message
    scheduler = control_plane.service_account(SYSTEM, "fairgpu-scheduler")
    assert not scheduler.may("patch", "pods", namespace=pods.split("/")[4])

    lift = [
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GATE},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ]
    lifted = control_plane.service_account(SYSTEM, "fairgpu-timekeeper").api.patch(f"{pods}/gpu", lift, JSON_PATCH)
    assert lifted["spec"]["schedulingGates"] == [{"name": "example.org/own"}]


def test_a_gate_of_the_users_own_is_theirs_to_remove(editor: Identity, pods: str) -> None:
    editor.api.create(pods, canonical_pod(gated=True))
    editor.api.patch(f"{pods}/gpu", {"spec": {"schedulingGates": [{"name": GATE}]}})


def test_behind_the_gate_a_pod_is_bound_by_nobody(editor: Identity, pods: str, node: StandInNode) -> None:
    gated = editor.api.create(pods, canonical_pod(gated=True))
    with pytest.raises(ApiError, match="schedulingGates"):
        bind(editor, gated, node.name, None)
    assert "nodeName" not in editor.api.get(f"{pods}/gpu")["spec"]


@pytest.mark.parametrize("by", ["pods/binding", "bindings"])
def test_only_the_scheduler_gives_devices_with_a_binding(
    control_plane: ControlPlane, editor: Identity, namespace: str, pods: str, node: StandInNode, by: str
) -> None:
    pod = editor.api.create(pods, canonical_pod())
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "gpu", "namespace": namespace, "annotations": {"fairgpu.io/allocation": "{}"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node.name},
    }
    path = f"{pods}/gpu/binding" if by == "pods/binding" else f"/api/v1/namespaces/{namespace}/bindings"
    for who in (editor, control_plane.admin):
        with pytest.raises(ApiError, match="only the scheduler of FairGPU gives devices to pods"):
            who.api.create(path, binding)
    bind(control_plane.service_account(SYSTEM, "fairgpu-scheduler"), pod, node.name, allocation_of(pod, node.name))


def test_other_schedulers_still_bind_pods_without_a_gpu(editor: Identity, pods: str, node: StandInNode) -> None:
    pod = editor.api.create(pods, plain_pod())
    bind(editor, pod, node.name, None)


def test_the_sidecars_image_cannot_be_swapped_but_the_others_can(editor: Identity, pods: str, bound: Pod) -> None:
    assert bound
    swap = [{"op": "replace", "path": "/spec/initContainers/0/image", "value": "example.org/silent:1"}]
    message = refused(editor, f"{pods}/gpu", swap, JSON_PATCH)
    assert "the image and resources of fairgpu-sidecar never change" in message
    update = [{"op": "replace", "path": "/spec/containers/0/image", "value": "example.org/train:2"}]
    editor.api.patch(f"{pods}/gpu", update, JSON_PATCH)


def test_the_sidecar_cannot_be_resized(editor: Identity, pods: str, bound: Pod, node: StandInNode) -> None:
    node.set_pod_phase(bound["metadata"]["namespace"], "gpu", "Running")
    tiny = {"limits": {"cpu": "1m", "memory": "40Mi"}, "requests": {"cpu": "1m", "memory": "40Mi"}}
    starve = [{"op": "replace", "path": "/spec/initContainers/0/resources", "value": tiny}]
    message = refused(editor, f"{pods}/gpu/resize", starve, JSON_PATCH)
    assert "the image and resources of fairgpu-sidecar never change" in message


def test_a_debugging_container_can_join_a_gpu_pod(editor: Identity, pods: str, bound: Pod) -> None:
    assert bound
    debugger = {"name": "debugger", "image": "example.org/tools:1"}
    joined = editor.api.patch(
        f"{pods}/gpu/ephemeralcontainers",
        {"spec": {"ephemeralContainers": [debugger]}},
        "application/strategic-merge-patch+json",
    )
    assert joined["spec"]["ephemeralContainers"][0]["name"] == "debugger"


def test_the_status_of_a_gpu_pod_is_not_the_users_to_write(
    editor: Identity, pods: str, bound: Pod, node: StandInNode
) -> None:
    node.set_pod_phase(bound["metadata"]["namespace"], "gpu", "Running")
    message = refused(editor, f"{pods}/gpu/status", {"status": {"phase": "Succeeded"}})
    assert f"status: written by {editor.name}" in message
    assert "update podstatuses.fairgpu.io" in message
    node.set_pod_phase(bound["metadata"]["namespace"], "gpu", "Succeeded")


def test_the_status_of_a_plain_pod_stays_what_it_was(editor: Identity, pods: str) -> None:
    editor.api.create(pods, plain_pod())
    editor.api.patch(f"{pods}/plain/status", {"status": {"phase": "Failed"}})


@pytest.mark.parametrize(
    "account", ["pod-garbage-collector", "node-controller", "disruption-controller", "resource-claim-controller"]
)
def test_the_controllers_of_kubernetes_still_write_the_status_of_gpu_pods(
    control_plane: ControlPlane, pods: str, bound: Pod, account: str
) -> None:
    assert bound
    who = control_plane.service_account("kube-system", account)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "Test"}
    who.api.patch(
        f"{pods}/gpu/status", {"status": {"conditions": [condition]}}, "application/strategic-merge-patch+json"
    )
