"""The proposal of who may connect to the webhook, from a real API server, put into an overlay."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.installation import Manifest, apply, named, render
from tests.support.processes import FAIRGPU
from tests.support.waiting import LIMIT_S
from webhook.ingress import is_open

NAME = "control-plane-1"
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": NAME, "labels": {"node-role.kubernetes.io/control-plane": ""}},
    "spec": {"unschedulable": True},
}
SLICE = {  # as an API server makes it that does not listen on loopback
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "metadata": {"name": "api-server", "labels": {"kubernetes.io/service-name": "kubernetes"}},
    "addressType": "IPv4",
    "endpoints": [{"addresses": ["192.0.2.20"]}],
}
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
ADDRESSES = {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.10"}]}}

pytestmark = pytest.mark.usefixtures("installation")


def proposal(plane: ControlPlane, output: str) -> str:
    environment = {"KUBECONFIG": str(plane.admin.kubeconfig), "HOME": str(plane.folder)}
    command = [*FAIRGPU, "apiserver-cidrs", "-o", output]
    return subprocess.run(command, env=environment, check=True, timeout=LIMIT_S, capture_output=True, text=True).stdout


def policy(plane: ControlPlane, patches: list[Manifest]) -> Manifest:
    return named(render(plane, extra={"patches": patches}), "NetworkPolicy", "fairgpu-webhook")


def test_the_printed_line_closes_the_webhooks_policy_to_all_but_the_api_servers(control_plane: ControlPlane) -> None:
    api = control_plane.admin.api
    api.create("/api/v1/nodes", NODE)
    api.create(SLICES, SLICE)
    try:
        api.patch(f"/api/v1/nodes/{NAME}/status", ADDRESSES)
        document = json.loads(proposal(control_plane, "json"))
        line = proposal(control_plane, "yaml")
        text = proposal(control_plane, "text")
    finally:
        api.delete(f"/api/v1/nodes/{NAME}")
        api.delete(f"{SLICES}/api-server")
    found = [peer["ipBlock"]["cidr"] for peer in document["from"]]
    assert {"192.0.2.10/32", "192.0.2.20/32"} <= set(found)
    assert line.strip() in text
    shipped, closed = policy(control_plane, []), policy(control_plane, yaml.safe_load(line))
    assert (is_open(shipped), is_open(closed)) == (True, False)
    assert closed["spec"]["ingress"][0]["from"] == document["from"]
    assert "serverside-applied" in apply(control_plane, [closed], "--dry-run=server")
