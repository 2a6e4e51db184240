"""Finds the addresses from which API servers call the webhook, and checks the webhook's NetworkPolicy.

No object of a cluster states these addresses. `propose` returns the addresses behind the Service `kubernetes`, the
addresses of the control plane's nodes, and the addresses that these nodes have in the network of pods. If API servers
reach pods through a tunnel, the webhook is called by the tunnel's agents
(https://kubernetes.io/docs/concepts/architecture/control-plane-node-communication/).
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
import yaml

from fairgpu import names
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.keeping import Wait

_log = structlog.get_logger(__name__)

SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
OF_THE_API_SERVERS = {"labelSelector": "kubernetes.io/service-name=kubernetes"}
NODES = "/api/v1/nodes"
CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
AGENTS = "/api/v1/namespaces/kube-system/pods"
AGENT_LABELS = ("k8s-app", "app")
AGENT = "konnectivity-agent"
IN_THE_NETWORK_OF_PODS = (
    "projectcalico.org/IPv4IPIPTunnelAddr",
    "projectcalico.org/IPv4VXLANTunnelAddr",
    "projectcalico.org/IPv4WireguardInterfaceAddr",
    "network.cilium.io/ipv4-cilium-host",
    "network.cilium.io/ipv6-cilium-host",
)
"""The annotations in which Calico and Cilium write the source address of a node's own packets to pods."""
FLANNEL = "flannel.alpha.coreos.com/backend-type"

POLICY = f"/apis/networking.k8s.io/v1/namespaces/{names.SYSTEM_NAMESPACE}/networkpolicies/{names.WEBHOOK_SERVICE}"
CHECK_SECONDS = 300.0
EVERYWHERE = ("0.0.0.0/0", "::/0")


@dataclass(frozen=True, slots=True)
class Source:
    """An address, or a group of pods, that may connect to the webhook.

    Attributes:
        peer: the entry of a NetworkPolicy that lets the address or the pods connect, as JSON.
        why: the object in the cluster by which the source was found, in words for people.
    """

    peer: Json
    why: str


def find_sources(api: KubernetesAPI) -> list[Source]:
    """Returns the sources from which a cluster's API servers may call the webhook, each once.

    Raises:
        ApiError: the API server does not answer, or refuses.
    """
    slices = api.get(SLICES, OF_THE_API_SERVERS).get("items") or []
    nodes = [node for label in CONTROL_PLANE for node in api.get(NODES, {"labelSelector": label}).get("items") or []]
    labels = [label for label in AGENT_LABELS if _has_agents(api, label)]
    return propose(slices, nodes, labels)


def propose(slices: Sequence[Json], nodes: Sequence[Json], agent_labels: Sequence[str]) -> list[Source]:
    """Returns the sources from which API servers may call the webhook: addresses, and pods of a tunnel, each once.

    Args:
        slices: the EndpointSlices of the Service `kubernetes`, as JSON.
        nodes: the Nodes of the control plane, as JSON.
        agent_labels: the keys of the labels by which the tunnel's agents were found; empty without a tunnel.
    """
    sources = [*_slice_sources(slices), *(source for node in nodes for source in _node_sources(node))]
    unique: dict[str, Source] = {}
    for source in sources:
        unique.setdefault(source.peer["ipBlock"]["cidr"], source)
    return [*unique.values(), *(_agents(label) for label in agent_labels)]


def as_text(sources: Sequence[Source]) -> str:
    """Formats the sources of API servers' calls to the webhook as text: a line for each, and the line of `as_patch`."""
    peers = [_peer_text(source.peer) for source in sources]
    width = max(map(len, peers), default=0)
    lines = [f"{peer.ljust(width)}  {source.why}" for peer, source in zip(peers, sources, strict=True)]
    return "\n".join([*lines, "", "# the line for your overlay, under patches:", as_patch(sources)])


