"""The names and the specs by which the runtime gives a container its devices."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from nodeagent.containers.cdi_name import device_name, qualified, spec_file
from nodeagent.containers.cdi_spec import Mount, VendorSpecError, document, vendor_edits


def test_the_name_is_made_of_the_sorted_slots() -> None:
    expected = hashlib.sha256(b"slot-1\nslot-2").hexdigest()[:32]
    assert device_name(["slot-2", "slot-1", "slot-2"]) == expected
    assert qualified(expected) == f"fairgpu.io/container={expected}"
    assert spec_file(expected) == f"fairgpu.io-container_{expected}.json"


def test_a_container_without_slots_has_no_name() -> None:
    with pytest.raises(ValueError, match="without slots"):
        device_name([])


def vendor(name: str, node: str, **edits: Any) -> dict[str, Any]:
    device = {"name": name, "containerEdits": {"deviceNodes": [{"path": node}], **edits}}
    return {
        "cdiVersion": "0.7.0",
        "kind": "nvidia.com/gpu",
        "devices": [device],
        "containerEdits": {"mounts": [{"hostPath": "/lib/libcuda.so.1", "containerPath": "/lib/libcuda.so.1"}]},
    }


def test_the_entry_by_the_uuid_is_taken_before_that_by_the_index() -> None:
    specs = [vendor("0", "/dev/nvidia0"), vendor("GPU-a", "/dev/nvidia3")]
    version, edits = vendor_edits([specs], "GPU-a", 0, 0)
    assert version == "0.7.0"
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidia3"]
    assert [mount["containerPath"] for mount in edits["mounts"]] == ["/lib/libcuda.so.1"]


def test_the_entry_by_the_index_counts_if_its_device_node_is_the_gpus() -> None:
    assert vendor_edits([[vendor("1", "/dev/nvidia4")]], "GPU-a", 1, 4)[1]["deviceNodes"] == [{"path": "/dev/nvidia4"}]
    with pytest.raises(VendorSpecError, match="no entry by its uuid, nor one called 1 with /dev/nvidia4"):
        vendor_edits([[vendor("1", "/dev/nvidia5")]], "GPU-a", 1, 4)


@pytest.mark.parametrize("name", ["GPU-a", "0"])
def test_the_entry_in_the_last_folder_counts_as_in_a_runtime(name: str) -> None:
    """NVIDIA's toolkit writes /var/run/cdi/nvidia.yaml by itself since 1.18; an admin's in /etc/cdi may be left."""
    old, new = (vendor(name, "/dev/nvidia0", env=[f"MADE={when}"]) for when in ("before", "now"))
    assert vendor_edits([[old], [new], []], "GPU-a", 0, 0)[1]["env"] == ["MADE=now"]
    with pytest.raises(VendorSpecError, match="2 entries in one folder for GPU GPU-a"):
        vendor_edits([[], [old, new]], "GPU-a", 0, 0)


def test_an_entry_by_the_uuid_in_an_earlier_folder_goes_before_one_by_the_index() -> None:
    folders = [[vendor("GPU-a", "/dev/nvidia3")], [vendor("0", "/dev/nvidia0")]]
    assert vendor_edits(folders, "GPU-a", 0, 0)[1]["deviceNodes"] == [{"path": "/dev/nvidia3"}]


@pytest.mark.parametrize("specs", [[], [{}], [{"devices": 3}], [{"devices": [{"name": "GPU-a"}, {"name": "GPU-a"}]}]])
def test_a_gpu_without_exactly_one_entry_has_no_edits(specs: list[Any]) -> None:
    with pytest.raises(VendorSpecError, match="GPU-a"):
        vendor_edits([specs], "GPU-a", 0, 0)


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ({"env": 3}, "env is no list"),
        ({"mounts": {"a": 1}}, "mounts is no list"),
        ({"deviceNodes": "/dev/nvidia0"}, "deviceNodes is no list"),
        ({"deviceNodes": ["/dev/nvidia0"]}, "deviceNodes has an entry of another form"),
        ({"env": ["A=1", None]}, "env has an entry of another form"),
        ({"additionalGids": ["44"]}, "additionalGids has an entry of another form"),
    ],
)
def test_an_entry_of_another_form_gives_a_gpu_no_edits_and_names_the_field(edits: dict[str, Any], why: str) -> None:
    of_all = {"devices": [{"name": "GPU-a", "containerEdits": {}}], "containerEdits": edits}
    for spec in (of_all, {"devices": [{"name": "GPU-a", "containerEdits": edits}]}):
        with pytest.raises(VendorSpecError, match=f"for GPU GPU-a: containerEdits.{why}"):
            vendor_edits([[spec]], "GPU-a", 0, 0)


def test_a_device_node_of_another_form_is_not_the_gpus() -> None:
    spec = {"devices": [{"name": "1", "containerEdits": {"deviceNodes": [{"path": ["/dev/nvidia4"]}]}}]}
    with pytest.raises(VendorSpecError, match="no entry by its uuid"):
        vendor_edits([[spec]], "GPU-a", 1, 4)


def test_fields_that_two_gpus_have_in_common_are_in_the_spec_once() -> None:
    edits = [vendor_edits([[vendor(f"GPU-{n}", f"/dev/nvidia{n}", env=["A=1"])]], f"GPU-{n}", 0, 0) for n in range(2)]
    made = document("abc", edits, [Mount(Path("/host/ledger"), "/run/vcuda/ledger", writable=True)])
    (device,) = made["devices"]
    assert (made["cdiVersion"], made["kind"], device["name"]) == ("0.7.0", "fairgpu.io/container", "abc")
    assert [node["path"] for node in device["containerEdits"]["deviceNodes"]] == ["/dev/nvidia0", "/dev/nvidia1"]
    assert [mount["containerPath"] for mount in device["containerEdits"]["mounts"]] == [
        "/lib/libcuda.so.1",
        "/run/vcuda/ledger",
    ]


def test_a_spec_is_of_the_version_that_each_containerd_1_7_reads() -> None:
    """containerd 1.7.2 to 1.7.11 have version 0.5.4 of CDI's library, which refuses a spec of a version after 0.5.0."""
    edits = vendor_edits([[{**vendor("GPU-a", "/dev/nvidia0"), "cdiVersion": "0.3.0"}]], "GPU-a", 0, 0)
    assert document("abc", [edits], [])["cdiVersion"] == "0.5.0"


