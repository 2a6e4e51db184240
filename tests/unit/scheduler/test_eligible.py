"""On which nodes a pod may run, as kube-scheduler judges it."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.cluster.eligible import ANYWHERE, Site, may_run, rules_of

GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
SITE = Site("n1", {"zone": "a", "cores": "64"}, (GPU_TAINT,))
TOLERATES = [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("tolerations", "may"),
    [
        ([], False),
        (TOLERATES, True),
        ([{"operator": "Exists"}], True),
        ([{"key": "nvidia.com/gpu", "value": "present"}], True),
        ([{"key": "nvidia.com/gpu", "operator": "Equal", "value": "other"}], False),
        ([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "other", "operator": "Exists"}], False),
        ([{"key": "nvidia.com/gpu", "operator": "Later", "value": "present"}], False),
    ],
)
def test_a_taint_keeps_out_what_does_not_tolerate_it(tolerations: list[dict[str, str]], *, may: bool) -> None:
    assert may_run(rules_of({"tolerations": tolerations}), SITE) == may


def test_a_taint_that_only_prefers_others_keeps_nobody_out() -> None:
    assert may_run(ANYWHERE, Site("n1", {}, ({"key": "k", "effect": "PreferNoSchedule"},)))


def test_a_cordoned_node_takes_only_what_tolerates_that() -> None:
    cordoned = Site("n1", unschedulable=True)
    assert not may_run(ANYWHERE, cordoned)
    assert may_run(
        rules_of({"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]}), cordoned
    )


@pytest.mark.parametrize(
    ("rules", "may"),
    [
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "a", "disk": "ssd"}}, False),
        (affinity(expression("zone", "In", "a", "b")), True),
        (affinity(expression("zone", "In", "b")), False),
        (affinity(expression("zone", "In", "b"), expression("cores", "Gt", "32")), True),
        (affinity(expression("cores", "Lt", "64")), False),
        (affinity(expression("zone", "Gt", "1")), False),
        (affinity(expression("disk", "NotIn", "hdd")), True),
        (affinity(expression("disk", "Exists")), False),
        (affinity(expression("disk", "DoesNotExist")), True),
        (affinity(expression("zone", "Like", "a")), False),
        (affinity({}), False),
        (affinity(), False),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}), True),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}), False),
    ],
)
def test_node_selectors_and_required_affinity_are_met_as_kubernetes_says(rules: dict[str, Any], *, may: bool) -> None:
    assert may_run(rules_of({"tolerations": TOLERATES, **rules}), SITE) == may


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({}, False),
        ({"volumes": [{"emptyDir": {}}]}, False),
        ({"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}, True),
        ({"volumes": [{"ephemeral": {}}]}, True),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, False),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, True),
        ({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}, True),
        ({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}}, False),
        ({"resourceClaims": [{"name": "nic"}]}, True),
        ({"hostNetwork": True}, True),
    ],
)
def test_what_other_pods_or_volumes_decide_is_left_to_kube_scheduler(spec: dict[str, Any], *, named: bool) -> None:
    assert rules_of(spec).only_where_named == named
