"""GPU pods from admission to a node and its devices, by the real kube-scheduler and the extender."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fairgpu import inventory
from fairgpu.names import INVENTORY
from fairgpu.states import BudgetState
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, bind, create_node, forged_allocation, inventory_of, now
from tests.cluster.journey.manifests import pod
from tests.cluster.pods import cost, plain_pod, spent_in
from tests.cluster.services.everything import H100_PRICE, Services
from tests.cluster.services.knowledge import wait_until_known
from tests.cluster.services.scheduler import running_scheduler
from tests.support.ledger.periods import month_midway
from tests.support.processes import FAIRGPU
from tests.support.waiting import wait_until
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import parse_instant


@pytest.fixture(scope="module", autouse=True)
def scheduler(control_plane: ControlPlane, services: Services) -> Iterator[None]:
    with running_scheduler(control_plane, services.timekeeper):
        yield


def on(node: StandInNode, name: str, limits: dict[str, Any], **annotations: str) -> dict[str, Any]:
    """A pod for one node: other tests have left theirs."""
    manifest = pod(name, limits)
    manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node.name}
    manifest["metadata"]["annotations"] = {f"fairgpu.io/{key}": value for key, value in annotations.items()}
    return manifest


def test_a_pod_gets_a_node_and_devices_in_one_binding(user: Identity, namespace: str, node: StandInNode) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    limits = {"fairgpu.io/gpu": 2, "fairgpu.io/gpu-core": 60, "fairgpu.io/gpu-memory": 8192}
    user.api.create(pods, on(node, "trains", limits))

    bound = wait_until(lambda: _bound(user, f"{pods}/trains"), "the pod is bound")

    allocation = json.loads(bound["metadata"]["annotations"]["fairgpu.io/allocation"])
    [container] = allocation["containers"]
    share = {"model": "A100", "totalMiB": 81920, "core": 30, "memoryMiB": 4096}
    assert (bound["spec"]["nodeName"], allocation["node"], container["name"]) == (node.name, node.name, "main")
    assert [device | {"uuid": ""} for device in container["devices"]] == [{"uuid": "", **share}] * 2
    assert len({device["uuid"] for device in container["devices"]}) == 2


def test_a_pod_that_spreads_takes_the_emptier_of_two_nodes(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    """Each has a pod already: kube-scheduler has heard by then that it takes some."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    fuller, emptier = (create_node(control_plane, f"{name}-{namespace}", gpus=1) for name in ("fuller", "emptier"))
    for node, name, core in ((fuller, "first", 30), (emptier, "second", 10)):
        user.api.create(pods, on(node, name, {"fairgpu.io/gpu-core": core}))
        wait_until(lambda name=name: _bound(user, f"{pods}/{name}"), f"{name} is bound")
    hosts = {"key": "kubernetes.io/hostname", "operator": "In", "values": [fuller.name, emptier.name]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [hosts]}]}
    manifest = pod("spreads", {"fairgpu.io/gpu-core": 30}, {"fairgpu.io/placement": "spread"})
    manifest["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    user.api.create(pods, manifest)
    bound = wait_until(lambda: _bound(user, f"{pods}/spreads"), "the pod is bound")
    assert bound["spec"]["nodeName"] == emptier.name


def test_pods_that_come_at_once_never_hold_more_of_a_gpu_than_there_is(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    node = create_node(control_plane, f"small-{namespace}", gpus=2)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for number in range(6):
        user.api.create(pods, on(node, f"p{number}", {"fairgpu.io/gpu-core": 40}))

    def settled() -> list[dict[str, Any]] | None:
        items = user.api.get(pods)["items"]
        done = [item for item in items if item["spec"].get("nodeName") or "gpu-" in _unschedulable(item)]
        return items if len(done) == 6 else None

    items = wait_until(settled, "each pod is bound or says why not")
    held: dict[str, int] = {}
    for item in items:
        if item["spec"].get("nodeName"):
            allocation = json.loads(item["metadata"]["annotations"]["fairgpu.io/allocation"])
            [device] = allocation["containers"][0]["devices"]
            held[device["uuid"]] = held.get(device["uuid"], 0) + device["core"]
    assert held == {f"GPU-{node.name}-{at}": 80 for at in range(2)}
    messages = [_unschedulable(item) for item in items if not item["spec"].get("nodeName")]
    assert len(messages) == 2
    assert all("gpu-memory: 40 percent on one GPU asked, at most 20 free" in message for message in messages)


def test_a_pod_that_no_node_can_take_is_shown_what_is_asked_and_what_there_is(
    user: Identity, namespace: str, node: StandInNode
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    user.api.create(pods, on(node, "picky", {"fairgpu.io/gpu-core": 10}, **{"use-gpu-model": "H100"}))
    text = "gpu-model: 1 GPU of H100 asked, at most 0 there"
    wait_until(lambda: text in waiting_message(user, f"{pods}/picky"), "the pod says why it waits")


def test_devices_of_a_pod_that_is_deleted_go_to_the_next(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    node = create_node(control_plane, f"one-{namespace}", gpus=1)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    user.api.create(pods, on(node, "first", {"fairgpu.io/gpu-core": 100}))
    wait_until(lambda: _bound(user, f"{pods}/first"), "the first pod is bound")
    user.api.create(pods, on(node, "second", {"fairgpu.io/gpu-core": 100}))
    wait_until(lambda: "gpu-" in waiting_message(user, f"{pods}/second"), "the second waits")
    user.api.delete(f"{pods}/first")
    node.remove_pod(namespace, "first")
    wait_until(lambda: _bound(user, f"{pods}/second"), "the second is bound")


def test_a_pod_that_waits_is_placed_when_a_node_offers_what_it_asks_for(
    user: Identity, namespace: str, node: StandInNode
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    user.api.create(pods, on(node, "picky", {"fairgpu.io/gpu-core": 10}, **{"use-gpu-model": "H100"}))
    wait_until(lambda: "gpu-model:" in waiting_message(user, f"{pods}/picky"), "the pod says why it waits")
    text = inventory.encode(inventory_of(node.name, 1, 81920, "NVIDIA H100 80GB HBM3"))
    node.kubelet.api.patch(f"/api/v1/nodes/{node.name}", {"metadata": {"annotations": {INVENTORY: text}}})
    wait_until(lambda: _bound(user, f"{pods}/picky"), "the pod is bound")


def test_a_pod_of_a_held_budget_is_not_placed_until_the_budget_opens(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    node = create_node(control_plane, f"one-{namespace}", gpus=1)
    pods, budgets = f"/api/v1/namespaces/{namespace}/pods", "/apis/fairgpu.io/v1alpha1/gpubudgets"
    spec = {"namespaces": [namespace], "period": month_midway(), "onExhausted": "hold"}
    budget = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": f"budget-{namespace}"}}
    admin = control_plane.admin.api
    admin.create(budgets, budget | {"spec": spec | {"allowance": {"gpuHours": "100"}}})
    user.api.create(pods, on(node, "first", {"fairgpu.io/gpu-core": 100}))
    wait_until(lambda: _bound(user, f"{pods}/first"), "the first pod is bound")
    user.api.create(pods, on(node, "second", {"fairgpu.io/gpu-core": 100}))
    wait_until(lambda: "gpu-" in waiting_message(user, f"{pods}/second"), "the second waits")

    admin.patch(f"{budgets}/budget-{namespace}", {"spec": {"allowance": {"gpuHours": "0"}}})
    wait_until(lambda: "budget-" in _placeable(user.api.get(f"{pods}/second")), "the second names the budget")
    user.api.delete(f"{pods}/first")
    node.remove_pod(namespace, "first")
    text = f"budget: the GPU budget budget-{namespace} is spent and holds its pods until it has money again"
    wait_until(lambda: text in waiting_message(user, f"{pods}/second"), "the budget keeps the second")

    admin.patch(f"{budgets}/budget-{namespace}", {"spec": {"allowance": {"gpuHours": "100"}}})
    wait_until(lambda: _bound(user, f"{pods}/second"), "the second is bound")
    admin.delete(f"{budgets}/budget-{namespace}")


def test_a_pod_of_a_held_budget_goes_the_whole_way_once_the_budget_has_money(
    control_plane: ControlPlane, services: Services, user: Identity, namespace: str
) -> None:
    model, share = "NVIDIA H100 80GB HBM3", {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 50, "nvidia.com/gpumem": 20480}
    node = create_node(control_plane, f"h100-{namespace}", gpus=2, model=model)
    pods, budgets = f"/api/v1/namespaces/{namespace}/pods", "/apis/fairgpu.io/v1alpha1/gpubudgets"
    spec = {"namespaces": [namespace], "period": month_midway(), "onExhausted": "hold", "allowance": {"gpuHours": "0"}}
    budget = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": f"budget-{namespace}"}}
    admin, manifest = control_plane.admin.api, on(node, "trains", share)
    admin.create(budgets, budget | {"spec": spec})
    wait_until_known(services, namespace, BudgetState.HELD)
    assert _gates(user.api.create(pods, manifest)) == ["fairgpu.io/budget"]

    admin.patch(f"{budgets}/budget-{namespace}", {"spec": {"allowance": {"gpuHours": "100"}}})
    bound = wait_until(lambda: _bound(user, f"{pods}/trains"), "the pod is placed")
    [container] = json.loads(bound["metadata"]["annotations"]["fairgpu.io/allocation"])["containers"]
    [device] = container["devices"]
    assert device["uuid"] in {f"GPU-{node.name}-{at}" for at in range(2)}
    assert (device["model"], device["core"], device["memoryMiB"]) == (model, 50, 20480)

    node.set_pod_phase(namespace, "trains", "Running")
    ended = node.set_pod_phase(namespace, "trains", "Succeeded")
    due = cost(ended, int(H100_PRICE * 500_000))
    wait_until(
        lambda: spent_in(admin.get(f"{budgets}/budget-{namespace}").get("status", {})) == due,
        "the budget pays for half an H100",
    )
    admin.delete(f"{budgets}/budget-{namespace}")


def test_pods_without_a_gpu_keep_no_gpu_from_others_whatever_their_author_writes(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    node = create_node(control_plane, f"forged-{namespace}", gpus=1)
    pods, core = f"/api/v1/namespaces/{namespace}/pods", f"/api/v1/namespaces/{namespace}"
    huge, forged = plain_pod("huge"), plain_pod("forged")
    huge["spec"]["nodeName"], forged["spec"]["nodeName"] = f"no-{node.name}", node.name
    huge["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "9E"}}
    for manifest in (huge, forged):
        user.api.create(pods, manifest)
    whole = {"fairgpu.io/gpu": 1, "fairgpu.io/gpu-core": 100, "fairgpu.io/gpu-memory-percentage": 100}
    allocation = json.dumps(forged_allocation(pod("main", whole), node.name))
    user.api.patch(f"{pods}/forged", {"metadata": {"annotations": {"fairgpu.io/allocation": allocation}}})
    ignored = {"fieldSelector": "reason=AllocationIgnored,involvedObject.name=forged"}
    [event] = wait_until(lambda: user.api.get(f"{core}/events", ignored)["items"], "the pod's event says so")
    assert "has no label fairgpu.io/pod: gpu" in event["message"]

    user.api.create(pods, on(node, "trains", whole))
    wait_until(lambda: _bound(user, f"{pods}/trains"), "the GPU is given to the pod that asks for it")


def test_a_pod_that_is_bound_past_the_scheduler_to_a_gpu_in_use_has_an_event_that_says_so(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    node, whole = create_node(control_plane, f"taken-{namespace}", gpus=1), {"fairgpu.io/gpu-core": 100}
    pods, core = f"/api/v1/namespaces/{namespace}/pods", f"/api/v1/namespaces/{namespace}"
    user.api.create(pods, on(node, "older", whole))
    older = wait_until(lambda: _bound(user, f"{pods}/older"), "the first pod has the GPU")
    younger = user.api.create(pods, on(node, "younger", whole))
    [since] = [one["lastTransitionTime"] for one in older["status"]["conditions"] if one["type"] == "PodScheduled"]
    wait_until(lambda: now() > since, "the next second begins: the API server stamps no finer")
    account = control_plane.service_account("fairgpu-system", "fairgpu-scheduler")
    bind(account, younger, node.name, forged_allocation(younger, node.name))

    overlap = {"fieldSelector": "reason=AllocationsOverlap"}
    [event] = wait_until(lambda: user.api.get(f"{core}/events", overlap)["items"], "an event says so")
    assert event["involvedObject"]["name"] == "younger"
    assert "200 of 100 percent of its time" in event["message"]


def test_a_cordoned_node_gets_no_pod_until_it_is_uncordoned(
    control_plane: ControlPlane, user: Identity, namespace: str, node: StandInNode
) -> None:
    admin, pods = control_plane.admin.api, f"/api/v1/namespaces/{namespace}/pods"
    admin.patch(f"/api/v1/nodes/{node.name}", {"spec": {"unschedulable": True}})
    wait_until(lambda: _is_cordoned(control_plane, node), "the node is cordoned")
    user.api.create(pods, on(node, "waits", {"fairgpu.io/gpu-core": 10}))
    wait_until(lambda: "unschedulable" in waiting_message(user, f"{pods}/waits"), "kube-scheduler leaves the node out")
    admin.patch(f"/api/v1/nodes/{node.name}", {"spec": {"unschedulable": None}})
    wait_until(lambda: _bound(user, f"{pods}/waits"), "the pod is bound")


def test_a_pod_that_the_kubelet_fails_leaves_its_devices_to_the_next_and_costs_only_until_then(
    control_plane: ControlPlane, user: Identity, namespace: str, make_namespace: Callable[..., str]
) -> None:
    node, admin = create_node(control_plane, f"full-{namespace}", gpus=1), control_plane.admin.api
    pods, other = f"/api/v1/namespaces/{namespace}/pods", f"/api/v1/namespaces/{make_namespace()}/pods"
    budgets = "/apis/fairgpu.io/v1alpha1/gpubudgets"
    budget = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": f"budget-{namespace}"}}
    spec = {"namespaces": [namespace], "period": month_midway(), "allowance": {"gpuHours": "100"}}
    admin.create(budgets, budget | {"spec": spec})
    user.api.create(pods, on(node, "failed", {"fairgpu.io/gpu-core": 100}))
    bound = wait_until(lambda: _bound(user, f"{pods}/failed"), "the pod is bound")

    # As the kubelet writes it where default-scheduler's pods have taken the processor time in between.
    ready = {"type": "Ready", "status": "False", "reason": "PodFailed", "lastTransitionTime": now()}
    text = "Pod was rejected: Node didn't have enough resource: cpu, requested: 1000, used: 4000, capacity: 4000"
    status = {"phase": "Failed", "reason": "OutOfcpu", "message": text, "startTime": now(), "conditions": [ready]}
    merge = "application/strategic-merge-patch+json"
    node.kubelet.api.patch(f"{pods}/failed/status", {"status": status}, merge)
    admin.create(other, on(node, "next", {"fairgpu.io/gpu-core": 100}))
    wait_until(lambda: admin.get(f"{other}/next")["spec"].get("nodeName"), "the next pod has its GPU")

    [since] = [one["lastTransitionTime"] for one in bound["status"]["conditions"] if one["type"] == "PodScheduled"]
    due = 1_000_000 * (parse_instant(ready["lastTransitionTime"]) - parse_instant(since)) // SECOND
    user.api.delete(f"{pods}/failed")
    wait_until(lambda: not control_plane.exists(f"{pods}/failed"), "its session is settled")
    wait_until(
        lambda: spent_in(admin.get(f"{budgets}/budget-{namespace}").get("status", {})) == due, "it costs until then"
    )
    admin.delete(f"{budgets}/budget-{namespace}")


def test_people_see_what_is_held_and_why_a_pod_waits(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    node = create_node(control_plane, f"seen-{namespace}", gpus=1)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    user.api.create(pods, on(node, "holds", {"fairgpu.io/gpu-core": 60}))
    wait_until(lambda: _bound(user, f"{pods}/holds"), "the pod is bound")
    user.api.create(
        pods, on(node, "waits", {"fairgpu.io/gpu-core": 100, "fairgpu.io/gpu": 1}, **{"use-gpu-model": "B200"})
    )
    wait_until(lambda: waiting_message(user, f"{pods}/waits"), "the second waits")

    def asked(who: Identity, *words: str) -> str:
        done = subprocess.run(
            [*FAIRGPU, *words], env={"KUBECONFIG": str(who.kubeconfig)}, capture_output=True, text=True, check=True
        )
        return done.stdout

    admin = control_plane.admin
    [line] = [line for line in asked(admin, "top").splitlines() if line.startswith(node.name)]
    assert line.split()[1:] == ["A100", "1", "-", "0.60", "60", "60", "1"]
    assert f"{namespace}/holds" in asked(admin, "inspect", node.name, "-d")
    assert "gpu-model: 1 GPU of B200 asked, at most 0 there" in asked(admin, "why", "waits", "-n", namespace)
    assert f"placed on {node.name}" in asked(user, "why", "holds", "-n", namespace)
    said = asked(user, "why", "waits", "-n", namespace)
    assert "kube-scheduler says: " in said
    assert "this needs `list` of nodes and of pods in the whole cluster" in said


def _is_cordoned(plane: ControlPlane, node: StandInNode) -> bool:
    """Whether the node has the taint, which the node controller adds a moment after the mark."""
    return bool(plane.admin.api.get(f"/api/v1/nodes/{node.name}")["spec"].get("taints"))


def _gates(item: dict[str, Any]) -> list[str]:
    return [gate["name"] for gate in item["spec"].get("schedulingGates", [])]


def _placeable(item: dict[str, Any]) -> str:
    """The message of the condition that FairGPU sets."""
    conditions = item.get("status", {}).get("conditions", [])
    return next((one["message"] for one in conditions if one["type"] == "fairgpu.io/Placeable"), "")


def _bound(user: Identity, path: str) -> dict[str, Any] | None:
    item = user.api.get(path)
    return item if item["spec"].get("nodeName") else None


def waiting_message(user: Identity, path: str) -> str:
    """Why kube-scheduler says that a pod waits."""
    return _unschedulable(user.api.get(path))


def _unschedulable(item: dict[str, Any]) -> str:
    conditions = item.get("status", {}).get("conditions", [])
    return next(
        (one["message"] for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False"), ""
    )
