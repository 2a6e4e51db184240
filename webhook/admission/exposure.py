"""Warns of settings by which a GPU pod reaches GPUs beyond its share; nodes and other policies decide on them.

docs/guards.md says how to close each of these ways.
"""

from __future__ import annotations

from typing import Any, Final

from fairgpu.dialects.registry import DIALECTS, ORDINARY
from fairgpu.faults import field_path, show
from fairgpu.json_values import mapping
from fairgpu.pod import PodReading
from webhook.admission.sidecar import OUR_VOLUMES
from webhook.admission.undecoded import decoded, may_have
from webhook.admission.verdict import objects

Path = tuple[str | int, ...]

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
"""The variable by which NVIDIA's runtime gives GPUs to a container."""
NO_DEVICES: Final = ("", "none", "void")
MAX_NAMED: Final = 16
"""The most warnings of this kind for one pod."""

_PREFIXES: Final = ("nvidia.com/", "amd.com/", "gpu.intel.com/", "deviceclass.resource.kubernetes.io/")
_VISIBLE_DEVICES: Final = (VISIBLE_DEVICES.encode(),)
_OURS: Final = DIALECTS.resources | ORDINARY
"""The resources that need no warning; nearly all containers have no others."""
_LISTS: Final = ("containers", "initContainers")
_AMOUNTS: Final = ("limits", "requests")


def exposures(pod: dict[str, Any], reading: PodReading, root: Path = ()) -> tuple[str, ...]:
    """Returns warnings about a pod that requests a GPU; `root` is the pod's field path in the object."""
    spec = mapping(pod.get("spec"))
    warnings = _pod_warnings(spec, root)
    for field in _LISTS:
        containers = spec.get(field)
        if not isinstance(containers, list):
            continue
        for index, container in enumerate(containers):
            if isinstance(container, dict) and _is_exposed(container):
                path = (*root, "spec", field, index)
                warnings += _container_warnings(container, path)
                if any(each.path[-2:] == (field, index) for each in reading.all_containers if each.request is not None):
                    warnings += _foreign_gpu_warnings(mapping(container.get("resources")), path)
            if len(warnings) >= MAX_NAMED:
                return tuple(warnings[:MAX_NAMED])
    return tuple(warnings)


def _is_exposed(container: dict[str, Any]) -> bool:
    """Whether a container needs a warning; a quick test, as every container is tested."""
    security = container.get("securityContext")
    if isinstance(security, dict) and security.get("privileged") is True:
        return True
    resources = container.get("resources")
    if isinstance(resources, dict):
        if resources.get("claims"):
            return True
        for key in _AMOUNTS:
            amounts = resources.get(key)
            if not isinstance(amounts, dict) or _OURS.issuperset(amounts):
                continue
            if any(name not in _OURS and name.startswith(_PREFIXES) for name in amounts):
                return True
    return bool(_environment(container))


def _environment(container: dict[str, Any]) -> Any:
    """Returns a container's variables; None where they cannot have VISIBLE_DEVICES."""
    variables = container.get("env")
    return decoded(variables) if may_have(variables, _VISIBLE_DEVICES) else None


def _pod_warnings(spec: dict[str, Any], root: Path) -> list[str]:
    warnings = []
    if spec.get("hostPID") is True:
        warnings.append(
            f"{field_path(*root, 'spec', 'hostPID')}: the pod sees all processes of its node, GPU programs too"
        )
    volumes = spec.get("volumes")
    for index, volume in enumerate(volumes if isinstance(volumes, list) else ()):
        if not isinstance(volume, dict) or "hostPath" not in volume:
            continue
        host = volume["hostPath"]
        if not isinstance(host, dict) or volume.get("name") in OUR_VOLUMES:  # FairGPU's own replaces it
            continue
        path = host.get("path")
        if isinstance(path, str) and (path.rstrip("/") in ("", "/dev") or path.startswith("/dev/nvidia")):
            where = field_path(*root, "spec", "volumes", index, "hostPath", "path")
            warnings.append(f"{where}: {show(path)} shows the devices of the node, past the pod's share")
    return warnings


def _container_warnings(container: dict[str, Any], path: Path) -> list[str]:
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


def _foreign_gpu_warnings(resources: dict[str, Any], path: Path) -> list[str]:
    """Warns of GPUs of other device plugins beside FairGPU's in one container."""
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
