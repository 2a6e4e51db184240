"""The acts on a real control plane: what kubectl is asked, what it says, and that it did happen."""

from __future__ import annotations

from typing import Any

from demo.children import wait_until
from demo.folder import (
    ALLOWANCE_GPU_SECONDS,
    BUDGET,
    GRACE_GPU_SECONDS,
    GRANT_GPU_SECONDS,
    HELD_BUDGET,
    HELD_GRANT_GPU_SECONDS,
    HELD_NAMESPACE,
    NAMESPACE,
    gpu_hours,
    holding_budget,
    team_budget,
)
from demo.running import cost
from demo.screen import UNIT
from demo.steps import STEP_LIMIT_SECONDS, require
from fairgpu import names
from fairgpu.states import BudgetState
from tests.cluster.demonstration.stage import PODS, ClusterStage, manifest_files

PODS_COLUMNS = (
    "custom-columns=POD:.metadata.name,"
    r"DIALECT:.metadata.annotations.fairgpu\.io/source-dialect,"
    r"CORE:.spec.containers[0].resources.limits.fairgpu\.io/gpu-core,"
    r"MEMORY:.spec.containers[0].resources.limits.fairgpu\.io/gpu-memory,"
    r"MEMORY %:.spec.containers[0].resources.limits.fairgpu\.io/gpu-memory-percentage,"
    "SIDECAR:.spec.initContainers[0].name,CLASS:.spec.priorityClassName"
)
CLASS_COLUMNS = "custom-columns=POD:.metadata.name,CLASS:.spec.priorityClassName,PRIORITY:.spec.priority"
EVENT_COLUMNS = "custom-columns=REASON:.reason,POD:.involvedObject.name,WHY:.message"
GATE_COLUMNS = "custom-columns=POD:.metadata.name,GATES:.spec.schedulingGates[*].name"


def give_money(stage: ClusterStage) -> None:
    """A budget, as a cluster-scoped object."""
    stage.screen.act("A budget is an object of the cluster")
    budgets = [object_only(item) for item in (team_budget(), holding_budget())]
    stage.kubectl(stage.money, "create", "-f", "-", shown="create -f budgets.yaml", stdin=budgets)
    wait_until("the timekeeper has read it", lambda: known(stage), stage.children, STEP_LIMIT_SECONDS)
    stage.heard(BudgetState.OPEN)
    stage.kubectl(stage.money, "get", "gpubudgets")
    stage.screen.done(f"{ALLOWANCE_GPU_SECONDS} GPU-seconds, and {GRACE_GPU_SECONDS} of grace")


def admit_dialects(stage: ClusterStage) -> None:
    """One pod of each dialect through the API server."""
    stage.screen.act("Seven ways to ask for a piece of a GPU, one meaning")
    for file in manifest_files():
        stage.create(file)
    listed = stage.kubectl(
        stage.ada, "-n", NAMESPACE, "get", "pods", "-o", PODS_COLUMNS, shown="get pods -o custom-columns=…"
    )
    for row in listed.splitlines()[1:]:
        require(names.SIDECAR_CONTAINER in row and names.IN_BUDGET_CLASS in row, f"not rewritten: {row}")
    stage.screen.done(
        f"{len(listed.splitlines()) - 1} pods admitted by the API server: rewritten, classed, with a sidecar"
    )


def place(stage: ClusterStage) -> None:
    """The scheduler gives each pod a node and devices."""
    stage.screen.act("The scheduler chooses a node and the GPUs")
    stage.start_scheduler()
    for item in stage.plane.admin.api.get(PODS)["items"]:
        stage.run(item["metadata"]["name"])
    stage.asks("top")
    stage.asks("inspect", "-d")
    stage.screen.done(f"{len(stage.bound)} pods share four GPUs, and none holds more of one than there is")


def spend(stage: ClusterStage) -> None:
    """The pods are paid for until the money is gone."""
    stage.screen.act("What is held is paid for")
    for pod in stage.bound:
        stage.node.report(pod)
    # Grace lasts some seconds; a slow machine may still be starting sidecars when it ends.
    seen = stage.watch(BudgetState.GRACE, BudgetState.OVER)
    require(seen.spent >= seen.available, f"{seen.state} with {seen.spent} of {seen.available} spent")
    stage.screen.done("the money is spent, and grace begins")
    stage.client("sessions", "-n", NAMESPACE)
    seen = stage.watch(BudgetState.OVER)
    require(seen.spent >= seen.available + GRACE_GPU_SECONDS * UNIT, f"over with {seen.spent} spent")
    require(0 < seen.used < seen.spent, f"used {seen.used} is not between nothing and the {seen.spent} reserved")
    wait_until("the budget's status says so", lambda: status(stage) == "over", stage.children, STEP_LIMIT_SECONDS)
    stage.kubectl(stage.money, "get", "gpubudgets")
    stage.screen.done("grace is used up: over. Nothing was killed")


def next_pod_yields(stage: ClusterStage) -> None:
    """The next pod of the team comes in with the lower class."""
    stage.screen.act("The next pod of the team yields to teams within budget")
    stage.heard(BudgetState.OVER)
    said = stage.create("1-native.yaml", "train-resnet-2")
    require("Warning:" in said, "kubectl showed no warning")
    listed = stage.kubectl(stage.ada, "-n", NAMESPACE, "get", "pod", "train-resnet-2", "-o", CLASS_COLUMNS)
    require(names.OVER_BUDGET_CLASS in listed, "the pod over budget is in no class of its own")
    stage.screen.done(f"its class is [red]{names.OVER_BUDGET_CLASS}[/]")


