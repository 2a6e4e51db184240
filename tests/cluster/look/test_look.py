"""The mode `look` on a control plane whose GPUs are shared by others: first bills, and not one write outside."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import redis

from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import AUDIT_LOG, ControlPlane, running_control_plane
from tests.cluster.control_plane.stand_ins import now
from tests.cluster.installation import Manifest, apply, render_overlay
from tests.cluster.services.replicas import COMMAND, Ports, environment, timekeeper_jobs, timekeeper_replica
from tests.cluster.services.timekeeper_client import TimekeeperClient
from tests.support.ports import free_ports
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import wait_until
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.timestamps import parse_instant
from timekeeper.ledger import reading
from timekeeper.sources.kubernetes import CONFIG_MAPS
from timekeeper.sources.looking import BUDGETS_MAP, STATUSES

LOOK = Path(__file__).parents[3] / "deploy" / "overlays" / "look"
ACCOUNT = "system:serviceaccount:fairgpu-system:fairgpu-timekeeper"
WRITES = {"create", "update", "patch", "delete", "deletecollection"}
CLAIMS = "/api/v1/namespaces/fairgpu-system/persistentvolumeclaims"
QUESTIONS = {"tokenreviews", "subjectaccessreviews"}
"""What the API server answers and stores nothing of."""

A100 = "NVIDIA-A100-SXM4-80GB"
HAMI_DEVICES = [
    {"id": f"GPU-{at}", "count": 10, "devmem": 24576, "devcore": 100, "type": "NVIDIA A10", "health": True}
    for at in range(2)
]
NODES: dict[str, tuple[dict[str, str], dict[str, str], dict[str, str]]] = {
    "time-slicing": (
        {"nvidia.com/gpu": "32"},
        {
            "nvidia.com/gpu.product": f"{A100}-SHARED",
            "nvidia.com/gpu.replicas": "4",
            "nvidia.com/gpu.sharing-strategy": "time-slicing",
        },
        {},
    ),
    "mig": (
        {"nvidia.com/mig-3g.40gb": "2", "nvidia.com/mig-1g.10gb": "1"},
        {"nvidia.com/gpu.product": A100, "nvidia.com/mig.strategy": "mixed", "nvidia.com/gpu.replicas": "0"},
        {},
    ),
    "hami": (
        {"nvidia.com/gpu": "20"},
        {"gpu": "on"},
        {"hami.io/node-nvidia-register": json.dumps(HAMI_DEVICES)},
    ),
    "amd": ({"amd.com/gpu": "8"}, {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, {}),
}
"""Capacity, labels and annotations of each node, as its plugins write them."""

PODS: dict[str, tuple[str, dict[str, str], dict[str, str], float]] = {
    "sliced": ("time-slicing", {"nvidia.com/gpu": "2"}, {}, 0.5),
    "instance": ("mig", {"nvidia.com/mig-3g.40gb": "1"}, {}, 0.5),
    "vgpu": (
        "hami",
        {"nvidia.com/gpu": "1"},
        {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,6144,25:;"},
        0.25,
    ),
    "instinct": ("amd", {"amd.com/gpu": "2"}, {}, 2.0),
}
"""Node, request and annotations of each pod, and the GPUs that it is charged as."""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with running_control_plane(control_plane_binaries(os.environ), audited=True) as running:
        yield running


@pytest.fixture(scope="module")
def team(plane: ControlPlane) -> str:
    """A namespace whose pods the stock scheduler has bound, before anything of FairGPU is there."""
    for name, offer in NODES.items():
        _create_node(plane, name, *offer)
    namespace = plane.create_namespace("vision-")
    for name, (node, limits, written, _) in PODS.items():
        plane.admin.api.create(f"/api/v1/namespaces/{namespace}/pods", _pod(name, node, limits, written))
    wait_until(lambda: all(pod["spec"].get("nodeName") for pod in _pods(plane, namespace)), "all pods are bound")
    return namespace


def test_the_doctor_says_beforehand_what_each_team_would_pay(plane: ControlPlane, team: str) -> None:
    command = [COMMAND, "doctor", "--kubeconfig", str(plane.admin.kubeconfig)]
    environ = {"PATH": os.defpath, "HOME": str(plane.folder)}
    told = subprocess.run([*command, "-o", "json"], env=environ, capture_output=True, text=True, check=True)
    found = json.loads(told.stdout)
    text = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout

    assert found["stacks"] == {"nvidia with shared GPUs": 1, "nvidia with MIG": 1, "hami": 1, "amd": 1}
    rates = {pod["name"]: int(pod["rateMicroGPUSecondsPerSecond"]) for pod in found["pods"] if pod["namespace"] == team}
    assert rates == {name: int(gpus * GPU_SECOND) for name, (*_, gpus) in PODS.items()}
    assert "AMD_Instinct_MI300X_OAM" in text


@dataclass(frozen=True)
class Look:
    """What was installed, where it is asked, and the state of the pods before."""

    client: TimekeeperClient
    manifests: list[Manifest]
    pods_before: list[Any]
    redis_url: str


@pytest.fixture(scope="module")
def look(plane: ControlPlane, team: str) -> Iterator[Look]:
    manifests = render_overlay(plane, LOOK)
    (budgets,) = [item for item in manifests if item["metadata"]["name"] == "fairgpu-budgets"]
    spec = f"namespaces: [{team}]\nallowance: {{gpuHours: 1}}\nperiod: {{every: month}}\n"
    budgets["data"] = {"vision": spec, "broken": "namespaces: team"}
    pods_before = _pods(plane, team)
    apply(plane, manifests)
    https, metrics, jobs_metrics = free_ports(3)
    mode = {"FAIRGPU_TIMEKEEPER_MODE": "look"}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fairgpu-redis-"))
        store = stack.enter_context(RedisServer(Path(folder)))
        stack.enter_context(timekeeper_replica(plane, "look", Ports(https, metrics), store.url, **mode))
        stack.enter_context(timekeeper_jobs(plane, "look-jobs", jobs_metrics, store.url, **mode))
        _let_view(plane)
        token = plane.token("kube-system", "default", audience="fairgpu-timekeeper")
        yield Look(TimekeeperClient(plane, https, token), manifests, pods_before, store.url)


def test_it_brings_nothing_that_acts_on_pods(look: Look) -> None:
    kinds = {item["kind"] for item in look.manifests}
    roles = [item for item in look.manifests if item["kind"] == "ClusterRole"]
    (role,) = [item for item in roles if item["metadata"]["name"] == "fairgpu-timekeeper"]
    changing = [rule for rule in role["rules"] if not set(rule["resources"]) <= QUESTIONS]

    assert not {kind for kind in kinds if "Webhook" in kind or "Policy" in kind} - {"NetworkPolicy"}
    assert not kinds & {"CustomResourceDefinition", "PriorityClass", "DaemonSet"}
    assert {verb for rule in changing for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_each_pod_has_the_rate_of_what_it_holds_by_its_own_stack(look: Look, team: str) -> None:
    def rates() -> dict[str, float] | None:
        found = look.client.get("/v1/sessions", namespace=team)["sessions"]
        return {one["pod"]: one["rate"]["gpus"] for one in found} if len(found) == len(PODS) else None

    assert wait_until(rates, "a session of each pod") == {name: gpus for name, (*_, gpus) in PODS.items()}


def test_a_team_sees_its_first_bill_from_a_config_map(look: Look) -> None:
    budget = wait_until(lambda: _spent(look, "vision"), "the first bill")

    assert budget["state"] == "open"
    assert budget["rate"]["gpus"] == sum(gpus for *_, gpus in PODS.values())


def test_metering_began_with_the_installation_and_not_with_the_pods(look: Look, team: str) -> None:
    began = wait_until(lambda: _stored_since(look), "the stored beginning")
    sessions = wait_until(lambda: look.client.get("/v1/sessions", namespace=team)["sessions"], "sessions")

    assert {parse_instant(one["start"]) // SECOND for one in sessions} == {began // SECOND}


def test_a_changed_line_of_the_config_map_is_in_force_without_a_restart(plane: ControlPlane, look: Look) -> None:
    line = "namespaces: [elsewhere]\nallowance: {gpuHours: 7}\nperiod: {every: day}\n"
    plane.admin.api.patch(f"{CONFIG_MAPS}/{BUDGETS_MAP}", {"data": {"other": line}})

    def figures() -> Any:
        return next((one for one in look.client.get("/v1/budgets")["budgets"] if one["name"] == "other"), None)

    assert wait_until(figures, "the new budget")["available"]["gpuHours"] == 7


def test_a_line_that_is_no_budget_is_named_in_its_status(plane: ControlPlane, look: Look) -> None:
    assert look

    def condition() -> Any:
        text = plane.admin.api.get(STATUSES)["data"].get("broken") if plane.exists(STATUSES) else None
        ready = [one for one in json.loads(text)["conditions"] if one["type"] == "Ready"] if text else []
        return ready[0] if ready else None

    found = wait_until(condition, "the status of the broken line")
    assert (found["status"], "namespaces" in found["message"]) == ("False", True)


def test_a_grant_is_refused_with_what_to_do_instead(look: Look) -> None:
    with pytest.raises(HTTPError) as refused:
        look.client.post("/v1/grants", {"name": "more", "budget": "vision", "gpuHours": 1, "reason": "deadline"})

    assert refused.value.code == 409
    assert "fairgpu-budgets" in json.load(refused.value)["detail"]


def test_the_audit_of_the_books_finds_no_difference(plane: ControlPlane, look: Look) -> None:
    wait_until(lambda: _spent(look, "vision"), "the first bill")
    settings = environment(plane, "fairgpu-timekeeper") | {
        "FAIRGPU_TIMEKEEPER_MODE": "look",
        "FAIRGPU_TIMEKEEPER_REDIS_URL": look.redis_url,
    }
    done = subprocess.run([COMMAND, "audit", "-o", "json"], env=settings, capture_output=True, text=True, check=False)

    assert (done.returncode, json.loads(done.stdout)["differences"]) == (0, []), done.stdout + done.stderr


def test_every_write_of_its_account_is_inside_its_namespace(plane: ControlPlane, look: Look, team: str) -> None:
    wait_until(lambda: plane.exists(STATUSES), "statuses were written")
    lines = (plane.folder / AUDIT_LOG).read_text().splitlines()
    writes = [
        (event["verb"], event["objectRef"].get("namespace"), event["objectRef"]["resource"])
        for event in map(json.loads, lines)
        if event["user"]["username"] == ACCOUNT
        and event["verb"] in WRITES
        and event.get("objectRef", {}).get("resource") not in QUESTIONS
    ]

    assert {resource for *_, resource in writes} == {"leases", "secrets", "configmaps"}
    assert {namespace for _, namespace, _ in writes} == {"fairgpu-system"}
    assert _pods(plane, team) == look.pods_before


def test_taking_it_away_leaves_nothing_of_it_and_every_pod_as_it_was(
    plane: ControlPlane, look: Look, team: str
) -> None:
    plane.admin.kubectl("delete", "-k", str(LOOK), "--wait=false")

    def ended() -> bool:
        if not plane.exists("/api/v1/namespaces/fairgpu-system"):
            return True
        # No kubelet confirms that pods have ended, and the controller that frees claims of volumes does not run here.
        plane.remove_pods("fairgpu-system")
        for claim in plane.admin.api.get(CLAIMS)["items"]:
            plane.admin.api.patch(f"{CLAIMS}/{claim['metadata']['name']}", {"metadata": {"finalizers": None}})
        return False

    wait_until(ended, "the namespace is gone")
    kinds = "crds,clusterroles,clusterrolebindings,priorityclasses,validatingadmissionpolicies"
    left = plane.admin.kubectl("get", kinds, "-o", "name").stdout.splitlines()
    assert [name for name in left if "/fairgpu" in name or "fairgpu.io" in name] == []
    assert _pods(plane, team) == look.pods_before


def _create_node(
    plane: ControlPlane, name: str, capacity: dict[str, str], labels: dict[str, str], annotations: dict[str, str]
) -> None:
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}, "annotations": annotations}
    plane.admin.api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    offered = {"cpu": "64", "memory": "512Gi", "pods": "110", **capacity}
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": now()}]
    status = {"capacity": offered, "allocatable": offered, "conditions": ready}
    plane.admin.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})


def _pod(name: str, node: str, limits: dict[str, str], annotations: dict[str, str]) -> Manifest:
    container = {"name": "main", "image": "example.org/train:1", "resources": {"limits": limits}}
    spec = {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": node}}
    metadata = {"name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _pods(plane: ControlPlane, namespace: str) -> list[Any]:
    found: list[Any] = plane.admin.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return found


def _let_view(plane: ControlPlane) -> None:
    """Gives an account the right to look at all budgets and to place orders."""
    for role in ("fairgpu-view", "fairgpu-budget-admin"):
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"looks-{role}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "kube-system"}],
        }
        plane.admin.api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)


def _spent(look: Look, name: str) -> Any:
    """The figures of a budget once it has spent anything and all pods are metered."""
    found = next((one for one in look.client.get("/v1/budgets")["budgets"] if one["name"] == name), None)
    there = found and float(found["spent"]["microGPUSeconds"]) > 0 and found["rate"]["gpus"] >= 1
    return found if there else None


def _stored_since(look: Look) -> int | None:
    with redis.Redis.from_url(look.redis_url) as client:
        return reading.since(client)
