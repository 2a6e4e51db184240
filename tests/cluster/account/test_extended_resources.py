"""The mode account where a DeviceClass names an extended resource, which this version of Kubernetes has off.

The class is one that `existing.device_classes` does not list, and the resource one that no list has: admission cannot
know that its pods ask for a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.account.installed import API, Installed, installed_account, pod
from tests.cluster.control_plane.build import control_plane_binaries
from tests.cluster.control_plane.control_plane import ControlPlane, running_control_plane
from tests.cluster.control_plane.stand_ins import StandInNode
from tests.cluster.look.devices import create_class, create_node, devices, publish
from tests.cluster.look.installed import client_at, let_view
from tests.support.ledger.periods import month_midway
from tests.support.waiting import wait_until
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import parse_instant

NODE, CLASS, LEASED = "leased", "leased.example.org", {"example.org/gpu": "1"}


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    with running_control_plane(control_plane_binaries(os.environ), features=("DRAExtendedResource",)) as plane:
        create_node(plane, NODE, {}, {}, {})
        publish(plane, NODE, devices(NODE, 2), CLASS)
        create_class(plane, CLASS, extendedResourceName="example.org/gpu")
        yield plane


@pytest.fixture(scope="module")
def account(control_plane: ControlPlane) -> Iterator[Installed]:
    with installed_account(control_plane) as installed:
        let_view(control_plane)
        yield installed


def test_a_pod_that_has_a_gpu_by_such_a_resource_is_charged_from_its_binding_labelled_guarded_and_evicted(
    control_plane: ControlPlane, account: Installed, namespace: str
) -> None:
    user, pods = control_plane.namespace_admin(namespace), f"/api/v1/namespaces/{namespace}/pods"
    stored = user.api.create(pods, pod("train", LEASED))
    assert "labels" not in stored["metadata"]

    def bound() -> Any:
        found = user.api.get(f"{pods}/train")
        return found if found["spec"].get("nodeName") else None

    conditions = wait_until(bound, "the stock scheduler makes a claim and binds the pod")["status"]["conditions"]
    StandInNode(NODE, control_plane.node(NODE)).set_pod_phase(namespace, "train", "Running")
    labels = wait_until(lambda: user.api.get(f"{pods}/train")["metadata"].get("labels"), "the pod gets the label")
    assert labels == {"fairgpu.io/pod": "gpu"}
    client = client_at(control_plane, account.rest)
    (session,) = wait_until(lambda: client.get("/v1/sessions", namespace=namespace)["sessions"], "its claim is charged")
    (scheduled,) = [one["lastTransitionTime"] for one in conditions if one["type"] == "PodScheduled"]
    assert session["pod"].startswith("resourceclaim/train-")
    assert parse_instant(session["start"]) // SECOND == parse_instant(scheduled) // SECOND

    with pytest.raises(ApiError, match="fairgpu-deletion"):
        user.api.delete(f"{pods}/train", {"gracePeriodSeconds": 0})
    spec = {"namespaces": [namespace], "period": month_midway(), "allowance": {"gpuHours": 0}, "onExhausted": "hold"}
    item = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": f"budget-{namespace}"}}
    control_plane.admin.api.create(
        f"{API}/gpubudgets", {**item, "spec": {**spec, "enforcement": "evict", "evictionNotice": "1s"}}
    )
    wait_until(lambda: "deletionTimestamp" in user.api.get(f"{pods}/train")["metadata"], "the pod is evicted")
