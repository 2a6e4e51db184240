"""Computes the parts of devices that a placed pod holds during its life.

Of containers that run one after the other, the largest share counts, not the sum. GPU time, memory and number of
containers are each computed by themselves, as in `fairgpu.demand.peak`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairgpu.demand import peak


class Share(NamedTuple):
    """A container's share of one device: the device's uuid, and the percent of GPU time and the MiB that it takes."""

    uuid: str
    core_percent: int
    memory_mib: int


class Piece(NamedTuple):
    """A pod's part of one device: the device's uuid, percent of GPU time, MiB of memory, and number of containers.

    Containers that never run at the same time count once.
    """

    uuid: str
    core_percent: int
    memory_mib: int
    slots: int


@dataclass(frozen=True, slots=True)
class Holding:
    """A pod's part of a node.

    Attributes:
        node: the node's name.
        pieces: the pod's parts of the node's devices, one for each device.
        cpu_milli, host_mib: the pod's part of the node's processor time (thousandths of a core) and memory (MiB).
    """

    node: str
    pieces: tuple[Piece, ...] = ()
    cpu_milli: int = 0
    host_mib: int = 0


def pieces_of(
    containers: Sequence[Sequence[Share]], init: Sequence[tuple[Sequence[Share], bool]] = ()
) -> tuple[Piece, ...]:
    """Returns the parts of devices that a pod holds, from the shares of its containers; one part for each device.

    Args:
        containers: the shares of each main container.
        init: in order, the shares of each init container, and whether it keeps running beside the main containers.
    """
    if len(containers) == 1 and not init and len({share.uuid for share in containers[0]}) == len(containers[0]):
        return tuple(Piece(*share, 1) for share in containers[0])
    steps = [(shares, keeps) for shares, keeps in init]
    uuids = dict.fromkeys(share.uuid for shares in (*(shares for shares, _ in steps), *containers) for share in shares)
    return tuple(_piece(uuid, containers, steps) for uuid in uuids)


def _piece(uuid: str, containers: Sequence[Sequence[Share]], steps: Sequence[tuple[Sequence[Share], bool]]) -> Piece:
    main = [_of_device(uuid, shares) for shares in containers]
    init = [(_of_device(uuid, shares), keeps) for shares, keeps in steps]
    core, memory, slots = (
        peak([figures[at] for figures in main], [(figures[at], keeps) for figures, keeps in init]) for at in range(3)
    )
    return Piece(uuid, core, memory, slots)


def _of_device(uuid: str, shares: Sequence[Share]) -> tuple[int, int, int]:
    on_it = [share for share in shares if share.uuid == uuid]
    return sum(share.core_percent for share in on_it), sum(share.memory_mib for share in on_it), len(on_it)
