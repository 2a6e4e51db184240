"""The NVIDIA GPUs that a node offers, and its statement about the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairgpu.inventory import Inventory, Link, decode
from nodeagent.node_object import read_node
from nodeagent.node_patches import metadata_patch, status_patch, taint_patch
from nodeagent.vendors.nvidia import Found, offered, tier
from nodeagent.vendors.spec_files import Reading

ONE, TWO = (Found(index, index, f"GPU-{index}", "NVIDIA A100", 81038, f"00000000:0{index}:00.0", 0) for index in (0, 1))


def specs(*uuids: str, unread: tuple[str, ...] = ()) -> Reading:
    devices: list[dict[str, Any]] = [{"name": uuid, "containerEdits": {}} for uuid in uuids]
    return Reading((({"cdiVersion": "0.6.0", "devices": devices},),), unread)


def test_gpus_that_the_vendors_specs_know_are_offered_with_their_links() -> None:
    offer = offered("580.1", [ONE, TWO], {("GPU-0", "GPU-1"): Link.NVLINK}, specs("GPU-0", "GPU-1"))
    assert [device.uuid for device in offer.inventory.devices] == ["GPU-0", "GPU-1"]
    assert offer.inventory.links == ((Link.SELF, Link.NVLINK), (Link.NVLINK, Link.SELF))
    assert offer.withheld == {}


@pytest.mark.parametrize(
    ("found", "known", "why"),
    [
        (ONE, (), "no entry by its uuid"),
        (replace(ONE, refused="it is in MIG mode"), ("GPU-0",), "MIG mode"),
        (replace(ONE, memory_mib=0), ("GPU-0",), "no memory"),
    ],
)
def test_a_gpu_that_cannot_be_shared_is_left_out_and_says_why(found: Found, known: tuple[str, ...], why: str) -> None:
    offer = offered("580.1", [found, TWO], {}, specs(*known, "GPU-1"))
    assert [device.uuid for device in offer.inventory.devices] == ["GPU-1"]
    assert list(offer.edits) == ["GPU-1"]
    assert why in offer.withheld["GPU-0"]


def test_a_spec_that_cannot_be_read_is_named_where_a_gpu_has_no_entry() -> None:
    offer = offered("580.1", [ONE, TWO], {}, specs("GPU-1", unread=("/etc/cdi/a.json cannot be read: it is empty",)))
    assert list(offer.withheld) == ["GPU-0"]
    assert offer.withheld["GPU-0"].endswith("for GPU GPU-0; /etc/cdi/a.json cannot be read: it is empty")


@pytest.mark.parametrize(
    ("level", "link"),
    [
        (0, Link.ONE_SWITCH),
        (10, Link.ONE_SWITCH),
        (20, Link.SWITCHES),
        (30, Link.NODE),
        (40, Link.NODE),
        (50, Link.SYSTEM),
    ],
)
def test_levels_of_topology_are_links(level: int, link: Link) -> None:
    assert tier(level) is link


def test_the_node_is_written_only_where_it_says_something_else() -> None:
    inventory: Inventory = offered("580.1", [ONE], {}, specs("GPU-0")).inventory
    node: dict[str, Any] = {"metadata": {"name": "n1"}, "status": {}}
    metadata, status = metadata_patch(node, inventory), status_patch(node, inventory, [])
    assert metadata is not None
    assert status is not None
    assert decode(metadata["metadata"]["annotations"]["fairgpu.io/inventory"]) == inventory
    assert status["status"]["capacity"]["fairgpu.io/gpu-memory"] == "81038"
    node |= {"metadata": {"name": "n1", **metadata["metadata"]}, **status}
    assert (metadata_patch(node, inventory), status_patch(node, inventory, [])) == (None, None)


STARTING = {"key": "startup-taint.cluster-autoscaler.kubernetes.io/fairgpu", "effect": "NoSchedule"}
OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


def starting_node(*taints: dict[str, str], **allocatable: str) -> dict[str, Any]:
    status = {"allocatable": {f"fairgpu.io/{name.replace('_', '-')}": amount for name, amount in allocatable.items()}}
    metadata = {"name": "n1", "resourceVersion": "7"}
    return read_node({"metadata": metadata, "spec": {"taints": list(taints)}, "status": status})


def test_the_startup_taint_goes_once_the_node_offers_its_gpus_and_other_taints_stay() -> None:
    assert taint_patch(starting_node(OTHER, STARTING, gpu="64", gpu_core="100")) == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"taints": [OTHER]},
    }
    assert taint_patch(starting_node(STARTING, gpu="64", gpu_core="100")) == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"taints": None},
    }


@pytest.mark.parametrize("allocatable", [{}, {"gpu": "0", "gpu_core": "100"}, {"gpu": "64"}])
def test_the_startup_taint_stays_while_a_resource_is_missing(allocatable: dict[str, str]) -> None:
    assert taint_patch(starting_node(STARTING, **allocatable)) is None


def test_a_node_without_the_startup_taint_is_left_alone() -> None:
    assert taint_patch(starting_node(OTHER, gpu="64", gpu_core="100")) is None
