"""The plan of `fairgpu doctor`: node pools, who has GPU pods there, and which of them move to share at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.modes import AskedThere, HeldThere, NodePool, PoolNode, moves, node_pools, pool_of, pools_lines

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
SLICED = PoolNode("a100", ("nvidia with shared GPUs",), (A100,))
WHOLE = PoolNode("h100", ("nvidia",), (H100,))
MIG = PoolNode("a100", ("nvidia with MIG",), (A100,))
AMD = PoolNode("", ("amd",), ("AMD_Instinct_MI300X_OAM",))
CLAIMS = PoolNode("dra", ("claims of gpu.nvidia.com",), (H100,))


def asking(node: str, *namespaces: str, readable: bool = True) -> list[AskedThere]:
    return [AskedThere(node, namespace, readable) for namespace in namespaces]


@pytest.mark.parametrize(
    "label",
    [
        "cloud.google.com/gke-nodepool",
        "eks.amazonaws.com/nodegroup",
        "karpenter.sh/nodepool",
        "kubernetes.azure.com/agentpool",
    ],
)
def test_a_pool_has_the_name_that_its_cloud_gives_it(label: str) -> None:
    assert pool_of({"other": "x", label: "a100"}) == "a100"


def test_nodes_of_one_pool_that_differ_in_stack_are_two_pools() -> None:
    pools = node_pools({"n1": SLICED, "n2": SLICED, "n3": MIG}, [], [])

    assert [(pool.alike, pool.nodes) for pool in pools] == [(MIG, 1), (SLICED, 2)]


def test_a_pool_has_what_is_held_and_asked_for_on_its_nodes() -> None:
    held = [HeldThere("n1", "vision", 250_000), HeldThere("n2", "speech", 500_000), HeldThere("elsewhere", "x", 1)]
    asked = [
        *asking("n1", "vision", "vision"),
        *asking("n2", "speech", readable=False),
        *asking("elsewhere", "x"),
        *asking("", "x"),
    ]
    (pool,) = node_pools({"n1": SLICED, "n2": SLICED}, held, asked)

    assert (pool.pods, pool.readable, pool.rate) == ({"vision": 2, "speech": 1}, 2, 750_000)


def test_pools_with_a_team_in_common_move_at_once_and_others_one_by_one() -> None:
    nodes = {"n1": SLICED, "n2": WHOLE, "n3": CLAIMS}
    pools = node_pools(nodes, [], [*asking("n1", "vision", "speech"), *asking("n2", "speech"), *asking("n3", "law")])

    assert [[pool.name for pool in group] for group in moves(pools)] == [["a100", "h100"], ["dra"]]


@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=3), max_size=8))
def test_each_pool_and_each_team_is_in_one_move(namespaces: list[list[str]]) -> None:
    pools = [
        NodePool(PoolNode(str(at), ("nvidia",), ()), 1, dict.fromkeys(those, 1)) for at, those in enumerate(namespaces)
    ]
    found = moves(pools)
    teams = [namespace for group in found for namespace in {name for pool in group for name in pool.pods}]

    assert sorted(pool.name for group in found for pool in group) == sorted(pool.name for pool in pools)
    assert len(teams) == len(set(teams))


def test_the_plan_says_what_each_move_needs_first() -> None:
    nodes = {"n1": SLICED, "n2": MIG, "n3": CLAIMS, "n4": WHOLE}
    asked = [*asking("n1", "vision"), *asking("n2", "vision", readable=False), *asking("n3", "law", readable=False)]
    text = "\n".join(pools_lines(node_pools(nodes, [], asked)))

    assert (
        "1. a100 (nvidia with MIG), a100 (nvidia with shared GPUs), with vision. First on these nodes: take the device "
        "plugin away, switch MIG off. Share does not read the request of 1 of the pods."
    ) in text
    assert "2. dra (claims of gpu.nvidia.com), with law. First on these nodes: take NVIDIA's driver for claims" in text
    assert "3. h100 (nvidia), where no team has a pod. First on these nodes: take the device plugin away." in text


def test_pools_without_nvidias_gpus_stay_and_keep_who_shares_them_with_others() -> None:
    nodes = {"n1": AMD, "n2": WHOLE}
    alone = "\n".join(pools_lines(node_pools({"n1": AMD}, [], asking("n1", "hpc"))))
    shared = "\n".join(pools_lines(node_pools(nodes, [], [*asking("n1", "hpc"), *asking("n2", "hpc")])))

    assert f"1. no pool label (amd: {AMD.models[0]}), with hpc. Stays: share knows no GPUs but NVIDIA's" in alone
    assert f"and others are in no pool label (amd: {AMD.models[0]})." in alone
    assert "split" not in alone
    assert "Stays" in shared
    assert "split these teams first, or leave them in account" in shared


def test_a_cluster_without_gpus_has_no_plan() -> None:
    assert pools_lines(node_pools({}, [], [])) == []
