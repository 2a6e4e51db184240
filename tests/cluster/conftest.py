"""One control plane for all cluster tests of a session; with pytest-xdist, one for each worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.cluster.control_plane.build import ControlPlaneBinariesError, control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.installation import Manifest, install

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Build what is missing before the first test: the limit of one test is no limit for compiling Kubernetes."""
    if session.config.option.collectonly or not any(item.path.is_relative_to(HERE) for item in session.items):
        return
    with session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        try:
            control_plane_binaries(os.environ)
        except ControlPlaneBinariesError as error:
            pytest.exit(str(error), returncode=1)


_APART = ("journey", "demonstration", "upgrade", "look", "account", "removal")
"""The folders whose tests have a control plane of their own; all others share one."""


class _ByControlPlane(LoadScopeScheduling):  # type: ignore[misc] # pytest-xdist leaves it untyped
    """Keeps tests of one control plane together, so that each is started once however many workers there are.

    To start one with FairGPU's manifests on it costs as much as a hundred tests, and its controllers never rest: there
    are as few as do not disturb each other. (Groups by mark do not work under pytest 9.2: pytest-xdist 3.8 names them
    in an attribute that is no longer read.)
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in _APART if f"/{folder}/" in file), "shared")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """The hook of pytest-xdist that names who deals out the tests."""
    return _ByControlPlane(config, log)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    with running_control_plane(control_plane_binaries(os.environ)) as plane:
        yield plane


@pytest.fixture(scope="session")
def installation(control_plane: ControlPlane) -> list[Manifest]:
    """Applies the manifests of deploy/ except the webhook configurations; returns them once they are in force."""
    return install(control_plane)


@pytest.fixture
def make_namespace(control_plane: ControlPlane) -> Iterator[Callable[..., str]]:
    """Create namespaces (`make_namespace(prefix, labels=..., annotations=...)`); the test's end takes their pods.

    What would make pods anew is made with `create_workload`.
    """
    made: list[str] = []

    def make(prefix: str = "team-", **metadata: Any) -> str:
        made.append(control_plane.create_namespace(prefix, **metadata))
        return made[-1]

    yield make
    for name in made:
        control_plane.remove_pods(name)


@pytest.fixture
def create_workload(
    control_plane: ControlPlane, make_namespace: Callable[..., str]
) -> Iterator[Callable[[Identity, str, Manifest], None]]:
    """Create what makes pods (`create_workload(who, path, manifest)`); the test's end deletes it, then its pods."""
    assert make_namespace  # ends later
    made: list[str] = []

    def create(who: Identity, path: str, manifest: Manifest) -> None:
        who.api.create(path, manifest)
        made.append(f"{path}/{manifest['metadata']['name']}")

    yield create
    for path in made:
        control_plane.admin.api.delete(path, {"propagationPolicy": "Background"})


@pytest.fixture
def namespace(make_namespace: Callable[..., str]) -> str:
    return make_namespace()


@pytest.fixture(scope="module")
def common_namespace(control_plane: ControlPlane) -> Iterator[str]:
    """For a file whose tests do not disturb others: what they try is refused, a dry run, or has a name of its own.

    A namespace with somebody who may do everything in it costs some twenty requests.
    """
    name = control_plane.create_namespace()
    yield name
    control_plane.remove_pods(name)
