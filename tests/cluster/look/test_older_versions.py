"""Claims read from an API server that has no `resource.k8s.io/v1`, as Kubernetes 1.32 and 1.33 have none.

It is a second API server over the same etcd. The stock scheduler, which knows v1 alone, allocates at the first.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from fairgpu.cluster.resource_claims import GROUP, VERSIONS
from fairgpu.existing import Existing
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, another_api_server, running_control_plane
from tests.cluster.look.devices import (
    CLASS,
    claiming,
    create_claim,
    create_class,
    create_node,
    create_template,
    devices,
    publish,
)
from tests.cluster.look.installed import Installed, installed
from tests.support.processes import FAIRGPU
from tests.support.waiting import wait_until
from webhook.cache.admission_cache import AdmissionCache
from webhook.cache.watches import CLAIM_TEMPLATES, CLAIMS, ClaimsView, follow_claims

FEATURES = ("DRAPartitionableDevices", "DRAConsumableCapacity")
MIG, SHARED, NETWORK = "mig.example.org", "shared.example.org", "network.example.org"
OLDER = ("v1beta2", "v1beta1")
WHOLE = 1_000_000
"""The rate of a GPU at price 1, in microGPU-seconds a second."""
EXPECTED = {"pair": 2 * WHOLE, "half": WHOLE // 2, "quarter": WHOLE // 4}
"""The rate of each claim; in v1beta1 the fields by which it is reckoned stand one level deeper than in v1."""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """Has devices for the claims of one team for each of the older versions."""
    with running_control_plane(control_plane_binaries(os.environ), features=FEATURES) as running:
        for node in ("whole", "parts", "shared", "cards"):
            create_node(running, node, {}, {}, {})
        taken = {"memory": {"value": "40Gi"}, "multiprocessors": {"value": "42"}}
        halves = [
            {"name": f"half-{at}", "consumesCounters": [{"counterSet": "gpu-0", "counters": taken}]} for at in range(2)
        ]
        counters = {"memory": {"value": "80Gi"}, "multiprocessors": {"value": "98"}}
        publish(running, "whole", devices("whole", 2 * len(OLDER)))
        publish(running, "parts", halves, MIG, sharedCounters=[{"name": "gpu-0", "counters": counters}])
        publish(running, "shared", devices("shared", 1, allowMultipleAllocations=True), SHARED)
        publish(running, "cards", [{"name": f"eth{at}"} for at in range(len(OLDER))], NETWORK, "dra.net")
        for kind in (CLASS, MIG, SHARED):
            create_class(running, kind)
        create_class(running, NETWORK, "dra.net")
        yield running


@pytest.fixture(scope="module", params=OLDER)
def version(request: pytest.FixtureRequest) -> str:
    """The one version of `resource.k8s.io` that the second API server has."""
    return str(request.param)


@pytest.fixture(scope="module")
def older(plane: ControlPlane, version: str) -> Iterator[ControlPlane]:
    served = ",".join(f"resource.k8s.io/{each}={str(each == version).lower()}" for each in VERSIONS)
    # The node authorizer of 1.34 waits for slices of v1; no client is a node here.
    with another_api_server(plane, version, f"--runtime-config={served}", "--authorization-mode=RBAC") as server:
        yield server


@pytest.fixture(scope="module")
def team(plane: ControlPlane, version: str) -> str:
    """A namespace whose pods the stock scheduler has bound, each with a claim."""
    name = plane.create_namespace(f"{version}-")
    create_template(plane, name, "pair", 2)
    create_claim(plane, name, "half", 1, device_class=MIG)
    create_claim(plane, name, "quarter", 1, device_class=SHARED, capacity={"requests": {"memory": "20Gi"}})
    create_claim(plane, name, "card", 1, device_class=NETWORK)
    pods = f"/api/v1/namespaces/{name}/pods"
    plane.admin.api.create(pods, claiming("pair", resourceClaimTemplateName="pair"))
    for claim in ("half", "quarter", "card"):
        plane.admin.api.create(pods, claiming(claim, resourceClaimName=claim))

    def bound() -> bool:
        return all(pod["spec"].get("nodeName") for pod in plane.admin.api.get(pods)["items"])

    wait_until(bound, "all pods are bound")
    return name


@pytest.fixture(scope="module")
def look(older: ControlPlane, team: str) -> Iterator[Installed]:
    spec = f"namespaces: [{team}]\nallowance: {{gpuHours: 1}}\nperiod: {{every: month}}\n"
    with installed(older, {"vision": spec}) as found:
        yield found


def test_the_second_api_server_has_the_older_version_alone(older: ControlPlane, version: str) -> None:
    found = older.admin.api.get(GROUP)["versions"]

    assert [one["version"] for one in found] == [version]
    with pytest.raises(ApiError) as refused:
        older.admin.api.get(f"{GROUP}/v1/resourceclaims")
    assert refused.value.not_found


def test_each_claim_is_metered_by_what_it_was_allocated(look: Installed, team: str) -> None:
    def rates() -> dict[str, int] | None:
        found = look.client.get("/v1/sessions", namespace=team)["sessions"]
        named = {_claim(one["pod"]): int(one["rate"]["microGPUSecondsPerSecond"]) for one in found}
        return named if named.keys() >= EXPECTED.keys() else None

    assert wait_until(rates, "a session of each claim for a GPU") == EXPECTED


def test_the_doctor_says_what_each_claim_costs(older: ControlPlane, team: str) -> None:
    command = [*FAIRGPU, "doctor", "--kubeconfig", str(older.admin.kubeconfig), "-o", "json"]
    environ = {"PATH": os.defpath, "HOME": str(older.folder)}
    printed = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    pods = [pod for pod in json.loads(printed.stdout)["pods"] if pod["namespace"] == team]

    assert {_claim(pod["name"]): int(pod["rateMicroGPUSecondsPerSecond"]) for pod in pods} == EXPECTED


def test_admission_tells_claims_for_gpus_from_others(older: ControlPlane, team: str) -> None:
    cache, ended = AdmissionCache(), threading.Event()
    of_gpus = (*Existing().device_classes, CLASS, MIG, SHARED)
    threads = [
        threading.Thread(
            target=follow_claims,
            args=(older.admin.api, ClaimsView(cache, kind, of_gpus), kind, ended.wait, lambda: 0.0),
            daemon=True,
        )
        for kind in (CLAIMS, CLAIM_TEMPLATES)
    ]
    for thread in threads:
        thread.start()

    def others() -> Any:
        return {claim for claim in cache.knowledge.other_claims if claim[0] == team}

    try:
        wait_until(others, "claims for no GPU are known")
        assert others() == {(team, "card", None)}
    finally:
        ended.set()


def _claim(name: str) -> str:
    """A claim's own name, or that of the pod that it was generated for."""
    return name.removeprefix("resourceclaim/").partition("-gpu-")[0]