def as_patch(sources: Sequence[Source]) -> str:
    """Returns a line for a kustomization's `patches`, in YAML, which lets only these sources connect to the webhook."""
    operation = {"op": "add", "path": "/spec/ingress/0/from", "value": [source.peer for source in sources]}
    patch = json.dumps([operation])  # kustomize takes a patch that begins with a bracket for JSON
    target = {"kind": "NetworkPolicy", "name": names.WEBHOOK_SERVICE}
    line = yaml.safe_dump([{"target": target, "patch": patch}], default_flow_style=True, width=10**6, sort_keys=False)
    return f"- {line.strip()[1:-1]}"


def as_document(sources: Sequence[Source]) -> dict[str, Any]:
    """Returns the sources of API servers' calls to the webhook as a JSON object for programs.

    `from` lists the entries of a NetworkPolicy; `found` lists the reason for each, in the same order.
    """
    return {"from": [source.peer for source in sources], "found": [source.why for source in sources]}


def _slice_sources(slices: Iterable[Json]) -> Iterable[Source]:
    for each in slices:
        for endpoint in each.get("endpoints") or []:
            for address in endpoint.get("addresses") or []:
                yield from _block(address, "an API server, behind the Service kubernetes")


def _node_sources(node: Json) -> Iterable[Source]:
    metadata, name = node["metadata"], node["metadata"]["name"]
    for address in (node.get("status") or {}).get("addresses") or []:
        if address.get("type") == "InternalIP":
            yield from _block(address.get("address"), f"the control plane's node {name}")
    annotations = metadata.get("annotations") or {}
    for key in IN_THE_NETWORK_OF_PODS:
        yield from _block(annotations.get(key), f"{name} in the network of pods, by {key}")
    if FLANNEL in annotations:
        for cidr in (node.get("spec") or {}).get("podCIDRs") or []:
            yield from _block(str(cidr).partition("/")[0], f"{name} in the network of pods, by {FLANNEL}")


def _block(address: object, why: str) -> Iterable[Source]:
    try:
        parsed = ipaddress.ip_address(str(address))
    except ValueError:
        return
    yield Source({"ipBlock": {"cidr": f"{parsed}/{parsed.max_prefixlen}"}}, why)


def _agents(label: str) -> Source:
    peer = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {label: AGENT}},
    }
    return Source(peer, "the tunnel through which the API servers reach pods")


def _has_agents(api: KubernetesAPI, label: str) -> bool:
    return bool(api.get(AGENTS, {"labelSelector": f"{label}={AGENT}", "limit": 1}).get("items"))


def _peer_text(peer: Json) -> str:
    if "ipBlock" in peer:
        cidr: str = peer["ipBlock"]["cidr"]
        return cidr
    ((label, value),) = peer["podSelector"]["matchLabels"].items()
    return f"kube-system pods {label}={value}"


def is_open(policy: Json | None) -> bool:
    """Returns whether a NetworkPolicy lets every IPv4 address or every IPv6 address connect, by a single entry.

    Exceptions in the entry do not count.

    Args:
        policy: the policy, as JSON; None if there is none, which lets every address connect.
    """
    if policy is None:
        return True
    spec = policy.get("spec") or {}
    if "Ingress" not in (spec.get("policyTypes") or ["Ingress"]):
        return True
    return any(_admits_all(rule) for rule in spec.get("ingress") or [])


def follow_policy(api: KubernetesAPI, publish: Callable[[bool], None], wait: Wait) -> None:
    """Publishes every CHECK_SECONDS whether the webhook's NetworkPolicy lets every address connect.

    If the policy cannot be read, this is only logged. The function returns once `wait` returns true.

    Args:
        api: the API server.
        publish: takes the result: true if every address may connect.
        wait: sleeps for the given seconds, and returns whether the process ends.
    """
    while True:
        try:
            publish(is_open(_read_policy(api)))
        except ApiError as error:
            _log.warning("network policy not read", policy=POLICY, error=str(error))
        if wait(CHECK_SECONDS):
            return


def _read_policy(api: KubernetesAPI) -> Json | None:
    try:
        return api.get(POLICY)
    except ApiError as error:
        if error.not_found:
            return None
        raise


def _admits_all(rule: Json) -> bool:
    peers = rule.get("from") or []
    return not peers or any((peer.get("ipBlock") or {}).get("cidr") in EVERYWHERE for peer in peers)
