"""Pods that hold GPUs by claims and lack the label of GPU pods: the timekeeper labels them, and evicts them, too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.ledger.harness import LedgerHarness
from tests.support.ledger.pod_jobs import PodJobs
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import format_instant
from timekeeper.sources.folder import write_json

RULES = ControllerRules(own_resources={}, overhead=frozenset({"kube-system"}))
EVICT = {"enforcement": "evict", "onExhausted": "hold", "evictionNotice": "1s", "allowance": {"gpuHours": 0}}


class Claims:
    """A node with devices of two drivers, and pods that hold some of them by claims."""

    def __init__(self, harness: LedgerHarness) -> None:
        self.harness = harness
        for driver in ("gpu.nvidia.com", "nic.example.com"):
            devices = [{"name": f"device-{at}"} for at in range(8)]
            spec = {"driver": driver, "nodeName": "n1", "pool": {"name": "n1", "generation": 1}, "devices": devices}
            write_json(harness.folder / "slices" / f"{driver}.json", {"metadata": {"uid": driver}, "spec": spec})
        harness.budget("a", ["team-a"], **EVICT)
        reconciler = harness.lead(RULES)
        self.jobs = PodJobs(harness.source, reconciler.books, lambda: harness.now / SECOND)

    def pod(self, name: str, namespace: str = "team-a", phase: str = "Running", **metadata: Any) -> None:
        stamp = format_instant(self.harness.now)
        named = {"uid": name, "name": name, "namespace": namespace, "creationTimestamp": stamp}
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp}
        self.harness.write_pod(
            {
                "metadata": {**named, **metadata},
                "spec": {"nodeName": "n1", "containers": [{"name": "main"}], "resourceClaims": [{"name": "one"}]},
                "status": {"phase": phase, "conditions": [scheduled]},
            }
        )

    def claim(
        self, pod: str, namespace: str = "team-a", driver: str = "gpu.nvidia.com", name: str = "", **result: Any
    ) -> None:
        """Writes a claim for one device, which a pod reserves; it has the pod's name where none is given."""
        name = name or pod
        results = [{"driver": driver, "pool": "n1", "device": "device-0", **result}]
        status = {"reservedFor": [{"resource": "pods", "uid": pod}], "allocation": {"devices": {"results": results}}}
        stamp = format_instant(self.harness.now)
        metadata = {"name": name, "namespace": namespace, "uid": f"claim-{name}", "creationTimestamp": stamp}
        write_json(self.harness.folder / "claims" / f"{name}.json", {"metadata": metadata, "status": status})

    def labelled(self) -> list[str]:
        """Lets the leader do a round and write the labels that are due; returns the pods that have one then."""
        self.harness.reconcile(1)
        self.jobs.label()
        self.harness.reconcile(1)
        found = self.harness.source.mirrors.pods.items()
        return sorted(
            item["metadata"]["name"] for item in found if item["metadata"].get("labels") == {"fairgpu.io/pod": "gpu"}
        )


@pytest.fixture
def claims(harness: LedgerHarness) -> Claims:
    return Claims(harness)


def test_a_pod_gets_the_label_once_its_claim_holds_a_gpu(claims: Claims) -> None:
    claims.pod("p1", annotations={"fairgpu.io/eviction-at": "2026-01-01T00:00:00Z", "mine": "kept"})
    assert claims.labelled() == []
    claims.claim("p1")
    assert claims.labelled() == ["p1"]
    (item,) = claims.harness.source.mirrors.pods.items()
    assert item["metadata"]["annotations"] == {"mine": "kept"}
    assert claims.jobs.label() == 0
    assert claims.jobs.counted("pod_writes_total", step="label", outcome="written") == 1


def test_a_pod_with_two_claims_for_gpus_is_written_once(claims: Claims) -> None:
    claims.pod("p1")
    claims.claim("p1")
    claims.claim("p1", name="second")
    assert claims.labelled() == ["p1"]
    assert claims.jobs.counted("pod_writes_total", step="label", outcome="written") == 1


def test_a_pod_whose_claim_is_charged_nothing_gets_none(claims: Claims) -> None:
    for name, device in {
        "nic": {"driver": "nic.example.com"},
        "admin": {"adminAccess": True},
    }.items():
        claims.pod(name)
        claims.claim(name, **device)
    assert claims.labelled() == []


def test_a_pod_that_has_ended_or_is_the_systems_gets_none(claims: Claims) -> None:
    claims.pod("ended", phase="Succeeded")
    claims.claim("ended")
    claims.pod("driver", namespace="kube-system")
    claims.claim("driver", namespace="kube-system")
    assert claims.labelled() == []


def test_a_pod_that_asks_for_gpus_in_our_resources_as_well_is_an_admins_to_label(claims: Claims) -> None:
    """The label makes its annotation of an allocation count, which nothing guarded so far."""
    item = claims.harness.pod("both", "team-a")
    item["metadata"].pop("labels", None)
    item["spec"]["resourceClaims"] = [{"name": "one"}]
    claims.harness.write_pod(item)
    claims.claim(item["metadata"]["uid"])
    assert claims.labelled() == []


def test_a_spent_budget_evicts_it_as_any_other_pod_and_leaves_one_with_a_network_card_alone(claims: Claims) -> None:
    harness, jobs = claims.harness, claims.jobs
    claims.pod("p1")
    claims.claim("p1")
    claims.pod("nic")
    claims.claim("nic", driver="nic.example.com")
    harness.reconcile(1)
    jobs.evict(harness.now, harness.now)
    assert jobs.counted("evictions_total", outcome="notice") == 0
    assert claims.labelled() == ["p1"]
    jobs.evict(harness.now, harness.now)
    assert jobs.counted("evictions_total", outcome="notice") == 1
    harness.reconcile(2)
    jobs.evict(harness.now, harness.now)
    harness.reconcile(1)
    assert [item["metadata"]["name"] for item in harness.source.mirrors.pods.items()] == ["nic"]
