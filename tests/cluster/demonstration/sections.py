"""The sections on a real control plane: what kubectl is asked, what it says, and that it did happen."""

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
from tests.cluster.demonstration.environment import PODS, ClusterEnvironment, manifest_files

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


def give_money(environment: ClusterEnvironment) -> None:
    """A budget, as a cluster-scoped object."""
    environment.screen.section("A budget is an object of the cluster")
    budgets = [object_only(item) for item in (team_budget(), holding_budget())]
    environment.kubectl(environment.money, "create", "-f", "-", shown="create -f budgets.yaml", stdin=budgets)
    known = lambda: environment.status_of() == "open"  # noqa: E731 - read once, here
    wait_until("the timekeeper has read it", known, environment.children, STEP_LIMIT_SECONDS)
    environment.heard(BudgetState.OPEN)
    environment.kubectl(environment.money, "get", "gpubudgets")
    environment.screen.done(f"{ALLOWANCE_GPU_SECONDS} GPU-seconds, and {GRACE_GPU_SECONDS} of grace")


def admit_dialects(environment: ClusterEnvironment) -> None:
    """One pod of each dialect through the API server."""
    environment.screen.section("Seven ways to ask for a piece of a GPU, one meaning")
    for file in manifest_files():
        environment.create(file)
    listed = environment.kubectl(
        environment.ada, "-n", NAMESPACE, "get", "pods", "-o", PODS_COLUMNS, shown="get pods -o custom-columns=…"
    )
    for row in listed.splitlines()[1:]:
        require(names.SIDECAR_CONTAINER in row and names.IN_BUDGET_CLASS in row, f"not rewritten: {row}")
    environment.screen.done(
        f"{len(listed.splitlines()) - 1} pods admitted by the API server: rewritten, classed, with a sidecar"
    )


def place(environment: ClusterEnvironment) -> None:
    """The scheduler gives each pod a node and devices."""
    environment.screen.section("The scheduler chooses a node and the GPUs")
    environment.start_scheduler()
    for item in environment.plane.admin.api.get(PODS)["items"]:
        environment.run(item["metadata"]["name"])
    environment.asks("top")
    environment.asks("inspect", "-d")
    environment.screen.done(f"{len(environment.bound)} pods share four GPUs, and none holds more of one than there is")


def spend(environment: ClusterEnvironment) -> None:
    """The pods are paid for until the money is gone."""
    environment.screen.section("What is held is paid for")
    for pod in environment.bound:
        environment.node.report(pod)
    # Grace lasts some seconds; a slow machine may still be starting sidecars when it ends.
    seen = environment.watch(BudgetState.GRACE, BudgetState.OVER)
    require(seen.spent >= seen.available, f"{seen.state} with {seen.spent} of {seen.available} spent")
    environment.screen.done("the money is spent, and grace begins")
    environment.client("sessions", "-n", NAMESPACE)
    seen = environment.watch(BudgetState.OVER)
    require(seen.spent >= seen.available + GRACE_GPU_SECONDS * UNIT, f"over with {seen.spent} spent")
    # A slow machine may still be starting sidecars when grace ends.
    reported = lambda: environment.reading().used > 0  # noqa: E731 - read once, here
    wait_until("the sidecars report", reported, environment.children, STEP_LIMIT_SECONDS)
    seen = environment.reading()
    require(0 < seen.used < seen.spent, f"used {seen.used} is not between nothing and the {seen.spent} reserved")
    wait_until(
        "the budget's status says so",
        lambda: environment.status_of() == "over",
        environment.children,
        STEP_LIMIT_SECONDS,
    )
    environment.kubectl(environment.money, "get", "gpubudgets")
    environment.screen.done("grace is used up: over. Nothing was killed")


def next_pod_yields(environment: ClusterEnvironment) -> None:
    """The next pod of the team comes in with the lower class."""
    environment.screen.section("The next pod of the team yields to teams within budget")
    environment.heard(BudgetState.OVER)
    said = environment.create("1-native.yaml", "train-resnet-2")
    require("Warning:" in said, "kubectl showed no warning")
    listed = environment.kubectl(environment.ada, "-n", NAMESPACE, "get", "pod", "train-resnet-2", "-o", CLASS_COLUMNS)
    require(names.OVER_BUDGET_CLASS in listed, "the pod over budget is in no class of its own")
    environment.screen.done(f"its class is [red]{names.OVER_BUDGET_CLASS}[/]")


