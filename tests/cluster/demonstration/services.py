"""A control plane whose GPUs NVIDIA's plugin shares, and FairGPU's three modes on it, one after the other."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from demo.children import Children
from demo.folder import HELD_NAMESPACE, NAMESPACE
from demo.gpus import Gpus
from demo.redis_server import start_redis
from demo.screen import Screen
from demo.steps import COMMAND_LIMIT_SECONDS, python_module
from fairgpu import names
from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, create_node
from tests.cluster.demonstration.environment import FINANCE, ClusterEnvironment, manifest_path
from tests.cluster.demonstration.nodes import PlayedNode
from tests.cluster.installation import apply, render, served
from tests.cluster.look import devices
from tests.cluster.services.certificates import certificates, mounted_certificate
from tests.cluster.services.replicas import (
    AT_ONCE,
    Ports,
    certificate_folder,
    environment,
    is_listening,
    service,
    timekeeper_jobs,
    webhook_replica,
)
from tests.node.demonstrated import RealNode, demonstrated_node
from tests.node.journey.name_server import TIMEKEEPER
from tests.node.machine import lay_out
from tests.support.other_stacks import GPU, STACKS
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

READY_LIMIT_SECONDS = 120.0
OVERLAYS = Path(__file__).parents[3] / "deploy" / "overlays"
NODE = "gpu-node-1"
SIDECAR = "fairgpu.invalid/sidecar:0.1.0"
"""The image that the overlay `account` names."""
RBAC = "/apis/rbac.authorization.k8s.io/v1"
VISION = "vision"
"""A team that stays with NVIDIA's plugin; its budget has the same name."""
OF_PLUGIN = {stack.name: stack for stack in STACKS if stack.name in {"nvidia-whole", "nvidia-sliced"}}
"""Nodes as NVIDIA's device plugin and GPU feature discovery describe them."""
RUNNING = {"train": ("nvidia-whole", 2), "notebook": ("nvidia-sliced", 1)}
"""The team's pods that run before FairGPU is there: node, and how many `nvidia.com/gpu`."""


def build(screen: Screen, stack: ExitStack, folder: Path, *, real_node: bool) -> ClusterEnvironment:
    """Starts a control plane whose GPUs NVIDIA's plugin shares between running pods; it ends with the stack."""
    screen.section("A cluster whose GPUs NVIDIA's device plugin shares; pods run")
    screen.say("The first time, its programs are compiled: some ten minutes. Then they are kept in the user's cache.")
    if real_node:
        (folder / "node").mkdir()
        lay_out(folder / "node")
    plane = stack.enter_context(running_control_plane(control_plane_binaries(os.environ)))
    screen.done("etcd, kube-apiserver, kube-controller-manager and kube-scheduler run")
    (folder / "logs").mkdir()
    children = stack.enter_context(Children(folder / "logs"))
    return ClusterEnvironment(
        screen=screen,
        children=children,
        plane=plane,
        ada=_admin_of_teams(plane),
        other_nodes={name: _other_node(plane, name) for name in OF_PLUGIN},
        ports=Ports(*free_ports(2)),
        redis_url=start_redis(children, folder),
        folder=folder,
        stack=stack,
        real_node=real_node,
    )


def plugin_pod(name: str, gpus: int, node: str = "") -> dict[str, Any]:
    """A pod that asks as NVIDIA's plugin wants it, for the cluster's own scheduler."""
    container = {"name": "main", "image": "registry.example/train:1", "resources": {"limits": {GPU: str(gpus)}}}
    selected = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    spec = {"containers": [container], "restartPolicy": "Never", **selected}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def install_look(at: ClusterEnvironment) -> None:
    """Runs the timekeeper of the mode look, whose overlay has been applied, until the next mode is installed."""
    at.stack.enter_context(at.looking)
    _finance(at.plane)
    _start_timekeeper(at, at.looking, "look")
    wait_until(lambda: _ca_is_there(at.plane), "the timekeeper has published its CA", READY_LIMIT_SECONDS)
    at.meet_timekeeper()


