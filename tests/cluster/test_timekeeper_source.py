"""The timekeeper's reads and writes, under its own account with the Role that deploy/ ships."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.pods import canonical_pod, plain_pod
from tests.support.waiting import wait_until
from timekeeper.sources.base import CHECKPOINT_SHARDS, ChangedMeanwhileError, DepartureProof, ObjectEvent, RefusedError
from timekeeper.sources.kubernetes import BUDGETS, GRANTS, KubernetesSource

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture
def source(control_plane: ControlPlane) -> Iterator[KubernetesSource]:
    account = control_plane.service_account("fairgpu-system", "fairgpu-timekeeper")
    source, end = KubernetesSource(account.api, time.time_ns, random.random), threading.Event()
    source.start(end.wait)
    yield source
    end.set()


def budget(name: str, namespace: str) -> dict[str, object]:
    return {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUBudget",
        "metadata": {"name": name},
        "spec": {"namespaces": [namespace], "allowance": {"gpuHours": 1}, "period": {"every": "day"}},
    }


def test_it_holds_the_pods_with_a_gpu_and_sees_them_leave(
    control_plane: ControlPlane, namespace: str, source: KubernetesSource
) -> None:
    pods, api = f"/api/v1/namespaces/{namespace}/pods", control_plane.admin.api
    api.create(pods, plain_pod())
    uid = api.create(pods, canonical_pod())["metadata"]["uid"]
    wait_until(lambda: source.mirrors.pods.get(uid), "the GPU pod")
    assert all(pod["metadata"]["name"] != "plain" for pod in source.mirrors.pods.items())
    api.delete(f"{pods}/gpu")
    wait_until(lambda: source.mirrors.pods.get(uid) is None, "its end")
    [departure] = [d for d in source.mirrors.pods.take_departures() if d.item["metadata"]["uid"] == uid]
    assert departure.proof is DepartureProof.DELETED
    assert abs(time.time_ns() - departure.at) < 60 * 10**9


def test_it_lifts_its_own_gate_once_and_leaves_the_others(
    control_plane: ControlPlane, namespace: str, source: KubernetesSource
) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    pod = control_plane.admin.api.create(path, canonical_pod("held", gated=True))
    source.lift_gate(pod)
    gates = control_plane.admin.api.get(f"{path}/held")["spec"]["schedulingGates"]
    assert gates == [{"name": "example.org/own"}]
    with pytest.raises(ChangedMeanwhileError):
        source.lift_gate(pod)


def test_a_budgets_status_is_replaced_whole_and_its_spec_is_not_touched(
    control_plane: ControlPlane, namespace: str, source: KubernetesSource
) -> None:
    name = f"budget-of-{namespace}"
    created = control_plane.admin.api.create(BUDGETS, budget(name, namespace))
    source.write_budget_status(name, {"state": "open", "burnRate": "1"})
    source.write_budget_status(name, {"state": "grace"})
    read = control_plane.admin.api.get(f"{BUDGETS}/{name}")
    assert read["status"] == {"state": "grace"}
    assert read["spec"] == created["spec"]
    control_plane.admin.api.delete(f"{BUDGETS}/{name}")
    with pytest.raises(ChangedMeanwhileError):
        source.write_budget_status(name, {"state": "open"})


def test_a_status_that_comes_late_does_not_take_the_place_of_a_newer_one(
    control_plane: ControlPlane, namespace: str, source: KubernetesSource
) -> None:
    name = f"late-{namespace}"
    spec = {"namespaces": [name], "allowance": {"gpuHours": 1}, "period": {"every": "day"}}
    budget = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": name}, "spec": spec}
    drafted_for = control_plane.admin.api.create(BUDGETS, budget)["metadata"]["resourceVersion"]
    source.write_budget_status(name, {"state": "grace"}, drafted_for)
    with pytest.raises(ChangedMeanwhileError):
        source.write_budget_status(name, {"state": "open"}, drafted_for)
    assert control_plane.admin.api.get(f"{BUDGETS}/{name}")["status"] == {"state": "grace"}
    control_plane.admin.api.delete(f"{BUDGETS}/{name}")


def test_a_write_that_is_invalid_is_refused_and_one_for_an_earlier_object_is_not(
    control_plane: ControlPlane, namespace: str, source: KubernetesSource
) -> None:
    """The API server answers both with the status 422."""
    api, path = control_plane.admin.api, f"/api/v1/namespaces/{namespace}/pods"
    api.create(BUDGETS, budget("invalid", namespace))
    with pytest.raises(RefusedError, match=r"status\.state"):
        source.write_budget_status("invalid", {"state": 5})
    with pytest.raises(RefusedError, match="Too long"):
        source.write_checkpoints(0, {"a": "x" * 2**20})
    pod = api.create(path, canonical_pod("later", gated=True))
    earlier = {**pod, "metadata": {**pod["metadata"], "uid": "earlier"}}
    for write in (source.lift_gate, source.label_gpu_pod):
        with pytest.raises(ChangedMeanwhileError):
            write(earlier)


def test_a_grant_that_was_made_is_shown(control_plane: ControlPlane, namespace: str, source: KubernetesSource) -> None:
    name = f"grant-of-{namespace}"
    grant = {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUGrant",
        "metadata": {"name": name},
        "spec": {"budget": "any", "gpuHours": "0.5", "reason": "a test", "requestedBy": "admin"},
    }
    control_plane.admin.api.create(GRANTS, grant)
    wait_until(lambda: name in {item["metadata"]["name"] for item in source.mirrors.grants.items()}, "the grant")


def test_an_event_stands_beside_the_pod_that_it_is_about(
    control_plane: ControlPlane, namespace: str, source: KubernetesSource
) -> None:
    pod = control_plane.admin.api.create(f"/api/v1/namespaces/{namespace}/pods", canonical_pod("named"))
    source.record_event(
        ObjectEvent({**pod, "apiVersion": "v1", "kind": "Pod"}, "BudgetHeld", "waits for the budget", warning=True)
    )
    shown = control_plane.admin.kubectl("describe", "pod", "named", "-n", namespace).stdout
    assert "BudgetHeld" in shown
    assert "waits for the budget" in shown


def test_one_occasion_is_one_event_though_two_leaders_report_it(
    control_plane: ControlPlane, namespace: str, source: KubernetesSource
) -> None:
    pod = control_plane.admin.api.create(f"/api/v1/namespaces/{namespace}/pods", canonical_pod("named"))
    regarding = {**pod, "apiVersion": "v1", "kind": "Pod"}
    source.record_event(ObjectEvent(regarding, "BudgetGateLifted", "2.50 GPU-hours are left", occasion="once"))
    source.record_event(ObjectEvent(regarding, "BudgetGateLifted", "2.49 GPU-hours are left", occasion="once"))
    source.record_event(ObjectEvent(regarding, "BudgetGateLifted", "of another time", occasion="twice"))
    events = control_plane.admin.api.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    assert sorted(event["note"] for event in events) == ["2.50 GPU-hours are left", "of another time"]


def test_checkpoints_of_namespaces_without_a_budget_are_kept_in_every_shard_that_the_role_names(
    control_plane: ControlPlane, source: KubernetesSource
) -> None:
    shards = {shard: {f"namespace:n{shard}": {"checkpoint": {"version": shard}}} for shard in range(CHECKPOINT_SHARDS)}
    for shard, documents in shards.items():
        source.write_checkpoints(shard, {"namespace:old": {}})
        source.write_checkpoints(shard, documents)
    assert source.read_checkpoints() == {name: found for shard in shards.values() for name, found in shard.items()}
    config_maps = "/api/v1/namespaces/fairgpu-system/configmaps"
    for shard in range(CHECKPOINT_SHARDS):
        control_plane.admin.api.delete(f"{config_maps}/fairgpu-timekeeper-checkpoints-{shard}")
    assert source.read_checkpoints() == {}
