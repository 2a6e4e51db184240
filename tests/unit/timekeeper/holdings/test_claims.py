"""The holdings of ResourceClaims, from objects in the forms of the API's versions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.holdings.claims import DRIVERS, capacity, decide, read_slices, reserving_pods
from timekeeper.domain.holdings.holding import Doubt

A100 = "NVIDIA A100-SXM4-80GB"


def attributes(**values: str) -> dict[str, Any]:
    return {name: {"string": value} for name, value in values.items()}


def slices(*devices: dict[str, Any], generation: int = 1, counters: Any = None, **spec: Any) -> dict[str, Any]:
    shared = [{"name": "gpu-0", "counters": {name: {"value": value} for name, value in (counters or {}).items()}}]
    return {
        "spec": {
            "driver": "gpu.nvidia.com",
            "pool": {"name": "n1", "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices),
            **({"sharedCounters": shared} if counters else {}),
            **spec,
        }
    }


def claim(*results: dict[str, Any], **status: Any) -> dict[str, Any]:
    found = [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0", **one} for one in results]
    return {"status": {"allocation": {"devices": {"results": found}}, **status}}


def held(asked: dict[str, Any], *published: dict[str, Any]) -> list[tuple[str, int, str, str]]:
    found = decide(asked, read_slices(published), DRIVERS).holdings
    return [(item.model, item.count, str(item.time), str(item.memory)) for item in found]


WHOLE = {"name": "gpu-0", "attributes": attributes(productName=A100), "capacity": {"memory": {"value": "80Gi"}}}
OTHER = {**WHOLE, "name": "gpu-1"}


def test_a_claim_that_is_not_allocated_holds_nothing() -> None:
    assert held({"status": {}}, slices(WHOLE)) == []


def test_each_allocated_device_is_a_gpu_of_its_model() -> None:
    assert held(claim({}, {"device": "gpu-1"}), slices(WHOLE, OTHER)) == [(A100, 2, "1", "1")]


def test_devices_of_v1beta1_stand_one_level_deeper() -> None:
    basic = {"name": "gpu-0", "basic": {key: value for key, value in WHOLE.items() if key != "name"}}

    assert held(claim({}), slices(basic)) == [(A100, 1, "1", "1")]


def test_attributes_may_have_the_drivers_domain() -> None:
    device = {"name": "gpu-0", "attributes": {"gpu.nvidia.com/productName": {"string": A100}}}

    assert held(claim({}), slices(device)) == [(A100, 1, "1", "1")]


def test_a_partition_has_its_share_of_memory_and_compute() -> None:
    taken = {"memory": {"value": "40Gi"}, "multiprocessors": {"value": "42"}, "memory-slice-0": {"value": "1"}}
    device = {**WHOLE, "consumesCounters": [{"counterSet": "gpu-0", "counters": taken}]}
    counters = {"memory": "80Gi", "multiprocessors": "98", "memory-slice-0": "1", "memory-slice-1": "1"}

    assert held(claim({}), slices(device, counters=counters)) == [(A100, 1, "3/7", "1/2")]


def test_counters_may_stand_in_another_slice_of_the_pool() -> None:
    device = {**WHOLE, "consumesCounters": [{"counterSet": "gpu-0", "counters": {"slots": {"value": "1"}}}]}
    apart = slices(counters={"slots": "4"})

    assert held(claim({}), slices(device), apart) == [(A100, 1, "1/4", "1/4")]


def test_a_mig_device_without_counters_is_a_part_by_its_profile() -> None:
    device = {"name": "gpu-0", "attributes": attributes(productName=A100, type="mig", profile="1g.10gb")}

    assert held(claim({}), slices(device)) == [(A100, 1, "1/7", "1/8")]


@pytest.mark.parametrize(
    ("product", "profile", "part"),
    [
        ("AMD_Instinct_MI300X_OAM", "spx_nps1", "1"),
        ("AMD_Instinct_MI300X_OAM", "dpx_nps1", "1/2"),
        ("AMD_Instinct_MI300X_OAM", "cpx_nps4", "1/8"),
        ("AMD_Instinct_MI300A", "cpx_nps1", "1/6"),
    ],
)
def test_a_partition_of_an_amd_gpu_is_a_part_by_its_profile(product: str, profile: str, part: str) -> None:
    device = {"name": "gpu-1-128", "attributes": attributes(productName=product, partitionProfile=profile)}
    amd = slices(device, driver="gpu.amd.com")

    assert held(claim({"driver": "gpu.amd.com", "device": "gpu-1-128"}), amd) == [(product, 1, part, part)]


def test_an_amd_profile_of_another_form_is_a_whole_gpu_and_named() -> None:
    device = {"name": "gpu-0", "attributes": attributes(productName="MI300X", partitionProfile="half_nps1")}
    found = decide(claim({}), read_slices([slices(device)]), DRIVERS)

    assert [(item.count, item.time) for item in found.holdings] == [(1, 1)]
    assert Doubt.PROFILE_UNKNOWN in found.doubts


def test_a_part_of_a_shared_device_is_what_was_consumed_of_it() -> None:
    device = {**WHOLE, "allowMultipleAllocations": True}

    assert held(claim({"consumedCapacity": {"memory": "20Gi"}}), slices(device)) == [(A100, 1, "1/4", "1/4")]


def test_the_capacity_of_devices_is_each_gpu_once_however_many_partitions_it_can_have() -> None:
    whole = {"slots": {"value": "4"}}
    partitions = [
        {"name": f"gpu-0-{name}", "consumesCounters": [{"counterSet": "gpu-0", "counters": taken}]}
        for name, taken in (("whole", whole), ("half", {"slots": {"value": "2"}}), ("slot", {"slots": {"value": "1"}}))
    ]
    published = slices(*partitions, OTHER, {**WHOLE, "name": "gpu-2", "allowMultipleAllocations": True})

    assert capacity(read_slices([published, slices(counters={"slots": "4"})])) == {"": 1, A100: 2}


def test_the_capacity_of_partitions_without_counters_is_their_parts() -> None:
    mig = [{"name": f"mig-{at}", "attributes": attributes(productName=A100, profile="3g.40gb")} for at in (0, 1)]
    amd = {"name": "gpu-1", "attributes": attributes(productName="MI300X", partitionProfile="dpx_nps1")}

    assert capacity(read_slices([slices(*mig)])) == {A100: 1}
    assert capacity(read_slices([slices(amd, driver="gpu.amd.com")])) == {"MI300X": Fraction(1, 2)}
    assert capacity({}) == {}


def test_administrative_access_is_free() -> None:
    assert held(claim({"adminAccess": True}), slices(WHOLE)) == []


def test_a_claim_for_another_kind_of_device_holds_no_gpu() -> None:
    assert held(claim({"driver": "dra.net", "device": "eth1"}), slices(WHOLE)) == []


def test_only_the_latest_generation_of_a_pool_counts() -> None:
    older = slices({**WHOLE, "attributes": attributes(productName="Tesla T4")})

    assert held(claim({}), older, slices(WHOLE, generation=2)) == [(A100, 1, "1", "1")]


@pytest.mark.parametrize(
    ("published", "doubt"),
    [
        ((), Doubt.DEVICE_UNKNOWN),
        ((slices({"name": "gpu-0"}),), Doubt.MODEL_UNKNOWN),
        ((slices({**WHOLE, "allowMultipleAllocations": True}),), Doubt.SIZE_UNKNOWN),
    ],
)
def test_a_device_that_is_not_published_is_charged_as_a_whole_gpu_and_named(published: Any, doubt: Doubt) -> None:
    found = decide(claim({}), read_slices(published), DRIVERS)

    assert [(item.count, item.time) for item in found.holdings] == [(1, 1)]
    assert doubt in found.doubts


def test_a_claim_that_pods_share_is_one_holding_of_all_of_them() -> None:
    shared = claim({}, reservedFor=[{"resource": "pods", "name": name, "uid": name} for name in ("a", "b", "c")])

    assert held(shared, slices(WHOLE)) == [(A100, 1, "1", "1")]
    assert reserving_pods(shared) == ("a", "b", "c")


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.sampled_from(["80Gi", "gpu-0", "n1"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["devices", "name", "counters", "value", "pool", "memory", "results"]), inner),
    ),
    max_leaves=12,
)


@given(JSON, JSON)
def test_any_json_gives_shares_from_0_to_1_and_no_error(one: Any, other: Any) -> None:
    device = {"name": "gpu-0", "capacity": one, "attributes": other, "consumesCounters": one}
    published = [slices(device, sharedCounters=other), {"spec": one}, {"spec": other}]
    found = decide(claim({"consumedCapacity": one}, reservedFor=other), read_slices(published), DRIVERS)

    assert all(0 <= item.time <= 1 and 0 <= item.memory <= 1 for item in found.holdings)
    assert len(reserving_pods({"status": one})) >= 0
