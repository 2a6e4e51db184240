"""The policy fairgpu-metadata, tried by somebody who may do everything inside one namespace."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.cluster.api import JSON_PATCH, ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, bind, place
from tests.cluster.pods import Pod, canonical_pod, plain_pod
from tests.support.waiting import wait_until

SYSTEM = "fairgpu-system"
GATE = "fairgpu.io/budget"
LABEL = "fairgpu.io/pod"

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture
def bound(control_plane: ControlPlane, editor: Identity, pods: str, node: StandInNode) -> Pod:
    """A GPU pod that the editor made and the scheduler's account bound."""
    pod = editor.api.create(pods, canonical_pod())
    place(control_plane.service_account(SYSTEM, "fairgpu-scheduler"), pod, node.name)
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


def test_the_refusal_of_hundreds_of_annotations_of_fairgpu_names_the_first_and_their_number(
    editor: Identity, pods: str, bound: Pod
) -> None:
    """The API server shows no message of more than 5 KiB, and its own says neither what was given nor what to do."""
    assert bound
    message = refused(editor, f"{pods}/gpu", annotate({f"fairgpu.io/key-{number:03}": "a" for number in range(400)}))
    assert "metadata.annotations: fairgpu.io/key-" in message
    assert f"... (400 in all) changed by {editor.name}; annotations of fairgpu.io are set when" in message


def test_a_pod_without_a_gpu_may_say_what_it_likes_since_nobody_believes_it(editor: Identity, pods: str) -> None:
    editor.api.create(pods, plain_pod())
    editor.api.patch(f"{pods}/plain", annotate({"fairgpu.io/allocation": "{}"}))


@pytest.mark.parametrize("value", ["gpu", "cpu", ""])
def test_the_label_of_gpu_pods_is_given_to_no_other(editor: Identity, pods: str, value: str) -> None:
    editor.api.create(pods, plain_pod())
    message = refused(editor, f"{pods}/plain", {"metadata": {"labels": {LABEL: value}}})
    assert f"metadata.labels[{LABEL}]" in message
    assert f"by {editor.name}" in message


@pytest.mark.parametrize("value", [None, "cpu", ""])
@pytest.mark.parametrize("way", ["", "/status"])
def test_a_gpu_pod_keeps_its_label(editor: Identity, pods: str, bound: Pod, value: str | None, way: str) -> None:
    assert bound["metadata"]["labels"][LABEL] == "gpu"
    refused(editor, f"{pods}/gpu{way}", {"metadata": {"labels": {LABEL: value}}})


def test_a_gpu_pod_that_is_older_than_the_label_is_given_it_by_a_cluster_admin_alone(
    control_plane: ControlPlane,
) -> None:
    """Such a pod can be made in a namespace that the guards leave out, as before the first version that had guards."""
    pods = "/api/v1/namespaces/kube-public/pods"
    old = canonical_pod("old")
    del old["metadata"]["labels"]
    control_plane.admin.api.create(pods, old)
    try:
        labelled = control_plane.admin.api.patch(f"{pods}/old", {"metadata": {"labels": {LABEL: "gpu"}}})
        assert labelled["metadata"]["labels"][LABEL] == "gpu"
    finally:
        control_plane.admin.api.delete(f"{pods}/old", {"gracePeriodSeconds": 0})


def test_other_annotations_and_labels_stay_free(editor: Identity, pods: str, bound: Pod) -> None:
    assert bound
    editor.api.patch(f"{pods}/gpu", annotate({"example.org/note": "mine", "notfairgpu.io/x": "1"}))
    editor.api.patch(f"{pods}/gpu", {"metadata": {"labels": {"run": "7"}}})


def test_the_status_endpoint_is_no_way_around_it(editor: Identity, pods: str) -> None:
    editor.api.create(pods, canonical_pod())
    message = refused(editor, f"{pods}/gpu/status", annotate({"fairgpu.io/allocation": "{}"}))
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


def test_behind_the_gate_a_pod_is_bound_by_nobody(
    control_plane: ControlPlane, editor: Identity, pods: str, node: StandInNode
) -> None:
    gated = editor.api.create(pods, canonical_pod(gated=True))
    with pytest.raises(ApiError, match="schedulingGates"):
        bind(control_plane.service_account(SYSTEM, "fairgpu-scheduler"), gated, node.name, None)
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
    with pytest.raises(ApiError, match="only the scheduler of FairGPU gives devices to pods"):
        control_plane.admin.api.create(path, binding)
    with pytest.raises(ApiError, match="fairgpu-binding"):
        editor.api.create(path, binding)
    place(control_plane.service_account(SYSTEM, "fairgpu-scheduler"), pod, node.name)


