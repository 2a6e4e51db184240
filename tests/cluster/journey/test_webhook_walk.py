from __future__ import annotations

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.waiting import wait_until

pytestmark = pytest.mark.usefixtures("services")


def test_a_native_pod_comes_out_of_the_api_server_with_all_that_admission_adds(
    control_plane: ControlPlane, namespace: str
) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train"},
        "spec": {
            "containers": [
                {"name": "main", "image": "example.org/train:1", "resources": {"limits": {"fairgpu.io/gpu-core": "30"}}}
            ]
        },
    }
    api, path = control_plane.admin.api, f"/api/v1/namespaces/{namespace}/pods"
    created = wait_until(lambda: api.create(path, pod), "the pod is admitted")
    spec = created["spec"]
    assert spec["schedulerName"] == "fairgpu-scheduler"
    assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == ("gpu-in-budget", 1000, "Never")
    assert [container["name"] for container in spec["initContainers"]] == ["fairgpu-sidecar"]
    assert spec["containers"][0]["resources"]["limits"] == {
        "fairgpu.io/gpu": "1",
        "fairgpu.io/gpu-core": "30",
        "fairgpu.io/gpu-memory-percentage": "30",
    }
