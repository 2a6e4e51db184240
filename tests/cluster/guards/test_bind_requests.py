"""The policy fairgpu-bindrequests: KAI's scheduler has its binder bind pods, and no admin of a namespace does.

The rights are those of KAI's accounts (kai-scheduler/KAI-Scheduler v0.17.0, deployments/kai-scheduler/templates/rbac,
scheduler.yaml and binder.yaml), and the requests have the fields that its binder reads (pkg/apis/scheduling/v1alpha2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.installation import Manifest, served
from tests.support.waiting import wait_until

GROUP, VERSION = "scheduling.run.ai", "v1alpha2"
RBAC = "rbac.authorization.k8s.io"
DRY_RUN = {"dryRun": "All"}
BINDERS_VERBS = ["delete", "get", "list", "patch", "update", "watch"]
SCHEDULERS_VERBS = ["create", *BINDERS_VERBS]

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture(scope="module")
def served_group(control_plane: ControlPlane) -> str:
    """The path of the group of BindRequests, a kind with any fields."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {
        "group": GROUP,
        "names": {"kind": "BindRequest", "plural": "bindrequests", "singular": "bindrequest"},
        "scope": "Namespaced",
        "versions": [version],
    }
    definition = {"metadata": {"name": f"bindrequests.{GROUP}"}, "spec": spec}
    control_plane.admin.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    path = f"/apis/{GROUP}/{VERSION}"
    wait_until(lambda: served(control_plane, f"{path}/bindrequests"), "BindRequests are served")
    return path


@pytest.fixture
def requests(served_group: str, namespace: str) -> str:
    """The path of the namespace's BindRequests."""
    return f"{served_group}/namespaces/{namespace}/bindrequests"


def account(control_plane: ControlPlane, namespace: str, name: str, verbs: Sequence[str]) -> Identity:
    """An account that may do these with the BindRequests of the whole cluster."""
    user = control_plane.user(f"{name}-of-{namespace}")
    rule = {"apiGroups": [GROUP], "resources": ["bindrequests"], "verbs": verbs}
    api = control_plane.admin.api
    api.create(f"/apis/{RBAC}/v1/clusterroles", {"metadata": {"name": user.name}, "rules": [rule]})
    binding = {
        "metadata": {"name": user.name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": user.name},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user.name}],
    }
    api.create(f"/apis/{RBAC}/v1/clusterrolebindings", binding)
    wait_until(lambda: user.may(verbs[0], f"bindrequests.{GROUP}"), f"the rights of {name} are in force")
    return user


def bind_request() -> Manifest:
    spec = {
        "podName": "plain",
        "selectedNode": "n1",
        "selectedGPUGroups": ["of-mine"],
        "receivedResourceType": "Fraction",
        "receivedGPU": {"count": 1, "portion": "1"},
    }
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": "BindRequest", "metadata": {"name": "plain"}, "spec": spec}


def create(who: Identity, requests: str) -> None:
    who.api.create(requests, bind_request(), DRY_RUN)


def change(who: Identity, requests: str) -> None:
    who.api.patch(f"{requests}/plain", {"spec": {"podName": "another"}}, query=DRY_RUN)


def refusal(attempt: Callable[[Identity, str], None], who: Identity, requests: str) -> str | None:
    """The message of the policy's refusal; None where it admits what is tried."""
    try:
        attempt(who, requests)
    except ApiError as error:
        return error.message if error.status == 403 else None
    return None


def test_an_admin_of_a_namespace_has_no_pod_bound_to_gpus(
    control_plane: ControlPlane, editor: Identity, namespace: str, requests: str
) -> None:
    """They may write every kind in their namespace, and the pod asked for no GPU: it has no label and meets no gate."""
    message = wait_until(lambda: refusal(create, editor, requests), "the policy sees the new kind")
    assert "fairgpu-bindrequests" in message
    assert f"a BindRequest written by {editor.name}, who may not create bindrequests in the whole cluster" in message

    create(account(control_plane, namespace, "scheduler", SCHEDULERS_VERBS), requests)


def test_nor_do_they_change_whom_the_scheduler_binds(
    control_plane: ControlPlane, editor: Identity, namespace: str, requests: str
) -> None:
    control_plane.admin.api.create(requests, bind_request())
    message = wait_until(lambda: refusal(change, editor, requests), "the policy sees the new kind")
    assert f"a BindRequest written by {editor.name}, who may not update bindrequests in the whole cluster" in message

    change(account(control_plane, namespace, "binder", BINDERS_VERBS), requests)
