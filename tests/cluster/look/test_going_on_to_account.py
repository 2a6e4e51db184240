"""From `look` to `account` by the commands of docs/adopting.md: the lines of the ConfigMap go on as GPUBudgets."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.account.installed import ONE, installed_account, pod, settings_of
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.stand_ins import StandInNode
from tests.cluster.look.devices import create_node
from tests.cluster.look.installed import Installed, client_at, installed
from tests.cluster.services.replicas import environment
from tests.cluster.services.timekeeper_client import TimekeeperClient
from tests.support.ledger.periods import month_midway
from tests.support.processes import FAIRGPU
from tests.support.waiting import wait_until
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.timestamps import parse_instant
from timekeeper.sources.kubernetes import BUDGETS

CRD = Path(__file__).parents[3] / "deploy" / "base" / "crds" / "gpubudgets.yaml"
SPENT, ON = "a-spent", "b-goes-on"
"""Two budgets: the pod of the first one's namespace ends before the change, and that of the other one's runs on."""
GPUS = 2


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> StandInNode:
    create_node(plane, "shared", {"nvidia.com/gpu": "8"}, {"nvidia.com/gpu.product": "NVIDIA-L4"}, {})
    return StandInNode("shared", plane.node("shared"))


@pytest.fixture(scope="module")
def teams(plane: ControlPlane, node: StandInNode) -> dict[str, str]:
    """The namespace of each budget, with a running pod."""
    namespaces = {name: plane.create_namespace(f"{name}-") for name in (SPENT, ON)}
    for namespace in namespaces.values():
        path = f"/api/v1/namespaces/{namespace}/pods"
        plane.admin.api.create(path, pod("train", {"nvidia.com/gpu": str(GPUS)}))
        wait_until(lambda path=path: plane.admin.api.get(f"{path}/train")["spec"].get("nodeName"), "the pod is bound")
        node.set_pod_phase(namespace, "train", "Running")
    return namespaces


@pytest.fixture(scope="module")
def look(plane: ControlPlane, teams: dict[str, str]) -> Iterator[Installed]:
    """Installed with two lines that name one namespace both: the first by name pays for it."""
    month = {"period": month_midway()}
    specs = {
        SPENT: {"namespaces": [teams[SPENT]], "allowance": {"gpuHours": 0}, "onExhausted": "hold", **month},
        ON: {"namespaces": [teams[ON], teams[SPENT]], "allowance": {"gpuHours": "2.5"}, **month},
    }
    with installed(plane, {name: yaml.safe_dump(spec) for name, spec in specs.items()}) as found:
        yield found


def test_budgets_and_bills_go_on_to_the_microgpu_second(
    plane: ControlPlane, node: StandInNode, teams: dict[str, str], look: Installed
) -> None:
    (running,) = wait_until(lambda: look.client.get("/v1/sessions", namespace=teams[ON])["sessions"], "a session")
    # A pod's end is stated in whole seconds, and so may be up to a second earlier than now.
    wait_until(lambda: _spent(_listed(look.client, SPENT)) > 2 * GPUS * GPU_SECOND, "a bill of more than two seconds")
    node.set_pod_phase(teams[SPENT], "train", "Succeeded")
    before = wait_until(lambda: _at_rest(look.client, SPENT), "the bill of the pod that ended")
    periods = {name: _listed(look.client, name)["period"] for name in (SPENT, ON)}

    plane.admin.kubectl("apply", "-f", str(CRD))
    plane.admin.kubectl("wait", "--for=condition=Established", "crd/gpubudgets.fairgpu.io", "--timeout=120s")
    found = lambda: plane.admin.kubectl("get", "gpubudgets", check=False).returncode == 0  # noqa: E731 - read once
    wait_until(found, "kubectl finds the new kind")
    plane.admin.kubectl("apply", "-f", "-", stdin=_fairgpu(plane, "gpubudgets"))
    look.end()
    with installed_account(plane, look.redis_url) as account:
        client = client_at(plane, account.rest)
        # What the last leader of look has published stays in the list until the new one writes, statuses first of all.
        after = {name: wait_until(lambda name=name: _status(plane, name), "a first status") for name in (SPENT, ON)}
        wait_until(lambda: _gated(plane, teams[SPENT]), "the webhook knows that the budget is spent")
        stopped = node.set_pod_phase(teams[ON], "train", "Succeeded")["status"]["containerStatuses"][0]["state"]
        billed = wait_until(lambda: _at_rest(client, ON), "the bill of the pod that ran on")
        audited = _audit(plane, look.redis_url)

    assert _spent(after[SPENT]) == before > 0
    assert {name: status["period"] for name, status in after.items()} == periods
    held = parse_instant(stopped["terminated"]["finishedAt"]) - parse_instant(running["start"])
    # The start is stated in whole microseconds, and known in nanoseconds.
    assert 0 <= GPUS * GPU_SECOND * held // SECOND - billed <= GPUS
    assert audited == []


def _listed(client: TimekeeperClient, name: str) -> Any:
    """The figures of a budget; empty before the timekeeper knows it."""
    return next((one for one in client.get("/v1/budgets")["budgets"] if one["name"] == name), {})


def _at_rest(client: TimekeeperClient, name: str) -> int:
    """The microGPU-seconds that a budget has paid, once no pod spends from it; 0 until then."""
    found = _listed(client, name)
    return _spent(found) if found and int(found["rate"]["microGPUSecondsPerSecond"]) == 0 else 0


def _status(plane: ControlPlane, name: str) -> Any:
    return plane.admin.api.get(f"{BUDGETS}/{name}").get("status", {})


def _spent(figures: Any) -> int:
    return int(figures.get("spent", {}).get("microGPUSeconds", 0))


def _gated(plane: ControlPlane, namespace: str) -> Any:
    path = f"/api/v1/namespaces/{namespace}/pods"
    return plane.admin.api.create(path, pod("held", ONE), {"dryRun": "All"})["spec"].get("schedulingGates")


def _fairgpu(plane: ControlPlane, *arguments: str) -> str:
    command = [*FAIRGPU, *arguments, "--kubeconfig", str(plane.admin.kubeconfig)]
    environ = {"PATH": os.defpath, "HOME": str(plane.folder)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout


def _audit(plane: ControlPlane, redis_url: str) -> Any:
    """The differences that the audit finds between the ledger and the API server."""
    settings = environment(plane, "fairgpu-timekeeper") | settings_of("TIMEKEEPER")
    settings |= {"FAIRGPU_TIMEKEEPER_REDIS_URL": redis_url}
    done = subprocess.run([*FAIRGPU, "audit", "-o", "json"], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)["differences"]
