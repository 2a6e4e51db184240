"""Finds the pods that fit no more on a GPU beside those that were bound before them.

The extender gives no part of a GPU twice. A Binding of another process can, and a GPU can come to offer less memory
than pods hold of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.placement.fleet import Node
from scheduler.placement.holding import Holding, Piece


@dataclass(frozen=True, slots=True)
class Overlap:
    """A bound pod that holds more of a GPU than the pods bound before it have left.

    Attributes:
        uid: the pod's uid.
        gpu: the GPU's uuid.
        excess: how much of the GPU the pods hold together with this one, and how much there is, as a text for people.
    """

    uid: str
    gpu: str
    excess: str


def overlaps(node: Node, held: Iterable[tuple[str, Holding]]) -> list[Overlap]:
    """Returns each pod on a node that holds more of a GPU than the pods bound before it have left, with that GPU.

    The part of a GPU of such a pod does not count against the pods after it: the node agent refuses its containers.

    Args:
        held: the uid of each pod that is bound to the node, and the pod's part of the node; the pod that was bound
            first is first.
    """
    slots, devices = node.inventory.slots, node.inventory.devices
    room = {device.uuid: Piece(device.uuid, 100, device.memory_mib, slots) for device in devices}
    taken = {uuid: Piece(uuid, 0, 0, 0) for uuid in room}
    found = []
    for uid, holding in held:
        for piece in holding.pieces:
            if piece.uuid not in room:
                continue
            before = taken[piece.uuid]
            sums = Piece(
                piece.uuid,
                before.core_percent + piece.core_percent,
                before.memory_mib + piece.memory_mib,
                before.slots + piece.slots,
            )
            excess = _excess(sums, room[piece.uuid])
            if excess:
                found.append(Overlap(uid, piece.uuid, excess))
            else:
                taken[piece.uuid] = sums
    return found


def _excess(held: Piece, room: Piece) -> str:
    """Returns the first figure by which pods hold more than there is; empty where they do not."""
    if held.core_percent > room.core_percent:
        return f"{held.core_percent} of {room.core_percent} percent of its time"
    if held.memory_mib > room.memory_mib:
        return f"{held.memory_mib} of {room.memory_mib} MiB"
    return f"{held.slots} of {room.slots} containers" if held.slots > room.slots else ""