def test_an_account_that_may_bind_in_one_namespace_alone_binds_no_pod(
    editor: Identity, pods: str, node: StandInNode
) -> None:
    """A Binding does not say what its pod is."""
    for pod in (canonical_pod(), plain_pod()):
        made = editor.api.create(pods, pod)
        with pytest.raises(ApiError, match="fairgpu-binding") as refusal:
            bind(editor, made, node.name, None)
        assert f"made by {editor.name}, who may create pods/binding in this namespace alone" in refusal.value.message
        assert "nodeName" not in editor.api.get(f"{pods}/{made['metadata']['name']}")["spec"]


def test_schedulers_of_the_whole_cluster_bind_as_ever(
    control_plane: ControlPlane, editor: Identity, pods: str, node: StandInNode
) -> None:
    stock = control_plane.user("system:kube-scheduler")
    bind(stock, editor.api.create(pods, plain_pod()), node.name, None)


def test_a_scheduler_of_one_namespace_binds_once_a_cluster_admin_says_so(
    control_plane: ControlPlane, editor: Identity, namespace: str, pods: str, node: StandInNode
) -> None:
    rbac = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": f"binder-{namespace}"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "fairgpu-pod-binder"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": editor.name}],
    }
    control_plane.admin.api.create(f"/apis/{rbac}/v1/clusterrolebindings", binding)
    wait_until(lambda: editor.may("create", "podbindings.fairgpu.io"), "the editor may bind")
    bind(editor, editor.api.create(pods, plain_pod()), node.name, None)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"annotations": {f"a{n}": "" for n in range(65)}}, "given 65 annotations in a binding"),
        ({"labels": {f"a{n}": "" for n in range(65)}}, "given 65 labels in a binding"),
        ({"labels": {"fairgpu.io/pod": "cpu"}}, "fairgpu.io/pod is not among them"),
    ],
)
def test_a_binding_carries_little_into_its_pod(
    control_plane: ControlPlane, pods: str, node: StandInNode, metadata: dict[str, Any], said: str
) -> None:
    control_plane.admin.api.create(pods, plain_pod())
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "plain", **metadata},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node.name},
    }
    with pytest.raises(ApiError, match="fairgpu-binding") as refusal:
        control_plane.admin.api.create(f"{pods}/plain/binding", binding)
    assert said in refusal.value.message


def named(count: int) -> list[str]:
    return [f"example.org/x{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("most", "beyond", "said"),
    [
        ({"finalizers": named(64)}, {"finalizers": named(65)}, "metadata.finalizers: given 65 finalizers"),
        (
            {"labels": dict.fromkeys(named(255), "")},
            {"labels": dict.fromkeys(named(256), "")},
            "metadata.labels: given 257 labels",
        ),
        (
            {"annotations": dict.fromkeys(named(999), "")},
            {"annotations": dict.fromkeys(named(1001), "")},
            "metadata.annotations: given 1005 annotations",
        ),
        (
            {"annotations": {"note": "x" * 65_000}},
            {"annotations": {"note": "x" * 65_533}},
            "bytes by",
        ),
    ],
    ids=["finalizers", "labels", "annotations", "bytes of annotations"],
)
def test_a_gpu_pod_is_not_given_more_than_it_may_have_when_it_is_created(
    control_plane: ControlPlane, editor: Identity, pods: str, most: Pod, beyond: Pod, said: str
) -> None:
    editor.api.create(pods, canonical_pod())
    try:
        editor.api.patch(f"{pods}/gpu", {"metadata": most})
        message = refused(editor, f"{pods}/gpu", {"metadata": beyond})
        assert said in message
        assert "allowed: at most" in message
        assert "write" in message
        timekeeper = control_plane.service_account(SYSTEM, "fairgpu-timekeeper")
        timekeeper.api.patch(f"{pods}/gpu", annotate({"fairgpu.io/eviction-at": "2026-01-01T00:00:00Z"}))
    finally:
        editor.api.patch(f"{pods}/gpu", {"metadata": {"finalizers": None}})


def required(*terms: Pod) -> Pod:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def preferred(*terms: Pod) -> Pod:
    weighted = [{"weight": 1, "preference": term} for term in terms]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}


