"""The policy fairgpu-claims: the status of a ResourceClaim decides what is charged, and until when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.pods import plain_pod

CLAIMS = "/apis/resource.k8s.io/v1"
PROTECTION = "resource.kubernetes.io/delete-protection"
DEVICE = {"driver": "gpu.nvidia.com", "pool": "node", "device": "gpu-0"}

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture(params=["share", "account"])
def namespace(request: pytest.FixtureRequest, make_namespace_of: Callable[[str], str]) -> str:
    """A namespace of each mode: both charge claims."""
    return make_namespace_of(request.param)


@pytest.fixture
def claim(control_plane: ControlPlane, editor: Identity, namespace: str, pods: str) -> str:
    """The path of a claim that has a device, and that a pod reserves.

    The pod exists, since Kubernetes frees a claim whose pods are deleted or have ended.
    """
    pod = editor.api.create(pods, plain_pod("train"))
    requests = [{"name": "gpus", "exactly": {"deviceClassName": "gpu.example.org"}}]
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "common", "finalizers": [PROTECTION, "example.org/other"]},
        "spec": {"devices": {"requests": requests}},
    }
    claims = f"{CLAIMS}/namespaces/{namespace}/resourceclaims"
    control_plane.admin.api.create(claims, body)
    allocation = {"devices": {"results": [{"request": "gpus", **DEVICE}]}}
    reserved = {"resource": "pods", "name": "train", "uid": pod["metadata"]["uid"]}
    status = {"allocation": allocation, "reservedFor": [reserved]}
    control_plane.admin.api.patch(f"{claims}/common/status", {"status": status})
    return f"{claims}/common"


def refused(who: Identity, path: str, patch: dict[str, Any]) -> str:
    with pytest.raises(ApiError, match="fairgpu-claims") as refusal:
        who.api.patch(path, patch)
    assert refusal.value.status == 403
    return refusal.value.message


def test_an_admin_of_a_namespace_cannot_say_that_no_pod_uses_a_claim(editor: Identity, claim: str) -> None:
    message = refused(editor, f"{claim}/status", {"status": {"reservedFor": None}})

    assert f"status.reservedFor: changed by {editor.name}" in message


def test_an_admin_of_a_namespace_cannot_take_its_devices_from_a_claim(editor: Identity, claim: str) -> None:
    refused(editor, f"{claim}/status", {"status": {"allocation": None, "reservedFor": None}})


def test_a_claim_that_has_devices_is_kept_however_it_is_deleted(editor: Identity, claim: str) -> None:
    refused(editor, claim, {"metadata": {"finalizers": None}})
    editor.api.delete(claim, {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
    refused(editor, claim, {"metadata": {"finalizers": ["example.org/other"]}})

    assert editor.api.get(claim)["status"]["allocation"]


def test_all_else_of_a_claim_is_the_namespaces_own(editor: Identity, claim: str) -> None:
    editor.api.patch(claim, {"metadata": {"labels": {"team": "a"}, "finalizers": [PROTECTION]}})
    written = editor.api.patch(f"{claim}/status", {"status": {"devices": [DEVICE]}})

    (device,) = written["status"]["devices"]
    assert (written["metadata"]["labels"], device["device"]) == ({"team": "a"}, "gpu-0")


def test_an_account_that_may_write_the_status_of_any_claim_frees_one(control_plane: ControlPlane, claim: str) -> None:
    api = control_plane.admin.api
    api.patch(f"{claim}/status", {"status": {"allocation": None, "reservedFor": None}})

    assert "allocation" not in api.patch(claim, {"metadata": {"finalizers": None}}).get("status", {})
