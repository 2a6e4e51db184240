"""Pods that are older than the label of GPU pods: what docs/install.md says to run is run where such pods are."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.installation import apply, install, render
from tests.cluster.pods import Pod, canonical_pod, plain_pod
from tests.support.waiting import LIMIT_S, wait_until

INSTALL = Path(__file__).parents[3] / "docs" / "install.md"
UPGRADE = INSTALL.read_text().partition("## Upgrade")[2].partition("## Remove")[0]
COMMANDS = re.findall(r"```\n(kubectl .*?)```", UPGRADE, re.DOTALL)
LABEL = "fairgpu.io/pod"
METER = "fairgpu.io/meter"


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    """Not the one of the other tests, on which FairGPU is installed before there is any pod."""
    with running_control_plane(control_plane_binaries(os.environ)) as plane:
        yield plane


def older(pod: Pod) -> Pod:
    """As the webhook made it before there was the label, held by the meter."""
    pod["metadata"].pop("labels", None)
    pod["metadata"]["finalizers"] = [METER]
    return pod


def run(plane: ControlPlane, command: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of the document in a shell, as a cluster admin."""
    kubeconfig = plane.admin.kubeconfig
    paths = os.pathsep.join([str(plane.kubectl_binary.parent), os.defpath])
    environment = {"KUBECONFIG": str(kubeconfig), "HOME": str(kubeconfig.parent), "PATH": paths}
    return subprocess.run(
        ["/bin/bash", "-c", command], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def knows_class(plane: ControlPlane, pods: str) -> bool:
    """Whether admission knows the classes of GPU pods, of which it hears some time after they are stored."""
    try:
        plane.admin.api.create(pods, canonical_pod("asking"), {"dryRun": "All"})
    except ApiError as error:
        if "PriorityClass" in error.message:
            return False
        raise
    return True


def test_the_lines_of_the_document_label_gpu_pods_and_free_pods_without_a_gpu(control_plane: ControlPlane) -> None:
    label, free = COMMANDS
    namespace = control_plane.create_namespace("old-")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    apply(control_plane, [item for item in render(control_plane) if item["kind"] == "PriorityClass"])
    wait_until(lambda: knows_class(control_plane, pods), "admission knows the classes")
    admin, user = control_plane.admin.api, control_plane.namespace_admin(namespace).api
    for name in ("waits", "runs"):
        user.create(pods, older(canonical_pod(name, gated=name == "waits")))
    no_gpu = plain_pod("no-gpu")
    no_gpu["spec"]["schedulerName"] = "fairgpu-scheduler"
    user.create(pods, older(no_gpu))
    user.create(pods, plain_pod("another"))

    install(control_plane)
    labelled = run(control_plane, label)
    assert f'metadata.labels[{LABEL}]: set to "gpu"' in labelled.stderr  # no-gpu, as the document says
    labels = {item["metadata"]["name"]: item["metadata"].get("labels", {}) for item in admin.get(pods)["items"]}
    assert labels == {"waits": {LABEL: "gpu"}, "runs": {LABEL: "gpu"}, "no-gpu": {}, "another": {}}
    for patch in ({"spec": {"schedulingGates": None}}, {"metadata": {"finalizers": None}}):
        with pytest.raises(ApiError, match="fairgpu-metadata"):
            user.patch(f"{pods}/waits", patch)

    freed = run(control_plane, free)
    assert (freed.returncode, freed.stdout) == (0, "pod/no-gpu patched\n")
    finalizers = {item["metadata"]["name"]: item["metadata"].get("finalizers") for item in admin.get(pods)["items"]}
    assert finalizers == {"waits": [METER], "runs": [METER], "no-gpu": None, "another": None}
