"""A control plane of its own with all of FairGPU on it: every GPU pod that is created here goes the whole way."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.processes import free_ports
from tests.cluster.control_plane.waiting import wait_until
from tests.cluster.installation import WEBHOOK_CONFIGURATIONS, Manifest, apply, install, render
from tests.cluster.services.balancer import Balancer, balancing
from tests.cluster.services.replicas import Ports, Replicas, timekeeper_jobs, timekeeper_replica
from tests.redis_server import RedisServer


@dataclass(frozen=True)
class Services:
    """What runs beside the control plane.

    Attributes:
        redis: the timekeeper's store.
        timekeeper: the port at which the timekeeper's REST API is reached.
        webhook: what the API server reaches the webhook through.
        replicas: the webhook's replicas.
    """

    redis: RedisServer
    timekeeper: int
    webhook: Balancer
    replicas: Replicas


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """Not the one of the other tests: with FairGPU at work, nothing there would be as they made it."""
    with running_control_plane(control_plane_binaries(os.environ)) as plane:
        yield plane


@pytest.fixture(scope="session")
def installation(control_plane: ControlPlane) -> list[Manifest]:
    return install(control_plane)


@pytest.fixture(scope="session")
def services(control_plane: ControlPlane, installation: object) -> Iterator[Services]:
    """Redis, the timekeeper, and two replicas of the webhook behind a balancer, with GPU pods sent to them."""
    assert installation
    webhook, timekeeper, timekeeper_metrics, jobs_metrics, *others = free_ports(10)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fairgpu-redis-"))
        redis = stack.enter_context(RedisServer(Path(folder)))
        ports = Ports(timekeeper, timekeeper_metrics)
        stack.enter_context(timekeeper_replica(control_plane, "timekeeper", ports, redis.url))
        stack.enter_context(timekeeper_jobs(control_plane, "timekeeper-jobs", jobs_metrics, redis.url))
        replicas = [Ports(*others[:2]), Ports(*others[2:4]), Ports(*others[4:])]
        balancer = stack.enter_context(balancing(webhook, [replica.https for replica in replicas]))
        webhooks = stack.enter_context(Replicas(control_plane, replicas, timekeeper))
        webhooks.start(0)
        webhooks.start(1)
        manifests = [m for m in render(control_plane, webhook_port=webhook) if m["kind"] in WEBHOOK_CONFIGURATIONS]
        apply(control_plane, manifests)
        wait_until(lambda: len(balancer.ready) == 2, "both replicas of the webhook are ready", 60)
        yield Services(redis, timekeeper, balancer, webhooks)
