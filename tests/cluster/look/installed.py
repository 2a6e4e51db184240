"""The mode `look` installed from its overlay on a control plane, with the timekeeper's two processes beside it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.installation import Manifest, apply, named, render_overlay
from tests.cluster.services.replicas import Ports, is_listening, timekeeper_jobs, timekeeper_replica
from tests.cluster.services.timekeeper_client import TimekeeperClient
from tests.support.other_stacks import OWN_LINE
from tests.support.ports import free_ports
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import wait_until

LOOK = Path(__file__).parents[3] / "deploy" / "overlays" / "look"
GPUBUDGETS = LOOK.parents[1] / "look-gpubudgets"
"""The component by which budgets are GPUBudgets."""
SETTINGS = {
    "FAIRGPU_TIMEKEEPER_MODE": "look",
    "FAIRGPU_TIMEKEEPER_OTHER_STACKS_RESOURCES": json.dumps({"example.com/npu": OWN_LINE}),
}


@dataclass(frozen=True)
class Installed:
    """The installed parts, and the port at which they are asked.

    `end` ends the timekeeper's processes, and leaves Redis and all objects.
    """

    client: TimekeeperClient
    port: int
    manifests: list[Manifest]
    redis_url: str
    end: Callable[[], None]


@contextmanager
def overlay(plane: ControlPlane, components: Sequence[Path]) -> Iterator[Path]:
    """An overlay of an admin's own over the one of the mode look, with these components."""
    with tempfile.TemporaryDirectory(dir=plane.folder) as folder:
        resolved = Path(folder).resolve()
        kustomization = {
            "resources": [os.path.relpath(LOOK, resolved)],
            "components": [os.path.relpath(component, resolved) for component in components],
        }
        (resolved / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        yield resolved


@contextmanager
def installed(plane: ControlPlane, budgets: Mapping[str, str], components: Sequence[Path] = ()) -> Iterator[Installed]:
    """Applies the overlay with these budgets, and runs the timekeeper as its account; `budgets` are specs by name."""
    with overlay(plane, components) as folder:
        manifests = render_overlay(plane, folder)
    (config_map,) = [item for item in manifests if item["metadata"]["name"] == "fairgpu-budgets"]
    config_map["data"] = dict(budgets)
    apply(plane, manifests)
    with served(plane, manifests) as found:
        yield found


@contextmanager
def served(plane: ControlPlane, manifests: list[Manifest], **more: str) -> Iterator[Installed]:
    """Runs the timekeeper of an applied overlay as its account, with a Redis; `more` are further settings."""
    https, metrics, jobs_metrics = free_ports(3)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fairgpu-redis-"))
        store = stack.enter_context(RedisServer(Path(folder)))
        services = stack.enter_context(ExitStack())
        rest, jobs = (SETTINGS | _settings_of(manifests, container) | more for container in ("rest", "jobs"))
        services.enter_context(timekeeper_replica(plane, "look", Ports(https, metrics), store.url, **rest))
        services.enter_context(timekeeper_jobs(plane, "look-jobs", jobs_metrics, store.url, **jobs))
        let_view(plane)
        wait_until(lambda: is_listening(https), "the timekeeper answers")
        yield Installed(client_at(plane, https), https, manifests, store.url, services.close)


def client_at(plane: ControlPlane, port: int) -> TimekeeperClient:
    """A client of the timekeeper at a port, under the account that may look at all budgets."""
    return TimekeeperClient(plane, port, plane.token("kube-system", "default", audience="fairgpu-timekeeper"))


def _settings_of(manifests: Sequence[Manifest], container: str) -> dict[str, str]:
    """The settings that the Deployment of the timekeeper has in the environment of a container."""
    deployment = named(manifests, "Deployment", "fairgpu-timekeeper")
    (found,) = [one for one in deployment["spec"]["template"]["spec"]["containers"] if one["name"] == container]
    return {one["name"]: one["value"] for one in found["env"] if "value" in one}


def let_view(plane: ControlPlane) -> None:
    """Gives an account the right to look at all budgets and to place orders."""
    bindings: list[Manifest] = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"looks-{role}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "kube-system"}],
        }
        for role in ("fairgpu-view", "fairgpu-budget-admin")
    ]
    apply(plane, bindings)
    account = plane.service_account("kube-system", "default")
    for verb, resource in (("list", "gpubudgets.fairgpu.io"), ("create", "gpugrants.fairgpu.io")):
        wait_until(lambda verb=verb, resource=resource: account.may(verb, resource), f"it may {verb} {resource}")
