"""The first sections: a cluster that NVIDIA's plugin shares is looked at, then accounted for, and then a team moves."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

from demo.admission import Json
from demo.children import wait_until
from demo.folder import HELD_NAMESPACE, NAMESPACE, gpu_hours
from demo.screen import UNIT
from demo.steps import STEP_LIMIT_SECONDS, exact, require
from fairgpu import names
from fairgpu.client import transport
from fairgpu.states import BudgetState
from tests.cluster.demonstration import services
from tests.cluster.demonstration.environment import ClusterEnvironment
from tests.cluster.demonstration.services import OF_PLUGIN, RUNNING, VISION, plugin_pod
from tests.support.ports import free_ports
from tests.support.processes import FAIRGPU

CRD = Path(__file__).parents[3] / "deploy" / "base" / "crds" / "gpubudgets.yaml"
PODS = f"/api/v1/namespaces/{VISION}/pods"
PODS_OF_PLUGIN = "custom-columns=POD:.metadata.name,NODE:.spec.nodeName,GPUS:.spec.containers[0].resources.limits"
RELEASED = f"{PODS_OF_PLUGIN},SCHEDULER:.spec.schedulerName,LABELS:.metadata.labels"
EVENTS = "custom-columns=REASON:.reason,POD:.involvedObject.name,WHY:.message"
ALLOWANCE_GPU_SECONDS = 45
GRANT_GPU_SECONDS = 180
WAITS = "finetune"
SPEC = {
    "namespaces": [VISION],
    "allowance": {"gpuHours": gpu_hours(ALLOWANCE_GPU_SECONDS)},
    "period": {"every": "month"},
    "onExhausted": "hold",
    "minRuntime": "10s",
}
"""The team's budget: a line of the ConfigMap of `look`, and then the spec of a GPUBudget of `account`."""


def run_pods(environment: ClusterEnvironment) -> None:
    """The team's pods run, placed by the cluster's own scheduler; nothing of FairGPU is there."""
    for name, (node, gpus) in RUNNING.items():
        environment.ada.api.create(PODS, plugin_pod(name, gpus, node))
    for name in RUNNING:
        _run(environment, name)
    columns = ("-L", "nvidia.com/gpu.product,nvidia.com/gpu.replicas")
    environment.kubectl(environment.plane.admin, "get", "nodes", *OF_PLUGIN, *columns)
    environment.kubectl(environment.ada, "-n", VISION, "get", "pods", "-o", PODS_OF_PLUGIN)
    environment.screen.done("the cluster's own scheduler has placed two pods by nvidia.com/gpu")


def look(environment: ClusterEnvironment) -> None:
    """The first bill of the pods that run, and nothing of them changes."""
    environment.screen.section("Look: the first bill, and no pod is touched")
    before, began = _pods(environment), time.monotonic()
    environment.asks("doctor")
    budgets = {
        "name": "fairgpu-budgets",
        "namespace": names.SYSTEM_NAMESPACE,
        "behavior": "replace",
        "files": [f"{VISION}={VISION}.yaml"],
    }
    files = {f"{VISION}.yaml": yaml.safe_dump(SPEC)}
    folder = services.overlay_of(environment, "look", {"configMapGenerator": [budgets]}, files)
    applied = _apply(environment, "look", str(folder))
    kinds = ("customresourcedefinition", "webhook", "admissionpolic", "priorityclass", "daemonset")
    require(not [line for line in applied if line.startswith(kinds)], "look brought more than it may")
    services.install_look(environment)
    wait_until("the first bill", lambda: _spent(environment) > 0, environment.children, STEP_LIMIT_SECONDS)
    seconds = time.monotonic() - began
    environment.client("budget", "list")
    environment.client("sessions", "-n", VISION)
    require(_pods(environment) == before, "a pod has changed")
    environment.screen.done(f"the first bill came {seconds:.0f} s after the first command; each pod is as it was")


def account(environment: ClusterEnvironment) -> None:
    """The budget acts: the next pod waits, a grant releases it, and the stack places it."""
    environment.screen.section("Account: a spent budget holds the next pod, and the stack stays")
    seen = environment.reading(VISION)
    _take_budgets_along(environment)
    (webhook,) = free_ports(1)
    folder = services.overlay_of(environment, "account", services.reached_on_this_machine(webhook), {})
    _apply(environment, "account", str(folder))
    services.install_account(environment, webhook)
    # What the last leader of look has published stays in the list until the new one knows the budget.
    goes_on = lambda: environment.status_of(VISION) != "" and _rate(environment) > 0  # noqa: E731 - read once, here
    wait_until("the budget goes on", goes_on, environment.children, STEP_LIMIT_SECONDS)
    require(environment.reading(VISION).spent >= seen.spent, "the books of look were not kept")
    environment.watch(BudgetState.HELD, budget=VISION)
    environment.heard_of(BudgetState.HELD, VISION, plugin_pod("asking", 1))
    said = _create(environment)
    require("waits behind the gate" in said, "kubectl showed no warning")
    listed = environment.kubectl(environment.ada, "-n", VISION, "get", "pods")
    require(listed.count("Running") == len(RUNNING) and "SchedulingGated" in listed, "another pod waits")
    environment.screen.done("the money is spent: the next pod waits, and those that ran before run on")


