"""Places several requests at once: all of them, or none.

To find the requests that share a node is a bin packing problem, for which no fast way finds every solution. Two ways
are quick. The first places the requests one by one, each where it would go by itself. The second places the largest
first, on the emptiest devices of a node, which finds room for the most containers that need several devices each. If
all requests are equal and for one GPU, the first way finds a solution if there is one. If both ways fail, a search
tries the choices of nodes and devices in turn, as far as its limits reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairgpu.request import Placement
from scheduler.placement.choosing import NONE, Chooser, Placed
from scheduler.placement.fleet import Fleet, Ints
from scheduler.placement.holding import Holding
from scheduler.placement.request import Request
from scheduler.placement.search import Tries

MAX_ROWS = 32
"""The most nodes that the search tries for one request: the fullest and the emptiest on which it fits."""
LOOKED_AT = 8 * MAX_ROWS
"""The most nodes among which the search finds the MAX_ROWS that it tries."""
MAX_TRIES = 250
"""The most choices of devices that the search tries; about 30 ms, in which no other pod is placed."""
MAX_SETS = 1000
"""The most tries to find devices for pods of several containers, for all requests together.

Placing the requests one by one may use as many, about 30 ms, and the search after it as many again."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of several pods' requests that are placed together.

    Attributes:
        uid: the uid of the pod, for which no device is held yet.
        request: the pod's request.
        rows: the indexes in the fleet of the nodes that may be chosen.
    """

    uid: str
    request: Request
    rows: Ints


def place_together(chooser: Chooser, parts: Sequence[Part]) -> tuple[dict[str, Placed], int]:
    """Returns places for several requests at once, all of them or none, without holding their devices.

    Returns:
        The place of each request, keyed by its pod's uid, and the largest number of requests that were found to fit
        together. There are no places if no way was found to place all of them.
    """
    before, chooser.tries = chooser.tries, chooser.tries or Tries(MAX_SETS)
    try:
        with chooser.fleet.unchanged():
            return _place_together(chooser, parts)
    finally:
        chooser.tries = before


def _place_together(chooser: Chooser, parts: Sequence[Part]) -> tuple[dict[str, Placed], int]:
    in_order = list(range(len(parts)))
    largest_first = sorted(in_order, key=lambda at: _size(parts[at].request), reverse=True)
    most = 0
    for order, emptiest in ((in_order, False), (largest_first, True)):
        found = _one_by_one(chooser, [parts[at] for at in order], emptiest=emptiest)
        if len(found) == len(parts):
            return found, len(found)
        most = max(most, len(found))
    if _is_exact(parts) or not _enough(chooser.fleet, parts):
        return {}, most
    searched = _Search(chooser, [parts[at] for at in largest_first]).places()
    return (searched, len(parts)) if searched is not None else ({}, most)


def _is_exact(parts: Sequence[Part]) -> bool:
    """Whether placing the requests one by one finds a way to place all of them if there is one.

    If so, no search is needed after the requests could not be placed one by one.
    """
    one = parts[0]
    need = one.request.single
    return need is not None and need.gpus == 1 and all(_alike(one, other) for other in parts)


def _alike(one: Part, other: Part) -> bool:
    return one.request == other.request and np.array_equal(one.rows, other.rows)


def _enough(fleet: Fleet, parts: Sequence[Part]) -> bool:
    """Whether the free GPU time of all nodes that may be chosen suffices for the requests; if not, no search helps."""
    rows = np.unique(np.concatenate([part.rows for part in parts]))
    free = int(np.where(fleet.offered[rows], fleet.core[rows], 0).clip(0).sum())
    return free >= sum(need.gpus * need.core_percent for part in parts for need in part.request.containers)


def _one_by_one(chooser: Chooser, parts: Sequence[Part], *, emptiest: bool) -> dict[str, Placed]:
    """Places requests one by one, without holding their devices afterwards.

    Returns the places of the requests before the first that does not fit, keyed by the pod's uid. With `emptiest`, each
    request takes the emptiest devices of its node.
    """
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


class _Search:
    """Searches nodes and devices for all of several requests, by trying nodes for each request in turn."""

    def __init__(self, chooser: Chooser, parts: Sequence[Part]) -> None:
        self._chooser = chooser
        self._parts = parts
        self._left = MAX_TRIES
        self._tries = Tries(MAX_SETS)
        self._named = np.zeros((len(parts), chooser.fleet.size), np.bool_)
        for at, part in enumerate(parts):
            self._named[at, part.rows] = True
        self._by_uuid = any(part.request.wanted.use_uuids or part.request.wanted.avoid_uuids for part in parts)
        self._rows = [self._candidates(part) for part in parts]

    def places(self, at: int = 0, first: int = 0) -> dict[str, Placed] | None:
        """Returns places, keyed by the pod's uid, for the requests from the index `at` on; None if none were found.

        Args:
            at: the index of the first request without a place.
            first: the position, among that request's candidate nodes, of the first node to try. Of equal requests, a
                later one tries no node before the node of an earlier one, since such ways were tried already.
        """
        if at == len(self._parts):
            return {}
        part, fleet, tried = self._parts[at], self._chooser.fleet, set[bytes]()
        for number, row in enumerate(self._rows[at][first:], first):
            if part.request.cpu_milli > fleet.cpu[row] or part.request.host_mib > fleet.host[row]:
                continue
            shape = self._shape(row)
            if shape in tried:
                continue
            tried.add(shape)
            for placed in self._chooser.ways(part.request, row, self._tries, by_uuid=self._by_uuid):
                self._left -= 1
                if self._left < 0:
                    return None
                fleet.hold(part.uid, holding_of(placed, part.request))
                try:
                    found = self.places(at + 1, number if self._like_the_next(at) else 0)
                finally:
                    fleet.release(part.uid)
                if found is not None:
                    return {part.uid: placed, **found}
        return None

    def _candidates(self, part: Part) -> list[int]:
        """Returns the rows of the nodes to try for a request, the fullest first, at most MAX_ROWS.

        Of nodes with the same choices (`_shape`), it has at most as many as there are requests, since more would add no
        other way.
        """
        fleet, half = self._chooser.fleet, MAX_ROWS // 2
        rows = _roomy(self._chooser, part)
        rows = rows[self._chooser.gains(part.request)[rows] != NONE]
        rows = rows[np.argsort(fleet.idle[rows].sum(axis=1), kind="stable")]
        if len(rows) > LOOKED_AT:
            rows = np.concatenate((rows[: LOOKED_AT // 2], rows[-LOOKED_AT // 2 :]))
        alike = Counter[bytes]()
        kept = []
        for row in rows.tolist():
            shape = self._shape(row)
            alike[shape] += 1
            if alike[shape] <= len(self._parts):
                kept.append(row)
        return kept if len(kept) <= MAX_ROWS else kept[:half] + kept[-half:]

    def _shape(self, row: int) -> bytes:
        """Returns bytes for a node: nodes with equal bytes offer each request the same choices, links not compared."""
        fleet = self._chooser.fleet
        arrays = (fleet.cls, fleet.core, fleet.memory, fleet.slots, fleet.offered, fleet.cpu, fleet.host)
        own = row.to_bytes(8) if self._by_uuid else b""
        return b"".join([*(array[row].tobytes() for array in arrays), self._named[:, row].tobytes(), own])

    def _like_the_next(self, at: int) -> bool:
        return at + 1 < len(self._parts) and _alike(self._parts[at], self._parts[at + 1])


def holding_of(placed: Placed, request: Request) -> Holding:
    """Returns the part of a node that a pod holds, from its request and the node and devices chosen for it."""
    return Holding(placed.node, placed.pieces(request), request.cpu_milli, request.host_mib)


def _roomy(chooser: Chooser, part: Part) -> Ints:
    """Returns the indexes in the fleet of the nodes that have enough processor time and memory for a request.

    kube-scheduler checks these for one pod at a time, and not for several pods that are placed together.
    """
    fleet, rows, request = chooser.fleet, part.rows, part.request
    return rows[(fleet.cpu[rows] >= request.cpu_milli) & (fleet.host[rows] >= request.host_mib)]


def _spread(request: Request) -> Request:
    return replace(request, wanted=request.wanted._replace(placement=Placement.SPREAD))


def _size(request: Request) -> tuple[int, int, int]:
    needs = request.needs
    return max(need.gpus for need in needs), max(need.core_percent for need in needs), sum(need.gpus for need in needs)
