"""Chooses the best linked devices of a node: sets are compared by their worst link, then by the sum of their links.

Collectives wait for the slowest link of a ring, so no number of fast links makes up for a slow one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

Links = tuple[tuple[int, ...], ...]
"""A table of the links between a node's devices: `links[a][b]` is the link between the devices of the indexes a and b.

Each link is a number of `fairgpu.inventory.Link`: the smaller, the nearer."""
MAX_TOGETHER = 8
"""The most devices for which all ways to divide them into several sets are compared."""
MAX_LOOKS = 1 << 16
"""The most sets, complete or partial, that one choice compares. 16 devices have no more sets than that."""


class Spread(NamedTuple):
    """The distance between the devices of a set; smaller is better.

    Attributes:
        worst: the slowest link between two of the devices, as a number of `fairgpu.inventory.Link`; 0 for one device
            alone.
        total: the sum of the numbers of all links between two of the devices.
        numa_nodes: the number of NUMA nodes of the devices, as far as the system states it; at least 1.
    """

    worst: int
    total: int
    numa_nodes: int


def spread_of(links: Links, numa: Sequence[int | None], devices: Sequence[int]) -> Spread:
    """Returns the distance between devices of a node: the worst link, the sum of links, and the number of NUMA nodes.

    Args:
        links: the links between all devices of the node, as a table.
        numa: the NUMA node of each device of the node; None if the system does not state it.
        devices: the indexes, in `links` and `numa`, of the devices to measure.
    """
    tiers = [links[one][other] for at, one in enumerate(devices) for other in devices[:at]]
    known = {numa[device] for device in devices if numa[device] is not None}
    return Spread(max(tiers, default=0), sum(tiers), max(len(known), 1))


@lru_cache(maxsize=8192)
def best_set(
    links: Links, numa: tuple[int | None, ...], candidates: tuple[int, ...], count: int, fixed: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Returns the fixed devices of a node and `count` of the candidates, so that all of them are nearest to each other.

    Of equal sets, the one with the lowest indexes is returned. Of up to 16 candidates the best set is found. Of more,
    the search ends after MAX_LOOKS steps, with the best set that it has found.

    Args:
        links: the links between all devices of the node, as a table.
        numa: the NUMA node of each device of the node; None if the system does not state it.
        candidates: the indexes of the devices to choose from, in order.
        count: the number of devices to choose, at most as many as there are candidates.
        fixed: the indexes of devices that the container has already, which count beside the chosen ones.

    Returns:
        The indexes of the fixed and the chosen devices on the node, sorted.

    Raises:
        ValueError: there are fewer than `count` candidates.
    """
    size = count + len(fixed)
    nearest = min((tier for row in links for tier in row if tier), default=0)
    fewest = _fewest_numa_nodes(numa, candidates, count)
    best: tuple[Spread, tuple[int, ...]] | None = None
    looks = 0

    def hopeless(chosen: tuple[int, ...], worst: int, total: int) -> bool:
        """Returns True if surely no set that begins with the chosen devices can beat the best set so far, else False.

        Args:
            chosen: the indexes of these devices.
            worst: the slowest link between two of them, as a number of `fairgpu.inventory.Link`.
            total: the sum of the numbers of all links between two of them.
        """
        if best is None:
            return False
        pairs = (size * (size - 1) - len(chosen) * (len(chosen) - 1)) // 2
        least = (max(worst, nearest if pairs else 0), total + pairs * nearest)
        return least > best[0][:2] or (least == best[0][:2] and best[0].numa_nodes <= fewest)

    def extend(chosen: tuple[int, ...], worst: int, total: int, start: int) -> None:
        nonlocal best, looks
        looks += 1
        if hopeless(chosen, worst, total) or (looks > MAX_LOOKS and best is not None):
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


def _fewest_numa_nodes(numa: Sequence[int | None], candidates: Sequence[int], count: int) -> int:
    """Returns the least number of NUMA nodes on which `count` of the candidates can lie; at least 1.

    Args:
        numa: the NUMA node of each device of the node; None if the system does not state it.
        candidates: the indexes of the devices to choose from.
        count: the number of devices to choose.
    """
    unknown = sum(numa[device] is None for device in candidates)
    missing, fewest = count - unknown, 0
    for _, devices in Counter(numa[device] for device in candidates if numa[device] is not None).most_common():
        if missing <= 0:
            break
        missing -= devices
        fewest += 1
    return max(fewest, 1)


@lru_cache(maxsize=8192)
def best_sets(
    links: Links, numa: tuple[int | None, ...], candidates: tuple[int, ...], counts: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Returns sets of devices of a node, one for each container; the devices within each set are near to each other.

    No two sets have a device in common. Ways to divide the devices are compared by the worst link within any set, then
    by the sum of all links within sets, then by the sum of the sets' numbers of NUMA nodes. With up to MAX_TOGETHER
    candidates, the best way is found. With more, the sets are chosen one after the other, each by `best_set` among the
    devices that are left.

    Args:
        links: the links between all devices of the node, as a table.
        numa: the NUMA node of each device of the node; None if the system does not state it.
        candidates: the indexes of the devices to choose from, in order; at least as many as the sets have.
        counts: the number of devices of each set.

    Returns:
        For each set, in the order of `counts`, the indexes of its devices on the node.

    Raises:
        ValueError: there are fewer candidates than the sets need devices.
    """
    if len(candidates) > MAX_TOGETHER or len(counts) == 1:
        sets: list[tuple[int, ...]] = []
        for count in counts:
            sets.append(best_set(links, numa, candidates, count))
            candidates = tuple(device for device in candidates if device not in sets[-1])
        return tuple(sets)
    nearest = min((tier for row in links for tier in row if tier), default=0)
    pairs = [sum(count * (count - 1) // 2 for count in counts[at:]) for at in range(len(counts) + 1)]
    spreads = {
        devices: spread_of(links, numa, devices) for count in set(counts) for devices in combinations(candidates, count)
    }
    best: tuple[Spread, tuple[tuple[int, ...], ...]] | None = None

    def extend(chosen: tuple[tuple[int, ...], ...], so_far: Spread, free: tuple[int, ...]) -> None:
        nonlocal best
        at = len(chosen)
        if at == len(counts):
            best = so_far, chosen
            return
        for devices in combinations(free, counts[at]):
            if at and counts[at - 1] == counts[at] and devices < chosen[-1]:
                continue
            own = spreads[devices]
            together = Spread(
                max(so_far.worst, own.worst), so_far.total + own.total, so_far.numa_nodes + own.numa_nodes
            )
            least = Spread(
                max(together.worst, nearest if pairs[at + 1] else 0),
                together.total + pairs[at + 1] * nearest,
                together.numa_nodes + len(counts) - at - 1,
            )
            if best is None or least < best[0]:
                extend((*chosen, devices), together, tuple(device for device in free if device not in devices))

    extend((), Spread(0, 0, 0), candidates)
    if best is None:
        raise ValueError(f"{sum(counts)} of {len(candidates)} devices")
    return best[1]
