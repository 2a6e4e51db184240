"""The admin's settings of the node agent. Times are seconds."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fairgpu.commands import CommandError
from fairgpu.listeners import Listens
from fairgpu.settings import USUAL_FILE, Section, load_settings


class Kubelet(Section):
    """The settings that name the kubelet's folders and sockets."""

    device_plugins: Path = Path("/var/lib/kubelet/device-plugins")
    """The folder of the device plugins' sockets."""
    pods: Path = Path("/var/lib/kubelet/pods")
    """The folder of the pods' volumes."""
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    """The socket of the kubelet's PodResources API, which lists the containers that hold devices."""


class Nodeagent(Section):
    """All settings of a node's agent."""

    node: Annotated[str, Field(max_length=253)] = ""
    """The node's name; the DaemonSet takes it from `spec.nodeName`."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The lowest level that is logged."""
    run_folder: Path = Path("/run/fairgpu-nodeagent")
    """The containers' files, on a tmpfs of the host, mounted at the same path."""
    shim_folder: Path = Path("/var/lib/fairgpu-nodeagent/shim")
    """The folder of the shim on the host, by its digest, mounted at the same path."""
    shim: Path = Path("/usr/lib/fairgpu/libvcuda.so.1")
    """The shim in the agent's image."""
    cdi_folder: Path = Path("/var/run/cdi")
    """The folder in which the runtime looks for the containers' CDI specs."""
    vendor_cdi_folders: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    """The folders of the vendor's CDI specs; of a GPU's entries, that in the last folder counts."""
    bundles: Path = Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io")
    """The folder in which the runtime keeps the OCI configuration of each running container."""
    runtime_socket: Path = Path("/run/containerd/containerd.sock")
    """The socket at which the runtime says whether it applies CDI."""
    look_seconds: Annotated[float, Field(gt=0)] = 30.0
    """The interval at which the GPUs and the vendor's CDI specs are read."""
    unslotted_processes: Literal["report", "kill"] = "report"
    """The fate of a process in a pod that works on a GPU for 10 s without being held to a share: an event and a metric
    alone, or its end as well."""
    metrics_host: str = ""
    """The address at which metrics are served, and the kubelet's probes answered; without one, each address that the
    pod has, of IPv4 and IPv6."""
    metrics_port: Annotated[int, Field(ge=1, le=65535), Listens("metrics_host")] = 9090
    """The port of the metrics and of the kubelet's probes, plain HTTP: the DaemonSet's port `metrics` as well."""
    recover_seconds: Annotated[float, Field(ge=0)] = 600.0
    """The time after its last fault from which a GPU that answers takes containers again."""
    kubelet: Kubelet = Kubelet()
    """The kubelet's sockets."""


class Settings(Section):
    """The part of the settings file that the node agent reads."""

    nodeagent: Nodeagent = Nodeagent()


def read_settings(environ: Mapping[str, str], named: Path | None) -> Nodeagent:
    """Returns the node agent's settings, from a file and from the environment, which takes precedence.

    Args:
        named: the settings file; None for the usual file, which need not exist.

    Raises:
        CommandError: the file cannot be read, a setting is invalid, the node has no name, or the kubelet cannot reach
            the metrics.
    """
    settings = load_settings(Settings, environ, named, USUAL_FILE).nodeagent
    if not settings.node:
        raise CommandError("nodeagent.node: no name of a node; set FAIRGPU_NODEAGENT_NODE from spec.nodeName")
    if _is_loopback(settings.metrics_host):
        raise CommandError(
            f"nodeagent.metrics_host: given {settings.metrics_host!r}; allowed: an address of the pod, or none for all "
            "of them, since the kubelet's probes ask there, and it ends an agent that does not answer; write a "
            "NetworkPolicy to keep others from the metrics"
        )
    return settings


def _is_loopback(host: str) -> bool:
    """Whether only programs of the same pod reach this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
