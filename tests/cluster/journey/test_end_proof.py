"""end_proof: finalizer, webhook and timekeeper together: what pods cost is what the API server says of them."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairgpu.cluster.api import JSON_PATCH, ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.stand_ins import create_node, place
from tests.cluster.installation import Manifest, apply, wait_for_policies
from tests.cluster.journey.manifests import pod
from tests.cluster.pods import cost, spent_in
from tests.cluster.services.everything import Services
from tests.support.ledger.periods import month_midway
from tests.support.ledger.stored_accounts import open_sessions, spent
from tests.support.waiting import wait_until
from timekeeper.domain.money import GPU_SECOND, SECOND

METER = "fairgpu.io/meter"
BUDGETS = "/apis/fairgpu.io/v1alpha1/gpubudgets"
DOCUMENTS = Path(__file__).parents[3] / "docs"
BY_FORCE = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
WHOLE_GPU = {"nvidia.com/gpu": 1}

pytestmark = pytest.mark.usefixtures("services")


class Team:
    """A namespace with a budget, a node, and somebody who may do everything in it."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self.user = plane.namespace_admin(namespace)
        self.node = create_node(plane, f"node-{namespace}")
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.budget = f"budget-{namespace}"

    def give(self, gpu_hours: int, **spec: object) -> None:
        spec = {"namespaces": [self.namespace], "allowance": {"gpuHours": gpu_hours}, **spec}
        item = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": self.budget}}
        self.plane.admin.api.create(BUDGETS, {**item, "spec": {**spec, "period": month_midway()}})

    def create(self, name: str) -> Manifest:
        return self.user.api.create(self.pods, pod(name, WHOLE_GPU))

    def run(self, name: str) -> None:
        created = self.create(name)
        scheduler = self.plane.service_account("fairgpu-system", "fairgpu-scheduler")
        place(scheduler, created, self.node.name)
        self.node.set_pod_phase(self.namespace, name, "Running")

    def read(self, name: str) -> Manifest:
        return self.plane.admin.api.get(f"{self.pods}/{name}")

    def finalizers(self, name: str) -> list[str]:
        found: list[str] = self.read(name)["metadata"].get("finalizers", [])
        return found

    def status(self) -> Manifest:
        found: Manifest = self.plane.admin.api.get(f"{BUDGETS}/{self.budget}").get("status", {})
        return found


@contextmanager
def standing_still(services: Services) -> Iterator[None]:
    """No replica does the timekeeper's jobs for the length of a block, and none is seen to be away."""
    os.kill(services.jobs.popen.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(services.jobs.popen.pid, signal.SIGCONT)


def test_a_pod_that_ends_while_no_timekeeper_watches_is_charged_to_the_last_unit_though_its_namespace_is_deleted(
    control_plane: ControlPlane, services: Services
) -> None:
    team = Team(control_plane, control_plane.create_namespace())
    team.give(10)
    team.create("waits")
    for name in ("finished", "deleted", "forced"):
        team.run(name)
    wait_until(lambda: open_sessions(services.redis, team.budget) == 3, "all that run are on the meter")
    assert all(team.finalizers(name) == [METER] for name in ("waits", "finished", "deleted", "forced"))
    with pytest.raises(ApiError, match="fairgpu-metadata"):
        team.user.api.patch(f"{team.pods}/forced", [{"op": "remove", "path": "/metadata/finalizers"}], JSON_PATCH)
    collector = control_plane.service_account("kube-system", "pod-garbage-collector")
    ended = ("finished", "deleted", "forced", "never-seen")
    with standing_still(services):
        team.run("never-seen")
        second = time.time_ns() // SECOND
        wait_until(lambda: time.time_ns() // SECOND >= second + 2, "some time is charged")
        for name in ("finished", "never-seen"):
            team.node.set_pod_phase(team.namespace, name, "Succeeded")
        control_plane.admin.api.delete(f"/api/v1/namespaces/{team.namespace}")
        for name in ("waits", *ended):  # as what deletes namespaces does, but it is slow where many are on their way
            control_plane.admin.api.delete(f"{team.pods}/{name}")
        team.node.set_pod_phase(team.namespace, "deleted", "Succeeded")
        team.node.remove_pod(team.namespace, "deleted")
        collector.api.delete(f"{team.pods}/forced", BY_FORCE)
        assert all(team.finalizers(name) == [METER] for name in ("waits", *ended))
        expected = sum(cost(team.read(name), GPU_SECOND) for name in ended)
    every = [f"{team.pods}/{name}" for name in ("waits", *ended)]
    wait_until(lambda: [path for path in every if control_plane.exists(path)] == [], "all are let go")
    wait_until(lambda: open_sessions(services.redis, team.budget) == 0, "all are off the meter")
    assert spent(services.redis, team.budget) == expected > 0
    wait_until(lambda: spent_in(team.status()) == expected, "the budget says the same")


def documented(page: str) -> str:
    """The last command of a page that looks through the pods of all namespaces, to the end of its loop."""
    commands = re.findall(r"^kubectl get pods -A .*?^done$", (DOCUMENTS / page).read_text(), re.DOTALL | re.MULTILINE)
    return str(commands[-1])


def passes(plane: ControlPlane, command: str) -> bool:
    """Whether an admin's shell runs a command through."""
    return plane.admin.shell(command).returncode == 0


def test_pods_that_wait_for_a_timekeeper_that_was_removed_are_released_by_the_documented_commands(
    control_plane: ControlPlane, services: Services, installation: list[Manifest], namespace: str
) -> None:
    team = Team(control_plane, namespace)
    team.give(0, onExhausted="hold")
    wait_until(lambda: team.status().get("state") == "held", "a budget of nothing is held")
    names = iter(f"held-{number}" for number in range(1000))

    def gated() -> str | None:
        created = team.create(next(names))
        return created["metadata"]["name"] if created["spec"].get("schedulingGates") else None

    held = wait_until(gated, "a pod is gated")
    control_plane.admin.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "--all")
    try:
        with standing_still(services):
            ended = team.create("ended")["metadata"]["name"]
            control_plane.admin.api.delete(f"{team.pods}/{ended}", BY_FORCE)
            assert team.finalizers(ended) == [METER]
            wait_until(lambda: passes(control_plane, documented("failures.md")), "the policies are out of force")
            assert not control_plane.exists(f"{team.pods}/{ended}")
            assert team.finalizers(held) == [METER]
        wait_until(lambda: passes(control_plane, documented("install.md")), "the command runs through")
        found = team.read(held)
        left = control_plane.admin.kubectl("get", "pods", "-A", "-o", "jsonpath={.items[*].metadata.finalizers}").stdout
    finally:
        apply(control_plane, [item for item in installation if item["kind"].startswith("ValidatingAdmissionPolicy")])
        wait_for_policies(control_plane)
    assert "finalizers" not in found["metadata"]
    assert "schedulingGates" not in found["spec"]
    assert METER not in left
