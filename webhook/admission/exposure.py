"""Warns of settings by which a GPU pod reaches GPUs beyond its share. Admission does not refuse them.

docs/guards.md says how to close each of these ways.
"""

from __future__ import annotations

import posixpath
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
_VISIBLE_DEVICES: Final = (VISIBLE_DEVICES,)
_DEVICES: Final = "shows the devices of the node, past the pod's share"
_AGENTS: Final = "holds the files by which the node agent limits containers"
_SPECS: Final = "holds the CDI specs, by which any container of the node gets devices and files"
_RUNTIME: Final = "holds the socket of the container runtime, which does on the node what root can"
_NULL: Final = "is the volume by which NVIDIA's runtime may be asked for GPUs, past the pod's share"
HOST_FOLDERS: Final = (
    ("/dev", _DEVICES),
    ("/proc", "shows the processes of the node, and by them all its files"),
    ("/run/fairgpu-nodeagent", _AGENTS),
    ("/var/lib/fairgpu-nodeagent", _AGENTS),
    ("/run/cdi", _SPECS),
    ("/etc/cdi", _SPECS),
    ("/var/lib/kubelet/device-plugins", "holds the sockets by which the kubelet gives GPUs to containers"),
    ("/var/lib/kubelet/pod-resources", "holds the socket that says which pods hold which GPUs of the node"),
    ("/var/lib/kubelet/pods", "holds the volumes of the node's pods, with what they report of their use"),
    ("/run/containerd", _RUNTIME),
    ("/run/crio", _RUNTIME),
    ("/run/docker.sock", _RUNTIME),
)
"""The folders of a node by which a pod reaches GPUs or files beyond its share, each with the end of a warning about it.

A mount of a folder above one of them shows it, too.
"""
_POWERS: Final = ("ALL", "CAP_SYS_ADMIN", "SYS_ADMIN")
"""The capabilities with which a container can mount file systems, and so hide the shim's files from its own
programs."""
_OURS: Final = DIALECTS.resources | ORDINARY
"""The resources that need no warning; nearly all containers have no others."""
_LISTS: Final = ("containers", "initContainers")
_AMOUNTS: Final = ("limits", "requests")


def exposures(pod: dict[str, Any], reading: PodReading, root: Path = ()) -> tuple[str, ...]:
    """Returns warnings about settings by which a GPU pod reaches GPUs beyond its share, at most MAX_NAMED.

    Args:
        pod: a pod or a pod template that requests a GPU, as JSON.
        reading: the GPU requests that were read from the pod.
        root: the field path of a pod template in its object; empty for a pod.
    """
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
    """Whether a container has a setting by which it perhaps reaches GPUs beyond its share.

    Only then does `exposures` examine the container closely, which takes longer.
    """
    security = container.get("securityContext")
    if isinstance(security, dict) and (security.get("privileged") is True or _added_powers(security)):
        return True
    resources = container.get("resources")
    if isinstance(resources, dict):
        if resources.get("claims"):
            return True
        for key in _AMOUNTS:
            amounts = resources.get(key)
            if not isinstance(amounts, dict):
                continue
            for name in amounts:  # not any(): a generator takes longer, and this runs for every container
                if name not in _OURS and name.startswith(_PREFIXES):
                    return True
    return bool(_environment(container))


def _environment(container: dict[str, Any]) -> Any:
    """Returns a container's environment variables; None without any, or if their bytes lack NVIDIA_VISIBLE_DEVICES."""
    variables = container.get("env")
    return decoded(variables) if may_have(variables, _VISIBLE_DEVICES) else None


def _added_powers(security: dict[str, Any]) -> list[str]:
    """Returns the capabilities for mounting file systems that a container's security context adds, in its spelling.

    Runtimes take the names of capabilities in upper or lower case.
    """
    capabilities = security.get("capabilities")
    added = capabilities.get("add") if isinstance(capabilities, dict) else None
    return (
        [each for each in added if isinstance(each, str) and each.upper() in _POWERS] if isinstance(added, list) else []
    )


def _reached(path: str) -> str:
    """Returns the end of a warning: the access beyond its share that a pod gets by mounting a path of the node.

    The text is empty for a path that gives no such access.
    """
    plain = posixpath.normpath("/" + path.lstrip("/"))
    if plain == "/var/run" or plain.startswith("/var/run/"):  # on a node a link to /run
        plain = plain.removeprefix("/var")
    if plain.startswith("/dev/nvidia"):
        return _DEVICES
    if plain == "/dev/null":
        return _NULL
    for folder, what in HOST_FOLDERS:
        if folder == plain or folder.startswith(plain.rstrip("/") + "/"):
            return what
        if plain.startswith(folder + "/") and folder != "/dev":  # most devices are no GPUs
            return what
    return ""


def _pod_warnings(spec: dict[str, Any], root: Path) -> list[str]:
    warnings = []
    if spec.get("hostPID") is True:
        warnings.append(
            f"{field_path(*root, 'spec', 'hostPID')}: the pod sees all processes of its node, GPU programs too, and as "
            f"root it reaches their files, the node agent's among them"
        )
    volumes = spec.get("volumes")
    for index, volume in enumerate(volumes if isinstance(volumes, list) else ()):
        if not isinstance(volume, dict) or "hostPath" not in volume:
            continue
        host = volume["hostPath"]
        if not isinstance(host, dict) or volume.get("name") in OUR_VOLUMES:  # FairGPU's own replaces it
            continue
        path = host.get("path")
        what = _reached(path) if isinstance(path, str) else ""
        if what:
            where = field_path(*root, "spec", "volumes", index, "hostPath", "path")
            warnings.append(f"{where}: {show(path)} {what}")
    return warnings


def _container_warnings(container: dict[str, Any], path: Path) -> list[str]:
    warnings = []
    security = mapping(container.get("securityContext"))
    if security.get("privileged") is True:
        where = field_path(*path, "securityContext", "privileged")
        warnings.append(f"{where}: a privileged container reaches all GPUs of its node, past the pod's share")
    powers = _added_powers(security)
    if powers:
        where = field_path(*path, "securityContext", "capabilities", "add")
        warnings.append(f"{where}: with {powers[0]} a container can hide from its programs what limits them")
    for index, variable in objects(_environment(container)):
        if variable.get("name") != VISIBLE_DEVICES:
            continue
        is_elsewhere = "valueFrom" in variable
        if is_elsewhere or variable.get("value", "") not in NO_DEVICES:
            where = field_path(*path, "env", index)
            value = " from another object" if is_elsewhere else f"={show(variable.get('value'))}"
            warnings.append(
                f"{where}: {VISIBLE_DEVICES}{value} may give the container GPUs past its share; "
                f"FairGPU chooses the devices"
            )
    return warnings


def _foreign_gpu_warnings(resources: dict[str, Any], path: Path) -> list[str]:
    """Returns a warning if a container with a GPU of FairGPU's also has claims or GPUs of other device plugins.

    The list is empty for any other container.

    Args:
        resources: the container's field `resources`, as JSON.
        path: the container's field path.
    """
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