def install_account(at: ClusterEnvironment, webhook: int) -> None:
    """Runs timekeeper and webhook of the mode account, whose overlay has been applied, until the end."""
    at.looking.close()
    plane, stack = at.plane, at.stack
    for resource in ("gpubudgets", "gpugrants", "gpucorrections"):
        path = f"/apis/{names.BUDGET_API}/{resource}"
        wait_until(partial(served, plane, path), f"{resource} are served", READY_LIMIT_SECONDS)
    wait_until(lambda: _described(plane), "kubectl can look up their fields", READY_LIMIT_SECONDS)
    _start_timekeeper(at, stack, "account")
    stack.enter_context(certificates(plane))
    stack.enter_context(mounted_certificate(plane, certificate_folder(plane)))
    (metrics,) = free_ports(1)
    settings = {"FAIRGPU_WEBHOOK_MODE": "account", "FAIRGPU_WEBHOOK_SIDECAR_IMAGE": SIDECAR}
    if at.real_node:
        settings["FAIRGPU_WEBHOOK_SIDECAR_TIMEKEEPER_URL"] = f"https://{TIMEKEEPER}:{at.ports.https}"
    stack.enter_context(webhook_replica(plane, "webhook", Ports(webhook, metrics), at.ports.https, **settings))
    asked = partial(_admitted, at.ada, VISION, plugin_pod("probe", 1))
    wait_until(lambda: "labels" in asked(), "GPU pods are sent to the webhook", READY_LIMIT_SECONDS)


def install_share(at: ClusterEnvironment) -> None:
    """Adds FairGPU's scheduler and a node of its own; returns once pods of the teams that moved are rewritten."""
    added = ("fairgpu-scheduler", "fairgpu-kube-scheduler")
    apply(at.plane, [item for item in render(at.plane) if item["metadata"]["name"].startswith(added)])
    if at.real_node:
        machine = at.stack.enter_context(demonstrated_node(at.folder / "node", at.plane, SIDECAR))
        at.node = RealNode(machine, at.children)
        at.screen.done("kubelet, containerd and the node agent run, and their node offers four simulated GPUs")
    else:
        at.node = _played_node(at)
    pod = yaml.safe_load(manifest_path("1-native.yaml").read_text())
    asked = partial(_admitted, at.ada, NAMESPACE, pod)
    wait_until(lambda: asked().get("annotations", {}).get(names.SOURCE_DIALECT), "pods are rewritten")


def overlay_of(at: ClusterEnvironment, name: str, more: Mapping[str, Any], files: Mapping[str, str]) -> Path:
    """Writes an admin's own overlay over one of deploy/overlays; returns its folder."""
    folder = at.folder / "deploy" / "overlays" / f"my-{name}"
    folder.mkdir(parents=True)
    resources = [os.path.relpath(OVERLAYS / name, folder.resolve())]
    own = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources, **more}
    for file, text in {**files, "kustomization.yaml": yaml.safe_dump(own)}.items():
        (folder / file).write_text(text)
    return folder


def reached_on_this_machine(webhook: int) -> dict[str, Any]:
    """The patches of an overlay for a control plane without a network of services."""
    external = [{"op": "replace", "path": "/spec", "value": {"type": "ExternalName", "externalName": "localhost"}}]
    path = "/webhooks/{}/clientConfig/service/port"
    ports = [{"op": "replace", "path": path.format(n), "value": webhook} for n in range(4)]
    return {
        "patches": [
            {"target": {"kind": "Service", "namespace": names.SYSTEM_NAMESPACE}, "patch": json.dumps(external)},
            {"target": {"kind": "MutatingWebhookConfiguration"}, "patch": json.dumps(ports)},
            {"target": {"kind": "ValidatingWebhookConfiguration"}, "patch": json.dumps(ports)},
        ]
    }


def _other_node(plane: ControlPlane, name: str) -> StandInNode:
    stack = OF_PLUGIN[name]
    devices.create_node(plane, name, stack.capacity, stack.labels, stack.annotations)
    return StandInNode(name, plane.node(name))


def _played_node(at: ClusterEnvironment) -> PlayedNode:
    archive = python_module("sidecar.archive", str(at.folder / "sidecar.pyz"))
    subprocess.run(archive, check=True, timeout=COMMAND_LIMIT_SECONDS)
    gpus = Gpus()
    gpus.start()
    at.stack.callback(gpus.stop)
    return PlayedNode(at.plane, create_node(at.plane, NODE, gpus=4), gpus, at.children, at.folder)


