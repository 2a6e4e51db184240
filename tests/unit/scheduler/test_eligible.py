"""On which nodes a pod may run, as kube-scheduler judges it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cluster.eligible import ANYWHERE, Rules, Site, Sites, others_of, rules_of

GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
SITE = Site("n1", {"zone": "a", "cores": "64"}, (GPU_TAINT,))
TOLERATES = [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def may_run(rules: Rules, site: Site) -> bool:
    """Returns whether a pod may run on a node that is asked about together with another one."""
    answer, _ = Sites([site, Site("another")]).open_to(rules).tolist()
    return bool(answer)


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
        (affinity(expression("cores", "Gt", "63.5")), False),
        (affinity(expression("cores", "Gt", "1", "2")), False),
        (affinity(expression("cores", "Lt", str(10**40))), False),
        (affinity(expression("disk", "Lt", "1")), False),
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
        ({"containers": [{"ports": [{"containerPort": 80}]}]}, False),
        ({"containers": [{"ports": [{"containerPort": 80, "hostPort": 80}]}]}, True),
        ({"initContainers": [{"ports": [{"hostPort": 80}]}]}, True),
    ],
)
def test_a_rule_about_other_pods_or_volumes_is_left_to_kube_scheduler(spec: dict[str, Any], *, named: bool) -> None:
    assert rules_of(spec).only_where_named == named


HAS = Site("n1", others=others_of({"cpu": "4", "rdma/hca": "2", "hugepages-2Mi": "1Gi", "gone": "0"}))


def asks(**amounts: object) -> dict[str, Any]:
    return {"resources": {"requests": {name.replace("_", "/"): amount for name, amount in amounts.items()}}}


@pytest.mark.parametrize(
    ("spec", "may"),
    [
        ({"containers": [asks(cpu="64", memory="1Ti", **{"fairgpu.io/gpu": "9"})]}, True),
        ({"containers": [asks(rdma_hca="2")]}, True),
        ({"containers": [asks(rdma_hca=3)]}, False),
        ({"containers": [asks(rdma_hca="1"), asks(rdma_hca="2")]}, False),
        ({"containers": [asks(rdma_hca="2")], "initContainers": [asks(rdma_hca="2")]}, True),
        (
            {"containers": [asks(rdma_hca="2")], "initContainers": [asks(rdma_hca="1") | {"restartPolicy": "Always"}]},
            False,
        ),
        ({"containers": [asks(rdma_hca="2")], "overhead": {"rdma/hca": "1"}}, False),
        ({"containers": [asks(**{"hugepages-2Mi": "1025Mi"})]}, False),
        ({"containers": [{}], **asks(**{"hugepages-2Mi": "1025Mi"})}, False),
        ({"containers": [{}], **asks(**{"hugepages-2Mi": "1Gi"}), "overhead": {"hugepages-2Mi": "2Mi"}}, False),
        ({"containers": [asks(**{"hugepages-2Mi": "512Mi"})], **asks(**{"hugepages-2Mi": "1Gi"})}, True),
        ({"containers": [asks(rdma_hca="1")], **asks(cpu="64", memory="1Ti")}, True),
        ({"containers": [asks(other_nic="1")]}, False),
        ({"containers": [asks(other_nic="0", gone="0m")]}, True),
        ({"containers": [asks(rdma_hca="9" * 40)]}, False),
        ({"containers": [asks(rdma_hca="9E")]}, False),
        ({"containers": [asks(rdma_hca=[1])]}, True),
    ],
)
def test_a_node_offers_what_the_pod_asks_for_of_each_other_resource(spec: dict[str, Any], *, may: bool) -> None:
    assert may_run(rules_of(spec), HAS) == may


@pytest.mark.parametrize(
    ("label", "limit", "may"),
    [
        ("64", "+32", True),
        ("-1", "-2", True),
        ("1_000", "32", False),
        ("64", "1_0", False),
        ("٦٤", "32", False),
        ("64", " 32", False),
        ("64", "", False),
    ],
)
def test_a_label_is_compared_as_a_number_only_where_kube_scheduler_reads_one(
    label: str, limit: str, *, may: bool
) -> None:
    assert may_run(rules_of(affinity(expression("cores", "Gt", limit))), Site("n1", {"cores": label})) == may


LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from(["x", "1", "7"]), max_size=2)
REQUIREMENTS = st.fixed_dictionaries(
    {
        "key": st.sampled_from("ab"),
        "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
        "values": st.lists(st.sampled_from(["x", "1", "5"]), max_size=2),
    }
)
TERMS = st.fixed_dictionaries({"matchExpressions": st.lists(REQUIREMENTS, max_size=2)})


def meets(requirement: dict[str, Any], value: str | None) -> bool:
    """Returns whether a label's value meets a requirement, as Kubernetes' documentation says it."""
    operator, values = requirement["operator"], requirement["values"]
    if operator in ("Gt", "Lt"):
        if value is None or not value.isdigit() or len(values) != 1 or not values[0].isdigit():
            return False
        return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[str(operator)]


@given(st.lists(LABELS, max_size=4), st.lists(TERMS, max_size=3))
def test_all_nodes_at_once_are_judged_as_each_by_itself(labels: list[dict[str, str]], terms: list[Any]) -> None:
    sites = Sites([Site(f"n{at}", one) for at, one in enumerate(labels)])
    expected = [
        any(
            term["matchExpressions"] and all(meets(each, one.get(each["key"])) for each in term["matchExpressions"])
            for term in terms
        )
        for one in labels
    ]
    assert sites.open_to(rules_of(affinity(*terms))).tolist() == expected


@pytest.mark.parametrize(
    "rules",
    [
        affinity(*(expression(f"key-{at}", "In", "x") for at in range(200))),
        affinity(*(expression("kubernetes.io/hostname", "NotIn", f"n{at}") for at in range(200))),
        affinity(*(expression("cores", "Gt", str(at)) for at in range(100, 300))),
        affinity(expression("kubernetes.io/hostname", "In", *(f"other-{at}" for at in range(200)))),
        {"tolerations": [{"key": f"key-{at}", "operator": "Exists"} for at in range(200)]},
        {"containers": [asks(**{f"example.org/{at}": 1 for at in range(200)})]},
    ],
    ids=["keys", "excluded names", "numbers", "names", "tolerations", "resources"],
)
def test_a_pod_of_many_rules_costs_no_more_where_there_are_many_nodes(rules: dict[str, Any]) -> None:
    assert calls(rules, nodes=2000) <= 2 * calls(rules, nodes=20) + 100


def calls(rules: dict[str, Any], nodes: int) -> int:
    """Counts the functions that one look at so many nodes calls, in Python and from it."""
    labels = [{"kubernetes.io/hostname": f"n{at}", "cores": "64"} for at in range(nodes)]
    sites = Sites([Site(f"n{at}", one, (GPU_TAINT,)) for at, one in enumerate(labels)])
    asked, count = rules_of(rules), 0
    sites.open_to(asked)

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        sites.open_to(asked)
    finally:
        sys.setprofile(None)
    return count
