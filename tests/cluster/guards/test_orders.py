"""The policy fairgpu-orders, tried by somebody who hands out budgets in the whole cluster."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.support.waiting import wait_until

BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
DRY_RUN = {"dryRun": "All"}
ORDERS = {
    "gpugrants": {"kind": "GPUGrant", "spec": {"budget": "none", "gpuHours": 1, "reason": "paper deadline"}},
    "gpucorrections": {
        "kind": "GPUCorrection",
        "spec": {"budget": "none", "gpuHours": -1, "effectivePeriod": "2026-01-15T00:00:00Z", "reason": "node-7"},
    },
}

pytestmark = [pytest.mark.usefixtures("installation"), pytest.mark.parametrize("resource", ORDERS)]


@pytest.fixture
def treasurer(control_plane: ControlPlane) -> Iterator[Identity]:
    """Somebody who may do everything in the cluster, and is neither an admin of the API server nor FairGPU."""
    who = control_plane.user(f"treasurer-{uuid.uuid4().hex[:8]}")
    binding = {
        "metadata": {"name": who.name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": who.name}],
    }
    control_plane.admin.api.create(BINDINGS, binding)
    wait_until(lambda: who.may("create", "gpugrants.fairgpu.io"), "the binding is in force")
    yield who
    control_plane.admin.api.delete(f"{BINDINGS}/{who.name}")


def order_of(resource: str, **spec: str) -> dict[str, Any]:
    order = ORDERS[resource]
    return {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": order["kind"],
        "metadata": {"name": "tried"},
        "spec": {**order["spec"], **spec},  # type: ignore[dict-item]
    }


def ordered(who: Identity, resource: str, **spec: str) -> dict[str, Any]:
    return who.api.create(f"/apis/fairgpu.io/v1alpha1/{resource}", order_of(resource, **spec), query=DRY_RUN)


@pytest.mark.parametrize("other", ["alice", "alice\n"])
def test_no_person_signs_for_another(treasurer: Identity, resource: str, other: str) -> None:
    with pytest.raises(ApiError, match="fairgpu-orders") as refusal:
        ordered(treasurer, resource, requestedBy=other)
    assert refusal.value.status == 403
    assert f"spec.requestedBy: {json.dumps(other)} given by {treasurer.name}" in refusal.value.message
    assert f'write "{treasurer.name}"' in refusal.value.message


def test_everybody_signs_for_themselves(treasurer: Identity, resource: str) -> None:
    assert ordered(treasurer, resource, requestedBy=treasurer.name)["spec"]["requestedBy"] == treasurer.name


@pytest.mark.parametrize("spec", [{}, {"requestedBy": ""}], ids=["absent", "empty"])
def test_while_no_webhook_writes_the_name_nobody_leaves_it_out(
    treasurer: Identity, resource: str, spec: dict[str, str]
) -> None:
    with pytest.raises(ApiError, match="fairgpu-orders") as refusal:
        ordered(treasurer, resource, **spec)
    assert refusal.value.status == 403
    assert f'write requestedBy: "{treasurer.name}"' in refusal.value.message


def test_a_name_longer_than_the_field_is_written_as_far_as_it_fits(control_plane: ControlPlane, resource: str) -> None:
    def tried(name: str) -> str:
        who = ("--as", "t" * 300, "--as-group", "system:masters")
        order = order_of(resource, requestedBy=name)
        return control_plane.admin.kubectl(
            "create", "--dry-run=server", "-f", "-", *who, stdin=order, check=False
        ).stderr

    assert tried("t" * 256) == ""
    assert "fairgpu-orders" in tried("t" * 255)


def test_the_timekeeper_writes_whom_it_has_authenticated(control_plane: ControlPlane, resource: str) -> None:
    timekeeper = control_plane.service_account("fairgpu-system", "fairgpu-timekeeper")
    assert ordered(timekeeper, resource, requestedBy="alice")["spec"]["requestedBy"] == "alice"
    with pytest.raises(ApiError, match="fairgpu-orders"):
        ordered(timekeeper, resource)
