"""Chooses the best linked devices of a node: by the worst link between two of them, then by the sum of all.

Collectives wait for the slowest link of a ring, so no number of fast links makes up for a slow one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

Links = tuple[tuple[int, ...], ...]
"""Row and column of each device; `fairgpu.inventory.Link`, the nearest first."""


class Spread(NamedTuple):
    """The distance between devices; smaller is better.

    Attributes:
        worst: the worst link between two of them; 0 for one device alone.
        total: the sum of all links between two of them.
        numa_nodes: the number of NUMA nodes of the devices, as far as the system states it; at least 1.
    """

    worst: int
    total: int
    numa_nodes: int


def spread_of(links: Links, numa: Sequence[int | None], devices: Sequence[int]) -> Spread:
    """Returns the distance between devices."""
    tiers = [links[one][other] for at, one in enumerate(devices) for other in devices[:at]]
    known = {numa[device] for device in devices if numa[device] is not None}
    return Spread(max(tiers, default=0), sum(tiers), max(len(known), 1))


@lru_cache(maxsize=8192)
def best_set(
    links: Links, numa: tuple[int | None, ...], candidates: tuple[int, ...], count: int, fixed: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Returns the `count` devices that are nearest to each other; of equal sets, the one with the lowest numbers.

    Every set is considered, but for those that begin so that none of them can be better than the best one found.

    Args:
        links: the node's links.
        numa: the NUMA node of each of its devices.
        candidates: the devices to choose from, in order.
        count: the number of devices to choose, at most as many as there are candidates.
        fixed: devices that the pod has already, which count beside the chosen ones.
    """
    size = count + len(fixed)
    nearest = min((tier for row in links for tier in row if tier), default=0)
    best: tuple[Spread, tuple[int, ...]] | None = None

    def hopeless(chosen: tuple[int, ...], worst: int, total: int) -> bool:
        """Whether no set that begins with these devices can replace the best set found so far."""
        if best is None:
            return False
        pairs = (size * (size - 1) - len(chosen) * (len(chosen) - 1)) // 2
        least = (max(worst, nearest if pairs else 0), total + pairs * nearest)
        return least > best[0][:2] or (least == best[0][:2] and best[0].numa_nodes == 1)

    def extend(chosen: tuple[int, ...], worst: int, total: int, start: int) -> None:
        nonlocal best
        if hopeless(chosen, worst, total):
            return
        missing = size - len(chosen)
        if missing == 0:
            found = (spread_of(links, numa, chosen), chosen)
            best = found if best is None or found[0] < best[0] else best
            return
        for at in range(start, len(candidates) - missing + 1):
            device = candidates[at]
            tiers = [links[device][other] for other in chosen]
            extend((*chosen, device), max(worst, *tiers) if tiers else worst, total + sum(tiers), at + 1)

    apart = spread_of(links, numa, fixed)
    extend(fixed, apart.worst, apart.total, 0)
    if best is None:
        raise ValueError(f"{count} of {len(candidates)} devices")
    return tuple(sorted(best[1]))
