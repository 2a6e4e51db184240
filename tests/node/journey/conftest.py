"""A cluster of one GPU node with all of FairGPU on it: every part is the real one but the GPU and its driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.installation import install
from tests.cluster.pods import SIDECAR_IMAGE
from tests.cluster.services.everything import Services, running_services
from tests.cluster.services.scheduler import running_scheduler
from tests.cluster.services.timekeeper_client import TimekeeperClient, finance_token
from tests.node import shipped_images
from tests.node.journey.name_server import TIMEKEEPER, name_server
from tests.node.journey.programs import BUDGETS, status_of
from tests.node.machine import ADDRESS, Machine, running_node
from tests.support.ledger.periods import month_midway
from tests.support.waiting import wait_until

PRICE = 3
RECLAIM = {"FAIRGPU_SCHEDULER_RECLAIM_NOTICE_SECONDS": "5"}


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A node on whose control plane FairGPU is installed before the node joins."""
    with running_node(tmp_path_factory.mktemp("node"), install) as machine:
        machine.import_image(shipped_images.sidecar(machine.folder, SIDECAR_IMAGE))
        yield machine


@pytest.fixture(scope="session")
def services(machine: Machine) -> Iterator[Services]:
    """The timekeeper on Redis, the webhook, and kube-scheduler with the extender."""
    with ExitStack() as stack:
        stack.enter_context(name_server(ADDRESS))
        services = stack.enter_context(running_services(machine.plane, "finalizer", _settings))
        stack.enter_context(running_scheduler(machine.plane, services.timekeeper, RECLAIM))
        yield services


def _settings(timekeeper: int) -> Mapping[str, str]:
    """Pods reach the timekeeper by its Service's name, at the node's address in place of kube-proxy."""
    return {
        "FAIRGPU_TIMEKEEPER_SERVE_HOST": "0.0.0.0",  # noqa: S104 - in a network namespace of the session
        "FAIRGPU_TIMEKEEPER_SERVE_REPORT_INTERVAL_SECONDS": "1",
        "FAIRGPU_TIMEKEEPER_METERING_PRICES": f'{{"*": 1, "Simulated GPU": {PRICE}}}',
        "FAIRGPU_WEBHOOK_SIDECAR_TIMEKEEPER_URL": f"https://{TIMEKEEPER}:{timekeeper}",
    }


@pytest.fixture
def plane(machine: Machine) -> ControlPlane:
    return machine.plane


@pytest.fixture
def user(plane: ControlPlane, namespace: str) -> Identity:
    """Somebody who may do everything in the test's namespace, and nothing outside."""
    return plane.namespace_admin(namespace)


@pytest.fixture
def make_budget(plane: ControlPlane, services: Services) -> Iterator[Callable[..., str]]:
    """Creates budgets: `make_budget(namespace, gpu_hours, state=..., **spec)`; each has its state once it returns."""
    assert services
    made: list[str] = []

    def make(namespace: str, gpu_hours: str, *, state: str = "open", **more: Any) -> str:
        name = f"budget-{namespace}"
        spec = {"namespaces": [namespace], "allowance": {"gpuHours": gpu_hours}, "period": month_midway(), **more}
        document = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": name}, "spec": spec}
        plane.admin.api.create(BUDGETS, document)
        made.append(name)
        wait_until(lambda: status_of(plane, name).get("state") == state, f"the budget is {state}")
        return name

    yield make
    for name in made:
        plane.admin.api.delete(f"{BUDGETS}/{name}")


@pytest.fixture
def books(plane: ControlPlane, services: Services, namespace: str) -> TimekeeperClient:
    """The timekeeper's REST API, asked with the token of an account that may see all money."""
    return TimekeeperClient(plane, services.timekeeper, finance_token(plane, namespace))
