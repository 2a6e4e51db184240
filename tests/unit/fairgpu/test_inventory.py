"""The inventory annotation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu.inventory import MAX_ENCODED_BYTES, Device, Health, Inventory, InventoryError, Link, decode, encode
from tests.unit.fairgpu.json_values import JSON

EXAMPLE = Inventory(
    vendor="nvidia",
    driver="580.95.05",
    slots=64,
    devices=(
        Device("GPU-1", "NVIDIA A100-SXM4-80GB", 81038, 0, "00000000:07:00.0"),
        Device("GPU-2", "NVIDIA A100-SXM4-80GB", 81038, None, "00000000:0F:00.0", Health.FENCED, "Xid 79"),
    ),
    links=((Link.SELF, Link.NVLINK), (Link.NVLINK, Link.SELF)),
)
TEXTS = st.text(min_size=1, max_size=20)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    uuids = draw(st.lists(TEXTS, max_size=8, unique=True))
    devices = tuple(
        Device(
            uuid,
            draw(TEXTS),
            draw(st.integers(1, 2**20)),
            draw(st.none() | st.integers(0, 8)),
            draw(TEXTS),
            draw(st.sampled_from(Health)),
            draw(st.text(max_size=20)),
        )
        for uuid in uuids
    )
    count = len(devices)
    tiers = st.sampled_from([link for link in Link if link is not Link.SELF])
    upper = {(row, column): draw(tiers) for row in range(count) for column in range(row)}
    links = tuple(
        tuple(Link.SELF if row == column else upper[max(row, column), min(row, column)] for column in range(count))
        for row in range(count)
    )
    return Inventory(draw(TEXTS), draw(TEXTS), draw(st.integers(1, 64)), devices, links)


@given(inventories())
def test_an_encoded_inventory_is_decoded_as_itself(inventory: Inventory) -> None:
    assert decode(encode(inventory)) == inventory


def test_the_annotation_reads_as_documented() -> None:
    assert encode(EXAMPLE) == (
        '{"v":1,"vendor":"nvidia","driver":"580.95.05","slots":64,"devices":['
        '{"uuid":"GPU-1","model":"NVIDIA A100-SXM4-80GB","memoryMiB":81038,"numa":0,"pci":"00000000:07:00.0",'
        '"health":"ok"},{"uuid":"GPU-2","model":"NVIDIA A100-SXM4-80GB","memoryMiB":81038,"pci":"00000000:0F:00.0",'
        '"health":"fenced","why":"Xid 79"}],"links":[[0,1],[1,0]]}'
    )


def test_readers_keep_one_copy_of_what_many_nodes_have_alike() -> None:
    one, other = decode(encode(EXAMPLE)), decode(encode(EXAMPLE))
    assert one.links is other.links
    for here, there in zip(one.devices, other.devices, strict=True):
        assert here.model is there.model
        assert here.pci is there.pci


def test_fields_of_a_later_writer_are_ignored() -> None:
    document = json.loads(encode(EXAMPLE))
    document["later"] = document["devices"][0]["later"] = [1]
    assert decode(json.dumps(document)) == EXAMPLE


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("v",), 2, "v: 1"),
        (("vendor",), "", "vendor is no text"),
        (("driver",), None, "driver is no text"),
        (("slots",), 0, "slots is 0; whole numbers from 1 to 64"),
        (("slots",), 65, "slots is 65; whole numbers from 1 to 64"),
        (("slots",), True, "slots is True"),
        (("devices",), {}, "devices is no list"),
        (("devices", 0), "GPU-1", "devices[0] is no object"),
        (("devices", 0, "uuid"), "", "devices[0].uuid is no text"),
        (("devices", 1, "uuid"), "GPU-1", "devices[1].uuid is 'GPU-1', as that of another"),
        (("devices", 0, "model"), 1, "devices[0].model is no text"),
        (("devices", 0, "memoryMiB"), 0, "devices[0].memoryMiB is 0; whole numbers from 1"),
        (("devices", 0, "memoryMiB"), 2**53, "devices[0].memoryMiB"),
        (("devices", 0, "memoryMiB"), 1.5, "devices[0].memoryMiB is 1.5"),
        (("devices", 0, "numa"), -1, "devices[0].numa is -1"),
        (("devices", 0, "pci"), None, "devices[0].pci is no text"),
        (("devices", 0, "health"), "ill", "devices[0].health is 'ill'"),
        (("devices", 0, "health"), [], "devices[0].health is []"),
        (("devices", 0, "why"), 7, "devices[0].why is no text"),
        (("links",), None, "links is no list"),
        (("links",), [[0, 1]], "links is no matrix of 2"),
        (("links", 0), [0], "links is no matrix of 2"),
        (("links", 0), 0, "links is no matrix of 2"),
        (("links", 0, 1), 6, "links[0][1] is 6; whole numbers from 0 to 5"),
        (("links", 0, 1), True, "links[0][1] is True"),
        (("links", 0, 1), 0, "links[0][1] is 0; a device"),
        (("links", 1, 1), 1, "links[1][1] is 1; a device"),
        (("links", 0, 1), 2, "links[0][1] is 2, and the way back is 1"),
    ],
)
def test_a_fault_is_refused_by_its_field(path: tuple[str | int, ...], value: object, named: str) -> None:
    document = json.loads(encode(EXAMPLE))
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InventoryError) as refused:
        decode(json.dumps(document))
    assert named in str(refused.value)


@given(JSON)
def test_any_other_document_is_refused_and_nothing_else_is_raised(document: object) -> None:
    with pytest.raises(InventoryError):
        decode(json.dumps(document))


@pytest.mark.parametrize("text", ["", "{", "[" * 20_000, " " * (MAX_ENCODED_BYTES + 1)])
def test_texts_that_are_no_json_or_too_long_are_refused(text: str) -> None:
    with pytest.raises(InventoryError):
        decode(text)


def test_an_inventory_of_64_devices_fits_and_one_without_bound_is_not_written() -> None:
    links = tuple(tuple(Link.SELF if row == column else Link.SYSTEM for column in range(64)) for row in range(64))
    uuids = [f"GPU-{number:08d}-1111-2222-3333-444444444444" for number in range(64)]
    many = tuple(Device(uuid, "NVIDIA H100 80GB HBM3", 81559, 1, "00000000:07:00.0") for uuid in uuids)
    assert len(encode(Inventory("nvidia", "580.95.05", 64, many, links))) < MAX_ENCODED_BYTES // 2
    long = (Device("GPU-1", "m" * MAX_ENCODED_BYTES, 1, None, "p"),)
    with pytest.raises(InventoryError, match="at most 65536"):
        encode(Inventory("nvidia", "580", 64, long, ((Link.SELF,),)))


@pytest.mark.parametrize(
    "change",
    [
        {"slots": "x" * 50_000},
        {"devices": [{"uuid": "GPU-1", "health": "x" * 50_000}]},
        {"devices": [{"uuid": "x" * 20_000, "model": "m", "memoryMiB": 1, "pci": "p", "health": "ok"}] * 2},
        {"links": [[0, "x" * 50_000], [1, 0]]},
        {"links": [[0, 1], ["x" * 50_000, 0]]},
    ],
)
def test_a_message_shows_the_beginning_of_a_long_value(change: dict[str, Any]) -> None:
    with pytest.raises(InventoryError, match=r"x{60,64}") as caught:
        decode(json.dumps(json.loads(encode(EXAMPLE)) | change))
    assert len(str(caught.value)) < 200