@pytest.mark.parametrize("version", ["0.²", "0.5.²", "0.5", "", None, 0.5, "1.0.0\n", f"0.{'9' * 5000}.0"])
def test_a_version_of_another_form_gives_a_gpu_no_edits_and_names_the_field(version: object) -> None:
    """No container could be given the GPU: its own spec could not be written, or the runtime would refuse it."""
    with pytest.raises(VendorSpecError, match=r"for GPU GPU-a: cdiVersion is no version such as 0\.5\.0"):
        vendor_edits([[{**vendor("GPU-a", "/dev/nvidia0"), "cdiVersion": version}]], "GPU-a", 0, 0)


def test_a_version_may_begin_with_v_as_in_cdis_own_library() -> None:
    edits = vendor_edits([[{**vendor("GPU-a", "/dev/nvidia0"), "cdiVersion": "v1.0.0"}]], "GPU-a", 0, 0)
    assert document("abc", [edits], [])["cdiVersion"] == "1.0.0"


def test_no_spec_lets_the_image_choose_devices() -> None:
    edits = vendor_edits([[vendor("GPU-a", "/dev/nvidia0", env=["NVIDIA_VISIBLE_DEVICES=all"])]], "GPU-a", 0, 0)
    (device,) = document("abc", [edits], [])["devices"]
    assert device["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_mounts_are_read_only_unless_they_say_otherwise() -> None:
    made = document(
        "abc", [], [Mount(Path("/h/config"), "/etc/vcuda/config"), Mount(Path("/h/l"), "/l", writable=True)]
    )
    first, second = made["devices"][0]["containerEdits"]["mounts"]
    assert first == {
        "hostPath": "/h/config",
        "containerPath": "/etc/vcuda/config",
        "options": ["ro", "rbind", "nosuid", "nodev"],
    }
    assert second["options"][0] == "rw"
