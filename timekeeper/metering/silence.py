"""Nodes that are silent, and since when: until then the pods on them are known to have held their share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from timekeeper.rules.timestamps import MINUTE, TimeError, parse_instant

Json = Mapping[str, Any]

LONGEST_UNNOTICED = 5 * MINUTE
"""How long a silent node may pass for ready: the node controller's --node-monitor-grace-period is 50 s by default
(https://kubernetes.io/docs/reference/command-line-tools-reference/kube-controller-manager/)."""


def silent_nodes(nodes: Iterable[Json], lease_of: Callable[[], Mapping[str, Json]]) -> dict[str, int]:
    """Nodes whose Ready condition is Unknown, and when each was last heard of, in nanoseconds since 1970.

    That is when it last renewed its Lease. A kubelet stamps that by its node's clock, so that it is held to when the
    node controller found the node silent: not later, and not longer before than it takes to find that.

    Args:
        nodes: the Node objects.
        lease_of: their Leases by name, which are asked for where any node is silent.
    """
    silent = [(str(node["metadata"]["name"]), condition) for node in nodes if (condition := _unknown(node))]
    if not silent:
        return {}
    leases = lease_of()
    return {name: _heard_of(leases.get(name), condition) for name, condition in silent}


def _unknown(node: Json) -> Json | None:
    """The Ready condition of a node, where it is Unknown."""
    for condition in (node.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "Ready":
            return condition if condition.get("status") == "Unknown" else None
    return None


def _heard_of(lease: Json | None, condition: Json) -> int:
    renewed = _instant(((lease or {}).get("spec") or {}).get("renewTime")) or 0
    noticed = _instant(condition.get("lastTransitionTime"))
    return renewed if noticed is None else min(max(renewed, noticed - LONGEST_UNNOTICED), noticed)


def _instant(value: Any) -> int | None:
    try:
        return parse_instant(value)
    except TimeError:
        return None
