"""Warns of settings by which a GPU pod reaches GPUs past its share; nodes and other policies decide on them.

What closes each of these ways is in docs/guards.md.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fairgpu.dialects.registry import DIALECTS
from fairgpu.faults import field_path, show
from fairgpu.pod import PodReading
from webhook.admission.sidecar import OUR_VOLUMES
from webhook.admission.verdict import mapping, objects

Path = tuple[str | int, ...]

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
"""By which NVIDIA's runtime gives a container GPUs
(https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html)."""
NO_DEVICES: Final = ("", "none", "void")
MAX_NAMED: Final = 16
"""Warnings of this kind for one pod."""

_PREFIXES: Final = ("nvidia.com/", "amd.com/", "gpu.intel.com/", "deviceclass.resource.kubernetes.io/")
_VISIBLE_DEVICES: Final = VISIBLE_DEVICES.encode()
_LISTS: Final = ("containers", "initContainers")
_AMOUNTS: Final = ("limits", "requests")


def exposures(pod: dict[str, Any], reading: PodReading, root: Path = ()) -> tuple[str, ...]:
    """Warnings about a pod that asks for a GPU; `root` is the field path of the pod in what messages speak of."""
    spec = mapping(pod.get("spec"))
    warnings = _of_pod(spec, root)
    asking = {container.path[-2:] for container in reading.all_containers if container.request is not None}
    for field in _LISTS:
        containers = spec.get(field)
        if not isinstance(containers, list):
            continue
        for index, container in enumerate(containers):
            if isinstance(container, dict) and _is_exposed(container):
                path = (*root, "spec", field, index)
                warnings += _of_container(container, path)
                warnings += _beside(mapping(container.get("resources")), path) if (field, index) in asking else []
            if len(warnings) >= MAX_NAMED:
                return tuple(warnings[:MAX_NAMED])
    return tuple(warnings)


def _is_exposed(container: dict[str, Any]) -> bool:
    """Whether anything is to be said of a container, in as little time as this is asked of every one."""
    security = container.get("securityContext")
    if isinstance(security, dict) and security.get("privileged") is True:
        return True
    resources = container.get("resources")
    if isinstance(resources, dict):
        if resources.get("claims"):
            return True
        for key in _AMOUNTS:
            for name in mapping(resources.get(key)):
                if name not in DIALECTS.resources and name.startswith(_PREFIXES):
                    return True
    return bool(_environment(container))


def _environment(container: dict[str, Any]) -> Any:
    """The variables of a container where one of them may be looked for; they may still be the bytes of their JSON."""
    variables = container.get("env")
    if isinstance(variables, msgspec.Raw):
        return msgspec.json.decode(variables) if _VISIBLE_DEVICES in bytes(variables) else None
    return variables


def _of_pod(spec: dict[str, Any], root: Path) -> list[str]:
    warnings = []
    if spec.get("hostPID") is True:
        warnings.append(
            f"{field_path(*root, 'spec', 'hostPID')}: the pod sees all processes of its node, GPU programs too"
        )
    volumes = spec.get("volumes")
    for index, volume in enumerate(volumes if isinstance(volumes, list) else ()):
        host = volume.get("hostPath") if isinstance(volume, dict) else None
        if not isinstance(host, dict) or volume.get("name") in OUR_VOLUMES:  # ours take its place
            continue
        path = host.get("path")
        if isinstance(path, str) and (path.rstrip("/") in ("", "/dev") or path.startswith("/dev/nvidia")):
            where = field_path(*root, "spec", "volumes", index, "hostPath", "path")
            warnings.append(f"{where}: {show(path)} shows the devices of the node, past the pod's share")
    return warnings


def _of_container(container: dict[str, Any], path: Path) -> list[str]:
    warnings = []
    if mapping(container.get("securityContext")).get("privileged") is True:
        where = field_path(*path, "securityContext", "privileged")
        warnings.append(f"{where}: a privileged container reaches all GPUs of its node, past the pod's share")
    for index, variable in objects(_environment(container)):
        if variable.get("name") == VISIBLE_DEVICES and variable.get("value", "") not in NO_DEVICES:
            where = field_path(*path, "env", index)
            warnings.append(
                f"{where}: {VISIBLE_DEVICES}={show(variable.get('value'))} may give the container GPUs past its share; "
                f"FairGPU chooses the devices"
            )
    return warnings


def _beside(resources: dict[str, Any], path: Path) -> list[str]:
    """GPUs of others that a container asks for beside FairGPU's."""
    others: dict[str, None] = {}
    for key in _AMOUNTS:
        for name in mapping(resources.get(key)):
            if name.startswith(_PREFIXES) and name not in DIALECTS.resources:
                others[name] = None
    claims = resources.get("claims")
    if isinstance(claims, list) and claims:
        others["claims"] = None
    if not others:
        return []
    named = ", ".join(others)[:200]
    consequence = "is neither shared nor metered by it; the pod waits until one node offers both"
    return [f"{field_path(*path, 'resources')}: {named} beside a GPU of FairGPU's {consequence}"]