def grant(environment: ClusterEnvironment) -> None:
    """A grant releases the pod to the scheduler that it names."""
    environment.screen.section("A grant releases it, to the cluster's own scheduler")
    seen = environment.reading(VISION)
    owed_gpu_seconds = max(seen.spent - seen.available, 0) // UNIT
    spec = {"budget": VISION, "gpuHours": gpu_hours(GRANT_GPU_SECONDS + owed_gpu_seconds), "reason": "first day"}
    body = {"apiVersion": names.BUDGET_API, "kind": "GPUGrant", "metadata": {"name": "first-day"}, "spec": spec}
    environment.kubectl(environment.money, "create", "-f", "-", shown="--user=finance create -f grant.yaml", stdin=body)
    _run(environment, WAITS)
    listed = environment.kubectl(environment.ada, "-n", VISION, "get", "pods", "-o", RELEASED)
    require(listed.count("default-scheduler") == len(RUNNING) + 1, "another scheduler placed a pod")
    shown = ("-n", VISION, "get", "events", "-o", EVENTS, f"--field-selector=involvedObject.name={WAITS}")
    wait_until(
        "an event says why", lambda: "BudgetGateLifted" in environment.ada.kubectl(*shown).stdout,
        environment.children, STEP_LIMIT_SECONDS,
    )  # fmt: skip
    environment.kubectl(environment.ada, *shown)
    environment.screen.done("the pod keeps its request and scheduler; FairGPU added a label and took its gate away")


def share(environment: ClusterEnvironment) -> None:
    """Two other teams move to FairGPU's own scheduler and nodes; this one stays."""
    environment.screen.section("Share: two other teams move to FairGPU's own scheduler and node")
    words = (NAMESPACE, HELD_NAMESPACE, f"{names.NAMESPACE_MODE}=share")
    environment.kubectl(environment.plane.admin, "label", "namespace", *words)
    services.install_share(environment)
    environment.screen.done(f"{NAMESPACE} and {HELD_NAMESPACE} share GPUs by fractions; {VISION} keeps the plugin")


def _take_budgets_along(environment: ClusterEnvironment) -> None:
    """Makes the lines of the ConfigMap GPUBudgets, while `look` runs."""
    admin = environment.plane.admin
    environment.kubectl(admin, "apply", "-f", str(CRD), shown="apply -f deploy/base/crds/gpubudgets.yaml")
    environment.kubectl(admin, "wait", "--for=condition=Established", "crd/gpubudgets.fairgpu.io", "--timeout=120s")
    found = lambda: admin.kubectl("get", "gpubudgets", check=False).returncode == 0  # noqa: E731 - read once, here
    wait_until("kubectl finds the new kind", found, environment.children, STEP_LIMIT_SECONDS)
    environment.screen.command("fairgpu gpubudgets | kubectl apply -f -")
    environ = {"PATH": os.environ.get("PATH", os.defpath), "KUBECONFIG": str(admin.kubeconfig)}
    printed = subprocess.run([*FAIRGPU, "gpubudgets"], env=environ, capture_output=True, text=True, check=True).stdout
    environment.screen.output(admin.kubectl("apply", "-f", "-", stdin=printed).stdout)


def _apply(environment: ClusterEnvironment, mode: str, folder: str) -> list[str]:
    """Applies an overlay as an admin does, and shows how much it created; returns what kubectl said of each object."""
    environment.screen.command(f"kubectl apply -k deploy/overlays/my-{mode}")
    said = environment.plane.admin.kubectl("apply", "-k", folder).stdout.splitlines()
    created = sum(line.endswith(" created") for line in said)
    environment.screen.output(f"{said[0]}\n… {len(said)} objects, {created} of them new")
    return said


def _create(environment: ClusterEnvironment) -> str:
    text = yaml.safe_dump(plugin_pod(WAITS, 1, "nvidia-sliced"))
    return environment.kubectl(
        environment.ada, "-n", VISION, "create", "-f", "-", shown=f"-n {VISION} create -f {WAITS}.yaml", stdin=text
    )


def _run(environment: ClusterEnvironment, name: str) -> None:
    """Returns once the stock scheduler has given a pod a node, and its kubelet says that it runs."""

    def node() -> str:
        return str(environment.plane.admin.api.get(f"{PODS}/{name}")["spec"].get("nodeName", ""))

    wait_until(f"{name} is placed", lambda: bool(node()), environment.children, STEP_LIMIT_SECONDS)
    environment.other_nodes[node()].set_pod_phase(VISION, name, "Running")


def _spent(environment: ClusterEnvironment) -> int:
    """The microGPU-seconds that the budget has paid; 0 before the timekeeper has read the budget."""
    return exact(_listed(environment).get("spent"))


def _rate(environment: ClusterEnvironment) -> int:
    """The microGPU-seconds a second that the budget pays; 0 before the timekeeper has read the budget."""
    return int(_listed(environment).get("rate", {}).get("microGPUSecondsPerSecond", 0))


def _listed(environment: ClusterEnvironment) -> Json:
    """The budget in the timekeeper's list, which lacks it until its leader has reconciled once."""
    budgets = transport.get(environment.server, "/v1/budgets")["budgets"]
    return next((budget for budget in budgets if budget["name"] == VISION), {})


def _pods(environment: ClusterEnvironment) -> Any:
    return environment.plane.admin.api.get(PODS)["items"]


ALL = (run_pods, look, account, grant, share)
