"""An order names the person who gave the money, in whichever way the order was made."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.custom_resources import CORRECTIONS, GRANTS, correction, grant
from tests.cluster.installation import Manifest
from tests.support.waiting import wait_until

BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
DRY_RUN = {"dryRun": "All"}
ORDERS = [(GRANTS, grant({"requestedBy": None})), (CORRECTIONS, correction({"requestedBy": None}))]

pytestmark = [pytest.mark.usefixtures("services"), pytest.mark.parametrize(("path", "order"), ORDERS)]


@pytest.fixture(params=["ann", "oidc:bob@example.org"])
def treasurer(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Identity]:
    """Somebody who hands out budgets."""
    who = control_plane.user(request.param)
    binding = {
        "metadata": {"name": f"treasurer-{uuid.uuid4().hex[:8]}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "fairgpu-budget-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": who.name}],
    }
    name = control_plane.admin.api.create(BINDINGS, binding)["metadata"]["name"]
    wait_until(lambda: who.may("create", "gpugrants.fairgpu.io"), "the binding is in force")
    yield who
    control_plane.admin.api.delete(f"{BINDINGS}/{name}")


def signed(order: Manifest, name: str) -> Manifest:
    return {**order, "spec": {**order["spec"], "requestedBy": name}}


def test_the_webhook_writes_the_name_of_who_leaves_it_out(treasurer: Identity, path: str, order: Manifest) -> None:
    for given in (order, signed(order, "")):
        assert treasurer.api.create(path, given, DRY_RUN)["spec"]["requestedBy"] == treasurer.name
    assert treasurer.api.create(path, signed(order, treasurer.name), DRY_RUN)["spec"] == {
        **order["spec"],
        "requestedBy": treasurer.name,
    }


def test_the_webhook_does_not_hide_that_somebody_signs_for_another(
    treasurer: Identity, path: str, order: Manifest
) -> None:
    with pytest.raises(ApiError, match="fairgpu-orders"):
        treasurer.api.create(path, signed(order, "carol"), DRY_RUN)


def test_an_admin_is_named_too_and_the_timekeeper_names_who_asked_it(
    control_plane: ControlPlane, path: str, order: Manifest
) -> None:
    made = control_plane.admin.api.create(path, order, DRY_RUN)
    assert made["spec"]["requestedBy"] == "admin"
    timekeeper = control_plane.service_account("fairgpu-system", "fairgpu-timekeeper")
    assert timekeeper.api.create(path, signed(order, "dora"), DRY_RUN)["spec"]["requestedBy"] == "dora"
    with pytest.raises(ApiError, match="fairgpu-orders"):
        timekeeper.api.create(path, order, DRY_RUN)
