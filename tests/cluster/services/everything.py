"""All of FairGPU beside a control plane: Redis, the timekeeper, and two replicas of the webhook."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.processes import Process
from tests.cluster.installation import WEBHOOK_CONFIGURATIONS, apply, render, wait_for_webhooks
from tests.cluster.services.balancer import Balancer, balancing
from tests.cluster.services.certificates import certificates, mounted_certificate
from tests.cluster.services.replicas import Ports, Replicas, certificate_folder, timekeeper_jobs, timekeeper_replica
from tests.support.ports import free_ports
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import wait_until

H100_PRICE = Fraction(1, 2)
"""GPU-hours charged for an hour of an H100. Every other model costs 1, and so does a pod whose GPU is unknown yet."""


@dataclass(frozen=True)
class Services:
    """The services that run beside the control plane.

    Attributes:
        redis: the timekeeper's store.
        timekeeper: the port at which the timekeeper's REST API is reached.
        webhook: what the API server reaches the webhook through.
        replicas: the webhook's replicas.
        jobs: the process that does the timekeeper's jobs.
    """

    redis: RedisServer
    timekeeper: int
    webhook: Balancer
    replicas: Replicas
    jobs: Process


@contextmanager
def running_services(
    plane: ControlPlane, end_proof: str = "observe", settings: Callable[[int], Mapping[str, str]] = lambda _: {}
) -> Iterator[Services]:
    """Starts everything on a control plane that has the installation, and sends it the cluster's GPU pods.

    `end_proof` is the setting of both services that says what pods' ends are known by; `settings` are further ones of
    all services, given the timekeeper's port.
    """
    webhook, timekeeper, timekeeper_metrics, jobs_metrics, *others = free_ports(10)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fairgpu-redis-"))
        redis = stack.enter_context(RedisServer(Path(folder)))
        ports = Ports(timekeeper, timekeeper_metrics)
        more = settings(timekeeper)
        stack.enter_context(timekeeper_replica(plane, "timekeeper", ports, redis.url, **more))
        metering = {
            "FAIRGPU_TIMEKEEPER_METERING_END_PROOF": end_proof,
            "FAIRGPU_TIMEKEEPER_METERING_PRICES": f"{{H100: {float(H100_PRICE)}}}",
            **more,
        }
        jobs = stack.enter_context(timekeeper_jobs(plane, "timekeeper-jobs", jobs_metrics, redis.url, **metering))
        replicas = [Ports(*others[:2]), Ports(*others[2:4]), Ports(*others[4:])]
        balancer = stack.enter_context(balancing(webhook, [replica.https for replica in replicas]))
        stack.enter_context(mounted_certificate(plane, certificate_folder(plane)))
        webhooks = stack.enter_context(Replicas(plane, replicas, timekeeper, end_proof, **more))
        apply(plane, [m for m in render(plane, webhook_port=webhook) if m["kind"] in WEBHOOK_CONFIGURATIONS])
        stack.enter_context(certificates(plane))
        webhooks.start(0)
        webhooks.start(1)
        wait_until(lambda: len(balancer.ready) == 2, "both replicas of the webhook are ready")
        wait_for_webhooks(plane)
        yield Services(redis, timekeeper, balancer, webhooks, jobs)
