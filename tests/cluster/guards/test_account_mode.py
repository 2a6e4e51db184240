"""The guards where a namespace's mode is account, tried by somebody who may do everything inside that namespace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from fairgpu.existing import Existing
from fairgpu.names import NOTICES
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, bind
from tests.cluster.pods import Pod, canonical_pod, plain_pod, stack_pod
from tests.support.waiting import wait_until

DRY_RUN = {"dryRun": "All"}
LABEL = "fairgpu.io/pod"
GATE = {"name": "fairgpu.io/budget"}
FORCE = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
MODE = "fairgpu.io/mode"
OF_ITS_CONTAINER = tuple(
    f"nvidia.com/container.{plain_pod('gpu')['spec']['containers'][0]['name']}.gpu-memory.{end}"
    for end in ("request", "limit")
)
"""The annotations by which KAI gives memory to the one container of the pods here."""
RBAC = "rbac.authorization.k8s.io/v1"

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture
def namespace(make_namespace_of: Callable[[str], str]) -> str:
    return make_namespace_of("account")


@pytest.fixture
def bound(control_plane: ControlPlane, editor: Identity, namespace: str, pods: str, node: StandInNode) -> str:
    """The path of a pod of another stack that a scheduler of the cluster has bound, and that runs."""
    pod = editor.api.create(pods, stack_pod())
    bind(control_plane.admin, pod, node.name, None)
    node.set_pod_phase(namespace, "gpu", "Running")
    return f"{pods}/gpu"


def denied(policy: str, attempt: Callable[[], object]) -> str:
    with pytest.raises(ApiError, match=policy) as refusal:
        attempt()
    assert refusal.value.status == 403
    return refusal.value.message


# fairgpu-spec


@pytest.mark.parametrize("resource", [*Existing().resources, "nvidia.com/mig-1g.5gb.me"])
def test_a_request_of_each_stack_stays_and_needs_neither_sidecar_nor_class_but_the_label(
    editor: Identity, pods: str, resource: str
) -> None:
    pod = stack_pod(limits={resource: "1"})
    pod["spec"] |= {"schedulerName": "volcano", "priorityClassName": ""}
    editor.api.create(pods, pod, DRY_RUN)
    del pod["metadata"]["labels"]
    message = denied("fairgpu-spec", lambda: editor.api.create(pods, pod, DRY_RUN))
    assert f"metadata.labels[{LABEL}]" in message


@pytest.mark.parametrize("annotation", Existing().annotations)
def test_so_does_an_annotation_that_asks_for_a_part_of_a_gpu(editor: Identity, pods: str, annotation: str) -> None:
    pod = stack_pod(limits={"cpu": "1"})
    pod["metadata"]["annotations"] = {annotation: "1"}
    editor.api.create(pods, pod, DRY_RUN)
    del pod["metadata"]["labels"]
    denied("fairgpu-spec", lambda: editor.api.create(pods, pod, DRY_RUN))


@pytest.mark.parametrize("key", OF_ITS_CONTAINER)
def test_so_does_one_that_asks_for_the_memory_of_a_container_which_the_pod_has(
    editor: Identity, pods: str, key: str
) -> None:
    pod = stack_pod(limits={"cpu": "1"})
    pod["metadata"]["annotations"] = {key: "40Gi"}
    editor.api.create(pods, pod, DRY_RUN)
    del pod["metadata"]["labels"]
    denied("fairgpu-spec", lambda: editor.api.create(pods, pod, DRY_RUN))
    pod["spec"]["containers"][0]["name"] = "another"
    editor.api.create(pods, pod, DRY_RUN)


@pytest.mark.parametrize("key", Existing().schedulers_annotations)
def test_a_new_pod_does_not_say_what_it_got(control_plane: ControlPlane, editor: Identity, pods: str, key: str) -> None:
    """It is charged by what its scheduler writes there, and one that names its node meets no scheduler."""
    pod = stack_pod()
    pod["metadata"]["annotations"][key] = "GPU-0,NVIDIA,1,1:;"
    message = denied("fairgpu-spec", lambda: editor.api.create(pods, pod, DRY_RUN))
    assert f"metadata.annotations: {key} given by {editor.name}" in message
    control_plane.admin.api.create(pods, pod, DRY_RUN)


def test_nor_does_one_that_a_controller_makes_of_its_users_template(control_plane: ControlPlane, pods: str) -> None:
    """If controllers have no accounts of their own, kube-controller-manager makes the pods, and it may end bills."""
    manager = control_plane.user("system:kube-controller-manager", ["system:masters"])
    pod = stack_pod()
    pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"] = "GPU-0,NVIDIA,1,1:;"

    denied("fairgpu-spec", lambda: manager.api.create(pods, pod, DRY_RUN))


def test_a_pod_with_a_claim_may_have_the_label_or_not_since_the_webhook_knows_what_it_is_for(
    editor: Identity, pods: str
) -> None:
    pod = stack_pod(limits={"cpu": "1"})
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    editor.api.create(pods, pod, DRY_RUN)
    del pod["metadata"]["labels"]
    editor.api.create(pods, pod, DRY_RUN)


def test_a_request_for_fairgpus_own_resources_is_refused(editor: Identity, pods: str) -> None:
    message = denied("fairgpu-spec", lambda: editor.api.create(pods, canonical_pod(), DRY_RUN))
    assert "whose mode is account" in message


def test_label_gate_finalizer_and_allocation_are_refused_on_a_pod_that_asks_for_no_gpu(
    editor: Identity, pods: str
) -> None:
    changes: list[Callable[[Pod], object]] = [
        lambda pod: pod["metadata"].update(labels={LABEL: "gpu"}),
        lambda pod: pod["spec"].update(schedulingGates=[GATE]),
        lambda pod: pod["metadata"].update(finalizers=["fairgpu.io/meter"]),
        lambda pod: pod["metadata"].update(annotations={"fairgpu.io/allocation": "{}"}),
    ]
    for change in changes:
        pod = plain_pod()
        change(pod)
        denied("fairgpu-spec", lambda pod=pod: editor.api.create(pods, pod, DRY_RUN))


def test_a_pod_without_a_gpu_is_created_as_ever(editor: Identity, pods: str) -> None:
    editor.api.create(pods, plain_pod(), DRY_RUN)


def test_where_the_mode_is_share_the_same_request_is_refused(
    control_plane: ControlPlane, make_namespace: Callable[..., str]
) -> None:
    """The label that is absent means the setting, which is share by default."""
    for labels in ({}, {MODE: "share"}):
        name = make_namespace("share-", labels=labels)
        admin = control_plane.namespace_admin(name)
        path = f"/api/v1/namespaces/{name}/pods"
        denied("fairgpu-spec", lambda admin=admin, path=path: admin.api.create(path, stack_pod(), DRY_RUN))


# fairgpu-namespace


@pytest.mark.parametrize("value", ["share", None])
def test_an_admin_of_the_namespace_cannot_change_its_mode(
    control_plane: ControlPlane, editor: Identity, namespace: str, value: str | None
) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    message = denied("fairgpu-namespace", lambda: editor.api.patch(path, {"metadata": {"labels": {MODE: value}}}))
    assert f"{MODE} changed by {editor.name}" in message
    control_plane.admin.api.patch(path, {"metadata": {"labels": {MODE: value}}}, query=DRY_RUN)


# fairgpu-metadata


@pytest.mark.parametrize("value", [None, "cpu"])
def test_the_label_by_which_the_pod_is_guarded_and_metered_stays(
    editor: Identity, bound: str, value: str | None
) -> None:
    patch = {"metadata": {"labels": {LABEL: value}}}
    assert "metadata.labels" in denied("fairgpu-metadata", lambda: editor.api.patch(bound, patch))


@pytest.mark.parametrize("key", ["fairgpu.io/created-by", "fairgpu.io/budget-state", "fairgpu.io/eviction-at"])
def test_annotations_of_fairgpu_stay(editor: Identity, bound: str, key: str) -> None:
    patch = {"metadata": {"annotations": {key: "bob"}}}
    assert f"{key} changed by" in denied("fairgpu-metadata", lambda: editor.api.patch(bound, patch))


@pytest.mark.parametrize("key", [*Existing().schedulers_annotations, *Existing().annotations, *OF_ITS_CONTAINER])
def test_an_annotation_by_which_the_pod_is_charged_is_written_by_accounts_that_may_end_bills_alone(
    control_plane: ControlPlane, editor: Identity, bound: str, key: str
) -> None:
    patch = {"metadata": {"annotations": {key: "GPU-0,NVIDIA,1,1:;"}}}
    message = denied("fairgpu-metadata", lambda: editor.api.patch(bound, patch))
    assert f"metadata.annotations: {key} changed by {editor.name}" in message
    assert "create a new pod" in message
    control_plane.admin.api.patch(bound, patch)
    denied("fairgpu-metadata", lambda: editor.api.patch(bound, {"metadata": {"annotations": {key: None}}}))


def test_the_refusal_of_the_memory_of_hundreds_of_containers_names_the_first_and_their_number(
    editor: Identity, pods: str
) -> None:
    """The API server shows no message of more than 5 KiB, and its own says neither what was given nor what to do."""
    pod = stack_pod()
    pod["spec"]["containers"] += [{"name": f"container-{number:03}", "image": "x"} for number in range(200)]
    editor.api.create(pods, pod)
    given = {f"nvidia.com/container.container-{number:03}.gpu-memory.request": "1Gi" for number in range(200)}
    message = denied("fairgpu-metadata", lambda: editor.api.patch(f"{pods}/gpu", {"metadata": {"annotations": given}}))
    assert "metadata.annotations: nvidia.com/container.container-000.gpu-memory.request, " in message
    assert f"... (200 in all) changed by {editor.name}; by these the pod is charged" in message


def test_where_the_mode_is_share_so_does_the_refusal_of_a_request_that_nobody_read(
    control_plane: ControlPlane, make_namespace: Callable[..., str]
) -> None:
    name = make_namespace("share-")
    admin = control_plane.namespace_admin(name)
    pod = stack_pod()
    del pod["metadata"]["labels"]
    resources = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod["spec"]["containers"] += [{"name": f"container-{at:03}", "image": "x", **resources} for at in range(400)]
    message = denied("fairgpu-spec", lambda: admin.api.create(f"/api/v1/namespaces/{name}/pods", pod, DRY_RUN))
    assert "has not read (containers " in message
    assert "... (401 in all)): a webhook that runs after zz-fairgpu may have added it" in message


def test_a_right_to_patch_pods_everywhere_changes_no_bill(control_plane: ControlPlane, bound: str) -> None:
    """As operators and deployment tools have it; a scheduler of another stack is given the right to more."""
    operator = control_plane.user(f"operator-of-{bound.split('/')[4]}")
    patch = {"metadata": {"annotations": {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,1,1:;"}}}
    rule = {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "list", "patch", "update"]}
    role = {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": operator.name}, "rules": [rule]}
    control_plane.admin.api.create(f"/apis/{RBAC}/clusterroles", role)
    _grant(control_plane, operator, operator.name)
    wait_until(lambda: operator.may("patch", "pods"), "the API server knows the operator's rights")
    operator.api.patch(bound, {"metadata": {"annotations": {"example.com/note": "of the operator"}}})
    message = denied("fairgpu-metadata", lambda: operator.api.patch(bound, patch))
    assert 'only an account that may "update podstatuses.fairgpu.io" in the whole cluster changes them' in message

    _grant(control_plane, operator, "fairgpu-pod-status-writer")
    wait_until(lambda: operator.may("update", "podstatuses.fairgpu.io"), "the API server knows the new right")
    operator.api.patch(bound, patch)


def _grant(control_plane: ControlPlane, user: Identity, role: str) -> None:
    binding = {
        "apiVersion": RBAC,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{user.name}-{role}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user.name}],
    }
    control_plane.admin.api.create(f"/apis/{RBAC}/clusterrolebindings", binding)


def test_the_gate_is_lifted_by_the_timekeeper_alone(control_plane: ControlPlane, editor: Identity, pods: str) -> None:
    editor.api.create(pods, stack_pod(gated=True))
    patch: dict[str, Any] = {"spec": {"schedulingGates": None}}
    denied("fairgpu-metadata", lambda: editor.api.patch(f"{pods}/gpu", patch))
    timekeeper = control_plane.service_account("fairgpu-system", "fairgpu-timekeeper")
    timekeeper.api.patch(f"{pods}/gpu", patch)


def test_the_end_of_the_pod_is_reported_by_nodes_and_permitted_accounts_alone(
    control_plane: ControlPlane, editor: Identity, bound: str
) -> None:
    patch = {"status": {"phase": "Succeeded"}}
    message = denied("fairgpu-metadata", lambda: editor.api.patch(f"{bound}/status", patch))
    assert "how long it is paid for" in message
    control_plane.admin.api.patch(f"{bound}/status", patch, query=DRY_RUN)


def test_the_finalizer_of_the_meter_stays_until_the_timekeeper_removes_it(
    control_plane: ControlPlane, editor: Identity, pods: str
) -> None:
    pod = stack_pod()
    pod["metadata"]["finalizers"] = ["fairgpu.io/meter"]
    editor.api.create(pods, pod)
    patch = {"metadata": {"finalizers": None}}
    denied("fairgpu-metadata", lambda: editor.api.patch(f"{pods}/gpu", patch))
    control_plane.service_account("fairgpu-system", "fairgpu-timekeeper").api.patch(f"{pods}/gpu", patch)


def test_a_pod_without_the_label_is_given_it_by_an_account_that_may_end_bills_alone(
    control_plane: ControlPlane, editor: Identity, pods: str
) -> None:
    """As pods need that ran before; here one with a claim, which may be created without it."""
    pod = stack_pod(limits={"cpu": "1"})
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    del pod["metadata"]["labels"]
    editor.api.create(pods, pod)
    editor.api.create(pods, plain_pod())
    patch = {"metadata": {"labels": {LABEL: "gpu"}}}
    denied("fairgpu-metadata", lambda: editor.api.patch(f"{pods}/gpu", patch))
    denied("fairgpu-metadata", lambda: control_plane.admin.api.patch(f"{pods}/plain", patch))
    assert control_plane.admin.api.patch(f"{pods}/gpu", patch)["metadata"]["labels"][LABEL] == "gpu"


# fairgpu-asking


@pytest.mark.parametrize("resource", ["", "/status"])
@pytest.mark.parametrize("key", [*Existing().annotations, *OF_ITS_CONTAINER])
def test_a_pod_asks_for_a_part_of_a_gpu_when_it_is_created_and_not_later(
    control_plane: ControlPlane, editor: Identity, pods: str, key: str, resource: str
) -> None:
    """KAI reads the annotation when it places the pod, which would have neither label nor gate."""
    pod = plain_pod()
    pod["spec"]["schedulerName"] = "kai-scheduler"
    editor.api.create(pods, pod)
    plain = f"{pods}/plain{resource}"
    message = denied("fairgpu-asking", lambda: editor.api.patch(plain, {"metadata": {"annotations": {key: "0.5"}}}))
    assert f"changed by {editor.name}" in message
    assert (key if key in Existing().annotations else "nvidia.com/container.NAME") in message
    editor.api.patch(plain, {"metadata": {"annotations": {"nvidia.com/container.other.gpu-memory.limit": "1Gi"}}})
    control_plane.admin.api.patch(plain, {"metadata": {"annotations": {key: "0.5"}}})
    denied("fairgpu-asking", lambda: editor.api.patch(plain, {"metadata": {"annotations": {key: None}}}))


def test_where_the_mode_is_share_annotations_of_pods_without_a_gpu_are_their_authors(
    make_namespace: Callable[..., str], control_plane: ControlPlane
) -> None:
    name = make_namespace("share-")
    admin, path = control_plane.namespace_admin(name), f"/api/v1/namespaces/{name}/pods"
    admin.api.create(path, plain_pod())
    admin.api.patch(f"{path}/plain", {"metadata": {"annotations": {"gpu-fraction": "0.5"}}})


# fairgpu-deletion, fairgpu-forced-eviction, fairgpu-eviction, fairgpu-binding


def eviction(**fields: Any) -> dict[str, Any]:
    metadata = {"name": "gpu", **fields.pop("metadata", {})}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, **fields}


def test_a_running_pod_is_neither_deleted_nor_evicted_by_force(editor: Identity, bound: str) -> None:
    denied("fairgpu-deletion", lambda: editor.api.delete(bound, FORCE))
    forced = eviction(deleteOptions=FORCE)
    denied("fairgpu-forced-eviction", lambda: editor.api.create(f"{bound}/eviction", forced))
    editor.api.create(f"{bound}/eviction", eviction(), query=DRY_RUN)


def test_the_timekeeper_evicts_it_by_its_label(control_plane: ControlPlane, bound: str) -> None:
    timekeeper = control_plane.service_account("fairgpu-system", "fairgpu-timekeeper")
    denied("fairgpu-eviction", lambda: timekeeper.api.create(f"{bound}/eviction", eviction(), query=DRY_RUN))
    labelled = eviction(metadata={"labels": {LABEL: "gpu"}})
    timekeeper.api.create(f"{bound}/eviction", labelled, query=DRY_RUN)


@pytest.mark.parametrize("key", [*Existing().schedulers_annotations, *Existing().annotations])
def test_a_binding_by_the_teams_own_scheduler_changes_no_bill(
    control_plane: ControlPlane, editor: Identity, pods: str, node: StandInNode, key: str
) -> None:
    """A cluster admin lets the team's scheduler bind its pods, and the team can make a token of its account."""
    _grant(control_plane, editor, "fairgpu-pod-binder")
    wait_until(lambda: editor.may("create", "podbindings.fairgpu.io"), "the API server knows the new right")
    pod = editor.api.create(pods, stack_pod())
    written = repeating({"metadata": {**pod["metadata"], "annotations": {}}}, node.name, **{key: "GPU-0,NVIDIA,1,1:;"})

    message = denied("fairgpu-binding", lambda: editor.api.create(f"{pods}/gpu/binding", written))
    assert f"{key} made by {editor.name}; by these the pod is charged" in message
    bind(editor, pod, node.name, None)


