"""The peers that may connect to the webhook: a proposal from the cluster's objects, and whether all peers may."""

from __future__ import annotations

from typing import Any

import jsonpatch
import pytest
import yaml

from fairgpu.cluster.api import ApiError
from tests.support.ledger.stored_objects import StoredObjects
from webhook.ingress import POLICY, Source, as_document, as_patch, as_text, follow_policy, is_open, propose


def slice_of(*addresses: str) -> dict[str, Any]:
    return {"endpoints": [{"addresses": list(addresses)}]}


def node(name: str, address: str, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    addresses = [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]
    return {"metadata": {"name": name, "annotations": annotations}, "spec": spec, "status": {"addresses": addresses}}


def cidrs(sources: list[Source]) -> list[str]:
    return [source.peer["ipBlock"]["cidr"] for source in sources]


def test_api_servers_are_known_by_their_service_and_by_the_nodes_that_they_run_on() -> None:
    found = propose([slice_of("10.0.0.1", "10.0.0.2"), slice_of("fd00::1")], [node("cp-1", "10.0.0.1")], [])
    assert cidrs(found) == ["10.0.0.1/32", "10.0.0.2/32", "fd00::1/128"]
    assert cidrs(propose([slice_of("203.0.113.7")], [node("cp-1", "10.0.0.1")], [])) == [
        "203.0.113.7/32",
        "10.0.0.1/32",
    ]


@pytest.mark.parametrize(
    ("annotations", "spec", "address"),
    [
        ({"projectcalico.org/IPv4IPIPTunnelAddr": "10.244.93.192"}, {}, "10.244.93.192/32"),
        ({"projectcalico.org/IPv4VXLANTunnelAddr": "10.244.86.128"}, {}, "10.244.86.128/32"),
        ({"network.cilium.io/ipv4-cilium-host": "10.244.0.28"}, {}, "10.244.0.28/32"),
        ({"flannel.alpha.coreos.com/backend-type": "vxlan"}, {"podCIDRs": ["10.244.3.0/24"]}, "10.244.3.0/32"),
    ],
)
def test_a_node_calls_pods_from_its_address_in_the_network_of_pods(
    annotations: dict[str, str], spec: dict[str, Any], address: str
) -> None:
    assert cidrs(propose([], [node("cp-1", "10.0.0.1", annotations, **spec)], [])) == ["10.0.0.1/32", address]


def test_a_text_that_is_no_address_is_passed_over() -> None:
    odd = node("cp-1", "cp-1.example.org", {"network.cilium.io/ipv4-cilium-host": ""}, podCIDRs=["10.244.3.0/24"])
    assert propose([{"endpoints": None}, {}], [odd, {"metadata": {"name": "bare"}}], []) == []


def test_behind_a_tunnel_its_agents_connect() -> None:
    (found,) = propose([], [], ["k8s-app"])
    assert found.peer["podSelector"] == {"matchLabels": {"k8s-app": "konnectivity-agent"}}
    assert found.peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
    assert "kube-system pods k8s-app=konnectivity-agent" in as_text([found])


SHIPPED = {"spec": {"policyTypes": ["Ingress", "Egress"], "ingress": [{"ports": [{"port": "https"}]}]}}


def test_the_line_for_an_overlay_closes_the_policy_and_lets_in_what_was_proposed() -> None:
    found = propose([slice_of("10.0.0.1")], [], ["app"])
    (patch,) = yaml.safe_load(as_patch(found))
    assert patch["target"] == {"kind": "NetworkPolicy", "name": "fairgpu-webhook"}
    patched = jsonpatch.apply_patch(SHIPPED, yaml.safe_load(patch["patch"]))
    assert patched["spec"]["ingress"][0]["from"] == as_document(found)["from"] == [source.peer for source in found]
    assert (is_open(SHIPPED), is_open(patched)) == (True, False)
    assert as_text(found).splitlines()[-1] == as_patch(found)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, True),
        ({"spec": {"policyTypes": ["Egress"]}}, True),
        ({"spec": {"policyTypes": ["Ingress"]}}, False),
        ({"spec": {"ingress": [{"from": []}]}}, True),
        ({"spec": {"ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]}}, True),
        ({"spec": {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}, {}]}}, True),
        ({"spec": {"ingress": [{"from": [{"podSelector": {}}]}]}}, False),
    ],
)
def test_a_policy_is_open_where_any_of_its_rules_is(policy: dict[str, Any] | None, expected: bool) -> None:  # noqa: FBT001
    assert is_open(policy) is expected


def test_the_policy_is_read_again_and_again_and_a_failure_leaves_what_is_known() -> None:
    api, shown = StoredObjects(), []
    turns = iter(range(4))

    def wait(_seconds: float) -> bool:
        turn = next(turns)
        if turn == 0:
            api.put(POLICY, {"spec": {"ingress": [{"from": [{"podSelector": {}}]}]}})
        api.before = forbidden if turn == 1 else lambda _verb, _path: None
        return turn == 3

    def forbidden(_verb: str, path: str) -> None:
        raise ApiError(403, "Forbidden", path)

    follow_policy(api, shown.append, wait)
    assert shown == [True, False, False]
