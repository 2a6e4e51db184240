"""Pods of other stacks behind the budget's gate: what they may cost, when they go, and one answer for each group."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.ledger.audited import write_statuses
from tests.support.ledger.harness import LedgerHarness
from tests.support.ledger.pod_jobs import PodJobs
from timekeeper.controller.reconcile.reconciler import READ_AGAIN
from timekeeper.controller.report.status_documents import conditions_of, deprioritizes
from timekeeper.controller.state.books import ControllerRules
from timekeeper.controller.state.other_stacks import idle_quotas
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import format_instant
from timekeeper.ledger import keys
from timekeeper.settings import TimekeeperSettings
from timekeeper.sources.folder import write_json

RULES = ControllerRules(own_resources={})
HOLD = {"onExhausted": "hold", "minRuntime": "1h"}


def waiting(
    harness: LedgerHarness,
    uid: str,
    limits: dict[str, str] | None = None,
    *,
    state: str = "held",
    annotations: dict[str, str] | None = None,
    **metadata: Any,
) -> None:
    """A pod that asks another stack for GPUs, as admission stores it: behind the gate where its budget is held."""
    item = {
        "metadata": {
            "uid": uid,
            "name": uid,
            "namespace": "team-a",
            "creationTimestamp": format_instant(harness.now),
            "labels": {"fairgpu.io/pod": "gpu", **metadata.pop("labels", {})},
            "annotations": {"fairgpu.io/budget-state": state, **(annotations or {})},
            **metadata,
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": limits or {"nvidia.com/gpu": "1"}}}],
            "schedulingGates": [{"name": "fairgpu.io/budget"}] if state == "held" else [],
        },
        "status": {"phase": "Pending"},
    }
    harness.write_pod(item)


def gated(harness: LedgerHarness) -> set[str]:
    harness.source.refresh()
    pods = harness.source.mirrors.pods.items()
    return {pod["metadata"]["name"] for pod in pods if pod["spec"].get("schedulingGates")}


def release(harness: LedgerHarness) -> int:
    harness.reconcile(1)
    assert harness.reconciler is not None
    return PodJobs(harness.source, harness.reconciler.books).release(harness.now)


@pytest.fixture
def accounting(harness: LedgerHarness) -> LedgerHarness:
    harness.budget("a", ["team-a"], gpu_hours=0, **HOLD)
    harness.lead(RULES)
    harness.reconcile()
    return harness


@pytest.mark.parametrize(
    "limits",
    [
        {"nvidia.com/gpu": "1"},
        {"nvidia.com/mig-3g.40gb": "1"},
        {"amd.com/gpu": "1"},
        {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "6144"},
    ],
)
def test_a_held_pod_of_another_stack_goes_once_a_grant_pays_for_its_first_hour(
    accounting: LedgerHarness, limits: dict[str, str]
) -> None:
    waiting(accounting, "p1", limits)
    assert release(accounting) == 0
    assert gated(accounting) == {"p1"}

    accounting.grant("more", "a", 1)
    assert release(accounting) == 1
    assert gated(accounting) == set()


def test_a_pod_that_asks_by_an_annotation_or_a_claim_goes_as_well(accounting: LedgerHarness) -> None:
    waiting(accounting, "kai", {"cpu": "1"}, annotations={"gpu-fraction": "0.5"})
    accounting.grant("more", "a", "0.5")
    assert release(accounting) == 1
    assert gated(accounting) == set()


def test_a_pod_waits_until_the_money_pays_for_all_that_it_asks_for(accounting: LedgerHarness) -> None:
    waiting(accounting, "p1", {"nvidia.com/gpu": "4"})
    accounting.grant("little", "a", 3)
    assert release(accounting) == 0
    accounting.grant("more", "a", 1)
    assert release(accounting) == 1


JOB = {"ownerReferences": [{"kind": "Job", "name": "train", "controller": True}]}
GROUPS: dict[str, dict[str, Any]] = {
    "a Job": JOB,
    "a JobSet": {"labels": {"jobset.sigs.k8s.io/jobset-name": "train"}},
    "a PodGroup": {"labels": {"scheduling.x-k8s.io/pod-group": "train"}},
    "Volcano's PodGroup": {"annotations": {"scheduling.k8s.io/group-name": "train"}},
    "KAI's PodGroup": {"annotations": {"pod-group-name": "train"}},
}


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS.keys())
def test_the_pods_of_a_group_go_together_or_not_at_all(accounting: LedgerHarness, group: dict[str, Any]) -> None:
    for name in ("p1", "p2", "p3"):
        waiting(accounting, name, **group)
    accounting.grant("little", "a", 2)
    assert release(accounting) == 0
    accounting.grant("more", "a", 1)
    assert release(accounting) == 3


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS.keys())
def test_a_group_that_was_admitted_in_part_is_admitted_as_a_whole(
    accounting: LedgerHarness, group: dict[str, Any]
) -> None:
    waiting(accounting, "p1", state="open", **group)
    accounting.now += 2_000_000_000
    waiting(accounting, "p2", **group)
    waiting(accounting, "stranger")
    assert release(accounting) == 1
    assert gated(accounting) == {"stranger"}


def test_the_rest_of_a_group_waits_where_a_new_leader_cannot_read_its_account_and_stops_no_other_pod(
    accounting: LedgerHarness,
) -> None:
    accounting.budget("b", ["team-b"], gpu_hours=0, **HOLD)
    waiting(accounting, "p1", state="open", **JOB)
    waiting(accounting, "p2", **JOB)
    waiting(accounting, "other", namespace="team-b")
    accounting.grant("more", "b", 1)
    accounting.reconcile(1)
    head = keys.AccountKeys("a").head
    before = accounting.client.dump(head)
    accounting.client.delete(head)
    accounting.client.set(head, "text")
    accounting.lead(RULES)
    assert release(accounting) == 1
    assert gated(accounting) == {"p2"}
    accounting.client.delete(head)
    accounting.client.restore(head, 0, before)
    accounting.reconcile(READ_AGAIN // SECOND)
    assert release(accounting) == 1
    assert gated(accounting) == set()


def test_a_later_pod_of_the_same_job_waits_for_money_of_its_own(accounting: LedgerHarness) -> None:
    waiting(accounting, "p1", state="open", **JOB)
    accounting.now += 61_000_000_000
    waiting(accounting, "p2", **JOB)
    assert release(accounting) == 0


def test_pods_of_one_deployment_each_wait_alone(accounting: LedgerHarness) -> None:
    replicas = {"ownerReferences": [{"kind": "ReplicaSet", "name": "serve-5d", "controller": True}]}
    for name in ("p1", "p2"):
        waiting(accounting, name, **replicas)
    accounting.grant("one", "a", 1)
    assert release(accounting) == 1


def test_a_budget_that_only_deprioritizes_says_where_nothing_yields(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], gpu_hours=1)
    harness.budget("b", ["team-b"], gpu_hours=1, onExhausted="hold")
    reconciler = harness.lead(RULES)
    harness.reconcile()
    found = {name: deprioritizes(reconciler.books.accounts[name].budget) for name in ("a", "b")}
    (condition,) = [one for one in conditions_of(None, {}, None, yields=False) if one["type"] == "NothingYields"]

    assert found == {"a": True, "b": False}
    assert "onExhausted: hold" in condition["message"]
    assert "enforcement: evict" in condition["message"]
    assert not TimekeeperSettings(mode="account").gives_classes
    assert TimekeeperSettings().gives_classes


def quota_condition(harness: LedgerHarness) -> dict[str, Any] | None:
    """The condition of the budget `a` about its namespaces' quotas, as its status has it."""
    harness.reconcile(1)
    write_statuses(harness)
    status = json.loads((harness.folder / "status" / "budget-a.json").read_text())
    return next((one for one in status["conditions"] if one["type"] == "QuotaCountsNothing"), None)


