"""`fairgpu top` and `fairgpu inspect`: the GPUs that nodes offer, and the parts that pods hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairgpu.inventory import Device, Health
from scheduler.cluster.state import EARMARKED
from scheduler.placement.fleet import Node
from scheduler.placement.holding import Holding, Piece
from scheduler.view.cluster import Cluster

Row = dict[str, Any]


def node_rows(cluster: Cluster) -> list[Row]:
    """Returns one JSON object for each node that offers GPUs, as `fairgpu top` prints them.

    `held` is in GPUs: each GPU counts by the larger of the held shares of its time and its memory. `corePercent` and
    `memoryPercent` are the held parts of the GPU time and the memory of all the node's GPUs, in percent. Devices that
    are kept for a waiting pod count as held.
    """
    return [_node_row(cluster, node) for node in _nodes(cluster)]


def gpu_rows(cluster: Cluster, name: str = "") -> list[Row]:
    """Returns one JSON object for each GPU, with or without pods on it, as `fairgpu inspect` prints them.

    A pod for which a part of the GPU is kept counts as on it; its name then ends in `(kept for it)`.

    Args:
        name: the node's name; empty for all nodes.
    """
    return [_gpu_row(cluster, node, device) for node in _nodes(cluster, name) for device in node.inventory.devices]


def _nodes(cluster: Cluster, name: str = "") -> list[Node]:
    fleet = cluster.state.fleet
    nodes = [fleet.nodes[row] for row in fleet.rows.values()]
    return sorted((node for node in nodes if node is not None and name in ("", node.name)), key=lambda node: node.name)


def _node_row(cluster: Cluster, node: Node) -> Row:
    rows = [_gpu_row(cluster, node, device) for device in node.inventory.devices]
    memory = sum(row["memoryMiB"] for row in rows)
    return {
        "node": node.name,
        "model": ", ".join(sorted({row["model"] for row in rows})),
        "gpus": len(rows),
        "fenced": sum(row["health"] != Health.OK.value for row in rows),
        "held": sum(max(row["coreHeld"] / 100, row["memoryHeldMiB"] / row["memoryMiB"]) for row in rows),
        "corePercent": sum(row["coreHeld"] for row in rows) / len(rows) if rows else 0.0,
        "memoryPercent": 100 * sum(row["memoryHeldMiB"] for row in rows) / memory if memory else 0.0,
        "pods": len({pod["pod"] for row in rows for pod in row["pods"]}),
    }


def _gpu_row(cluster: Cluster, node: Node, device: Device) -> Row:
    held = list(_held(cluster.state.fleet.holders(node.name), device.uuid))
    return {
        "node": node.name,
        "uuid": device.uuid,
        "model": device.model,
        "health": device.health.value,
        "why": device.why,
        "memoryMiB": device.memory_mib,
        "coreHeld": sum(piece.core_percent for _, piece in held),
        "memoryHeldMiB": sum(piece.memory_mib for _, piece in held),
        "containers": sum(piece.slots for _, piece in held),
        "pods": [_pod(cluster, uid, piece) for uid, piece in held],
    }


def _held(holders: dict[str, Holding], uuid: str) -> Iterator[tuple[str, Piece]]:
    for uid, holding in sorted(holders.items()):
        for piece in holding.pieces:
            if piece.uuid == uuid:
                yield uid, piece


def _pod(cluster: Cluster, uid: str, piece: Piece) -> Row:
    note = cluster.pods.get(uid.removeprefix(EARMARKED))
    name = f"{note.namespace}/{note.name}" if note is not None else uid
    name += " (kept for it)" if uid.startswith(EARMARKED) else ""
    return {"pod": name, "corePercent": piece.core_percent, "memoryMiB": piece.memory_mib, "containers": piece.slots}
