"""The sidecar as the webhook injected it: its environment from the pod, its token from the API server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sidecar.archive import build
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.processes import running
from tests.cluster.control_plane.stand_ins import create_node, place
from tests.cluster.journey.manifests import Manifest, pod
from tests.cluster.services.everything import Services
from tests.cluster.services.timekeeper_client import TimekeeperClient
from tests.support.usage_writer import Device, usage_record, write_usage
from tests.support.waiting import wait_until

A_MILLISECOND = 1_000_000
"""So little that the session is older when it is reported: a report counts for no more than the session's age."""


@contextmanager
def sidecar_of(plane: ControlPlane, running_pod: Manifest, folder: Path) -> Iterator[None]:
    """Runs a pod's sidecar as its kubelet would: its command's environment, a bound token, its usage volume."""
    (container,) = [c for c in running_pod["spec"]["initContainers"] if c["name"] == "fairgpu-sidecar"]
    environment = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    metadata = running_pod["metadata"]
    token = plane.token(metadata["namespace"], "default", audience="fairgpu-timekeeper", pod=running_pod)
    (folder / "token").write_text(token)
    build(folder / "sidecar.pyz")
    own = {
        "FAIRGPU_TOKEN_FILE": str(folder / "token"),
        "FAIRGPU_USAGE_FOLDER": str(folder / "usage"),
        "FAIRGPU_REPORT_INTERVAL_SECONDS": "1",
        "PATH": os.defpath,
    }
    command = [sys.executable, "-I", "-S", str(folder / "sidecar.pyz")]
    with running("sidecar", command, folder / "sidecar.log", {**environment, **own}):
        yield


@pytest.fixture
def running_pod(control_plane: ControlPlane, namespace: str, services: Services) -> Manifest:
    assert services
    node = create_node(control_plane, f"node-{namespace}")
    scheduler = control_plane.service_account("fairgpu-system", "fairgpu-scheduler")
    api, path = control_plane.admin.api, f"/api/v1/namespaces/{namespace}/pods"
    created = api.create(path, pod("train", {"fairgpu.io/gpu-core": 50}))
    place(scheduler, created, node.name)
    node.set_pod_phase(namespace, "train", "Running")
    bound: Manifest = api.get(f"{path}/train")
    return bound


def test_the_use_of_a_pods_containers_is_shown_beside_what_they_reserved(
    control_plane: ControlPlane, namespace: str, services: Services, running_pod: Manifest, tmp_path: Path
) -> None:
    device = Device(uuid=f"GPU-node-{namespace}-0", busy_ns=A_MILLISECOND, span_ns=2 * A_MILLISECOND, launches=7)
    write_usage(tmp_path / "usage" / "main" / "usage", usage_record(device))
    viewer = control_plane.admin.api
    viewer.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "member"}})
    binding = {
        "metadata": {"name": "members-view"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "member", "namespace": namespace}],
    }
    viewer.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", binding)
    member = control_plane.service_account(namespace, "member")
    wait_until(lambda: member.may("get", "gpubudgets.fairgpu.io", namespace=namespace), "the binding is in force")
    client = TimekeeperClient(control_plane, services.timekeeper, control_plane.token(namespace, "member"))

    def reported() -> Manifest | None:
        sessions = client.get("/v1/sessions", namespace=namespace)["sessions"]
        return next((session for session in sessions if session["used"] is not None), None)

    with sidecar_of(control_plane, running_pod, tmp_path):
        session = wait_until(reported, "the sidecar's report is on the books")
    assert session["uid"] == running_pod["metadata"]["uid"]
    assert session["used"]["microGPUSeconds"] == "1000"
    assert session["rate"]["microGPUSecondsPerSecond"] == "500000"
    assert session["reportedAt"] is not None
