"""Reads and writes `fairgpu.io/earmark`: the devices that are freed and kept for a waiting pod.

The annotation is on the waiting pod: from it, a replica that takes over knows which pod gets the devices once the
victims are gone. The annotation also names the nodes on which evictions did not help the waiting pod: no pod is evicted
on these nodes for the waiting pod again. Once no devices are kept any more, the annotation names only these nodes, and
its field `node` is empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from scheduler.placement.choosing import Placed
from scheduler.placement.holding import Holding, Piece
from scheduler.placement.request import Request

VERSION = 1
MAX_BYTES = 64 << 10
MOST = 1 << 40
"""The most percent, MiB or containers of one device that an earmark may state. The sum of a million such amounts fits
into 64 bits."""
MAX_LEFT_OUT = 64
"""The most nodes that an earmark names as left out. For a waiting pod with as many, no pod is evicted any more."""


class EarmarkError(ValueError):
    """Raised for an annotation `fairgpu.io/earmark` that cannot be read; the message names the fault."""


@dataclass(frozen=True, slots=True)
class Earmark:
    """The devices that are kept for a waiting pod, and the pods that are evicted for it.

    Attributes:
        node: the name of the node with the devices; empty if no devices are kept.
        pieces: the parts of devices that are kept.
        victims: the uids of the pods that are evicted for the waiting pod.
        until: when the earmark is withdrawn at the latest, in seconds since 1970.
        left_out: the names of the nodes on which no pod is evicted again for the waiting pod, the latest one last.
    """

    node: str
    pieces: tuple[Piece, ...]
    victims: tuple[str, ...]
    until: int
    left_out: tuple[str, ...] = ()

    def holding(self, request: Request) -> Holding:
        """Returns the kept devices as the part of the node that the waiting pod will hold.

        Args:
            request: the waiting pod's request; its processor time and memory of the node are added to the devices.
        """
        return Holding(self.node, self.pieces, request.cpu_milli, request.host_mib)


class _Device(msgspec.Struct, rename={"core": "core", "memory_mib": "memoryMiB"}, frozen=True):
    uuid: str
    core: int
    memory_mib: int
    slots: int = 1


class _Document(msgspec.Struct, frozen=True, omit_defaults=True, rename={"left_out": "leftOut"}):
    v: int
    node: str
    devices: list[_Device]
    victims: list[str]
    until: int
    left_out: list[str] = []


def earmark_of(
    placed: Placed, request: Request, victims: tuple[str, ...], until: float, left_out: tuple[str, ...] = ()
) -> Earmark:
    """Returns the earmark that keeps the devices of a planned place for a waiting pod.

    Args:
        placed: the planned node and devices.
        victims: the uids of the pods to evict for the waiting pod.
        until: when the earmark is withdrawn at the latest, in seconds since 1970.
        left_out: the names of the nodes on which no pod is evicted again for the waiting pod.
    """
    return Earmark(placed.node, placed.pieces(request), victims, int(until), left_out)


def fallen(left_out: tuple[str, ...]) -> str | None:
    """Returns the annotation `fairgpu.io/earmark` of a waiting pod for which no devices are kept any more.

    Args:
        left_out: the names of the nodes on which no pod is evicted again for the waiting pod.

    Returns:
        The annotation's value; None if `left_out` is empty, since the pod then needs no annotation.
    """
    return encode(Earmark("", (), (), 0, left_out)) if left_out else None


def encode(earmark: Earmark) -> str:
    """Returns an earmark as the JSON value of the annotation `fairgpu.io/earmark`.

    Of the nodes in `left_out`, the value has only the last MAX_LEFT_OUT.
    """
    devices = [_Device(*piece) for piece in earmark.pieces]
    left_out = list(earmark.left_out[-MAX_LEFT_OUT:])
    document = _Document(VERSION, earmark.node, devices, list(earmark.victims), earmark.until, left_out)
    return msgspec.json.encode(document).decode()


def decode(text: str) -> Earmark:
    """Returns the earmark in the JSON value of an annotation `fairgpu.io/earmark`, as `encode` makes it.

    Raises:
        EarmarkError: the text is not an earmark, has more than MAX_BYTES characters or another version, or has an
            amount that is below 0 or above MOST.
    """
    if len(text) > MAX_BYTES:
        raise EarmarkError(f"{len(text)} characters, and at most {MAX_BYTES} are read")
    try:
        document = msgspec.json.decode(text, type=_Document)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise EarmarkError(str(error)) from error
    if document.v != VERSION:
        raise EarmarkError(f"version {document.v}, and {VERSION} is known")
    pieces = tuple(Piece(one.uuid, one.core, one.memory_mib, one.slots) for one in document.devices)
    if any(min(piece[1:]) < 0 for piece in pieces):
        raise EarmarkError("an amount is below 0")
    if any(max(piece[1:]) > MOST for piece in pieces):
        raise EarmarkError(f"an amount is above {MOST}, and no device has as much")
    return Earmark(
        document.node, pieces, tuple(document.victims), document.until, tuple(document.left_out[-MAX_LEFT_OUT:])
    )
