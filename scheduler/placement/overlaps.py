"""Finds the pods whose part of a GPU, added to the parts of the pods bound before them, exceeds the GPU.

The extender gives no part of a GPU twice. But another process may bind a pod, and a GPU may come to offer less memory
than pods hold of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.placement.fleet import Node
from scheduler.placement.holding import Piece


@dataclass(frozen=True, slots=True)
class Overlap:
    """A bound pod whose part of a GPU, added to the parts of the pods bound before it, exceeds the GPU.

    Attributes:
        uid: the pod's uid.
        gpu: the GPU's uuid.
        excess: the sum of these parts, and how much of the GPU there is, as a text for people.
    """

    uid: str
    gpu: str
    excess: str


def overlaps(node: Node, held: Iterable[tuple[str, Sequence[Sequence[Piece]]]]) -> list[Overlap]:
    """Returns each pod on a node whose part of a GPU, added to the parts of the pods bound before it, exceeds the GPU.

    The node agent refuses to start a container that exceeds a GPU. So the parts of that container do not count against
    later containers, on this GPU or another. The other containers of its pod may run, and count. Parts of GPUs that the
    node does not offer do not count.

    Args:
        node: the node with its devices.
        held: for each pod that is bound to the node, its uid and its parts of the node's GPUs, in one group for each
            container that starts by itself; the pod that was bound first is first.
    """
    slots, devices = node.inventory.slots, node.inventory.devices
    room = {device.uuid: Piece(device.uuid, 100, device.memory_mib, slots) for device in devices}
    taken = {uuid: Piece(uuid, 0, 0, 0) for uuid in room}
    found = []
    for uid, starts in held:
        for pieces in starts:
            sums = {piece.uuid: _sum(taken[piece.uuid], piece) for piece in pieces if piece.uuid in room}
            excesses = {uuid: excess for uuid, together in sums.items() if (excess := _excess(together, room[uuid]))}
            found += [Overlap(uid, uuid, excess) for uuid, excess in excesses.items()]
            if not excesses:
                taken |= sums
    return found


def _sum(one: Piece, other: Piece) -> Piece:
    return Piece(
        one.uuid,
        one.core_percent + other.core_percent,
        one.memory_mib + other.memory_mib,
        one.slots + other.slots,
    )


def _excess(held: Piece, room: Piece) -> str:
    """Returns a text with the first figure of `held` that exceeds the same figure of `room`, and with both amounts.

    The text is empty if no figure of `held` exceeds that of `room`.
    """
    if held.core_percent > room.core_percent:
        return f"{held.core_percent} of {room.core_percent} percent of its time"
    if held.memory_mib > room.memory_mib:
        return f"{held.memory_mib} of {room.memory_mib} MiB"
    return f"{held.slots} of {room.slots} containers" if held.slots > room.slots else ""
