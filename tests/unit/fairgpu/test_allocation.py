"""The allocation annotation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu.allocation import (
    MAX_ENCODED_BYTES,
    Allocation,
    AllocationError,
    ContainerAllocation,
    DeviceShare,
    decode,
    encode,
)
from tests.unit.fairgpu.json_values import JSON

EXAMPLE = Allocation(
    node="n1",
    containers=(ContainerAllocation("main", (DeviceShare("GPU-1", "A100", 81920, 30, 4096),)),),
)
TEXTS = st.text(min_size=1, max_size=20)
DEVICES = st.integers(1, 2**20).flatmap(
    lambda total: st.builds(DeviceShare, TEXTS, TEXTS, st.just(total), st.integers(0, 100), st.integers(0, total))
)
ALLOCATIONS = st.builds(
    Allocation,
    node=TEXTS,
    containers=st.lists(
        st.builds(ContainerAllocation, TEXTS, st.lists(DEVICES, max_size=3).map(tuple)),
        max_size=3,
        unique_by=lambda container: container.name,
    ).map(tuple),
)


@given(ALLOCATIONS)
def test_an_encoded_value_is_decoded_as_itself(allocation: Allocation) -> None:
    assert decode(encode(allocation)) == allocation


def test_the_annotation_reads_as_documented() -> None:
    assert encode(EXAMPLE) == (
        '{"v":1,"node":"n1","containers":[{"name":"main","devices":'
        '[{"uuid":"GPU-1","model":"A100","totalMiB":81920,"core":30,"memoryMiB":4096}]}]}'
    )


def test_fields_of_a_later_writer_are_ignored() -> None:
    document = json.loads(encode(EXAMPLE))
    document["later"] = document["containers"][0]["later"] = document["containers"][0]["devices"][0]["later"] = [1]
    assert decode(json.dumps(document)) == EXAMPLE


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("v",), 2, "v: 1"),
        (("node",), "", "node is no text"),
        (("node",), None, "node is no text"),
        (("containers",), {}, "containers is no list"),
        (("containers", 0), "main", "containers[0] is no object"),
        (("containers", 0, "name"), 1, "containers[0].name is no text"),
        (("containers", 0, "devices"), None, "containers[0].devices is no list"),
        (("containers", 0, "devices", 0), [], "containers[0].devices[0] is no object"),
        (("containers", 0, "devices", 0, "uuid"), "", "containers[0].devices[0].uuid is no text"),
        (("containers", 0, "devices", 0, "core"), 101, "core is 101; whole numbers from 0 to 100 are allowed"),
        (("containers", 0, "devices", 0, "core"), -1, "core is -1; whole numbers from 0 to 100 are allowed"),
        (("containers", 0, "devices", 0, "core"), True, "core is True; whole numbers from 0 to 100 are allowed"),
        (("containers", 0, "devices", 0, "core"), 0.5, "core is 0.5; whole numbers from 0 to 100 are allowed"),
        (("containers", 0, "devices", 0, "totalMiB"), 0, "totalMiB is 0; whole numbers from 1"),
        (("containers", 0, "devices", 0, "totalMiB"), 2**53, "totalMiB is 9007199254740992; whole numbers from 1"),
        (("containers", 0, "devices", 0, "memoryMiB"), 81921, "over the device's 81920"),
    ],
)
def test_a_field_that_is_wrong_is_named(path: tuple[str | int, ...], value: Any, named: str) -> None:
    document: Any = json.loads(encode(EXAMPLE))
    place = document
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(AllocationError) as refused:
        decode(json.dumps(document))
    assert named in str(refused.value)


def test_a_container_that_stands_twice_is_refused() -> None:
    document = json.loads(encode(EXAMPLE))
    document["containers"] *= 2
    with pytest.raises(AllocationError, match="a name stands twice"):
        decode(json.dumps(document))


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "null", "[" * 100_000, " " * (MAX_ENCODED_BYTES + 1)])
def test_a_value_that_is_no_allocation_at_all_is_said_to_be_none(text: str) -> None:
    with pytest.raises(AllocationError):
        decode(text)


@given(JSON | st.dictionaries(st.sampled_from(("node", "containers", "v")), JSON).map(lambda d: {"v": 1, **d}))
def test_any_json_is_an_allocation_or_an_allocation_error(value: Any) -> None:
    try:
        decode(json.dumps(value))
    except AllocationError:
        return


def test_a_message_shows_the_beginning_of_a_long_value() -> None:
    """The scheduler and the timekeeper keep the message of each pod."""
    document = json.loads(encode(EXAMPLE))
    document["containers"][0]["devices"][0]["memoryMiB"] = "x" * 200_000
    with pytest.raises(AllocationError, match=r"memoryMiB is 'x{63}\.\.\.; whole numbers") as caught:
        decode(json.dumps(document))
    assert len(str(caught.value)) < 200
