"""The account of one node's agent can change its own Node's inventory and capacity, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from tests.node.machine import NAME, Machine

OTHER = "other-node"


@pytest.fixture(scope="module")
def other_node(machine: Machine) -> str:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER}}
    machine.plane.admin.api.create("/api/v1/nodes", node)
    return f"/api/v1/nodes/{OTHER}"


INVENTORY = {"metadata": {"annotations": {"fairgpu.io/inventory": "{}"}}}
CAPACITY = {"status": {"capacity": {"fairgpu.io/gpu-core": "9999"}}}


@pytest.mark.parametrize(("subresource", "patch"), [("", INVENTORY), ("/status", CAPACITY)])
def test_the_agent_of_one_node_changes_no_other(
    machine: Machine, other_node: str, subresource: str, patch: dict[str, Any]
) -> None:
    with pytest.raises(ApiError, match=f"{OTHER} is written with a token of node {NAME}"):
        machine.agent.api.patch(other_node + subresource, patch)


@pytest.mark.parametrize(
    ("subresource", "patch"),
    [
        ("", {"spec": {"unschedulable": True}}),
        ("", {"spec": {"taints": [{"key": "example.org/mine", "effect": "NoExecute"}]}}),
        ("", {"metadata": {"labels": {"nvidia.com/gpu.present": "false"}}}),
        ("", {"metadata": {"annotations": {"example.org/owner": "me"}}}),
        ("/status", {"status": {"capacity": {"cpu": "9999"}}}),
        ("/status", {"status": {"capacity": {"fairgpu.io/gpu": "9999"}}}),
        ("/status", {"status": {"allocatable": {"fairgpu.io/gpu-core": "9999"}}}),
        ("/status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
    ],
    ids=["cordon", "taint", "label", "annotation", "cpu", "slots", "allocatable", "condition"],
)
def test_an_agent_changes_nothing_else_of_its_own_node(
    machine: Machine, subresource: str, patch: dict[str, Any]
) -> None:
    with pytest.raises(ApiError, match="and nothing else") as refused:
        machine.agent.api.patch(f"/api/v1/nodes/{NAME}{subresource}", patch)
    assert refused.value.status == 403


def test_a_token_of_no_node_changes_none(machine: Machine) -> None:
    stranger = machine.plane.service_account("fairgpu-nodes", "fairgpu-nodeagent")
    with pytest.raises(ApiError, match="with a token of no node"):
        stranger.api.patch(f"/api/v1/nodes/{NAME}", INVENTORY)


@pytest.mark.parametrize(
    ("verb", "resource"), [("patch", "pods"), ("create", "pods"), ("get", "secrets"), ("delete", "nodes")]
)
def test_the_agents_role_has_no_other_rights(machine: Machine, verb: str, resource: str) -> None:
    assert not machine.agent.may(verb, resource, namespace="default")
