"""The policy fairgpu-timekeeper: who may patch every pod of the cluster is held to what is theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairgpu.cluster.api import JSON_PATCH, ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.pods import Pod, canonical_pod, plain_pod, stack_pod

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture
def timekeeper(control_plane: ControlPlane) -> Identity:
    return control_plane.service_account("fairgpu-system", "fairgpu-timekeeper")


@pytest.fixture(params=["share", "account"])
def pods(request: pytest.FixtureRequest, control_plane: ControlPlane, make_namespace_of: Callable[[str], str]) -> str:
    """The pods of a namespace of each mode: a gated GPU pod with a finalizer and a label of its own."""
    path = f"/api/v1/namespaces/{make_namespace_of(request.param)}/pods"
    pod = gated_pods()[request.param]
    pod["metadata"] |= {
        "labels": {"app": "x", "fairgpu.io/pod": "gpu"},
        "finalizers": ["example.org/own", "fairgpu.io/meter"],
    }
    pod["metadata"]["annotations"]["example.org/note"] = "mine"
    pod["spec"]["initContainers"].append({"name": "prepare", "image": "example.org/prepare:1"})
    control_plane.admin.api.create(path, pod)
    return path


def gated_pods() -> dict[str, Pod]:
    """A pod as the webhook leaves it in each mode, with a gate of its own and an init container in the first place."""
    of_a_stack = stack_pod(gated=True)
    of_a_stack["spec"]["schedulingGates"].append({"name": "example.org/own"})
    of_a_stack["spec"]["initContainers"] = [{"name": "first", "image": "example.org/first:1"}]
    return {"share": canonical_pod(gated=True), "account": of_a_stack}


def test_it_lifts_its_gate_removes_its_finalizer_and_writes_its_annotations(
    control_plane: ControlPlane, timekeeper: Identity, pods: str
) -> None:
    operations = [
        {"op": "replace", "path": "/spec/schedulingGates", "value": [{"name": "example.org/own"}]},
        {"op": "replace", "path": "/metadata/finalizers", "value": ["example.org/own"]},
        {"op": "replace", "path": "/metadata/annotations/fairgpu.io~1budget-state", "value": "open"},
    ]
    lifted = timekeeper.api.patch(f"{pods}/gpu", operations, JSON_PATCH)
    assert lifted["spec"]["schedulingGates"] == [{"name": "example.org/own"}]
    control_plane.admin.api.patch(f"{pods}/gpu", {"metadata": {"finalizers": None}})


MAY_GO = [{"op": "replace", "path": "/metadata/finalizers", "value": ["example.org/own"]}]


@pytest.mark.parametrize(
    ("operation", "what"),
    [
        ({"op": "replace", "path": "/spec/containers/0/image", "value": "example.org/evil:1"}, "spec.containers"),
        ({"op": "replace", "path": "/spec/initContainers/1/image", "value": "evil:1"}, "spec.initContainers"),
        ({"op": "replace", "path": "/spec/schedulingGates", "value": []}, "spec.schedulingGates"),
        ({"op": "add", "path": "/spec/nodeSelector", "value": {"a": "b"}}, "spec.nodeSelector"),
        ({"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 1}, "spec.activeDeadlineSeconds"),
        ({"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}, "spec.tolerations"),
        ({"op": "replace", "path": "/metadata/labels/app", "value": "y"}, "metadata.labels"),
        ({"op": "remove", "path": "/metadata/finalizers/0"}, "metadata.finalizers"),
        ({"op": "add", "path": "/metadata/finalizers/-", "value": "example.org/new"}, "metadata.finalizers"),
        ({"op": "remove", "path": "/metadata/annotations/example.org~1note"}, "metadata.annotations"),
    ],
)
def test_it_changes_nothing_else_of_a_pod(
    control_plane: ControlPlane, timekeeper: Identity, pods: str, operation: dict[str, Any], what: str
) -> None:
    try:
        with pytest.raises(ApiError) as refusal:
            timekeeper.api.patch(f"{pods}/gpu", [operation], JSON_PATCH)
        assert f"{what}: changed by the timekeeper, which changes its own gate" in refusal.value.message
    finally:
        timekeeper.api.patch(f"{pods}/gpu", MAY_GO, JSON_PATCH)
        control_plane.admin.api.patch(f"{pods}/gpu", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize(("mode", "policy"), [("share", "fairgpu-timekeeper"), ("account", "fairgpu-asking")])
def test_it_is_held_to_that_at_pods_without_the_label_too(
    control_plane: ControlPlane,
    timekeeper: Identity,
    make_namespace_of: Callable[[str], str],
    mode: str,
    policy: str,
) -> None:
    path = f"/api/v1/namespaces/{make_namespace_of(mode)}/pods"
    pod = plain_pod()
    pod["spec"]["schedulingGates"] = [{"name": "example.org/own"}]
    control_plane.admin.api.create(path, pod)
    timekeeper.api.patch(f"{path}/plain", {"metadata": {"annotations": {"fairgpu.io/eviction-at": "now"}}})
    for patch, what in (
        ({"spec": {"schedulingGates": None}}, "spec.schedulingGates"),
        ({"metadata": {"labels": {"app": "y"}}}, "metadata.labels"),
        ({"metadata": {"annotations": {"gpu-fraction": "0.5"}}}, "metadata.annotations"),
    ):
        with pytest.raises(ApiError, match=policy) as refusal:
            timekeeper.api.patch(f"{path}/plain", patch)
        assert f"{what}: changed by the timekeeper, which changes its own gate" in refusal.value.message


LABELLED = {"metadata": {"labels": {"fairgpu.io/pod": "gpu"}}}


@pytest.fixture(params=["share", "account"])
def claiming(
    request: pytest.FixtureRequest, control_plane: ControlPlane, make_namespace_of: Callable[[str], str]
) -> str:
    """A pod that has a claim and many labels, but not the label of GPU pods, in a namespace of each mode."""
    path = f"/api/v1/namespaces/{make_namespace_of(request.param)}/pods"
    pod = plain_pod()
    pod["metadata"] |= {
        "labels": {f"example.org/{number}": "x" for number in range(1000)},
        "annotations": {"fairgpu.io/budget-state": "over"},
    }
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "gpu"}]
    control_plane.admin.api.create(path, pod)
    return f"{path}/plain"


def test_it_labels_a_pod_with_a_claim_and_removes_the_annotations_that_nothing_guarded(
    timekeeper: Identity, claiming: str
) -> None:
    item = timekeeper.api.get(claiming)
    given = {"labels": {"fairgpu.io/pod": "gpu"}, "annotations": {"fairgpu.io/budget-state": None}}
    labelled = timekeeper.api.patch(claiming, {"metadata": given})["metadata"]
    assert labelled["labels"] == item["metadata"]["labels"] | {"fairgpu.io/pod": "gpu"}
    assert "annotations" not in labelled
    with pytest.raises(ApiError, match=r"metadata\.labels: changed by the timekeeper"):
        timekeeper.api.patch(claiming, {"metadata": {"labels": {"fairgpu.io/pod": None}}})


@pytest.mark.parametrize(
    "labels",
    [
        {"fairgpu.io/pod": "cpu"},
        {"fairgpu.io/pod": "gpu", "app": "x"},
        {"fairgpu.io/pod": "gpu", "example.org/7": "y"},
        {"fairgpu.io/pod": "gpu", "example.org/7": None},
        {"fairgpu.io/pod": "gpu", "example.org/7": None, "example.org/other": "x"},
        {"app": "x"},
    ],
)
def test_it_gives_a_pod_with_a_claim_no_other_label(
    timekeeper: Identity, claiming: str, labels: dict[str, str | None]
) -> None:
    with pytest.raises(ApiError, match=r"metadata\.labels: changed by the timekeeper"):
        timekeeper.api.patch(claiming, {"metadata": {"labels": labels}})


@pytest.mark.parametrize("mode", ["share", "account"])
def test_it_labels_no_pod_without_a_claim(
    control_plane: ControlPlane, timekeeper: Identity, make_namespace_of: Callable[[str], str], mode: str
) -> None:
    path = f"/api/v1/namespaces/{make_namespace_of(mode)}/pods"
    control_plane.admin.api.create(path, plain_pod())
    with pytest.raises(ApiError, match=r"metadata\.labels: changed by the timekeeper"):
        timekeeper.api.patch(f"{path}/plain", LABELLED)


def test_it_is_held_to_that_in_the_systems_own_namespaces_too(
    control_plane: ControlPlane, timekeeper: Identity
) -> None:
    path = "/api/v1/namespaces/kube-system/pods"
    control_plane.admin.api.create(path, plain_pod("system"))
    try:
        swap = [{"op": "replace", "path": "/spec/containers/0/image", "value": "example.org/evil:1"}]
        with pytest.raises(ApiError, match="the timekeeper, which changes its own gate"):
            timekeeper.api.patch(f"{path}/system", swap, JSON_PATCH)
    finally:
        control_plane.admin.api.delete(f"{path}/system", {"gracePeriodSeconds": 0})
