"""Preempt names the GPU pods whose devices a pod needs, and no node without a victim."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from scheduler.application import Routes
from scheduler.cluster.eligible import Site
from scheduler.cluster.objects import PodNote
from scheduler.cluster.state import State
from scheduler.measures import Measures
from scheduler.placement.holding import Holding, Piece
from tests.unit.scheduler.extended import ApiServer, Time, pod, state_of


def cluster(*names: str, gpus: int = 1) -> State:
    state = state_of(*names, gpus=gpus)
    for name in names:
        state.put_site(Site(name, pods=10))
    return state


def runs(
    state: State, uid: str, device: str, *, core: int = 100, priority: int = 0, cpu: int = 0, since: float = 0
) -> None:
    """A pod that runs on a device; without one where `core` is 0."""
    pieces = (Piece(device, core, core * 10, 1),) if core else ()
    holding = Holding(device.partition("-")[0], pieces, cpu)
    state.put_pod(PodNote(uid, "team", uid, holding, priority=priority, since=since))


def asked(state: State, proposed: dict[str, list[str]], *, priority: int = 100, **changes: Any) -> dict[str, list[str]]:
    """The answer to a proposal: uids by node."""
    routes = Routes(state, ApiServer(), Time().clock, lambda: True, Measures(CollectorRegistry()))  # type: ignore[arg-type]
    item = pod("new", **changes)
    item["spec"]["priority"] = priority
    victims = {name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 1} for name, uids in proposed.items()}
    body = {"Pod": item, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
    answer = json.loads(routes.preempt(json.dumps(body).encode()).body)["NodeNameToMetaVictims"]
    assert all(one["NumPDBViolations"] == 1 for one in answer.values())
    return {name: [each["UID"] for each in one["Pods"]] for name, one in answer.items()}


def test_the_pods_that_hold_the_devices_are_named_in_place_of_those_that_free_as_much_in_sum() -> None:
    state = cluster("n0", gpus=2)
    runs(state, "a", "n0-0", core=60, since=5)
    runs(state, "b", "n0-1", core=60, since=50)
    runs(state, "small", "n0-1", core=20, since=99)
    assert asked(state, {"n0": ["small"]}, core=90) == {"n0": ["a"]}


def test_a_node_on_which_nobody_has_to_go_or_on_which_it_does_not_suffice_is_left_out() -> None:
    state = cluster("free", "low", "high")
    runs(state, "l", "low-0")
    runs(state, "h", "high-0", priority=100)
    assert asked(state, {"free": [], "low": ["l"], "high": ["h"], "unknown": ["x"]}, core=100) == {"low": ["l"]}


def test_a_node_on_which_another_resource_stays_taken_is_left_out() -> None:
    state = state_of("n0", "n1")
    for name in ("n0", "n1"):
        state.put_site(Site(name, pods=10, others={"rdma/hca": 1}))
        runs(state, f"gpu-{name}", f"{name}-0")
    state.put_pod(PodNote("web", "team", "web", Holding("n0", ()), others=(("rdma/hca", 1),)))
    nic = {"name": "nic", "resources": {"requests": {"rdma/hca": "1"}}}
    found = asked(state, {"n0": ["gpu-n0", "web"], "n1": ["gpu-n1"]}, core=100, initContainers=[nic])
    assert found == {"n1": ["gpu-n1"]}


def test_a_pod_without_a_gpu_is_never_named() -> None:
    state = cluster("n0")
    runs(state, "web", "n0-", core=0, cpu=64_000)
    runs(state, "gpu", "n0-0")
    needs = {"containers": [pod("x", core=100)["spec"]["containers"][0]]}
    needs["containers"][0]["resources"]["requests"] = needs["containers"][0]["resources"]["limits"] | {"cpu": "1"}
    assert asked(state, {"n0": ["web", "gpu"]}, **needs) == {}
    state.remove_pod("web")
    assert asked(state, {"n0": ["gpu"]}, **needs) == {"n0": ["gpu"]}


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"Pod":{}}', b'{"Pod":{},"NodeNameToMetaVictims":[]}'])
def test_a_body_that_is_none_of_the_protocols_is_answered_400(body: bytes) -> None:
    routes = Routes(cluster("n0"), ApiServer(), Time().clock, lambda: True, Measures(CollectorRegistry()))  # type: ignore[arg-type]
    assert routes.preempt(body).status == 400


def test_a_pod_that_asks_for_no_gpu_preempts_nobody() -> None:
    state = cluster("n0")
    runs(state, "a", "n0-0")
    assert asked(state, {"n0": ["a"]}, containers=[{"name": "main"}]) == {}
