"""The mode `look` with GPUBudgets: their status is its one write outside its namespace, and they outlive it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml

from tests.cluster.control_plane.control_plane import AUDIT_LOG, ControlPlane
from tests.cluster.installation import apply, served
from tests.cluster.look.devices import create_node
from tests.cluster.look.installed import GPUBUDGETS, Installed, installed, overlay
from tests.support.processes import FAIRGPU
from tests.support.waiting import wait_until
from timekeeper.domain.money import GPU_SECOND
from timekeeper.sources.kubernetes import BUDGETS

CRD = Path(__file__).parents[3] / "deploy" / "base" / "crds" / "gpubudgets.yaml"
ACCOUNT = "system:serviceaccount:fairgpu-system:fairgpu-timekeeper"
WRITES = {"create", "update", "patch", "delete", "deletecollection"}
STATUS_SECONDS = 300.0
"""The limit for changed figures in a status: where it was just written, it is written again only after a minute."""
QUESTIONS = {"tokenreviews", "subjectaccessreviews"}
"""The resources that the API server answers and does not store."""


@pytest.fixture(scope="module")
def team(plane: ControlPlane) -> str:
    """A namespace with a pod that the stock scheduler has bound to a GPU, and with a GPUBudget."""
    apply(plane, [yaml.safe_load(CRD.read_text())])
    wait_until(lambda: served(plane, BUDGETS), "GPUBudgets are served")
    create_node(plane, "whole", {"nvidia.com/gpu": "8"}, {"nvidia.com/gpu.product": "NVIDIA-L4"}, {})
    namespace = plane.create_namespace("vision-")
    resources = {"limits": {"nvidia.com/gpu": "2"}}
    spec = {"containers": [{"name": "main", "image": "example.org/train:1", "resources": resources}]}
    train = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/pods"
    plane.admin.api.create(path, train)
    wait_until(lambda: plane.admin.api.get(f"{path}/train")["spec"].get("nodeName"), "the pod is bound")
    budget = {"namespaces": [namespace], "allowance": {"gpuHours": 1}, "period": {"every": "month"}}
    metadata = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": "vision"}}
    plane.admin.api.create(BUDGETS, {**metadata, "spec": budget})
    return namespace


@pytest.fixture(scope="module")
def look(plane: ControlPlane, team: str) -> Iterator[Installed]:
    """Installed with the component; the line of the ConfigMap names the same namespace, and has no effect."""
    line = f"namespaces: [{team}]\nallowance: {{gpuHours: 9}}\nperiod: {{every: day}}\n"
    with installed(plane, {"of-the-config-map": line}, [GPUBUDGETS]) as found:
        yield found


def status(plane: ControlPlane) -> Any:
    return plane.admin.api.get(f"{BUDGETS}/vision").get("status", {})


def test_a_gpubudget_has_the_bill_of_its_namespaces_in_its_status(plane: ControlPlane, look: Installed) -> None:
    assert look

    def billed() -> Any:
        found = status(plane)
        return found if int(found.get("spent", {}).get("microGPUSeconds", 0)) > 0 else None

    found = wait_until(billed, "the first bill", STATUS_SECONDS)
    assert (found["state"], found["burnRate"], found["available"]["gpuHours"]) == ("open", "2.00", "1.00")


def test_the_lines_of_the_config_map_have_no_effect(plane: ControlPlane, look: Installed, team: str) -> None:
    def of_the_team() -> Any:
        (pod,) = look.client.get("/v1/sessions", namespace=team)["sessions"] or [None]
        return pod

    def listed() -> set[str]:
        return {one["name"] for one in look.client.get("/v1/budgets")["budgets"]}

    session = wait_until(of_the_team, "the pod is metered")
    wait_until(lambda: "vision" in listed(), "the GPUBudget is listed")
    assert int(session["rate"]["microGPUSecondsPerSecond"]) == 2 * GPU_SECOND
    assert "of-the-config-map" not in listed()
    command = [*FAIRGPU, "doctor", "--kubeconfig", str(plane.admin.kubeconfig)]
    environ = {"PATH": os.defpath, "HOME": str(plane.folder)}
    doctor = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert "has no effect where budgets are GPUBudgets: of-the-config-map" in doctor.stdout


def test_a_changed_allowance_is_in_force_without_a_restart(plane: ControlPlane, look: Installed) -> None:
    assert look
    plane.admin.api.patch(f"{BUDGETS}/vision", {"spec": {"allowance": {"gpuHours": 7}}})

    wait_until(
        lambda: status(plane).get("available", {}).get("gpuHours") == "7.00", "the new allowance", STATUS_SECONDS
    )


def test_a_grant_is_refused_with_what_to_do_instead(look: Installed) -> None:
    with pytest.raises(HTTPError) as refused:
        look.client.post("/v1/grants", {"name": "more", "budget": "vision", "gpuHours": 1, "reason": "deadline"})

    assert refused.value.code == 409
    assert "allowance in the GPUBudget" in json.load(refused.value)["detail"]


def test_its_one_write_outside_of_its_namespace_is_the_status_of_gpubudgets(
    plane: ControlPlane, look: Installed
) -> None:
    assert look
    wait_until(lambda: status(plane).get("conditions"), "a status was written")
    *lines, _ = (plane.folder / AUDIT_LOG).read_text().split("\n")  # the last may be half written
    events = [event for event in map(json.loads, lines) if event["user"]["username"] == ACCOUNT]
    written = [event["objectRef"] for event in events if event["verb"] in WRITES and "objectRef" in event]
    outside = {
        (one["resource"], one.get("subresource"))
        for one in written
        if one.get("namespace") != "fairgpu-system" and one["resource"] not in QUESTIONS
    }

    assert outside == {("gpubudgets", "status")}


def test_taking_it_away_leaves_the_budgets_with_their_statuses(plane: ControlPlane, look: Installed) -> None:
    assert look
    wait_until(lambda: status(plane).get("state"), "a status was written")
    with overlay(plane, [GPUBUDGETS]) as folder:
        plane.admin.kubectl("delete", "-k", str(folder), "--wait=false")

    kinds = "crds,clusterroles,clusterrolebindings,priorityclasses,validatingadmissionpolicies"
    left = plane.admin.kubectl("get", kinds, "-o", "name").stdout.splitlines()
    assert [name for name in left if "/fairgpu" in name or "fairgpu.io" in name] == [
        "customresourcedefinition.apiextensions.k8s.io/gpubudgets.fairgpu.io"
    ]
    assert status(plane)["state"] == "open"
