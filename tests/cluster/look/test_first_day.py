"""The first day with the mode `look`, by the commands and the overlay of docs/adopting.md as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.stand_ins import bind
from tests.cluster.installation import render_overlay
from tests.cluster.look.devices import asking_pod, create_node
from tests.cluster.look.installed import served
from tests.support.other_stacks import STACKS
from tests.support.processes import FAIRGPU
from tests.support.waiting import wait_until

CHECKOUT = Path(__file__).parents[3]
ADOPTING = (CHECKOUT / "docs" / "adopting.md").read_text()
MY_LOOK = "deploy/overlays/my-look"
TEAMS = {"vision": ("nvidia-sliced", "sliced", "0.50"), "speech": ("hami", "vgpu", "0.25")}
"""Each team's node and pod, and what that is of a GPU: nodes with time-slicing's labels, and HAMi's annotations."""
USUAL = {"FAIRGPU_TIMEKEEPER_JOBS_SETTLE_SECONDS": "10", "FAIRGPU_TIMEKEEPER_JOBS_STATUS_SECONDS": "10"}
"""The timekeeper settles as often as without a setting."""
LIMIT_SECONDS = 300.0
KINDS = (
    "crds,clusterroles,clusterrolebindings,priorityclasses,mutatingwebhookconfigurations,validatingadmissionpolicies"
)


def test_each_team_sees_its_first_bill_within_five_minutes_and_going_back_leaves_every_pod(
    plane: ControlPlane, tmp_path: Path
) -> None:
    namespaces = {name: _run_pod(plane, name) for name in TEAMS}
    before = _pods(plane)

    began = time.monotonic()
    doctor = _fairgpu(plane, "doctor")
    assert {"hami", "nvidia with shared GPUs"} <= {re.split(r"  +", line)[0] for line in doctor.splitlines()}
    overlay = _write_overlay(tmp_path, namespaces)
    _documented(f"kubectl apply -k {MY_LOOK}")
    plane.admin.kubectl("apply", "-k", str(overlay))
    with served(plane, render_overlay(plane, overlay), **USUAL) as look:
        tokens = {name: _token_of_viewer(plane, namespace) for name, namespace in namespaces.items()}
        ca_file = tmp_path / "fairgpu-ca.crt"
        path = "/api/v1/namespaces/fairgpu-system/configmaps/fairgpu-timekeeper-ca"
        ca_file.write_text(plane.admin.api.get(path)["data"]["ca.crt"])
        server = {"FAIRGPU_SERVER": f"https://localhost:{look.port}", "FAIRGPU_CA_FILE": str(ca_file)}
        for name, (node, pod, gpus) in TEAMS.items():
            asked = ("sessions", "-n", namespaces[name])

            def billed(name: str = name, asked: tuple[str, ...] = asked) -> list[str] | None:
                said = _fairgpu(plane, *asked, FAIRGPU_TOKEN=tokens[name], **server).splitlines()
                (row,) = [line.split() for line in said if line.startswith(namespaces[name])] or [[]]
                return row if row and float(row[6]) > 0 else None

            row = wait_until(billed, f"the first bill of {name}")
            assert (row[1], row[2], row[3], row[4]) == (pod, node, name, gpus)
        seconds = time.monotonic() - began
        listed = _fairgpu(plane, "budget", "list", FAIRGPU_TOKEN=_token_of_all(plane), **server)
    assert seconds < LIMIT_SECONDS
    assert {line.split()[0] for line in listed.splitlines()[1:]} >= set(TEAMS)

    _documented(f"kubectl delete -k {MY_LOOK}")
    plane.admin.kubectl("delete", "-k", str(overlay), "--wait=false")
    left = plane.admin.kubectl("get", KINDS, "-o", "name").stdout.splitlines()
    assert [name for name in left if "/fairgpu" in name or "fairgpu.io" in name] == []
    assert _pods(plane) == before


def _run_pod(plane: ControlPlane, name: str) -> str:
    """Returns the namespace of a team whose pod runs on a node of its stack."""
    (stack,) = [one for one in STACKS if one.name == TEAMS[name][0]]
    create_node(plane, stack.name, stack.capacity, stack.labels, stack.annotations)
    namespace, pod = plane.create_namespace(f"{name}-"), TEAMS[name][1]
    path = f"/api/v1/namespaces/{namespace}/pods"
    created = plane.admin.api.create(path, asking_pod(pod, stack, stack.pods[pod]))
    if stack.pods[pod].scheduler:
        bind(plane.admin, created, stack.name, None)
    wait_until(lambda: plane.admin.api.get(f"{path}/{pod}")["spec"].get("nodeName"), "the pod is bound")
    return namespace


def _write_overlay(folder: Path, namespaces: dict[str, str]) -> Path:
    """Writes the overlay of the document's section on `look`, with its lines for budgets, into a copy of deploy."""
    shutil.copytree(CHECKOUT / "deploy", folder / "deploy")
    overlay = folder / MY_LOOK
    overlay.mkdir()
    section = ADOPTING.partition("\n## Look\n")[2].partition("\n### Budgets as objects\n")[0]
    blocks = [textwrap.dedent(block) for block in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)]
    (kustomization,) = [block for block in blocks if "kind: Kustomization" in block]
    (budgets,) = [block for block in blocks if "fairgpu-budgets" in block]
    (overlay / "kustomization.yaml").write_text(kustomization + budgets)
    for name, namespace in namespaces.items():
        spec = {"namespaces": [namespace], "allowance": {"gpuHours": 400}, "period": {"every": "month"}}
        (overlay / f"{name}.yaml").write_text(yaml.safe_dump(spec))
    return overlay


def _documented(command: str) -> None:
    assert f"`{command}`" in ADOPTING or f"$ {command}\n" in ADOPTING, command


def _fairgpu(plane: ControlPlane, *arguments: str, **environ: str) -> str:
    shown = {"PATH": os.defpath, "HOME": str(plane.folder), "KUBECONFIG": str(plane.admin.kubeconfig), **environ}
    return subprocess.run([*FAIRGPU, *arguments], env=shown, capture_output=True, text=True, check=True).stdout


def _token_of_viewer(plane: ControlPlane, namespace: str) -> str:
    """A token of an account that may view its namespace, and nothing else."""
    plane.admin.kubectl("-n", namespace, "create", "serviceaccount", "viewer")
    subject = f"--serviceaccount={namespace}:viewer"
    plane.admin.kubectl("-n", namespace, "create", "rolebinding", "views", "--clusterrole=view", subject)
    account = plane.service_account(namespace, "viewer")
    wait_until(
        lambda: account.may("get", "gpubudgets.fairgpu.io", namespace=namespace), "it may see its namespace's budget"
    )
    return plane.admin.kubectl("-n", namespace, "create", "token", "viewer").stdout.strip()


def _token_of_all(plane: ControlPlane) -> str:
    return plane.token("kube-system", "default", audience="fairgpu-timekeeper")


def _pods(plane: ControlPlane) -> list[Any]:
    """The pods of all namespaces but FairGPU's own, which have no kubelet here."""
    pods = plane.admin.api.get("/api/v1/pods")["items"]
    return [one for one in pods if one["metadata"]["namespace"] != "fairgpu-system"]