def repeating(pod: Pod, node: str, **more: str) -> dict[str, Any]:
    """A Binding as Volcano makes it: with all annotations that its pod has, and those that say which devices it got."""
    metadata = {key: pod["metadata"][key] for key in ("name", "namespace")}
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {**metadata, "annotations": {**pod["metadata"]["annotations"], **more}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def test_a_scheduler_that_repeats_a_pods_annotations_binds_it_with_the_right_to_write_what_pods_are_charged_by(
    control_plane: ControlPlane, editor: Identity, namespace: str, pods: str, node: StandInNode
) -> None:
    volcano = control_plane.user(f"volcano-of-{namespace}")
    rule = {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]}
    role = {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": volcano.name}, "rules": [rule]}
    control_plane.admin.api.create(f"/apis/{RBAC}/clusterroles", role)
    _grant(control_plane, volcano, volcano.name)
    wait_until(lambda: volcano.may("create", "pods/binding"), "the API server knows the scheduler's rights")
    pod = editor.api.create(pods, stack_pod())
    binding = repeating(pod, node.name, **{"volcano.sh/vgpu-ids-new": "GPU-0,NVIDIA,4000,25:"})

    message = denied("fairgpu-binding", lambda: volcano.api.create(f"{pods}/gpu/binding", binding))
    assert 'only an account that may "update podstatuses.fairgpu.io" in the whole cluster' in message
    _grant(control_plane, volcano, "fairgpu-pod-status-writer")
    wait_until(lambda: volcano.may("update", "podstatuses.fairgpu.io"), "the API server knows the new right")
    for notice in NOTICES:
        forged = repeating(pod, node.name, **{notice: "{}"})
        denied("fairgpu-binding", lambda forged=forged: volcano.api.create(f"{pods}/gpu/binding", forged))
    volcano.api.create(f"{pods}/gpu/binding", binding)
    bound = editor.api.get(f"{pods}/gpu")
    assert bound["spec"]["nodeName"] == node.name
    assert bound["metadata"]["annotations"] == binding["metadata"]["annotations"]


def test_it_is_bound_by_schedulers_of_the_whole_cluster_alone(editor: Identity, pods: str, node: StandInNode) -> None:
    pod = editor.api.create(pods, stack_pod())
    denied("fairgpu-binding", lambda: bind(editor, pod, node.name, None))