def grant(stage: ClusterStage) -> None:
    """A grant lifts the budget, and the next pod is within it again."""
    stage.screen.act("A grant brings it back")
    seen = stage.reading()
    owed_gpu_seconds = max(seen.spent - seen.available, 0) // UNIT
    spec = {"budget": BUDGET, "gpuHours": gpu_hours(GRANT_GPU_SECONDS + owed_gpu_seconds), "reason": "paper deadline"}
    body = {"apiVersion": names.BUDGET_API, "kind": "GPUGrant", "metadata": {"name": "paper-deadline"}, "spec": spec}
    refused = stage.kubectl(
        stage.ada, "create", "-f", "-", shown="--user=ada create -f grant.yaml", stdin=body, fails=True
    )
    require("forbidden" in refused, "one of the team could give the team money")
    stage.kubectl(stage.money, "create", "-f", "-", shown="--user=finance create -f grant.yaml", stdin=body)
    stage.watch(BudgetState.OPEN)
    stage.heard(BudgetState.OPEN)
    stage.create("1-native.yaml", "train-resnet-3")
    listed = stage.kubectl(stage.ada, "-n", NAMESPACE, "get", "pod", "train-resnet-3", "-o", CLASS_COLUMNS)
    require(names.IN_BUDGET_CLASS in listed, "the pod within budget is not in its class")
    stage.kubectl(stage.money, "get", "gpubudgets,gpugrants")
    stage.screen.done(f"open again; the next pod is [green]{names.IN_BUDGET_CLASS}[/]")


def hold_and_release(stage: ClusterStage) -> None:
    """A budget that holds: the pod is created and waits; a grant lets it go on."""
    stage.screen.act("Another team's budget holds: its pod waits for money")
    stage.create("1-native.yaml", "homework", namespace=HELD_NAMESPACE)
    require("SchedulingGated" in stage.kubectl(stage.ada, "-n", HELD_NAMESPACE, "get", "pods"), "the pod is not held")
    look = ("-n", HELD_NAMESPACE, "get", "pods", "-o", GATE_COLUMNS)
    require(names.BUDGET_GATE in stage.kubectl(stage.ada, *look), "the pod has another gate")
    events = ("-n", HELD_NAMESPACE, "get", "events", "-o", EVENT_COLUMNS)
    wait_until(
        "the pod is told why", lambda: "BudgetHoldsPod" in stage.ada.kubectl(*events).stdout, stage.children,
        STEP_LIMIT_SECONDS,
    )  # fmt: skip
    require("Waits for money" in stage.kubectl(stage.ada, *events), "nobody says why the pod waits")
    stage.kubectl(stage.money, "create", "-f", "-", shown="--user=finance create -f grant.yaml", stdin=held_grant())
    wait_until("the gate is lifted", lambda: not stage.gated("homework"), stage.children, STEP_LIMIT_SECONDS)
    require("<none>" in stage.kubectl(stage.ada, *look), "the pod still has a gate")
    where = f"/api/v1/namespaces/{HELD_NAMESPACE}/pods/homework"
    wait_until(
        "the pod is placed", lambda: "nodeName" in stage.plane.admin.api.get(where)["spec"], stage.children,
        STEP_LIMIT_SECONDS,
    )  # fmt: skip
    stage.screen.done("the timekeeper lifted the gate, and the scheduler has placed the pod")


def refuse(stage: ClusterStage) -> None:
    """A manifest that cannot work is refused with everything that is wrong with it."""
    stage.screen.act("A manifest that cannot work says so at once")
    said = stage.create("wrong.yaml", fails=True)
    for part in ("gpu-core", "150", "gpu-memory", "vcuda-memory"):
        require(part in said, f"the refusal does not speak of {part}")
    stage.screen.done("refused: each field, what was given, what is allowed, what to write instead")


def close_the_books(stage: ClusterStage) -> None:
    """All pods end; what was spent is computed here, from their objects alone, and must be the ledger's figure."""
    stage.screen.act("The books are exact")
    expected = sum(cost(pod) for pod in stage.node.finish(stage.all_bound()))
    wait_until("every pod is settled", lambda: stage.reading().rate == 0, stage.children, STEP_LIMIT_SECONDS)
    stage.kubectl(stage.ada, "-n", NAMESPACE, "get", "pods")
    spent = stage.reading().spent
    require(spent == expected, f"the ledger says {spent}, the pods' times say {expected} microGPU-seconds")
    stage.screen.done(f"{spent:,} microGPU-seconds in the ledger: what the pods' times come to, to the last one")


def object_only(item: dict[str, Any]) -> dict[str, Any]:
    """An object without what only the API server may give it."""
    return {**item, "metadata": {"name": item["metadata"]["name"]}}


def held_grant() -> dict[str, Any]:
    """Money for the team that is held."""
    spec = {"budget": HELD_BUDGET, "gpuHours": gpu_hours(HELD_GRANT_GPU_SECONDS), "reason": "exam week"}
    return {"apiVersion": names.BUDGET_API, "kind": "GPUGrant", "metadata": {"name": "exam-week"}, "spec": spec}


def known(stage: ClusterStage) -> bool:
    """Whether the timekeeper tells of the budget."""
    return status(stage) == "open"


def status(stage: ClusterStage) -> str:
    """The state in the budget's status."""
    found = stage.plane.admin.api.get(f"/apis/{names.BUDGET_API}/gpubudgets/{BUDGET}")
    return str(found.get("status", {}).get("state", ""))


ALL = (give_money, admit_dialects, place, spend, next_pod_yields, grant, hold_and_release, refuse, close_the_books)
