"""Places several requests at once: all of them, or none.

Which requests share a node is a bin packing problem, for which no fast way finds every solution. Two are tried: one by
one, each where its own placement has it; then the largest first, on the emptiest devices of a node, which finds room
for the most containers that need several devices each. Of requests of one kind, with one GPU each, the first is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fairgpu.request import Placement
from scheduler.placement.choosing import Chooser, Placed
from scheduler.placement.fleet import Ints
from scheduler.placement.holding import Holding
from scheduler.placement.request import Request


@dataclass(frozen=True, slots=True)
class Part:
    """One of several requests that are placed together.

    Attributes:
        uid: the uid of its pod, for which no device is held yet.
        request: the pod's request.
        rows: the nodes that may be chosen.
    """

    uid: str
    request: Request
    rows: Ints


def place_together(chooser: Chooser, parts: Sequence[Part]) -> tuple[dict[str, Placed], int]:
    """Returns the place of each part by its uid, without holding devices, and how many parts fit.

    Where not all of them fit there are no places, and the number is that of those that did.
    """
    in_order = list(range(len(parts)))
    largest_first = sorted(in_order, key=lambda at: _size(parts[at].request), reverse=True)
    most = 0
    for order, emptiest in ((in_order, False), (largest_first, True)):
        found = _one_by_one(chooser, [parts[at] for at in order], emptiest=emptiest)
        if len(found) == len(parts):
            return found, len(found)
        most = max(most, len(found))
    return {}, most


def _one_by_one(chooser: Chooser, parts: Sequence[Part], *, emptiest: bool) -> dict[str, Placed]:
    """Returns the places of the parts before the first that does not fit."""
    fleet, found = chooser.fleet, dict[str, Placed]()
    try:
        for part in parts:
            request = part.request
            row = chooser.best(request, _roomy(chooser, part))
            placed = None if row is None else chooser.place(_spread(request) if emptiest else request, row)
            if placed is None:
                break
            found[part.uid] = placed
            fleet.hold(part.uid, holding_of(placed, request))
    finally:
        for uid in found:
            fleet.release(uid)
    return found


def holding_of(placed: Placed, request: Request) -> Holding:
    """Returns the holding of a request in its place."""
    return Holding(placed.node, placed.pieces(request), request.cpu_milli, request.host_mib)


def _roomy(chooser: Chooser, part: Part) -> Ints:
    """Returns the nodes with enough processor time and memory, which kube-scheduler checks for one pod at a time."""
    fleet, rows, request = chooser.fleet, part.rows, part.request
    return rows[(fleet.cpu[rows] >= request.cpu_milli) & (fleet.host[rows] >= request.host_mib)]


def _spread(request: Request) -> Request:
    return replace(request, wanted=request.wanted._replace(placement=Placement.SPREAD))


def _size(request: Request) -> tuple[int, int, int]:
    needs = request.needs
    return max(need.gpus for need in needs), max(need.core_percent for need in needs), sum(need.gpus for need in needs)
