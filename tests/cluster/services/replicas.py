"""FairGPU's own services as processes beside the test control plane, each under the account that deploy/ gives it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.processes import Process, running
from tests.cluster.pods import SIDECAR_IMAGE
from tests.support.processes import FAIRGPU, end
from tests.support.waiting import wait_until

LOG_TAIL = 3000

AT_ONCE = signal.SIGINT
"""Ends a server without waiting for its clients, once there are none: what SIGTERM waits for takes seconds."""

ROTATING = {
    "FAIRGPU_WEBHOOK_CERTIFICATES_AUTHORITY_SECONDS": "60",
    "FAIRGPU_WEBHOOK_CERTIFICATES_LEAF_SECONDS": "48",
    "FAIRGPU_WEBHOOK_CERTIFICATES_CHECK_SECONDS": "2",
    "FAIRGPU_WEBHOOK_CERTIFICATES_SPREAD_SECONDS": "10",
}
"""So short that the webhook's CA and certificate change while tests run; who trusts has 10 s to learn of it.

The next CA comes after two thirds of a CA's life; what is left of it is twice that long.
"""


def certificate_folder(plane: ControlPlane) -> Path:
    """The folder in which the replicas find the certificate, as their pods have it mounted."""
    return plane.folder / "webhook-tls"


@dataclass(frozen=True)
class Ports:
    """The ports at which a replica listens, on 127.0.0.1."""

    https: int
    metrics: int


def environment(plane: ControlPlane, account: str) -> dict[str, str]:
    """The environment of every service: its account's kubeconfig and token, as a pod would have them mounted."""
    identity = plane.service_account("fairgpu-system", account)
    token = identity.kubeconfig.with_suffix(".token")
    token.touch(mode=0o600)
    token.write_text(plane.token("fairgpu-system", account))
    return {
        "KUBECONFIG": str(identity.kubeconfig),
        "HOME": str(plane.folder),
        "PATH": os.defpath,
        "TMPDIR": str(plane.folder),
        "TOKEN_FILE": str(token),
    }


@contextmanager
def webhook_replica(
    plane: ControlPlane, name: str, ports: Ports, timekeeper: int, end_proof: str = "observe", **more: str
) -> Iterator[Process]:
    """One replica of the webhook, which asks the timekeeper behind that port; `more` are further settings."""
    account = environment(plane, "fairgpu-webhook")
    token = Path(account["TOKEN_FILE"]).with_suffix(".timekeeper-token")
    token.touch(mode=0o600)
    token.write_text(plane.token("fairgpu-system", "fairgpu-webhook", audience="fairgpu-timekeeper"))
    settings = {
        "FAIRGPU_WEBHOOK_SERVING_HOST": "127.0.0.1",
        "FAIRGPU_WEBHOOK_SERVING_PORT": str(ports.https),
        "FAIRGPU_WEBHOOK_SERVING_METRICS_PORT": str(ports.metrics),
        "FAIRGPU_WEBHOOK_SERVING_WORKERS": "1",
        "FAIRGPU_WEBHOOK_SERVING_DRAIN_SECONDS": "3",
        **ROTATING,
        "FAIRGPU_WEBHOOK_CERTIFICATES_FOLDER": str(certificate_folder(plane)),
        "FAIRGPU_WEBHOOK_SIDECAR_IMAGE": SIDECAR_IMAGE,
        "FAIRGPU_WEBHOOK_SIDECAR_TIMEKEEPER_URL": f"https://localhost:{timekeeper}",
        "FAIRGPU_WEBHOOK_STATES_URL": f"https://localhost:{timekeeper}",
        "FAIRGPU_WEBHOOK_STATES_TOKEN_FILE": str(token),
        "FAIRGPU_WEBHOOK_END_PROOF": end_proof,
        **more,
    }
    with service(plane, name, ["webhook", "serve"], {**account, **settings}, AT_ONCE) as process:
        yield process


