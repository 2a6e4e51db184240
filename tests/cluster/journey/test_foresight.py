"""Budgets that are only observed, and budgets that let in what they can pay to its end, on the real API server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, place
from tests.cluster.journey.manifests import Manifest, pod
from tests.support.ledger.periods import month_midway
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("services")

BUDGETS = "/apis/fairgpu.io/v1alpha1/gpubudgets"
WHOLE_GPU = {"nvidia.com/gpu": 1}
GATE = {"name": "fairgpu.io/budget"}


@pytest.fixture
def run_pod(control_plane: ControlPlane, user: Identity, namespace: str, node: StandInNode) -> Callable[..., Manifest]:
    """Creates a pod of one whole GPU, binds it and lets it run."""
    scheduler = control_plane.service_account("fairgpu-system", "fairgpu-scheduler")

    def run(name: str, **spec: Any) -> Manifest:
        created = user.api.create(f"/api/v1/namespaces/{namespace}/pods", pod(name, WHOLE_GPU, **spec))
        place(scheduler, created, node.name)
        return node.set_pod_phase(namespace, name, "Running")

    return run


def create_budget(plane: ControlPlane, namespace: str, gpu_hours: str, **spec: Any) -> None:
    item = {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUBudget",
        "metadata": {"name": f"budget-{namespace}"},
        "spec": {"namespaces": [namespace], "allowance": {"gpuHours": gpu_hours}, "period": month_midway(), **spec},
    }
    plane.admin.api.create(BUDGETS, item)


def status_of(plane: ControlPlane, namespace: str) -> Manifest:
    status: Manifest = plane.admin.api.get(f"{BUDGETS}/budget-{namespace}").get("status", {})
    return status


def condition(plane: ControlPlane, namespace: str, kind: str) -> str:
    found = {item["type"]: item["status"] for item in status_of(plane, namespace).get("conditions", [])}
    return found.get(kind, "")


def test_an_observed_budget_is_computed_and_shown_and_nothing_is_done_to_any_pod(
    control_plane: ControlPlane, user: Identity, namespace: str, run_pod: Callable[..., Manifest]
) -> None:
    create_budget(control_plane, namespace, "0.001", enforcement="observe", onExhausted="hold", admission="safe")
    before = run_pod("spender")
    spent_up = partial(status_of, control_plane, namespace)
    wait_until(lambda: spent_up().get("state") == "held", "the status shows what would be")
    for kind in ("Exhausted", "RunsOutEarly"):
        wait_until(
            lambda kind=kind: condition(control_plane, namespace, kind) == "True", f"it has the condition {kind}"
        )
    status = wait_until(lambda: "forecast" in spent_up() and spent_up(), "the forecast is shown")
    assert int(status["forecast"]["lastHour"]["spent"]["microGPUSeconds"]) > 0
    made = user.kubectl(
        "create", "-n", namespace, "-o", "json", "-f", "-", stdin=pod("next", WHOLE_GPU, activeDeadlineSeconds=360000)
    )
    assert "Warning" not in made.stderr
    created = user.api.get(f"/api/v1/namespaces/{namespace}/pods/next")
    assert created["spec"]["priorityClassName"] == "gpu-in-budget"
    assert "schedulingGates" not in created["spec"]
    assert created["metadata"]["annotations"]["fairgpu.io/budget-state"] == "open"
    now = user.api.get(f"/api/v1/namespaces/{namespace}/pods/spender")
    assert now["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_safe_admission_counts_what_runs_and_the_new_pod_itself_and_lets_it_go_once_it_is_paid_for(
    control_plane: ControlPlane, user: Identity, namespace: str, node: StandInNode, run_pod: Callable[..., Manifest]
) -> None:
    create_budget(control_plane, namespace, "10", admission="safe", onExhausted="hold", defaultCommit="30m")
    wait_until(lambda: status_of(control_plane, namespace).get("state") == "open", "the budget is open")
    run_pod("long", activeDeadlineSeconds=8 * 3600)
    path = f"/api/v1/namespaces/{namespace}/pods"
    numbers = iter(range(10_000))

    def dry_run(hours: float) -> Manifest:
        item = pod(f"dry-{next(numbers)}", WHOLE_GPU, activeDeadlineSeconds=int(hours * 3600))
        return user.api.create(path, item, query={"dryRun": "All"})

    def gated_for(hours: float) -> bool:
        return bool(GATE in dry_run(hours)["spec"].get("schedulingGates", []))

    wait_until(lambda: gated_for(4), "four hours more do not fit")
    assert not gated_for(1)

    def gated() -> Manifest | None:
        item = pod(f"held-{next(numbers)}", WHOLE_GPU, activeDeadlineSeconds=4 * 3600)
        created = user.api.create(path, item)
        if created["spec"].get("schedulingGates") == [GATE]:
            return created
        user.api.delete(f"{path}/{created['metadata']['name']}")
        return None

    held = wait_until(gated, "one of four hours is held, whichever replica answers")["metadata"]["name"]
    node.set_pod_phase(namespace, "long", "Succeeded")
    wait_until(lambda: not user.api.get(f"{path}/{held}")["spec"].get("schedulingGates"), "the timekeeper lets it go")
    wait_until(lambda: not gated_for(5.5) and gated_for(6.5), "what the long one left is free, less what was let go")


def test_a_pod_behind_kueues_gate_is_promised_no_money_and_not_released_before_kueue_admits_it(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    """Each of the two gates is lifted by its own controller; the user plays Kueue with theirs."""
    create_budget(control_plane, namespace, "10", admission="safe", onExhausted="hold")
    wait_until(lambda: status_of(control_plane, namespace).get("state") == "open", "the budget is open")
    path, kueue = f"/api/v1/namespaces/{namespace}/pods", {"name": "kueue.x-k8s.io/admission"}
    numbers = iter(range(10_000))

    def create(name: str, hours: int, gates: list[dict[str, str]], **query: str) -> list[dict[str, str]]:
        """Creates a pod, or only tries to; the gates that it has then."""
        item = pod(name, WHOLE_GPU, activeDeadlineSeconds=hours * 3600, schedulingGates=gates)
        made: list[dict[str, str]] = user.api.create(path, item, query=query)["spec"].get("schedulingGates", [])
        return made

    def fits(hours: int) -> bool:
        return not create(f"dry-{next(numbers)}", hours, [], dryRun="All")

    def gates_of(name: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = user.api.get(f"{path}/{name}")["spec"].get("schedulingGates", [])
        return found

    def let_go_by_kueue(name: str) -> None:
        others = [gate for gate in gates_of(name) if gate != kueue]
        user.api.patch(f"{path}/{name}", {"spec": {"schedulingGates": others}})

    def held(gates: list[dict[str, str]]) -> str | None:
        name = f"held-{next(numbers)}"
        if create(name, 4, gates) == [*gates, GATE]:
            return name
        user.api.delete(f"{path}/{name}")
        return None

    def budget_of(gpu_hours: int) -> None:
        spec = {"spec": {"allowance": {"gpuHours": gpu_hours}}}
        control_plane.admin.api.patch(f"{BUDGETS}/budget-{namespace}", spec)

    assert create("queued", 8, [kueue]) == [kueue]
    budget_of(3)
    first = wait_until(lambda: held([]), "one of four hours is held, whichever replica answers")
    budget_of(10)
    wait_until(lambda: gates_of(first) == [], "it is let go: nothing is promised to the one that Kueue holds")
    let_go_by_kueue("queued")
    wait_until(lambda: not fits(1), "its eight hours are promised once Kueue has admitted it")
    elder = wait_until(lambda: held([kueue]), "one behind both gates is made")
    younger = wait_until(lambda: held([]), "one behind the budget's alone is made")
    user.api.delete(f"{path}/queued")
    wait_until(lambda: gates_of(younger) == [], "the younger is let go, as the elder cannot start")
    assert gates_of(elder) == [kueue, GATE]
    user.api.delete(f"{path}/{first}")
    let_go_by_kueue(elder)
    wait_until(lambda: gates_of(elder) == [], "the elder is let go, too, once Kueue has admitted it")
