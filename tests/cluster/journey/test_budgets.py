"""A budget from its first pod to its end and back, through the API server, the webhook, the timekeeper and Redis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, place
from tests.cluster.journey.manifests import Manifest, pod
from tests.cluster.pods import spent_in
from tests.cluster.services.everything import Services
from tests.cluster.services.timekeeper_client import TimekeeperClient, finance_token
from tests.support.ledger.periods import month_midway
from tests.support.waiting import wait_until
from timekeeper.domain.timestamps import parse_instant

pytestmark = pytest.mark.usefixtures("services")

BUDGETS = "/apis/fairgpu.io/v1alpha1/gpubudgets"
GRANTS = "/apis/fairgpu.io/v1alpha1/gpugrants"
WHOLE_GPU = {"nvidia.com/gpu": 1}
WHOLE_GPU_RATE = 1_000_000


def budget(namespace: str, gpu_hours: str, **spec: Any) -> Manifest:
    return {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUBudget",
        "metadata": {"name": f"budget-{namespace}"},
        "spec": {"namespaces": [namespace], "allowance": {"gpuHours": gpu_hours}, "period": month_midway(), **spec},
    }


def grant(namespace: str, gpu_hours: str) -> Manifest:
    spec = {"budget": f"budget-{namespace}", "gpuHours": gpu_hours, "reason": "a paper deadline"}
    return {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUGrant",
        "metadata": {"name": f"grant-{namespace}"},
        "spec": spec,
    }


@pytest.fixture
def run_pod(
    control_plane: ControlPlane, user: Identity, namespace: str, node: StandInNode
) -> Callable[[str], Manifest]:
    """Creates a pod of one whole GPU, binds it with an allocation and lets it run; returns it as it is then."""
    scheduler = control_plane.service_account("fairgpu-system", "fairgpu-scheduler")

    def run(name: str) -> Manifest:
        path = f"/api/v1/namespaces/{namespace}/pods"
        created = user.api.create(path, pod(name, WHOLE_GPU))
        place(scheduler, created, node.name)
        return node.set_pod_phase(namespace, name, "Running")

    return run


@pytest.fixture
def finance(control_plane: ControlPlane, namespace: str) -> str:
    return finance_token(control_plane, namespace)


def status_of(control_plane: ControlPlane, namespace: str) -> Manifest:
    status: Manifest = control_plane.admin.api.get(f"{BUDGETS}/budget-{namespace}").get("status", {})
    return status


def in_state(control_plane: ControlPlane, namespace: str, state: str) -> bool:
    return status_of(control_plane, namespace).get("state") == state


def class_of_a_new_pod(user: Identity, namespace: str, name: str) -> str:
    created = user.api.create(f"/api/v1/namespaces/{namespace}/pods", pod(name, WHOLE_GPU))
    priority_class: str = created["spec"]["priorityClassName"]
    return priority_class


def test_a_spent_budget_changes_what_the_next_pod_gets_and_a_grant_brings_it_back(
    control_plane: ControlPlane, user: Identity, namespace: str, run_pod: Callable[[str], Manifest]
) -> None:
    admin = control_plane.admin
    admin.api.create(BUDGETS, budget(namespace, "0.001"))
    wait_until(partial(in_state, control_plane, namespace, "open"), "the budget is open")
    assert run_pod("spender")["spec"]["priorityClassName"] == "gpu-in-budget"
    wait_until(partial(in_state, control_plane, namespace, "over"), "3.6 GPU-seconds are spent")

    def warned() -> str | None:
        made = user.kubectl(
            "create", "-n", namespace, "--dry-run=server", "-o", "jsonpath={.spec.priorityClassName}", "-f", "-",
            stdin=pod("next", WHOLE_GPU),
        )  # fmt: skip
        return made.stderr if made.stdout == "gpu-over-budget" else None

    warning = wait_until(warned, "the next pod comes in over budget")
    assert "Warning:" in warning
    assert f"budget-{namespace}" in warning
    numbers = iter(range(10_000))
    wait_until(
        lambda: class_of_a_new_pod(user, namespace, f"over-{next(numbers)}") == "gpu-over-budget",
        "pods come in over budget, whichever replica answers",
    )

    admin.api.create(GRANTS, grant(namespace, "1"))
    wait_until(partial(in_state, control_plane, namespace, "open"), "the grant reopens the budget")
    wait_until(
        lambda: admin.api.get(f"{GRANTS}/grant-{namespace}").get("status", {}).get("applied"), "the grant is applied"
    )
    wait_until(
        lambda: class_of_a_new_pod(user, namespace, f"after-{next(numbers)}") == "gpu-in-budget",
        "pods come in as in budget again",
    )
    listing = admin.kubectl("get", "gpubudgets", f"budget-{namespace}").stdout
    assert "open" in listing


def test_a_held_budget_gates_the_next_pod_and_a_grant_releases_it(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    control_plane.admin.api.create(BUDGETS, budget(namespace, "0", onExhausted="hold"))
    wait_until(partial(in_state, control_plane, namespace, "held"), "a budget of nothing is held")
    path = f"/api/v1/namespaces/{namespace}/pods"
    gate = {"name": "fairgpu.io/budget"}
    numbers = iter(range(10_000))

    def gated() -> Manifest | None:
        created = user.api.create(path, pod(f"held-{next(numbers)}", WHOLE_GPU))
        return created if gate in created["spec"].get("schedulingGates", []) else None

    held = wait_until(gated, "a pod is gated")
    assert held["spec"]["priorityClassName"] == "gpu-in-budget"
    with pytest.raises(ApiError):
        user.api.patch(f"{path}/{held['metadata']['name']}", {"spec": {"schedulingGates": None}})
    control_plane.admin.api.create(GRANTS, grant(namespace, "10"))
    released = f"{path}/{held['metadata']['name']}"
    wait_until(lambda: not user.api.get(released)["spec"].get("schedulingGates"), "the timekeeper lifts the gate")


def test_a_pods_spending_is_its_rate_times_the_time_that_the_api_server_stamped(
    control_plane: ControlPlane,
    namespace: str,
    node: StandInNode,
    run_pod: Callable[[str], Manifest],
    services: Services,
    finance: str,
) -> None:
    control_plane.admin.api.create(BUDGETS, budget(namespace, "10"))
    wait_until(partial(in_state, control_plane, namespace, "open"), "the budget is open")
    running = run_pod("exact")
    scheduled = next(c["lastTransitionTime"] for c in running["status"]["conditions"] if c["type"] == "PodScheduled")
    client = TimekeeperClient(control_plane, services.timekeeper, finance)
    wait_until(lambda: client.get("/v1/sessions", namespace=namespace)["sessions"], "the session is on the books")
    ended = node.set_pod_phase(namespace, "exact", "Succeeded")
    finished = ended["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
    expected = WHOLE_GPU_RATE * (parse_instant(finished) - parse_instant(scheduled)) // 10**9

    def closed() -> list[Manifest] | None:
        """The entries of the budget's one session; of two hours where it ran across the turn of an hour."""
        entries: list[Manifest] = client.get("/v1/ledger", budget=f"budget-{namespace}")["entries"]
        return entries if any(entry["kind"] == "close" for entry in entries) else None

    entries = wait_until(closed, "the session is closed in the ledger")
    assert sum(int(entry["amount"]["microGPUSeconds"]) for entry in entries) == expected
    wait_until(
        lambda: spent_in(status_of(control_plane, namespace)) == expected,
        "the budget's status says the same",
    )