class Replicas:
    """The webhook's replicas by number; a Deployment's part in a rolling restart is the test's to play."""

    def __init__(
        self, plane: ControlPlane, ports: Sequence[Ports], timekeeper: int, end_proof: str = "observe", **more: str
    ) -> None:
        self.ports = tuple(ports)
        self._plane = plane
        self._timekeeper = timekeeper
        self._end_proof = end_proof
        self._more = more
        self._running: dict[int, tuple[Process, ExitStack]] = {}

    def start(self, number: int) -> None:
        """Starts a replica; it takes reviews once the balancer finds it ready."""
        stack = ExitStack()
        name, ports = f"webhook-{number}", self.ports[number]
        replica = webhook_replica(self._plane, name, ports, self._timekeeper, self._end_proof, **self._more)
        self._running[number] = (stack.enter_context(replica), stack)

    def stop(self, number: int) -> None:
        """Sends a replica SIGTERM, as the kubelet does, and returns once it has."""
        process, stack = self._running.pop(number)
        with stack:
            end(process.popen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        all_of_them = ExitStack()  # ends each, whatever another's end raises
        for _, stack in self._running.values():
            all_of_them.push(stack)
        all_of_them.__exit__(kind, error, None)


@contextmanager
def timekeeper_replica(plane: ControlPlane, name: str, ports: Ports, redis_url: str, **more: str) -> Iterator[Process]:
    """One replica of the timekeeper's REST API; `more` are further settings."""
    settings = {
        "FAIRGPU_TIMEKEEPER_REDIS_URL": redis_url,
        "FAIRGPU_TIMEKEEPER_SERVE_HOST": "127.0.0.1",
        "FAIRGPU_TIMEKEEPER_SERVE_PORT": str(ports.https),
        "FAIRGPU_TIMEKEEPER_SERVE_METRICS_PORT": str(ports.metrics),
        "FAIRGPU_TIMEKEEPER_SERVE_WORKERS": "1",
        "FAIRGPU_TIMEKEEPER_SERVE_DRAIN_SECONDS": "1",
        "FAIRGPU_TIMEKEEPER_SERVE_CERTIFICATE_NAMES": "[localhost]",
        **more,
    }
    account = environment(plane, "fairgpu-timekeeper")
    with service(plane, name, ["timekeeper", "serve"], {**account, **settings}, AT_ONCE) as process:
        yield process


@contextmanager
def timekeeper_jobs(
    plane: ControlPlane, name: str, metrics: int, redis_url: str, lease_seconds: int = 15, **more: str
) -> Iterator[Process]:
    """One process that does the timekeeper's jobs while it leads, in a hurry; `more` are further settings.

    It answers questions for its metrics by then.
    """
    settings = {
        "FAIRGPU_TIMEKEEPER_REDIS_URL": redis_url,
        "FAIRGPU_TIMEKEEPER_JOBS_METRICS_HOST": "127.0.0.1",
        "FAIRGPU_TIMEKEEPER_JOBS_METRICS_PORT": str(metrics),
        "FAIRGPU_TIMEKEEPER_JOBS_SETTLE_SECONDS": "0.5",
        "FAIRGPU_TIMEKEEPER_JOBS_STATUS_SECONDS": "0.5",
        "FAIRGPU_TIMEKEEPER_JOBS_LEASE_SECONDS": str(lease_seconds),
        **more,
    }
    account = environment(plane, "fairgpu-timekeeper")
    with service(plane, name, ["timekeeper", "jobs"], {**account, **settings}) as process:
        wait_until(lambda: is_listening(metrics), f"{name} serves its metrics")
        yield process


def is_listening(port: int) -> bool:
    """Whether a server takes connections at a port of 127.0.0.1."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def service(
    plane: ControlPlane,
    name: str,
    arguments: list[str],
    settings: Mapping[str, str],
    stop_signal: signal.Signals = signal.SIGTERM,
) -> Iterator[Process]:
    """A `fairgpu` command for the length of a with statement."""
    log = plane.folder / f"{name}.log"
    with running(name, [*FAIRGPU, *arguments], log, settings, stop_signal=stop_signal) as process:
        try:
            yield process
        except Exception as error:
            error.add_note(f"the end of the log of {name}:\n{log.read_text(errors='replace')[-LOG_TAIL:]}")
            raise