def _start_timekeeper(at: ClusterEnvironment, stack: ExitStack, mode: str) -> None:
    host = "0.0.0.0" if at.real_node else "127.0.0.1"  # noqa: S104 - with a node, in a network namespace of its own
    settings = {
        "FAIRGPU_TIMEKEEPER_MODE": mode,
        "FAIRGPU_TIMEKEEPER_REDIS_URL": at.redis_url,
        "FAIRGPU_TIMEKEEPER_SERVE_HOST": host,
        "FAIRGPU_TIMEKEEPER_SERVE_PORT": str(at.ports.https),
        "FAIRGPU_TIMEKEEPER_SERVE_METRICS_PORT": str(at.ports.metrics),
        "FAIRGPU_TIMEKEEPER_SERVE_WORKERS": "1",
        "FAIRGPU_TIMEKEEPER_SERVE_DRAIN_SECONDS": "0",
        "FAIRGPU_TIMEKEEPER_SERVE_CERTIFICATE_NAMES": "[localhost]",
        "FAIRGPU_TIMEKEEPER_SERVE_REPORT_INTERVAL_SECONDS": "1",
    }
    account = environment(at.plane, "fairgpu-timekeeper")
    (metrics,) = free_ports(1)
    stack.enter_context(service(at.plane, mode, ["timekeeper", "serve"], {**account, **settings}, AT_ONCE))
    wait_until(lambda: is_listening(at.ports.https), f"the timekeeper of the mode {mode} serves")
    jobs = timekeeper_jobs(at.plane, f"{mode}-jobs", metrics, at.redis_url, FAIRGPU_TIMEKEEPER_MODE=mode)
    stack.enter_context(jobs)


def _finance(plane: ControlPlane) -> None:
    """An account that may hand out money."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": FINANCE}}
    plane.admin.api.create(f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/serviceaccounts", account)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": FINANCE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "fairgpu-budget-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": FINANCE, "namespace": names.SYSTEM_NAMESPACE}],
    }
    plane.admin.api.create(f"{RBAC}/clusterrolebindings", binding)


def _admin_of_teams(plane: ControlPlane) -> Identity:
    """Ada, who may do everything inside the teams' namespaces and nothing outside."""
    ada, teams = plane.user("ada"), (VISION, NAMESPACE, HELD_NAMESPACE)
    for namespace in teams:
        api, kind = plane.admin.api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        api.create("/api/v1/namespaces", kind)
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "namespace-admin"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": ada.name}],
        }
        api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", binding)
    wait_until(partial(_may_create_pods, ada, teams), "the API server knows Ada", READY_LIMIT_SECONDS)
    accounts = [f"/api/v1/namespaces/{name}/serviceaccounts/default" for name in teams]
    wait_until(lambda: all(map(plane.exists, accounts)), "the teams' accounts", READY_LIMIT_SECONDS)
    return ada


def _may_create_pods(who: Identity, namespaces: tuple[str, ...]) -> bool:
    return all(who.may("create", "pods", namespace=namespace) for namespace in namespaces)


def _described(plane: ControlPlane) -> bool:
    """Whether the API server describes FairGPU's objects; until then kubectl asks for all there are, at length."""
    return f"apis/{names.BUDGET_API}" in plane.admin.api.get("/openapi/v3")["paths"]


def _admitted(who: Identity, namespace: str, pod: dict[str, Any]) -> dict[str, Any]:
    """The metadata that a pod gets by admission; empty while the API server does not trust the webhook."""
    try:
        stored = who.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, query={"dryRun": "All"})
    except ApiError as error:
        if error.status in {403, 422, 500}:
            return {}
        raise
    found: dict[str, Any] = stored["metadata"]
    return found


def _ca_is_there(plane: ControlPlane) -> bool:
    path = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/configmaps/{names.TIMEKEEPER_SERVICE}-ca"
    return plane.exists(path) and bool((plane.admin.api.get(path).get("data") or {}).get("ca.crt"))
