"""The commands of docs/install.md that remove FairGPU, as they are written, in each mode that an overlay has.

No service runs: nothing of FairGPU helps to free what waits for it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.stand_ins import StandInNode, create_node
from tests.cluster.installation import Manifest, served
from tests.cluster.pods import canonical_pod
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
INSTRUCTIONS = (ROOT / "docs" / "install.md").read_text()
METER = "fairgpu.io/meter"
OWN_GATE = {"name": "example.org/own"}
NAMESPACES = ("fairgpu-system", "fairgpu-nodes")
BUDGETS = "/apis/fairgpu.io/v1alpha1/gpubudgets"
DELETION_LIMIT_S = 300.0
"""Deleting two namespaces takes two hundred requests, and kubectl waits for the end of it."""


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    """One of its own: what is installed here is removed."""
    with running_control_plane(control_plane_binaries(os.environ)) as plane:
        yield plane


@pytest.fixture(scope="module")
def node(control_plane: ControlPlane) -> StandInNode:
    return create_node(control_plane, "gpus")


@pytest.mark.parametrize("mode", ["look", "account", "share"])
def test_the_documented_commands_leave_nothing_of_it_and_stop_no_pod(
    control_plane: ControlPlane, node: StandInNode, namespace: str, tmp_path: Path, mode: str
) -> None:
    plane, pods = control_plane, f"/api/v1/namespaces/{namespace}/pods"
    write_overlay(tmp_path, mode)
    manifests = list(yaml.safe_load_all(run(plane, tmp_path, "kubectl kustomize deploy/overlays/my-cluster")))
    for item in manifests:
        if item["kind"] == "PriorityClass":  # no pod may name a class that is not there
            plane.admin.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", item)
    for pod in pods_of(mode, node.name):
        plane.admin.api.create(pods, pod)
    node.set_pod_phase(namespace, "runs", "Running")
    if mode != "look":
        plane.admin.api.delete(f"{pods}/ended")
    before = plane.admin.api.get(f"{pods}/runs")
    run(plane, tmp_path, "kubectl apply -k deploy/overlays/my-cluster")
    if mode != "look":
        wait_until(lambda: refusal(plane, pods) == "webhook", "the API server sends GPU pods to the webhook")
        wait_until(lambda: served(plane, BUDGETS), "budgets are served")
        spec = {"namespaces": [namespace], "allowance": {"gpuHours": 1}, "period": {"every": "month"}}
        budget = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": "team"}, "spec": spec}
        plane.admin.api.create(BUDGETS, budget)

    delete_webhooks, delete_overlay, give_back, free_pods = documented()
    run(plane, tmp_path, delete_webhooks)
    delete(plane, tmp_path, delete_overlay)
    run(plane, tmp_path, give_back.replace("NODE", node.name))
    wait_until(lambda: plane.admin.shell(free_pods, tmp_path).returncode == 0, "the pods are freed")

    wait_until(lambda: left(plane) == [], "the API server shows nothing of FairGPU")
    after = plane.admin.api.get(f"{pods}/runs")
    assert after["status"] == before["status"]
    assert after["spec"] == before["spec"]
    assert "deletionTimestamp" not in after["metadata"]
    assert METER not in after["metadata"].get("finalizers", [])
    labels = plane.admin.api.get(f"/api/v1/nodes/{node.name}")["metadata"]["labels"]
    assert labels["nvidia.com/gpu.deploy.device-plugin"] == "true"
    if mode != "look":
        held = plane.admin.api.get(f"{pods}/held")
        assert (held["spec"].get("schedulingGates"), held["metadata"].get("finalizers")) == ([OWN_GATE], None)
        wait_until(lambda: not plane.exists(f"{pods}/ended"), "the pod that was deleted is gone")
    wait_until(lambda: refusal(plane, pods) == "", "GPU pods are created as before")


def documented() -> list[str]:
    """The commands of the section, in its order."""
    section = re.split(r"^## ", INSTRUCTIONS, flags=re.MULTILINE)
    (remove,) = [text for text in section if text.startswith("Remove\n")]
    commands: list[str] = []
    for console, block in re.findall(r"^```(console)?\n(.*?)^```$", remove, re.DOTALL | re.MULTILINE):
        commands += re.findall(r"^\$ (.*)$", block, re.MULTILINE) if console else [block]
    return commands


def write_overlay(folder: Path, mode: str) -> None:
    """An overlay `my-cluster` beside those of the repository: in `share` the one of the instructions, with agents."""
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    kustomization: dict[str, Any] = {"resources": [f"../{mode}"]}
    if mode == "share":
        (text,) = re.findall(r"```yaml\n(apiVersion: kustomize.*?)```", INSTRUCTIONS, re.DOTALL)
        kustomization = yaml.safe_load(text)
        kustomization["resources"].append("../../nodes")
    (folder / "deploy" / "overlays" / "my-cluster").mkdir()
    (folder / "deploy" / "overlays" / "my-cluster" / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))


def pods_of(mode: str, node: str) -> list[Manifest]:
    """A pod that runs; and, where the webhook made them, one that waits at the gate and one for the last settlement."""
    if mode == "share":
        runs, ended, held = (canonical_pod(name, gated=name == "held") for name in ("runs", "ended", "held"))
    else:
        runs, ended, held = (stock_pod(name) for name in ("runs", "ended", "held"))
    runs["spec"]["nodeName"] = node
    if mode == "look":
        return [runs]
    held["spec"]["schedulingGates"] = [{"name": "fairgpu.io/budget"}, OWN_GATE]
    for pod in (runs, ended, held):
        pod["metadata"]["finalizers"] = [METER]
        pod["metadata"]["labels"] = {"fairgpu.io/pod": "gpu"}
    return [runs, ended, held]


def stock_pod(name: str) -> Manifest:
    """A pod with a GPU of another device plugin; no scheduler places it."""
    container = {"name": "main", "image": "example.org/train:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"schedulerName": "nobody-schedules", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def run(plane: ControlPlane, folder: Path, command: str) -> str:
    done = plane.admin.shell(command, folder)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def delete(plane: ControlPlane, folder: Path, command: str) -> None:
    """Runs the command that deletes the overlay, and does meanwhile what kubelets and absent controllers would do."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(plane.admin.shell, command, folder, DELETION_LIMIT_S)

        def ended() -> bool:
            present = [each["metadata"] for each in plane.admin.api.get("/api/v1/namespaces")["items"]]
            for namespace in {each["name"] for each in present if "deletionTimestamp" in each}.intersection(NAMESPACES):
                path = f"/api/v1/namespaces/{namespace}"
                plane.remove_pods(namespace)
                for claim in plane.admin.api.get(f"{path}/persistentvolumeclaims")["items"]:
                    plane.remove_finalizers(f"{path}/persistentvolumeclaims/{claim['metadata']['name']}")
            return running.done()

        wait_until(ended, "the overlay is deleted", DELETION_LIMIT_S)
        done = running.result()
    assert done.returncode == 0, done.stderr


def refusal(plane: ControlPlane, pods: str) -> str:
    """The refusal of a GPU pod: `webhook` where none answers, else the message; empty where it is created."""
    try:
        plane.admin.api.create(pods, stock_pod("tried"), {"dryRun": "All"})
    except ApiError as error:
        return "webhook" if "failed calling webhook" in error.message else error.message
    return ""


def left(plane: ControlPlane) -> list[str] | None:
    """The objects of all kinds that bear FairGPU's name or its classes'; None while kinds are being taken away."""
    kinds = plane.admin.kubectl("api-resources", "--verbs=list", "-o", "name", check=False)
    known = [kind for kind in kinds.stdout.split() if not kind.startswith("events")]
    found = plane.admin.kubectl("get", ",".join(known), "-A", "-o", "name", check=False)
    if kinds.returncode or found.returncode:
        return None
    ours = re.compile(r"fairgpu|/gpu-(in|over)-budget$")
    return [name for name in found.stdout.splitlines() if ours.search(name)]