def zone(*values: str) -> Pod:
    return {"matchExpressions": [{"key": "zone", "operator": "In", "values": list(values)}]}


TOLERANCE = {"operator": "Exists", "effect": "NoExecute"}
VALUES = tuple(f"v{number}" for number in range(128))
OWNER = {"apiVersion": "example.org/v1", "kind": "Run", "controller": False}


@pytest.mark.parametrize(
    ("path", "most", "beyond", "said"),
    [
        (
            "/spec/tolerations",
            [TOLERANCE | {"key": key} for key in named(62)],
            [TOLERANCE | {"key": key} for key in named(65)],
            "spec.tolerations: given 65 tolerations",
        ),
        ("/spec/containers/0/image", "x" * 8_000, "x" * 8_192, "allowed: at most 8192 together"),
        (
            "/spec/nodeSelector",
            dict.fromkeys(named(64), "v"),
            dict.fromkeys(named(65), "v"),
            "spec.nodeSelector: given 65 labels",
        ),
        ("/spec/affinity", required(*[zone("a")] * 16), required(*[zone("a")] * 17), "with 17 terms"),
        ("/spec/affinity", preferred(*[zone("a")] * 16), preferred(*[zone("a")] * 10_000), "with 10000 terms"),
        ("/spec/affinity", required(zone(*VALUES)), required(zone(*VALUES, "one-more")), "128 values"),
        ("/spec/affinity", preferred(zone("x" * 253)), preferred(zone("x" * 254)), "253 characters"),
        (
            "/metadata/ownerReferences",
            [OWNER | {"name": "x" * 8000, "uid": "1"}],
            [OWNER | {"name": "x" * 8192, "uid": "1"}],
            "metadata.ownerReferences: given 1 of 82",
        ),
        (
            "/metadata/ownerReferences",
            [OWNER | {"name": "n", "uid": str(uid)} for uid in range(64)],
            [OWNER | {"name": "n", "uid": str(uid)} for uid in range(65)],
            "metadata.ownerReferences: given 65",
        ),
    ],
)
def test_a_gpu_pod_grows_no_further_than_a_notice_fits_beside_it(
    editor: Identity, pods: str, path: str, most: Any, beyond: Any, said: str
) -> None:
    """The most that may be written to a pod after its creation; behind a gate of its author's own, that is the most."""
    pod = canonical_pod()
    pod["spec"]["schedulingGates"] = [{"name": "example.org/own"}]
    made = editor.api.create(pods, pod)

    def written(value: Any) -> list[dict[str, Any]]:
        # What a pod tolerates already stays in front.
        kept = made["spec"]["tolerations"] if path == "/spec/tolerations" else []
        return [{"op": "add", "path": path, "value": [*kept, *value][: len(value)] if kept else value}]

    refusal = refused(editor, f"{pods}/gpu", written(beyond), JSON_PATCH)
    assert said in refusal
    assert f"by {editor.name}" in refusal
    assert "allowed" in refusal
    editor.api.patch(f"{pods}/gpu", written(most), JSON_PATCH)


def test_a_gpu_pods_fields_from_its_creation_may_stay_and_shrink(editor: Identity, pods: str) -> None:
    pod = canonical_pod()
    pod["spec"]["tolerations"] = [TOLERANCE | {"key": key} for key in named(100)]
    pod["spec"]["containers"][0]["image"] = "x" * 40_000
    pod["metadata"]["ownerReferences"] = [OWNER | {"name": "n" * 100, "uid": str(uid)} for uid in range(100)]
    editor.api.create(pods, pod)
    editor.api.patch(f"{pods}/gpu", annotate({"example.org/note": "mine"}))
    shorter = [{"op": "replace", "path": "/spec/containers/0/image", "value": "x" * 39_000}]
    editor.api.patch(f"{pods}/gpu", shorter, JSON_PATCH)


def test_the_meters_finalizer_is_given_to_a_pod_by_nobody_once_it_is_there(
    control_plane: ControlPlane, editor: Identity, pods: str
) -> None:
    editor.api.create(pods, canonical_pod())
    for who in (editor, control_plane.admin):
        message = refused(who, f"{pods}/gpu", {"metadata": {"finalizers": ["fairgpu.io/meter"]}})
        assert f"metadata.finalizers: fairgpu.io/meter added by {who.name}" in message


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
