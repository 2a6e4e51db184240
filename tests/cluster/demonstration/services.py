"""A control plane with all of FairGPU on it, for as long as the demonstration lasts."""

from __future__ import annotations

import os
import subprocess
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from demo.children import Children
from demo.folder import HELD_NAMESPACE, NAMESPACE
from demo.gpus import Gpus
from demo.redis_server import start_redis
from demo.screen import Screen
from demo.steps import COMMAND_LIMIT_SECONDS, python_module
from fairgpu import names
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.processes import Process
from tests.cluster.control_plane.stand_ins import create_node
from tests.cluster.demonstration.environment import FINANCE, ClusterEnvironment
from tests.cluster.demonstration.nodes import PlayedNode
from tests.cluster.installation import WEBHOOK_CONFIGURATIONS, apply, install, render, wait_for_webhooks
from tests.cluster.services.certificates import certificates, mounted_certificate
from tests.cluster.services.replicas import (
    AT_ONCE,
    Ports,
    certificate_folder,
    environment,
    service,
    timekeeper_jobs,
    webhook_replica,
)
from tests.node.demonstrated import RealNode, demonstrated_node
from tests.node.journey.name_server import TIMEKEEPER
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

READY_LIMIT_SECONDS = 90.0
NODE = "gpu-node-1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def build(screen: Screen, stack: ExitStack, folder: Path, *, real_node: bool) -> ClusterEnvironment:
    """Starts everything; what is started ends with the stack."""
    screen.section("A Kubernetes control plane, and FairGPU on it")
    screen.say("The first time, its programs are compiled: some ten minutes. Then they are kept in the user's cache.")
    machine = stack.enter_context(demonstrated_node(folder / "node")) if real_node else None
    plane = machine.plane if machine else stack.enter_context(running_control_plane(control_plane_binaries(os.environ)))
    screen.done("etcd, kube-apiserver, kube-controller-manager and kube-scheduler run")
    if machine is None:
        install(plane)
    screen.done("namespace, accounts, roles, CRDs, policies and priority classes are applied, as deploy/ ships them")
    if machine is not None:
        screen.done("kubelet, containerd and the node agent run, and the node offers four simulated GPUs")
    (folder / "logs").mkdir()
    children = stack.enter_context(Children(folder / "logs"))
    redis_url = start_redis(children, folder)
    timekeeper, serve_metrics, jobs_metrics, webhook, webhook_metrics = free_ports(5)
    host = "0.0.0.0" if machine else "127.0.0.1"  # noqa: S104 - with a node, in a network namespace of its own
    stack.enter_context(_timekeeper(plane, host, Ports(timekeeper, serve_metrics), redis_url))
    stack.enter_context(timekeeper_jobs(plane, "timekeeper-jobs", jobs_metrics, redis_url))
    apply(plane, [item for item in render(plane, webhook_port=webhook) if item["kind"] in WEBHOOK_CONFIGURATIONS])
    stack.enter_context(certificates(plane))
    stack.enter_context(mounted_certificate(plane, certificate_folder(plane)))
    url = {"FAIRGPU_WEBHOOK_SIDECAR_TIMEKEEPER_URL": f"https://{TIMEKEEPER}:{timekeeper}"} if machine else {}
    stack.enter_context(webhook_replica(plane, "webhook", Ports(webhook, webhook_metrics), timekeeper, **url))
    _team(plane)
    ada = _admin_of_both(plane)
    node = RealNode(machine, children) if machine else _played_node(plane, children, stack, folder)
    wait_until(lambda: _ca_is_there(plane), "the timekeeper has published its CA", READY_LIMIT_SECONDS)
    wait_for_webhooks(plane)
    screen.done("Redis, timekeeper and webhook run, each under its own account")
    return ClusterEnvironment(
        screen=screen,
        children=children,
        plane=plane,
        ada=ada,
        money=plane.service_account(names.SYSTEM_NAMESPACE, FINANCE),
        node=node,
        timekeeper=timekeeper,
        folder=folder,
        stack=stack,
    )


def _played_node(plane: ControlPlane, children: Children, stack: ExitStack, folder: Path) -> PlayedNode:
    archive = python_module("sidecar.archive", str(folder / "sidecar.pyz"))
    subprocess.run(archive, check=True, timeout=COMMAND_LIMIT_SECONDS)
    gpus = Gpus()
    gpus.start()
    stack.callback(gpus.stop)
    return PlayedNode(plane, create_node(plane, NODE, gpus=4), gpus, children, folder)


def _timekeeper(plane: ControlPlane, host: str, ports: Ports, redis_url: str) -> AbstractContextManager[Process]:
    settings = {
        "FAIRGPU_TIMEKEEPER_REDIS_URL": redis_url,
        "FAIRGPU_TIMEKEEPER_SERVE_HOST": host,
        "FAIRGPU_TIMEKEEPER_SERVE_PORT": str(ports.https),
        "FAIRGPU_TIMEKEEPER_SERVE_METRICS_PORT": str(ports.metrics),
        "FAIRGPU_TIMEKEEPER_SERVE_WORKERS": "1",
        "FAIRGPU_TIMEKEEPER_SERVE_DRAIN_SECONDS": "0",
        "FAIRGPU_TIMEKEEPER_SERVE_CERTIFICATE_NAMES": "[localhost]",
        "FAIRGPU_TIMEKEEPER_SERVE_REPORT_INTERVAL_SECONDS": "1",
    }
    account = environment(plane, "fairgpu-timekeeper")
    return service(plane, "timekeeper", ["timekeeper", "serve"], {**account, **settings}, AT_ONCE)


def _team(plane: ControlPlane) -> None:
    """The teams' namespaces, and an account that may hand out money."""
    api = plane.admin.api
    for name in (NAMESPACE, HELD_NAMESPACE):
        api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": FINANCE}}
    api.create(f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/serviceaccounts", account)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": FINANCE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "fairgpu-budget-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": FINANCE, "namespace": names.SYSTEM_NAMESPACE}],
    }
    api.create(f"{RBAC}/clusterrolebindings", binding)
    accounts = [f"/api/v1/namespaces/{name}/serviceaccounts/default" for name in (NAMESPACE, HELD_NAMESPACE)]
    wait_until(lambda: all(map(plane.exists, accounts)), "the teams' accounts", READY_LIMIT_SECONDS)


def _admin_of_both(plane: ControlPlane) -> Identity:
    """Ada, who may do everything inside both teams' namespaces and nothing outside."""
    ada = plane.user("ada")
    for namespace in (NAMESPACE, HELD_NAMESPACE):
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "namespace-admin"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": ada.name}],
        }
        plane.admin.api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", binding)
    known = partial(_may_create_pods, ada, (NAMESPACE, HELD_NAMESPACE))
    wait_until(known, "the API server knows Ada", READY_LIMIT_SECONDS)
    return ada


def _may_create_pods(who: Identity, namespaces: tuple[str, ...]) -> bool:
    return all(who.may("create", "pods", namespace=namespace) for namespace in namespaces)


def _ca_is_there(plane: ControlPlane) -> bool:
    path = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/configmaps/{names.TIMEKEEPER_SERVICE}-ca"
    return plane.exists(path) and bool((plane.admin.api.get(path).get("data") or {}).get("ca.crt"))
