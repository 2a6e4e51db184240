"""Claims that the stock scheduler allocates, with the features that this version of Kubernetes has off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.stand_ins import now
from tests.cluster.look.devices import (
    CLASS,
    DRIVER,
    DYNAMIC,
    claiming,
    create_claim,
    create_class,
    create_node,
    create_template,
    devices,
    publish,
)
from tests.cluster.look.installed import Installed, installed
from tests.support.waiting import wait_until

FEATURES = ("DRAPartitionableDevices", "DRAConsumableCapacity", "DRAExtendedResource", "DRAAdminAccess")
GPU = "nvidia.com/gpu"
MIG, SHARED, EXTENDED, NETWORK = (f"{kind}.example.org" for kind in ("mig", "shared", "extended", "network"))
WHOLE = 1_000_000
"""The rate of a GPU at price 1, in microGPU-seconds a second."""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with running_control_plane(control_plane_binaries(os.environ), features=FEATURES) as running:
        for node in ("whole", "parts", "shared", "extended", "cards"):
            create_node(running, node, {}, {}, {})
        taken = {"memory": {"value": "40Gi"}, "multiprocessors": {"value": "42"}}
        halves = [
            {"name": f"half-{at}", "consumesCounters": [{"counterSet": "gpu-0", "counters": taken}]} for at in range(2)
        ]
        counters = {"memory": {"value": "80Gi"}, "multiprocessors": {"value": "98"}}
        publish(running, "whole", devices("whole", 4))
        publish(running, "parts", halves, MIG, sharedCounters=[{"name": "gpu-0", "counters": counters}])
        publish(running, "shared", devices("shared", 1, allowMultipleAllocations=True), SHARED)
        publish(running, "extended", devices("extended", 1), EXTENDED)
        publish(running, "cards", [{"name": "eth1"}], NETWORK, "dra.net")
        for kind in (CLASS, MIG, SHARED):
            create_class(running, kind)
        create_class(running, EXTENDED, extendedResourceName=GPU)
        create_class(running, NETWORK, "dra.net")
        yield running


@pytest.fixture(scope="module")
def team(plane: ControlPlane) -> str:
    return plane.create_namespace("team-", labels={"resource.kubernetes.io/admin-access": "true"})


@pytest.fixture(scope="module")
def look(plane: ControlPlane, team: str) -> Iterator[Installed]:
    spec = f"namespaces: [{team}]\nallowance: {{gpuHours: 1}}\nperiod: {{every: month}}\n"
    with installed(plane, {"vision": spec}) as found:
        yield found


def _run(plane: ControlPlane, namespace: str, pod: dict[str, Any]) -> dict[str, Any]:
    """Creates a pod; returns it once the stock scheduler has bound it."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    plane.admin.api.create(path, pod)
    name = pod["metadata"]["name"]

    def bound() -> Any:
        found = plane.admin.api.get(f"{path}/{name}")
        return found if found["spec"].get("nodeName") else None

    return dict(wait_until(bound, f"{name} is bound"))


def _finish(plane: ControlPlane, namespace: str, name: str) -> None:
    state = {"terminated": {"exitCode": 0, "startedAt": now(), "finishedAt": now()}}
    container = {"name": "main", "image": "x", "imageID": "x", "ready": False, "restartCount": 0, "state": state}
    status = {"phase": "Succeeded", "containerStatuses": [container]}
    plane.admin.api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status})


def _session(look: Installed, namespace: str, name: str) -> Any:
    """The open session of a pod or claim whose name begins so; None without one."""
    found = look.client.get("/v1/sessions", namespace=namespace)["sessions"]
    return next((one for one in found if one["pod"].removeprefix("resourceclaim/").startswith(name)), None)


def _metered(look: Installed, namespace: str, name: str) -> Any:
    return wait_until(lambda: _session(look, namespace, name), f"a session of {name}")


def _rate(session: Any) -> int:
    return int(session["rate"]["microGPUSecondsPerSecond"])


def test_a_claim_that_was_generated_for_a_pod_is_a_session_of_that_pods_owner(
    plane: ControlPlane, look: Installed, team: str
) -> None:
    create_template(plane, team, "two", 2)
    _run(plane, team, claiming("trainer", resourceClaimTemplateName="two"))
    session = _metered(look, team, "trainer-gpu-")

    assert (_rate(session), session["node"], session["heldIdle"]) == (2 * WHOLE, "whole", False)


def test_pods_that_share_a_claim_in_turn_are_one_session_which_ends_with_the_last(
    plane: ControlPlane, look: Installed, team: str
) -> None:
    create_claim(plane, team, "common", 1)
    pods = ("first", "second", "third")
    _run(plane, team, claiming("first", resourceClaimName="common"))
    session = _metered(look, team, "common")
    for before, after in pairwise(pods):
        _run(plane, team, claiming(after, resourceClaimName="common"))
        _finish(plane, team, before)
    assert _metered(look, team, "common")["uid"] == session["uid"]
    _finish(plane, team, "third")

    wait_until(lambda: _session(look, team, "common") is None, "the claim's session has ended")


def test_a_partition_is_charged_by_the_counters_that_it_consumes(
    plane: ControlPlane, look: Installed, team: str
) -> None:
    create_claim(plane, team, "half", 1, device_class=MIG)
    _run(plane, team, claiming("partitioned", resourceClaimName="half"))

    assert _rate(_metered(look, team, "half")) == WHOLE // 2


def test_a_part_of_a_device_that_claims_share_is_charged_as_what_was_consumed_of_it(
    plane: ControlPlane, look: Installed, team: str
) -> None:
    create_claim(plane, team, "quarter", 1, device_class=SHARED, capacity={"requests": {"memory": "20Gi"}})
    _run(plane, team, claiming("consumer", resourceClaimName="quarter"))

    assert _rate(_metered(look, team, "quarter")) == WHOLE // 4


def test_an_extended_resource_of_a_device_class_is_charged_once_by_its_claim(
    plane: ControlPlane, look: Installed, team: str
) -> None:
    container = {"name": "main", "image": "example.org/train:1", "resources": {"limits": {GPU: "1"}}}
    metadata = {"name": "extended"}
    _run(plane, team, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}})
    _metered(look, team, "extended-")
    found = look.client.get("/v1/sessions", namespace=team)["sessions"]

    assert [_rate(one) for one in found if "extended" in one["pod"]] == [WHOLE]


def test_a_claim_that_no_pod_reserves_is_charged_and_shown_as_held_idle(
    plane: ControlPlane, look: Installed, team: str
) -> None:
    create_claim(plane, team, "forgotten", 1)
    result = {"request": "gpus", "driver": DRIVER, "pool": "whole", "device": "whole-3"}
    status = {"allocation": {"devices": {"results": [result]}}}
    path = f"/apis/{DYNAMIC}/namespaces/{team}/resourceclaims/forgotten/status"
    plane.admin.api.patch(path, {"status": status})
    session = _metered(look, team, "forgotten")

    assert (_rate(session), session["heldIdle"]) == (WHOLE, True)


def test_administrative_access_and_network_cards_cost_nothing(plane: ControlPlane, look: Installed, team: str) -> None:
    create_claim(plane, team, "watcher", 1, adminAccess=True)
    create_claim(plane, team, "card", 1, device_class=NETWORK)
    create_claim(plane, team, "last", 1, device_class=MIG)
    for name in ("watcher", "card", "last"):
        _run(plane, team, claiming(f"pod-of-{name}", resourceClaimName=name))
    _metered(look, team, "last")

    assert [_session(look, team, name) for name in ("watcher", "card", "pod-of-")] == [None, None, None]
