"""The holding of a pod is decided on any objects that the API server accepts, and is never below its request."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.holdings import hami, kai, nvidia, volcano
from timekeeper.domain.holdings.deciding import NAMES, decide, is_accelerator
from timekeeper.domain.holdings.holding import (
    MOST_PARTS,
    Holding,
    holding_rate,
    join,
    read_bound_pod,
    read_host_node,
    spread,
)

KEYS = (
    hami.ALLOCATED,
    hami.REGISTER,
    volcano.ALLOCATED,
    volcano.REGISTER,
    kai.FRACTION,
    kai.MEMORY,
    kai.DEVICES,
    nvidia.PRODUCT,
    nvidia.MEMORY,
    nvidia.GPU_COUNT,
    "nvidia.com/gpu.replicas",
    nvidia.GKE_CLIENTS,
    nvidia.GKE_PARTITION,
)
TEXT = st.one_of(
    st.text(max_size=30), st.sampled_from(["0", "4", "GPU-0,NVIDIA,1,2:;", "[]", "[{}]", "{}", "[1]", "1e9"])
)
VALUES = st.dictionaries(st.sampled_from(KEYS), TEXT)
AMOUNTS = st.dictionaries(
    st.sampled_from([*sorted(NAMES), "nvidia.com/mig-1g.5gb", "nvidia.com/mig-", "nvidia.com/mig-9g.1gb.shared"]),
    st.one_of(st.integers(0, 10**6), st.sampled_from(["1", "2Gi", "0", "-1", "x", "10M"])),
    max_size=4,
)


@given(AMOUNTS, VALUES, VALUES, VALUES, AMOUNTS)
def test_any_objects_give_shares_from_0_to_1_and_no_error(
    limits: dict[str, Any], ours: dict[str, str], labels: dict[str, str], annotations: dict[str, str], offer: Any
) -> None:
    pod = {
        "metadata": {"namespace": "team", "annotations": ours, "labels": {"runai-gpu-group": "g"}},
        "spec": {"containers": [{"resources": {"limits": limits}}]},
    }
    node = {"metadata": {"labels": labels, "annotations": annotations}, "status": {"capacity": offer}}
    found = decide(read_bound_pod(pod), read_host_node(node), {})

    assert all(item.count > 0 and 0 <= item.time <= 1 and 0 <= item.memory <= 1 for item in found.holdings)


@given(AMOUNTS, VALUES, VALUES)
def test_a_pod_that_asks_for_a_gpu_holds_one_whatever_labels_and_annotations_say(
    limits: dict[str, Any], ours: dict[str, str], labels: dict[str, str]
) -> None:
    asked = {**limits, "nvidia.com/gpu": "1"}
    pod = {"metadata": {"annotations": ours}, "spec": {"containers": [{"resources": {"limits": asked}}]}}
    found = decide(read_bound_pod(pod), read_host_node({"metadata": {"labels": labels}}), {})

    assert found.holdings


@pytest.mark.parametrize("resource", sorted(NAMES))
def test_a_pod_that_asks_for_more_than_any_node_has_is_decided_at_once_and_charged_for_a_bounded_number(
    resource: str,
) -> None:
    pod = {"spec": {"containers": [{"resources": {"limits": {resource: str(2**63 - 1)}}}]}}
    found = decide(read_bound_pod(pod), read_host_node({}), {})

    assert all(item.count <= MOST_PARTS for item in found.holdings)


@pytest.mark.parametrize(
    "junk", [None, [], {}, {"metadata": 1, "spec": "x"}, {"spec": {"containers": [{"resources": {"limits": [1]}}]}}]
)
def test_objects_of_another_form_hold_nothing(junk: Any) -> None:
    document = junk if isinstance(junk, dict) else {}

    assert decide(read_bound_pod(document), read_host_node(document), {}).holdings == ()


@pytest.mark.parametrize(
    ("time", "memory", "count", "price", "rate"),
    [
        ("1", "1", 2, "1", 2_000_000),
        ("1/3", "1/3", 1, "1", 333_334),
        ("1/7", "1/8", 7, "1", 1_000_006),
        ("0", "1/4", 1, "1", 250_000),
        ("0", "1/100", 1, "1", 100_000),
        ("1/2", "1/4", 1, "5/2", 1_250_000),
    ],
)
def test_a_part_costs_its_price_times_the_larger_share_rounded_up(
    time: str, memory: str, count: int, price: str, rate: int
) -> None:
    holding = Holding("nvidia", "A100", count, Fraction(time), Fraction(memory))

    assert holding_rate(holding, Fraction(price), 10) == rate


@given(st.fractions(0, 100))
def test_an_amount_is_spread_over_as_few_gpus_as_it_takes(amount: Fraction) -> None:
    count, each = spread(amount)

    assert count * each == amount
    assert each <= 1
    assert count == 1 or amount > count - 1


def test_equal_parts_are_joined() -> None:
    part = Holding("nvidia", "A100", 1, Fraction(1), Fraction(1))

    assert [item.count for item in join(part, part)] == [2]


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "amd.com/gpu", "google.com/tpu"])
def test_accelerators_are_recognized_by_name(resource: str) -> None:
    assert is_accelerator(resource, {})


@pytest.mark.parametrize("resource", ["cpu", "example.com/nic", "gpu.intel.com/i915_monitoring"])
def test_other_resources_are_no_accelerators(resource: str) -> None:
    assert not is_accelerator(resource, {})
