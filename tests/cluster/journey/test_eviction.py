"""Eviction of running pods through the real API server, under the timekeeper's own Role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from fairgpu.states import BudgetState
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, place
from tests.cluster.journey.manifests import Manifest, pod
from tests.cluster.pods import plain_pod
from tests.cluster.services.everything import Services
from tests.cluster.services.knowledge import wait_until_known
from tests.support.ledger.periods import month_midway
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("services")

BUDGETS = "/apis/fairgpu.io/v1alpha1/gpubudgets"
GRANTS = "/apis/fairgpu.io/v1alpha1/gpugrants"
EVICTION_AT = "fairgpu.io/eviction-at"
WHOLE_GPU = {"nvidia.com/gpu": 1}


@pytest.fixture
def run_pod(control_plane: ControlPlane, user: Identity, namespace: str, node: StandInNode) -> Callable[..., Manifest]:
    """Creates a pod of one whole GPU, binds it and lets it run."""
    scheduler = control_plane.service_account("fairgpu-system", "fairgpu-scheduler")

    def run(name: str, annotations: dict[str, str] | None = None) -> Manifest:
        item = pod(name, WHOLE_GPU, annotations)
        item["metadata"]["labels"] = {"app": name}
        created = user.api.create(f"/api/v1/namespaces/{namespace}/pods", item)
        place(scheduler, created, node.name)
        return node.set_pod_phase(namespace, name, "Running")

    return run


@pytest.fixture
def pod_now(control_plane: ControlPlane, namespace: str) -> Callable[[str], Manifest]:
    return lambda name: control_plane.admin.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")


def create_budget(plane: ControlPlane, namespace: str, notice: str, **spec: Any) -> None:
    item = {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUBudget",
        "metadata": {"name": f"budget-{namespace}"},
        "spec": {
            "namespaces": [namespace],
            "allowance": {"gpuHours": "0.001"},
            "period": month_midway(),
            "enforcement": "evict",
            "onExhausted": "hold",
            "evictionNotice": notice,
            **spec,
        },
    }
    plane.admin.api.create(BUDGETS, item)


def events_at(plane: ControlPlane, item: Manifest) -> list[str]:
    path = f"/apis/events.k8s.io/v1/namespaces/{item['metadata']['namespace']}/events"
    found = plane.admin.api.get(path)["items"]
    return [event["reason"] for event in found if event["regarding"].get("uid") == item["metadata"]["uid"]]


def ending(item: Manifest) -> bool:
    return "deletionTimestamp" in item["metadata"]


def test_running_pods_of_a_spent_budget_are_shown_and_evicted_as_far_as_disruption_budgets_let_them(
    control_plane: ControlPlane,
    user: Identity,
    namespace: str,
    run_pod: Callable[..., Manifest],
    pod_now: Callable[[str], Manifest],
) -> None:
    disruption = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
    }
    disruptions = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    user.api.create(disruptions, disruption)
    create_budget(control_plane, namespace, "3s", allowance={"gpuHours": 10})
    kept = run_pod("kept")
    goes = run_pod("goes", {EVICTION_AT: "2099-01-01T00:00:00Z"})
    assert EVICTION_AT not in goes["metadata"]["annotations"]
    # Both are in before the money is gone, however long that took.
    control_plane.admin.api.patch(f"{BUDGETS}/budget-{namespace}", {"spec": {"allowance": {"gpuHours": "0.001"}}})
    wait_until(
        lambda: all(EVICTION_AT in pod_now(name)["metadata"]["annotations"] for name in ("kept", "goes")),
        "both have an event",
    )
    forever = {"metadata": {"annotations": {EVICTION_AT: "2099-01-01T00:00:00Z"}}}
    with pytest.raises(ApiError, match="fairgpu-metadata"):
        user.api.patch(f"/api/v1/namespaces/{namespace}/pods/kept", forever)
    wait_until(lambda: ending(pod_now("goes")), "the one that nothing keeps is evicted")
    wait_until(
        lambda: "BudgetEvictionBlocked" in events_at(control_plane, kept), "the other is kept, and an event says so"
    )
    assert not ending(pod_now("kept"))
    wait_until(
        lambda: sorted(events_at(control_plane, goes)) == ["BudgetEviction", "BudgetEvictionNotice"],
        "each step of the one that went has one event",
    )
    user.api.delete(f"{disruptions}/keep")
    wait_until(lambda: ending(pod_now("kept")), "it goes once nothing keeps it any more")


def test_nothing_is_evicted_once_the_money_is_back(
    control_plane: ControlPlane,
    namespace: str,
    run_pod: Callable[..., Manifest],
    pod_now: Callable[[str], Manifest],
) -> None:
    create_budget(control_plane, namespace, "1h")
    running = run_pod("runs-on")
    wait_until(lambda: EVICTION_AT in pod_now("runs-on")["metadata"]["annotations"], "it has a notice")
    grant = {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUGrant",
        "metadata": {"name": f"grant-{namespace}"},
        "spec": {"budget": f"budget-{namespace}", "gpuHours": 10, "reason": "a paper deadline"},
    }
    control_plane.admin.api.create(GRANTS, grant)
    wait_until(lambda: "BudgetEvictionCalledOff" in events_at(control_plane, running), "it is called off")
    wait_until(lambda: EVICTION_AT not in pod_now("runs-on")["metadata"]["annotations"], "its notice is taken back")
    assert not ending(pod_now("runs-on"))
    assert "BudgetEviction" not in events_at(control_plane, running)


def test_a_budget_that_deprioritizes_lets_those_run_on_that_came_in_as_over_budget(
    control_plane: ControlPlane,
    services: Services,
    namespace: str,
    run_pod: Callable[..., Manifest],
    pod_now: Callable[[str], Manifest],
) -> None:
    create_budget(control_plane, namespace, "2s", onExhausted="deprioritize")
    run_pod("within")
    wait_until(lambda: ending(pod_now("within")), "the one that came in within budget goes")
    wait_until_known(services, namespace, BudgetState.OVER)
    over = run_pod("over")
    assert over["spec"]["priorityClassName"] == "gpu-over-budget"
    again = run_pod("over-2")
    assert again["spec"]["priorityClassName"] == "gpu-over-budget"
    assert EVICTION_AT not in pod_now("over")["metadata"]["annotations"]


@pytest.mark.parametrize(
    "grace", [31_536_000, 9_300_000_000], ids=["a year", "so long that the API server's date wraps"]
)
def test_a_pod_that_its_user_deletes_with_more_grace_than_an_eviction_gives_goes_like_any_other(
    control_plane: ControlPlane,
    user: Identity,
    namespace: str,
    run_pod: Callable[..., Manifest],
    pod_now: Callable[[str], Manifest],
    grace: int,
) -> None:
    create_budget(control_plane, namespace, "2s", allowance={"gpuHours": 10})
    run_pod("dodging")
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace}
    user.api.delete(f"/api/v1/namespaces/{namespace}/pods/dodging", options)
    item = pod_now("dodging")
    assert item["metadata"]["deletionGracePeriodSeconds"] == grace
    assert item["spec"]["terminationGracePeriodSeconds"] == 30
    # The money is gone only after the deletion, however long that took.
    control_plane.admin.api.patch(f"{BUDGETS}/budget-{namespace}", {"spec": {"allowance": {"gpuHours": "0.001"}}})
    wait_until(
        lambda: pod_now("dodging")["metadata"]["deletionGracePeriodSeconds"] == 30,
        "its eviction leaves it the time that its own spec says",
    )


def test_the_timekeeper_deletes_no_pod(control_plane: ControlPlane, namespace: str) -> None:
    timekeeper = control_plane.service_account("fairgpu-system", "fairgpu-timekeeper")
    path = f"/api/v1/namespaces/{namespace}/pods"
    control_plane.admin.api.create(path, plain_pod())
    with pytest.raises(ApiError, match="cannot delete"):
        timekeeper.api.delete(f"{path}/plain")
