"""Composes the CDI spec of one container: the vendor's edits for its GPUs, and the mounts of FairGPU's files. Pure.

The format is the Container Device Interface's (https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairgpu.json_values import mapping
from nodeagent.containers.cdi_name import KIND

LEAST_VERSION = "0.5.0"
"""The first version of CDI that has all that the agent writes: a `hostPath` of device nodes, and names of devices that
begin with a digit. It is also the last that containerd 1.7.2 to 1.7.11 read: they refuse a spec of a later one."""
VOID = "NVIDIA_VISIBLE_DEVICES=void"
"""The variable that keeps NVIDIA's own runtime hook from adding devices that the image's environment names."""
READ_ONLY = ("ro", "rbind", "nosuid", "nodev")
WRITABLE = ("rw", "rbind", "nosuid", "nodev")
LISTS = ("deviceNodes", "mounts", "hooks", "additionalGids", "netDevices")
KINDS = {"env": str, "additionalGids": int}
"""The types of the entries of lists whose entries are no objects."""
_VERSION = re.compile(r"v?([0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4})")
"""A version of CDI. CDI's own library also takes one that begins with `v`."""


class VendorSpecError(ValueError):
    """Raised if the vendor's CDI specs do not have exactly one valid entry for a GPU; the message says why."""


@dataclass(frozen=True)
class Mount:
    """A file of the host that is mounted into a container.

    Attributes:
        source: the file on the host.
        target: the path in the container.
        writable: whether the container may write to it.
        executable: whether the container may load it as a program's code, even if the host's file system is mounted
            `noexec`. If the kernel does not let the runtime change that, as in a user namespace, the container does not
            start: its program would otherwise run without the shim.
    """

    source: Path
    target: str
    writable: bool = False
    executable: bool = False


def vendor_edits(
    folders: Iterable[Iterable[Mapping[str, Any]]], uuid: str, index: int, minor: int
) -> tuple[str, dict[str, Any]]:
    """Returns the changes that the vendor's CDI specs make to a container so that it can use one GPU.

    The GPU's entry is the one whose name is its uuid. Without such an entry, it is the one whose name is its index, if
    that entry uses the device node `/dev/nvidiaMINOR`: in a spec that was made before GPUs were changed, the index may
    stand for another GPU. If several folders have an entry, the one in the last folder counts, as in a runtime.

    Args:
        folders: the vendor's CDI specs in each folder, as JSON objects.
        uuid: the GPU's uuid.
        index: the GPU's index in NVML.
        minor: the minor number of the GPU's device node.

    Returns:
        The version of the CDI spec, and the spec's `containerEdits` for this GPU joined with those for every device.

    Raises:
        VendorSpecError: there is no such entry, or more than one in a folder, or its version or edits have another
            form.
    """
    node = f"/dev/nvidia{minor}"
    by_uuid: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    by_index: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    for specs in folders:
        entries = [
            (spec, device.get("name"), mapping(device.get("containerEdits")))
            for spec in specs
            for device in _entries(spec, "devices")
        ]
        by_uuid = [(spec, edits) for spec, name, edits in entries if name == uuid] or by_uuid
        by_index = [
            (spec, edits)
            for spec, name, edits in entries
            if name == str(index)
            and node in [entry.get("hostPath") or entry.get("path") for entry in _entries(edits, "deviceNodes")]
        ] or by_index
    found = by_uuid or by_index
    if len(found) != 1:
        fault = (
            f"{len(found)} entries in one folder"
            if found
            else f"no entry by its uuid, nor one called {index} with {node}"
        )
        raise VendorSpecError(f"the vendor's CDI specs have {fault} for GPU {uuid}")
    spec, edits = found[0]
    version = _VERSION.fullmatch(str(spec.get("cdiVersion", LEAST_VERSION)))
    if version is None:
        fault = f"cdiVersion is no version such as {LEAST_VERSION}"
        raise VendorSpecError(f"the vendor's CDI specs for GPU {uuid}: {fault}")
    for each in (mapping(spec.get("containerEdits")), edits):
        for key in ("env", *LISTS):
            entries = each.get(key) or []
            if not isinstance(entries, list):
                raise VendorSpecError(f"the vendor's CDI specs for GPU {uuid}: containerEdits.{key} is no list")
            if not all(isinstance(entry, KINDS.get(key, dict)) for entry in entries):
                raise VendorSpecError(
                    f"the vendor's CDI specs for GPU {uuid}: containerEdits.{key} has an entry of another form"
                )
    return version[1], joined([mapping(spec.get("containerEdits")), edits])


def joined(edits: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns several `containerEdits` of CDI specs as one: all entries in order, each once.

    Of a variable of the environment, and of `intelRdt`, the last value wins. Other keys that are not in LISTS are
    left out. Two GPUs of one container bring the same libraries: some runtimes refuse a library that is mounted twice.
    """
    result: dict[str, Any] = {}
    variables: dict[str, str] = {}
    for edit in edits:
        variables.update({str(entry).partition("=")[0]: str(entry) for entry in edit.get("env") or []})
        for key in LISTS:
            known = result.setdefault(key, [])
            known.extend(entry for entry in edit.get(key) or [] if entry not in known)
        if edit.get("intelRdt"):
            result["intelRdt"] = edit["intelRdt"]
    result["env"] = list(variables.values())
    return {key: value for key, value in result.items() if value}


def document(name: str, vendor: Sequence[tuple[str, Mapping[str, Any]]], mounts: Iterable[Mount]) -> dict[str, Any]:
    """Returns the CDI spec of one container as a JSON object.

    Args:
        name: the name of the container's CDI device.
        vendor: the answer of `vendor_edits` for each of the container's GPUs, in order.
        mounts: FairGPU's files to mount.
    """
    own: dict[str, Any] = {"env": [VOID], "mounts": [_mount(mount) for mount in mounts]}
    edits = joined([*(each for _, each in vendor), own])
    versions = [LEAST_VERSION, *(version for version, _ in vendor)]
    return {
        "cdiVersion": max(versions, key=_version),
        "kind": KIND,
        "devices": [{"name": name, "containerEdits": edits}],
    }


def _mount(mount: Mount) -> dict[str, Any]:
    options = [*(WRITABLE if mount.writable else READ_ONLY), *(["exec"] if mount.executable else [])]
    return {"hostPath": str(mount.source), "containerPath": mount.target, "options": options}


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _entries(parent: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = parent.get(key)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
