"""Replicas of FairGPU's scheduler as its pods have them: the real kube-scheduler, and the extender on loopback.

Each runs under the account and with the configuration that the installation has put on the API server. What differs is
what a machine without pods asks for: a kubeconfig, and ports of its own. A replica has its pod's name as its host name,
by which kube-scheduler stands for election, in a UTS namespace of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.processes import OF_OTHERS_S, Process, running
from tests.cluster.services.replicas import AT_ONCE, environment, service
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

SYSTEM = "fairgpu-system"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/fairgpu-scheduler"
NAMED = 'hostname "$0" && exec "$@"'


@dataclass(frozen=True)
class Scheduler:
    """A replica.

    Attributes:
        pod: the name of its pod.
        extender, kube_scheduler: its processes.
        port: where the extender answers kube-scheduler.
        metrics: where it shows its metrics.
        environment: the extender's environment.
    """

    pod: str
    extender: Process
    kube_scheduler: Process
    port: int
    metrics: int
    environment: Mapping[str, str]

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to all processes of the replica, kube-scheduler first."""
        for process in (self.kube_scheduler, self.extender):
            os.killpg(process.popen.pid, number)

    def leads(self, plane: ControlPlane) -> bool:
        """Whether its kube-scheduler holds the Lease."""
        if not plane.exists(LEASE):
            return False
        holder = plane.admin.api.get(LEASE)["spec"].get("holderIdentity") or ""
        return bool(holder.rpartition("_")[0] == self.pod)


@contextmanager
def running_scheduler(
    plane: ControlPlane,
    timekeeper: int,
    settings: Mapping[str, str] | None = None,
    configuration: dict[str, Any] | None = None,
) -> Iterator[Scheduler]:
    """One replica, by the states of the timekeeper behind that port, for the length of a with statement."""
    with scheduler_replica(plane, scheduler_pods(plane)[0], timekeeper, settings, configuration) as replica:
        wait_until(lambda: replica.leads(plane), "the scheduler leads")
        yield replica


def scheduler_pods(plane: ControlPlane) -> list[str]:
    """The names of the pods that the Deployment's controller has made."""
    query = {"labelSelector": "app.kubernetes.io/name=fairgpu-scheduler"}
    pods = f"/api/v1/namespaces/{SYSTEM}/pods"
    items = wait_until(
        lambda: found if len(found := plane.admin.api.get(pods, query)["items"]) == 2 else None,
        "the Deployment of the scheduler has its pods",
    )
    return sorted(item["metadata"]["name"] for item in items)


@contextmanager
def scheduler_replica(
    plane: ControlPlane,
    pod: str,
    timekeeper: int,
    changed: Mapping[str, str] | None = None,
    configuration: dict[str, Any] | None = None,
) -> Iterator[Scheduler]:
    """The replica of a pod, once both of its processes are ready.

    `changed` are settings in its environment, `configuration` is kube-scheduler's in place of the installed one.
    """
    port, metrics, secure = free_ports(3)
    account = environment(plane, "fairgpu-scheduler")
    token = Path(account["TOKEN_FILE"]).with_suffix(".timekeeper-token")
    token.touch(mode=0o600)
    token.write_text(plane.token(SYSTEM, "fairgpu-scheduler", audience="fairgpu-timekeeper"))
    settings = {
        "FAIRGPU_SCHEDULER_LEASE_POD_NAME": pod,
        "FAIRGPU_SCHEDULER_EXTENDER_PORT": str(port),
        "FAIRGPU_SCHEDULER_EXTENDER_METRICS_HOST": "127.0.0.1",
        "FAIRGPU_SCHEDULER_EXTENDER_METRICS_PORT": str(metrics),
        "FAIRGPU_SCHEDULER_STATES_URL": f"https://localhost:{timekeeper}",
        "FAIRGPU_SCHEDULER_STATES_TOKEN_FILE": str(token),
        **(changed or {}),
    }
    file, configured = plane.folder / f"{pod}.yaml", configuration or installed_configuration(plane)
    file.write_text(yaml.safe_dump(without_a_pod(configured, account["KUBECONFIG"], port)))
    command = [
        *named_host(pod),
        plane.binaries / "kube-scheduler",
        *(argument for argument in installed_arguments(plane) if not argument.startswith("--config=")),
        f"--config={file}",
        "--bind-address=127.0.0.1",
        f"--secure-port={secure}",
    ]
    with ExitStack() as stack:
        asked = stack.enter_context(extender(plane, pod, {**account, **settings}))
        log = plane.folder / f"kube-scheduler-{pod}.log"
        asks = stack.enter_context(running(f"kube-scheduler of {pod}", command, log, {"PATH": os.defpath}, OF_OTHERS_S))
        ready = (asked, f"http://127.0.0.1:{metrics}/readyz"), (asks, f"https://127.0.0.1:{secure}/readyz")
        for process, address in ready:
            wait_until(lambda process=process, address=address: is_ready(process, address), f"{address} is ready")
        yield Scheduler(pod, asked, asks, port, metrics, {**account, **settings})


def extender(plane: ControlPlane, pod: str, settings: Mapping[str, str]) -> AbstractContextManager[Process]:
    """The extender of a pod, with this environment, for the length of a with statement."""
    return service(plane, f"extender-{pod}", ["scheduler", "serve"], settings, AT_ONCE)


def installed_configuration(plane: ControlPlane) -> dict[str, Any]:
    """kube-scheduler's configuration as it is installed."""
    return configuration_of(plane.admin.api.get(f"/api/v1/namespaces/{SYSTEM}/configmaps")["items"])


def configuration_of(manifests: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """kube-scheduler's configuration in the only ConfigMap that has one."""
    (found,) = [item for item in manifests if item["metadata"]["name"].startswith("fairgpu-kube-scheduler-")]
    configuration: dict[str, Any] = yaml.safe_load(found["data"]["configuration.yaml"])
    return configuration


def without_a_pod(configuration: dict[str, Any], kubeconfig: str, port: int) -> dict[str, Any]:
    """A configuration for a process without a pod, whose extender listens on this port."""
    (extender,) = configuration["extenders"]
    address, _, _ = extender["urlPrefix"].rpartition(":")
    return configuration | {
        "clientConnection": configuration["clientConnection"] | {"kubeconfig": kubeconfig},
        "extenders": [extender | {"urlPrefix": f"{address}:{port}"}],
    }


def installed_arguments(plane: ControlPlane) -> list[str]:
    """The arguments of the container of kube-scheduler."""
    deployment = plane.admin.api.get(f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/fairgpu-scheduler")
    containers = deployment["spec"]["template"]["spec"]["containers"]
    (container,) = [each for each in containers if each["name"] == "kube-scheduler"]
    return list(container["args"])


@cache
def named_host(name: str) -> list[str | Path]:
    """The beginning of a command that runs on a host of this name."""
    mapped = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    program = shutil.which("unshare")
    assert program is not None, "unshare is missing: Debian's package util-linux has it"
    return [program, *mapped, "--uts", "sh", "-c", NAMED, name]


def is_ready(process: Process, address: str) -> bool:
    """Whether a process says that it is ready; a certificate that it made for itself is believed."""
    process.check_alive()
    try:
        with urlopen(address, timeout=5, context=ssl._create_unverified_context()) as answer:  # noqa: S310, S323
            return bool(answer.status == 200)
    except OSError:
        return False