def grant(environment: ClusterEnvironment) -> None:
    """A grant lifts the budget, and the next pod is within it again."""
    environment.screen.section("A grant brings it back")
    seen = environment.reading()
    owed_gpu_seconds = max(seen.spent - seen.available, 0) // UNIT
    spec = {"budget": BUDGET, "gpuHours": gpu_hours(GRANT_GPU_SECONDS + owed_gpu_seconds), "reason": "paper deadline"}
    body = {"apiVersion": names.BUDGET_API, "kind": "GPUGrant", "metadata": {"name": "paper-deadline"}, "spec": spec}
    refused = environment.kubectl(
        environment.ada, "create", "-f", "-", shown="--user=ada create -f grant.yaml", stdin=body, fails=True
    )
    require("forbidden" in refused, "one of the team could give the team money")
    environment.kubectl(environment.money, "create", "-f", "-", shown="--user=finance create -f grant.yaml", stdin=body)
    environment.watch(BudgetState.OPEN)
    environment.heard(BudgetState.OPEN)
    environment.create("1-native.yaml", "train-resnet-3")
    listed = environment.kubectl(environment.ada, "-n", NAMESPACE, "get", "pod", "train-resnet-3", "-o", CLASS_COLUMNS)
    require(names.IN_BUDGET_CLASS in listed, "the pod within budget is not in its class")
    environment.kubectl(environment.money, "get", "gpubudgets,gpugrants")
    environment.screen.done(f"open again; the next pod is [green]{names.IN_BUDGET_CLASS}[/]")


def hold_and_release(environment: ClusterEnvironment) -> None:
    """A budget that holds: the pod is created and waits; a grant lets it go on."""
    environment.screen.section("Another team's budget holds: its pod waits for money")
    environment.heard(BudgetState.HELD, HELD_NAMESPACE)
    environment.create("1-native.yaml", "homework", namespace=HELD_NAMESPACE)
    require(
        "SchedulingGated" in environment.kubectl(environment.ada, "-n", HELD_NAMESPACE, "get", "pods"),
        "the pod is not held",
    )
    look = ("-n", HELD_NAMESPACE, "get", "pods", "-o", GATE_COLUMNS)
    require(names.BUDGET_GATE in environment.kubectl(environment.ada, *look), "the pod has another gate")
    events = ("-n", HELD_NAMESPACE, "get", "events", "-o", EVENT_COLUMNS)
    wait_until(
        "an event says why",
        lambda: "BudgetHoldsPod" in environment.ada.kubectl(*events).stdout,
        environment.children,
        STEP_LIMIT_SECONDS,
    )
    require("Waits for money" in environment.kubectl(environment.ada, *events), "no event says why the pod waits")
    environment.kubectl(
        environment.money, "create", "-f", "-", shown="--user=finance create -f grant.yaml", stdin=held_grant()
    )
    wait_until(
        "the gate is lifted", lambda: not environment.gated("homework"), environment.children, STEP_LIMIT_SECONDS
    )
    require("<none>" in environment.kubectl(environment.ada, *look), "the pod still has a gate")
    where = f"/api/v1/namespaces/{HELD_NAMESPACE}/pods/homework"
    wait_until(
        "the pod is placed", lambda: "nodeName" in environment.plane.admin.api.get(where)["spec"], environment.children,
        STEP_LIMIT_SECONDS,
    )  # fmt: skip
    environment.screen.done("the timekeeper lifted the gate, and the scheduler has placed the pod")


def refuse(environment: ClusterEnvironment) -> None:
    """A manifest that cannot work is refused with everything that is wrong with it."""
    environment.screen.section("A manifest that cannot work says so at once")
    said = environment.create("wrong.yaml", fails=True)
    for part in ("gpu-core", "150", "gpu-memory", "vcuda-memory"):
        require(part in said, f"the refusal does not speak of {part}")
    environment.screen.done("refused: each field, what was given, what is allowed, what to write instead")


def close_the_books(environment: ClusterEnvironment) -> None:
    """All pods end; what was spent is computed here, from their objects alone, and must be the ledger's figure."""
    environment.screen.section("The books are exact")
    expected = sum(cost(pod) for pod in environment.node.finish(environment.all_placed()))
    wait_until(
        "every pod is settled", lambda: environment.reading().rate == 0, environment.children, STEP_LIMIT_SECONDS
    )
    environment.kubectl(environment.ada, "-n", NAMESPACE, "get", "pods")
    spent = environment.reading().spent
    require(spent == expected, f"the ledger says {spent}, the pods' times say {expected} microGPU-seconds")
    environment.screen.done(f"{spent:,} microGPU-seconds in the ledger: what the pods' times come to, to the last one")


def object_only(item: dict[str, Any]) -> dict[str, Any]:
    """An object without what only the API server may give it."""
    return {**item, "metadata": {"name": item["metadata"]["name"]}}


def held_grant() -> dict[str, Any]:
    """Money for the team that is held."""
    spec = {"budget": HELD_BUDGET, "gpuHours": gpu_hours(HELD_GRANT_GPU_SECONDS), "reason": "exam week"}
    return {"apiVersion": names.BUDGET_API, "kind": "GPUGrant", "metadata": {"name": "exam-week"}, "spec": spec}


ALL = (give_money, admit_dialects, place, spend, next_pod_yields, grant, hold_and_release, refuse, close_the_books)
