"""Evasions by an admin of one namespace, through existing pods and through objects that make pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairgpu.cluster.api import JSON_PATCH, STRATEGIC_MERGE_PATCH, ApiError
from tests.cluster.control_plane.identities import Identity
from tests.cluster.journey.manifests import Manifest, pod
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("services")

GPU = {"nvidia.com/gpu": "1"}
MERGE = "application/merge-patch+json"


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def main_with(**fields: Any) -> Manifest:
    return {"spec": {"containers": [{"name": "main", **fields}]}}


INTO_A_GPU_POD: dict[str, tuple[str, str, Any]] = {
    "resources": ("", STRATEGIC_MERGE_PATCH, main_with(resources={"limits": GPU, "requests": GPU})),
    "a resize": ("/resize", STRATEGIC_MERGE_PATCH, main_with(resources={"limits": GPU, "requests": GPU})),
    "a resize in FairGPU's terms": (
        "/resize",
        STRATEGIC_MERGE_PATCH,
        main_with(resources={"limits": {"fairgpu.io/gpu-core": "1"}, "requests": {"fairgpu.io/gpu-core": "1"}}),
    ),
    "a debugging container": (
        "/ephemeralcontainers",
        STRATEGIC_MERGE_PATCH,
        {"spec": {"ephemeralContainers": [{"name": "debug", "image": "x", "resources": {"limits": GPU}}]}},
    ),
}


@pytest.mark.parametrize("way", INTO_A_GPU_POD)
def test_no_pod_without_a_gpu_becomes_one_with_a_gpu(user: Identity, pods: str, way: str) -> None:
    user.api.create(pods, pod("plain", {"cpu": "1"}))
    suffix, content_type, patch = INTO_A_GPU_POD[way]
    with pytest.raises(ApiError) as refusal:
        user.api.patch(f"{pods}/plain{suffix}", patch, content_type)
    assert refusal.value.status in (400, 403, 422)


OUT_OF_ITS_BOUNDS: dict[str, tuple[str, str, Any]] = {
    "to more of the GPU": ("", STRATEGIC_MERGE_PATCH, main_with(resources={"limits": {"fairgpu.io/gpu-core": "100"}})),
    "to more of the GPU by a resize": (
        "/resize",
        STRATEGIC_MERGE_PATCH,
        main_with(resources={"limits": {"fairgpu.io/gpu-core": "100"}, "requests": {"fairgpu.io/gpu-core": "100"}}),
    ),
    "to less of the GPU": ("", STRATEGIC_MERGE_PATCH, main_with(resources={"limits": {"fairgpu.io/gpu-core": None}})),
    "to another scheduler's": ("", JSON_PATCH, [{"op": "replace", "path": "/spec/schedulerName", "value": "mine"}]),
    "to a node": ("", MERGE, {"spec": {"nodeName": "n1"}}),
    "to a higher priority": ("", MERGE, {"spec": {"priority": 999_999}}),
    "out of its reporter": ("", JSON_PATCH, [{"op": "remove", "path": "/spec/initContainers/0"}]),
    "to a reporter that says something else": (
        "",
        JSON_PATCH,
        [{"op": "replace", "path": "/spec/initContainers/0/env/0/value", "value": "https://elsewhere.example"}],
    ),
    "to the past": ("/status", MERGE, {"status": {"phase": "Succeeded"}}),
}


@pytest.mark.parametrize("way", OUT_OF_ITS_BOUNDS)
def test_a_gpu_pod_is_not_changed(user: Identity, pods: str, way: str) -> None:
    before = user.api.create(pods, pod("gpu", {"fairgpu.io/gpu-core": "30"}))
    suffix, content_type, patch = OUT_OF_ITS_BOUNDS[way]
    status = 200
    try:
        user.api.patch(f"{pods}/gpu{suffix}", patch, content_type)
    except ApiError as error:
        status = error.status
    assert status in (200, 400, 403, 422)
    after = user.api.get(f"{pods}/gpu")
    assert after["spec"] == before["spec"]
    assert after["status"]["phase"] == "Pending"


def scaled(kind: str, api: str, **fields: Any) -> Manifest:
    template = {"metadata": {"labels": {"app": "many"}}, "spec": pod("unused", GPU)["spec"]}
    selector: Manifest = {"app": "many"}
    if kind != "ReplicationController":
        selector = {"matchLabels": selector}
    spec = {"replicas": 1, "selector": selector, "template": template, **fields}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "many"}, "spec": spec}


CONTROLLERS = {
    "ReplicationController": ("/api/v1", "replicationcontrollers", scaled("ReplicationController", "v1")),
    "ReplicaSet": ("/apis/apps/v1", "replicasets", scaled("ReplicaSet", "apps/v1")),
    "StatefulSet": ("/apis/apps/v1", "statefulsets", scaled("StatefulSet", "apps/v1", serviceName="many")),
}


@pytest.mark.parametrize("kind", CONTROLLERS)
def test_the_pods_of_a_controller_are_metered_and_put_down_to_it(
    user: Identity,
    namespace: str,
    pods: str,
    kind: str,
    create_workload: Callable[[Identity, str, Manifest], None],
) -> None:
    base, plural, manifest = CONTROLLERS[kind]
    create_workload(user, f"{base}/namespaces/{namespace}/{plural}", manifest)
    (made,) = wait_until(lambda: user.api.get(pods)["items"], "the controller's pod")
    assert made["spec"]["initContainers"][0]["name"] == "fairgpu-sidecar"
    assert made["spec"]["schedulerName"] == "fairgpu-scheduler"
    assert made["metadata"]["annotations"]["fairgpu.io/created-by"] == f"{kind}/many"


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "fairgpu.io/gpu"])
def test_a_limit_range_that_gives_every_container_a_gpu_lets_none_in_unread(
    user: Identity, namespace: str, pods: str, resource: str
) -> None:
    """It applies before the webhook and once more after it, to the reporter too."""
    limits = [{"type": "Container", "default": {resource: "1"}, "defaultRequest": {resource: "1"}}]
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "gifts"}, "spec": {"limits": limits}}
    user.api.create(f"/api/v1/namespaces/{namespace}/limitranges", body)

    def refused() -> str:
        try:
            user.api.create(pods, pod("plain", {"cpu": "1"}), query={"dryRun": "All"})
        except ApiError as error:
            return error.message
        return ""

    assert "fairgpu" in wait_until(refused, "the API server knows the LimitRange")
    assert user.api.get(pods)["items"] == []
