"""GPUNodes and GPUPods of the timekeeper's REST API, over the real API server and by the rights that RBAC gives."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import create_node
from tests.cluster.journey.manifests import pod
from tests.cluster.services.everything import Services
from tests.cluster.services.scheduler import running_scheduler
from tests.cluster.services.timekeeper_client import AUTHORITY, TimekeeperClient
from tests.support.waiting import LIMIT_S, wait_until

NODES, PODS = "/apis/fairgpu.io/v1/gpunodes", "/apis/fairgpu.io/v1/gpupods"
VIEW = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "fairgpu-view"}


@pytest.fixture(scope="module", autouse=True)
def scheduler(control_plane: ControlPlane, services: Services) -> Iterator[None]:
    with running_scheduler(control_plane, services.timekeeper):
        yield


def viewer(plane: ControlPlane, namespace: str, kind: str) -> str:
    """The token of an account with the ClusterRole fairgpu-view, in its namespace or in the whole cluster."""
    name = f"viewer-{kind.lower()}"
    plane.admin.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    scope = f"namespaces/{namespace}/" if kind == "RoleBinding" else ""
    binding = {
        "metadata": {"name": f"{name}-{namespace}"},
        "roleRef": VIEW,
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    plane.admin.api.create(f"/apis/rbac.authorization.k8s.io/v1/{scope}{kind.lower()}s", binding)
    account, where = plane.service_account(namespace, name), namespace if scope else ""
    wait_until(lambda: account.may("list", "gpupods.fairgpu.io", namespace=where), "the binding is in force")
    return plane.token(namespace, name)


@contextmanager
def watched(plane: ControlPlane, port: int, token: str, path: str, **query: str) -> Iterator[Iterator[Any]]:
    """The events of a watch, as they come."""
    authority = plane.admin.api.get(AUTHORITY)["data"]["ca.crt"]
    address = f"https://localhost:{port}{path}?{urlencode({'watch': 'true', **query})}"
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cadata=authority)
    with urllib.request.urlopen(request, timeout=LIMIT_S, context=context) as answer:  # noqa: S310 - https
        yield (json.loads(line) for line in answer)


def test_a_watch_shows_a_pod_wait_and_a_node_hold_it_and_goes_on_where_it_was_left(
    control_plane: ControlPlane, services: Services, user: Identity, namespace: str
) -> None:
    node = create_node(control_plane, f"shown-{namespace}", gpus=1)
    token = viewer(control_plane, namespace, "ClusterRoleBinding")
    client = TimekeeperClient(control_plane, services.timekeeper, token)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    device = f"GPU-{node.name}-0"

    def create(name: str, core: int) -> None:
        manifest = pod(name, {"fairgpu.io/gpu-core": core})
        manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node.name}
        user.api.create(pods, manifest)

    def knows_node() -> bool:
        return any(one["metadata"]["name"] == node.name for one in client.get(NODES)["items"])

    wait_until(knows_node, "the worker knows the node")
    before = client.get(NODES)
    create("holds", 60)
    with watched(
        control_plane, services.timekeeper, token, NODES, resourceVersion=before["metadata"]["resourceVersion"]
    ) as events:
        held = next(one for one in events if one["object"]["metadata"]["name"] == node.name)
    assert held["type"] == "MODIFIED"
    [shown] = held["object"]["status"]["devices"]
    assert (shown["uuid"], shown["held"]["corePercent"]) == (device, 60)
    assert [(one["namespace"], one["name"]) for one in shown["pods"]] == [(namespace, "holds")]

    create("waits", 60)
    with watched(control_plane, services.timekeeper, token, PODS, namespace=namespace) as events:
        waits = next(
            one["object"]
            for one in events
            if one["object"]["metadata"]["name"] == "waits" and one["object"]["status"]["waits"]
        )
    assert waits["status"]["stage"] == "waits"
    assert any("gpu-" in one["why"] for one in waits["status"]["waits"])

    left_at = held["object"]["metadata"]["resourceVersion"]
    user.api.delete(f"{pods}/holds")
    node.remove_pod(namespace, "holds")
    wait_until(lambda: user.api.get(f"{pods}/waits")["spec"].get("nodeName"), "the second is bound")
    with watched(control_plane, services.timekeeper, token, NODES, resourceVersion=left_at) as events:
        names = (
            [holder["name"] for holder in one["object"]["status"]["devices"][0]["pods"]]
            for one in events
            if one["object"]["metadata"]["name"] == node.name
        )
        assert next(found for found in names if found != ["holds"] and found) == ["waits"]


def test_somebody_with_rights_in_one_namespace_sees_its_pods_and_no_nodes(
    control_plane: ControlPlane, services: Services, namespace: str
) -> None:
    client = TimekeeperClient(control_plane, services.timekeeper, viewer(control_plane, namespace, "RoleBinding"))
    assert client.get(PODS, namespace=namespace)["kind"] == "GPUPodList"
    for path in (NODES, PODS):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            client.get(path)


def test_a_version_of_long_ago_is_gone(control_plane: ControlPlane, services: Services, namespace: str) -> None:
    token = viewer(control_plane, namespace, "ClusterRoleBinding")
    client = TimekeeperClient(control_plane, services.timekeeper, token)
    with pytest.raises(urllib.error.HTTPError, match="410"):
        client.get(PODS, watch="true", resourceVersion="1")