def write_quota(harness: LedgerHarness, resource: str) -> None:
    metadata = {"name": "gpus", "uid": "quota", "namespace": "team-a"}
    write_json(harness.folder / "quotas" / "gpus.json", {"metadata": metadata, "spec": {"hard": {resource: "4"}}})


def run(harness: LedgerHarness, uid: str) -> None:
    """A pod that holds a GPU by NVIDIA's plugin."""
    waiting(harness, uid, state="open")
    item = harness.source_pod(uid)
    stamp = format_instant(harness.now)
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp}
    harness.write_pod(
        {**item, "spec": {**item["spec"], "nodeName": "n1"}, "status": {"phase": "Running", "conditions": [scheduled]}}
    )


def test_a_budget_names_its_namespaces_whose_quota_counts_nothing_while_it_does(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], gpu_hours=1)
    harness.lead(RULES)
    write_quota(harness, "requests.fairgpu.io/gpu-core")
    assert quota_condition(harness) is None, "no pod holds GPUs by another stack"

    run(harness, "train")
    found = quota_condition(harness)
    assert found is not None
    assert (found["status"], "team-a" in found["message"]) == ("True", True)

    write_quota(harness, "requests.nvidia.com/gpu")
    assert quota_condition(harness) is None


@pytest.mark.parametrize(("label", "named"), [("account", {"team-a"}), ("share", set()), (None, {"team-a"})])
def test_the_label_of_a_namespace_says_whether_its_quota_counts_nothing(
    accounting: LedgerHarness, label: str | None, named: set[str]
) -> None:
    write_quota(accounting, "fairgpu.io/gpu")
    if label != "account":
        run(accounting, "train")
    accounting.reconcile(1)
    labels = {} if label is None else {"fairgpu.io/mode": label}
    accounting.source.mirrors.namespaces.replaced([{"metadata": {"name": "team-a", "uid": "n", "labels": labels}}])

    assert accounting.reconciler is not None
    assert idle_quotas(accounting.reconciler.books, accounting.source.mirrors) == named


def test_a_quota_counts_where_a_pod_from_before_fairgpu_holds_gpus_by_another_stack(harness: LedgerHarness) -> None:
    reconciler = harness.lead(RULES)
    write_quota(harness, "fairgpu.io/gpu")
    run(harness, "old")
    item = harness.source_pod("old")
    harness.write_pod({**item, "metadata": {**item["metadata"], "labels": {}}})
    harness.reconcile(1)

    assert reconciler.books.pods.sessions.of_namespaces(["team-a"])
    assert idle_quotas(reconciler.books, harness.source.mirrors) == set()


def test_a_quota_counts_where_fairgpus_scheduler_has_placed_a_pod(harness: LedgerHarness) -> None:
    reconciler = harness.lead(RULES)
    write_quota(harness, "fairgpu.io/gpu")
    run(harness, "left")
    harness.pod("placed", "team-a")
    harness.reconcile(1)

    assert idle_quotas(reconciler.books, harness.source.mirrors) == set()
