"""A control plane of its own with all of FairGPU on it: every GPU pod that is created here goes the whole way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from fairgpu.states import BudgetState
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode, create_node
from tests.cluster.installation import Manifest, install
from tests.cluster.services.everything import Services, running_services
from tests.cluster.services.knowledge import wait_until_known
from tests.support.ledger.periods import month_midway

BUDGETS = "/apis/fairgpu.io/v1alpha1/gpubudgets"


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """Not the one of the other tests: with FairGPU at work, nothing there would be as they made it."""
    with running_control_plane(control_plane_binaries(os.environ)) as plane:
        yield plane


@pytest.fixture(scope="session")
def installation(control_plane: ControlPlane) -> list[Manifest]:
    return install(control_plane)


@pytest.fixture(scope="session")
def services(control_plane: ControlPlane, installation: list[Manifest]) -> Iterator[Services]:
    """All services, with the cluster's GPU pods sent to them; what each pod costs is exact while replicas change."""
    assert installation
    with running_services(control_plane, end_proof="finalizer") as running:
        yield running


@pytest.fixture
def user(control_plane: ControlPlane, namespace: str) -> Identity:
    """Somebody who may do everything in the test's namespace, and nothing outside."""
    return control_plane.namespace_admin(namespace)


@pytest.fixture
def node(control_plane: ControlPlane, namespace: str) -> StandInNode:
    """A node for the test's pods."""
    return create_node(control_plane, f"node-{namespace}")


@pytest.fixture
def spent_namespace(make_namespace: Callable[..., str]) -> str:
    return make_namespace()


@pytest.fixture
def spent(control_plane: ControlPlane, services: Services, spent_namespace: str) -> Iterator[Identity]:
    """Somebody in a namespace whose budget is spent, and whose pods yield."""
    name = spent_namespace
    spec = {
        "namespaces": [name],
        "period": month_midway(),
        "onExhausted": "deprioritize",
        "allowance": {"gpuHours": "0"},
    }
    budget = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": name}, "spec": spec}
    control_plane.admin.api.create(BUDGETS, budget)
    wait_until_known(services, name, BudgetState.OVER)
    yield control_plane.namespace_admin(name)
    control_plane.admin.api.delete(f"{BUDGETS}/{name}")
