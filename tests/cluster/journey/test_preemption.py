"""kube-scheduler preempts GPU pods where an overlay lets it, and no pod without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, create_node
from tests.cluster.installation import Manifest, apply, named, render
from tests.cluster.journey.manifests import pod
from tests.cluster.services.everything import Services
from tests.cluster.services.scheduler import configuration_of, running_scheduler
from tests.support.waiting import wait_until

COMPONENT = Path(__file__).parents[3] / "deploy" / "preemption"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture(scope="module")
def overlay(control_plane: ControlPlane, services: Services) -> Iterator[list[Manifest]]:
    """The objects that the component adds and changes, on the API server until the file's last test."""
    assert services
    component = os.path.relpath(COMPONENT, control_plane.folder.resolve() / "overlay")
    base, manifests = render(control_plane), render(control_plane, extra={"components": [component]})
    added = [item for item in manifests if item["metadata"]["name"] == "fairgpu-preemption"]
    assert len(added) == 4
    _replace_class(control_plane, manifests)
    apply(control_plane, added)
    yield manifests
    control_plane.admin.kubectl("delete", "clusterrole,clusterrolebinding", "fairgpu-preemption")
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        control_plane.admin.kubectl("delete", kind, "fairgpu-preemption")
    _replace_class(control_plane, base)


@pytest.fixture(scope="module", autouse=True)
def scheduler(control_plane: ControlPlane, services: Services, overlay: list[Manifest]) -> Iterator[None]:
    containers = named(overlay, "Deployment", "fairgpu-scheduler")["spec"]["template"]["spec"]["containers"]
    (extender,) = [each for each in containers if each["name"] == "extender"]
    settings = {each["name"]: each["value"] for each in extender["env"] if "value" in each}
    maps = [item for item in overlay if item["kind"] == "ConfigMap"]
    with running_scheduler(control_plane, services.timekeeper, settings, configuration_of(maps)):
        yield


def test_a_pod_of_a_spent_budget_is_preempted_and_the_pod_without_a_gpu_beside_it_is_not(
    control_plane: ControlPlane, user: Identity, spent: Identity, spent_namespace: str, namespace: str
) -> None:
    node = create_node(control_plane, f"one-{namespace}", gpus=1)
    theirs, ours = f"/api/v1/namespaces/{spent_namespace}/pods", f"/api/v1/namespaces/{namespace}/pods"
    spent.api.create(theirs, on(node, "over"))
    wait_until(lambda: _node(spent, f"{theirs}/over"), "it is placed as long as no other pod waits")
    spent.api.create(theirs, on(node, "web", gpu=False, cpu=100))
    wait_until(lambda: _node(spent, f"{theirs}/web"), "a pod without a GPU runs beside it")

    within = user.api.create(ours, on(node, "within"))
    assert within["spec"]["preemptionPolicy"] == "PreemptLowerPriority"
    wait_until(lambda: "deletionTimestamp" in spent.api.get(f"{theirs}/over")["metadata"], "it is preempted")
    assert "fairgpu.io/reclaim-at" not in spent.api.get(f"{theirs}/over")["metadata"]["annotations"]
    node.remove_pod(spent_namespace, "over")
    wait_until(lambda: _node(user, f"{ours}/within") == node.name, "the other is placed on what it held")
    assert "deletionTimestamp" not in spent.api.get(f"{theirs}/web")["metadata"]


def test_no_pod_is_preempted_where_one_without_a_gpu_would_have_to_go_as_well(
    control_plane: ControlPlane, user: Identity, spent: Identity, spent_namespace: str, namespace: str
) -> None:
    node = create_node(control_plane, f"one-{namespace}", gpus=1)
    theirs, ours = f"/api/v1/namespaces/{spent_namespace}/pods", f"/api/v1/namespaces/{namespace}/pods"
    spent.api.create(theirs, on(node, "over"))
    spent.api.create(theirs, on(node, "web", gpu=False, cpu=100))
    for name in ("over", "web"):
        wait_until(lambda name=name: _node(spent, f"{theirs}/{name}"), f"{name} is placed")

    user.api.create(ours, on(node, "within", cpu=100))
    wait_until(lambda: "preemption" in _waits_for(user, f"{ours}/within"), "kube-scheduler has tried to preempt")
    for name in ("over", "web"):
        assert "deletionTimestamp" not in spent.api.get(f"{theirs}/{name}")["metadata"]


def test_the_policy_keeps_the_scheduler_from_deleting_a_pod_without_a_gpu(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    user.api.create(pods, pod("web", {"cpu": "1"}))
    account = control_plane.service_account("fairgpu-system", "fairgpu-scheduler")
    tried = ("delete", "pod", "web", "-n", namespace, "--dry-run=server")
    wait_until(
        lambda: "it preempts GPU pods alone" in account.kubectl(*tried, check=False).stderr, "the policy is in force"
    )


def on(node: StandInNode, name: str, *, gpu: bool = True, cpu: int = 1) -> dict[str, Any]:
    """A pod for one node."""
    manifest = pod(name, {"fairgpu.io/gpu-core": 100, "cpu": cpu} if gpu else {"cpu": cpu})
    manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node.name}
    return manifest


def _replace_class(plane: ControlPlane, manifests: list[Manifest]) -> None:
    """Makes a class anew: the API server changes no policy of one that exists."""
    wanted = named(manifests, "PriorityClass", "gpu-in-budget")
    plane.admin.api.delete(f"{CLASSES}/gpu-in-budget")
    apply(plane, [wanted])


def _node(user: Identity, path: str) -> str:
    return str(user.api.get(path)["spec"].get("nodeName") or "")


def _waits_for(user: Identity, path: str) -> str:
    conditions = user.api.get(path).get("status", {}).get("conditions") or []
    return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")
