"""Chooses a node and its devices for a request, or names the cause that keeps it from each node.

The gain of each node is kept by kind of request, and computed again only for nodes that have changed. Of nodes with
equal gains, the one with the lowest row is chosen, so that the answer follows from the state of the fleet alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fairgpu.request import Placement
from scheduler.placement.causes import LASTING, Cause, Shortage
from scheduler.placement.containers import Free, Pick, emptiest, give_all
from scheduler.placement.fleet import Flags, Fleet, Ints, Node
from scheduler.placement.holding import Piece, Share, pieces_of
from scheduler.placement.learning import Floats
from scheduler.placement.mix import allowed
from scheduler.placement.picking import linked_pick, plain_pick, relinked, spreads_of
from scheduler.placement.request import Need, Request
from scheduler.placement.search import MAX_TRIES, Assignment, Room, Tries, assignments
from scheduler.placement.topology import best_set, spread_of
from scheduler.placement.worth import Left, Worth, host_parts, numbered, rounded, single_gains, values

MAX_KEPT = 256
"""The most kinds of requests whose gains are kept."""
NONE = -np.inf
CALL_TRIES = 400
"""The most tries of the search for devices in one computation of gains, over all nodes. They take about 15 ms, in which
no other pod is placed."""
FAR_APART = 1e7
"""The amount by which each step of distance between devices lowers a gain with the placement `topology`.

It is larger than any gain, so that links decide first."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The node and the devices that were chosen for a request.

    Attributes:
        node: the node's name.
        shares: each container's shares of devices, in the order of `Request.steps`.
    """

    node: str
    shares: tuple[tuple[Share, ...], ...]

    def pieces(self, request: Request) -> tuple[Piece, ...]:
        """Returns the parts of devices that a pod with this placement holds, one for each device.

        Args:
            request: the request that was placed.
        """
        init = [(shares, keeps) for shares, (_, keeps) in zip(self.shares, request.init, strict=False)]
        return pieces_of(self.shares[len(request.init) :], init)


class _Stage(NamedTuple):
    """One cause, and on which nodes it keeps one container of a request from its devices.

    Attributes:
        cause: the cause.
        gpus, asked, unit: what the container needs: the fields of these names of a `Shortage` of this cause.
        amounts: for each node, the amount that it has, to compare with `asked`.
        short: for each node, whether the cause applies there.
    """

    cause: Cause
    gpus: int
    asked: int
    unit: str
    amounts: Ints
    short: Flags


_Computed: TypeAlias = tuple[Floats, Flags, Flags, Ints]
"""The figures of some rows: the arrays `of_row`, `cut`, `unreached` and `device` of _Figures."""


@dataclass(slots=True)
class _Figures:
    """A figure for each node of the fleet: the gain of one kind of request, or the worth of the node's free parts.

    Attributes:
        version: the version of the fleet for which the figures were computed.
        of_row: for each node, the worth in percent of a GPU, or the gain (see `Chooser.gains`); NONE if the request
            does not fit.
        cut: for each node, whether the search for devices ended at a limit, so that the node may count as not fitting
            though it fits.
        unreached: for each node, whether no tries were left for its search, as the tries are for all nodes together.
            The next refresh after a change of the fleet searches these nodes again.
        device: for each node, the index of the device that a request for one GPU takes; 0 for any other request.
    """

    version: int
    of_row: Floats
    cut: Flags
    unreached: Flags
    device: npt.NDArray[np.int16]

    def refresh(self, fleet: Fleet, compute: Callable[[Ints], _Computed]) -> None:
        """Computes the figures of the nodes that have changed since the last refresh or that are `unreached`.

        A refresh computes nothing if the fleet has not changed. `compute` takes the rows of these nodes, and returns
        the four arrays of `_Computed` for them.
        """
        if self.version != fleet.version:
            new = fleet.size - len(self.of_row)
            if new > 0:
                self.of_row = np.append(self.of_row, np.full(new, NONE))
                self.cut, self.unreached = (
                    np.append(flags, np.zeros(new, np.bool_)) for flags in (self.cut, self.unreached)
                )
                self.device = np.append(self.device, np.zeros(new, np.int16))
            changed = fleet.changed[: fleet.size] > self.version
            rows = np.concatenate((np.flatnonzero(self.unreached), np.flatnonzero(changed & ~self.unreached)))
            self.of_row[rows], self.cut[rows], self.unreached[rows], self.device[rows] = compute(rows)
            self.version = fleet.version


def _nothing() -> _Figures:
    return _Figures(-1, np.zeros(0), np.zeros(0, np.bool_), np.zeros(0, np.bool_), np.zeros(0, np.int16))


def _decided(figures: Floats, device: Ints | None = None) -> _Computed:
    """Returns the four arrays of `_Computed` for figures that needed no search: no node is cut or unreached.

    `device` has, for each node, the device that a request for one GPU takes; None for any other request.
    """
    none = np.zeros(len(figures), np.bool_)
    return figures, none, none, np.zeros(len(figures), np.int64) if device is None else device


class Chooser:
    """Chooses nodes and devices for requests, among the nodes of a fleet.

    A request fits on a node if its containers get devices there. Processor time and memory of nodes are not checked:
    kube-scheduler checks these.

    Attributes:
        fleet: the nodes with the free parts of their devices.
        worth: the learned figures that say which free parts are most useful to later requests. None before the first
            learning: the first node that fits is then chosen, unless the request has the placement `spread` or
            `topology`.
        tries: the tries that all searches for devices together may still use; None if each call has CALL_TRIES of its
            own.
        cut: how often a node counted as not fitting because the search for its devices reached its limit.
    """

    def __init__(self, fleet: Fleet, worth: Worth | None = None, tries: Tries | None = None) -> None:
        self.fleet = fleet
        self.tries = tries
        self.cut = 0
        self._worth = worth
        self._figures: OrderedDict[Request, _Figures] = OrderedDict()
        self._now = _nothing()

    @property
    def worth(self) -> Worth | None:
        """The learned figures by which nodes are compared; None before the first learning."""
        return self._worth

    @worth.setter
    def worth(self, worth: Worth | None) -> None:
        self._worth = worth
        self._figures.clear()
        self._now = _nothing()

    def gains(self, request: Request) -> Floats:
        """Returns the gain of each node for a request, in the fleet's order: the larger the gain, the better the node.

        The gain of a node is the change in the worth of its free parts if it takes the request, in steps of
        STEP_PERCENT; before the first learning it is 0. With the placement `spread` the gain is the mean free percent
        of the node's GPUs. With `topology` the links between a container's devices count before the worth. The gain is
        NONE if the request does not fit, or the search for devices reached its limit.
        """
        return self._refreshed(request).of_row

    def _refreshed(self, request: Request) -> _Figures:
        kept = self._figures.get(request)
        if kept is None:
            kept = self._figures[request] = _nothing()
            if len(self._figures) > MAX_KEPT:
                self._figures.popitem(last=False)
        kept.refresh(self.fleet, partial(self._of_rows, request))
        self._figures.move_to_end(request)
        return kept

    def best(self, request: Request, rows: Ints) -> int | None:
        """Returns the best of some nodes for a request; None if the request fits on none of them.

        Args:
            rows: the nodes' indexes in the fleet. The answer is one of them.
        """
        of_row = self.gains(request)
        gains = np.full(len(of_row), NONE)
        gains[rows] = of_row[rows]
        row = int(gains.argmax()) if len(gains) else 0
        return row if len(gains) and gains[row] != NONE else None

    def in_order(self, request: Request) -> Iterator[int]:
        """Yields the indexes in the fleet of the nodes on which a request fits, the best first."""
        gains = self.gains(request).copy()
        while len(gains):
            row = int(gains.argmax())
            if gains[row] == NONE:
                return
            yield row
            gains[row] = NONE

    def place(self, request: Request, row: int) -> Placed | None:
        """Returns the devices that a request gets on one node.

        The result is None if the request does not fit there, or the search for devices reached its limit.

        Args:
            row: the node's index in the fleet.
        """
        node = self.fleet.nodes[row]
        need = request.single
        if node is None:
            return None
        if need is None:
            assignment = self._together(request, row)
        elif need.gpus == 1:
            figures = self._refreshed(request)
            assignment = None if figures.of_row[row] == NONE else ((int(figures.device[row]),),)
        else:
            devices = self._devices(request, need, row)
            assignment = None if devices is None else (devices,)
        return None if assignment is None else _placed(node, request, assignment)

    def ways(self, request: Request, row: int, tries: Tries, *, by_uuid: bool) -> Iterator[Placed]:
        """Yields the choices of devices for a request on one node; devices that are alike to all pods count as one.

        Such devices have equal free parts and one class.

        Args:
            row: the node's index in the fleet.
            tries: the tries that the search may use; the search ends when none is left.
            by_uuid: whether a pod chooses devices by their uuids, so that no two are alike to it.
        """
        node = self.fleet.nodes[row]
        if node is not None:
            for assignment in assignments(self._rooms(request, row, by_uuid=by_uuid), request, tries):
                yield _placed(node, request, assignment)

    def why(self, request: Request, rows: Ints) -> list[tuple[Shortage, Ints]]:
        """Returns why a request does not fit on some nodes: one shortage for each cause that keeps it from a node.

        Args:
            rows: the nodes' indexes in the fleet. A node on which the request fits is counted under TOGETHER.

        Returns:
            Each shortage with the indexes in the fleet of the nodes that it concerns. If one cause concerns several
                containers, its amounts are those of the container that the cause keeps from the most of these nodes.
        """
        causes = np.full(len(rows), -1)
        shortages: dict[Cause, Shortage] = {}
        # Two containers of the same need lack the same. Of two that lack as many nodes, the larger one is named.
        needs = sorted(set(request.needs), reverse=True)
        for of_needs in zip(*(self._stages(request, need, rows) for need in needs), strict=True):
            lacks = [(stage, stage.short & (causes < 0)) for stage in of_needs]
            stage, short = max(lacks, key=lambda lack: int(lack[1].sum()))
            if short.any():
                most = max(int(stage.amounts[short].max()), 0)
                shortages[stage.cause] = Shortage(stage.cause, stage.gpus, stage.asked, most, stage.unit)
                causes[np.logical_or.reduce([flags for _, flags in lacks])] = stage.cause
        if (causes < 0).any():
            cut = int((self._refreshed(request).cut[rows] & (causes < 0)).sum())
            causes[causes < 0] = Cause.TOGETHER
            shortages[Cause.TOGETHER] = Shortage(Cause.TOGETHER, 0, 0, 0, cut=cut)
        found = []
        for cause in sorted(shortages):
            short = rows[causes == cause]
            in_sum = 0 if cause in LASTING else int(self.in_sum(request, short).sum())
            found.append((replace(shortages[cause], in_sum=in_sum), short))
        return found

    def in_sum(self, request: Request, rows: Ints) -> Flags:
        """Returns, for each node, whether its usable GPUs together have as much free as the main containers need.

        The node may still not fit, since the free parts may lie on several GPUs.

        Args:
            rows: the nodes' indexes in the fleet.
        """
        fleet, usable = self.fleet, self.usable(request, rows)
        core = np.where(usable, fleet.core[rows], 0).clip(0).sum(axis=1)
        memory = np.where(usable, fleet.memory[rows], 0).clip(0).sum(axis=1)
        largest = np.where(usable, fleet.total[rows], 0).max(axis=1, initial=0)
        needs = request.containers
        asked = sum(need.gpus * need.core_percent for need in needs)
        mib = np.zeros(len(rows), np.int64)
        for need in needs:
            mib += need.gpus * (need.memory_mib or largest * need.memory_percent // 100)
        slots = np.where(usable, fleet.slots[rows], 0).clip(0).sum(axis=1) >= sum(need.gpus for need in needs)
        return np.asarray(slots & (core >= asked) & (memory >= mib))

    def _of_rows(self, request: Request, rows: Ints) -> _Computed:
        need = request.single
        if need is None:
            return self._of_several(request, rows)
        fitting = self._fitting(request, need, rows)
        able = np.flatnonzero(fitting.sum(axis=1) >= need.gpus)
        gains, device = np.full(len(rows), NONE), np.zeros(len(rows), np.int64)
        if not len(able):
            return _decided(gains)
        rows, fitting = rows[able], fitting[able]
        placement = request.wanted.placement
        if need.gpus == 1:
            found = self._single(request, need, rows, fitting)
            device[able] = found.argmax(axis=1)
            found = found.max(axis=1)
        else:
            found = self._several(request, need, rows, fitting)
        if placement is Placement.SPREAD:
            found = self._emptiness(rows)
        if placement is Placement.TOPOLOGY and need.gpus > 1:
            found = found - FAR_APART * self._apart(need, rows, fitting)
        gains[able] = found
        return _decided(gains, device)

    def _of_several(self, request: Request, rows: Ints) -> _Computed:
        """Returns the four arrays of `_Computed` for a request of several containers, on the nodes with these rows."""
        first, group = self._groups(request, rows)
        tries = self.tries or Tries(CALL_TRIES)
        given = give_all(request, self._free(request, rows[first]), self._picks(request), tries)
        cut, unreached = given.cut[group], ~given.reached[group]
        self.cut += int(cut.sum())
        able = np.flatnonzero(given.fits[group])
        gains, rows, group = np.full(len(rows), NONE), rows[able], group[able]
        placement = request.wanted.placement
        if placement is Placement.SPREAD:
            found = self._emptiness(rows)
        else:
            found = self._gained(request, rows, given.idle[group])
        if placement is Placement.TOPOLOGY:
            found = found - FAR_APART * self._apart_of_several(request, rows, given.taken[:, group])
        gains[able] = found
        return gains, cut, unreached, np.zeros(len(gains), np.int64)

    def _groups(self, request: Request, rows: Ints) -> tuple[Ints, Ints]:
        """Groups nodes on which the request's containers get devices alike, so that one of each group is searched.

        Returns:
            Two arrays. The first has, for each group, the position of its first node in `rows`, in increasing order.
                The second has, for each node in `rows`, the index of its group.
        """
        wanted, everything = request.wanted, np.arange(len(rows))
        by_links = wanted.placement is Placement.TOPOLOGY
        if len(rows) == 1 or wanted.use_uuids or wanted.avoid_uuids or by_links:
            return everything, everything
        alike = self.fleet.alike()[rows]
        if self._worth is not None and any(need.gpus == 1 for need, _ in request.steps):
            # A container of one GPU gets the device whose gain is the largest.
            left = self._left(rows)
            alike = numbered(alike, *host_parts(self._worth, _taken(left, left.idle, request)))
        of_number = np.empty(int(alike.max(initial=0)) + 1, np.int64)
        # Of several values for one place the last is kept.
        of_number[alike[::-1]] = everything[::-1]
        first = np.flatnonzero(of_number[alike] == everything)
        of_number[alike[first]] = np.arange(len(first))
        return first, of_number[alike]

    def _picks(self, request: Request, *, linked: bool = False) -> list[Pick]:
        """Returns the functions that score devices for several containers, in the order in which they are tried.

        Args:
            linked: whether links decide between GPUs that are equally full. With the placement `topology` they
                always count.
        """
        fleet, plain = self.fleet, plain_pick(request, self.fleet, self._worth)
        by_topology = request.wanted.placement is Placement.TOPOLOGY
        if not linked and not by_topology:
            return [plain]
        first = [linked_pick(request, fleet, plain, first=True)] if by_topology else []
        return [*first, linked_pick(request, fleet, plain), plain, linked_pick(request, fleet, emptiest)]

    def _gained(self, request: Request, rows: Ints, after: Ints) -> Floats:
        """Returns the gain of each node in `rows` if it takes the request; 0 for all before the first learning.

        `after` has the percent that would then be free of each device of these nodes.
        """
        if self._worth is None:
            return np.zeros(len(rows))
        left = _taken(self._left(rows), after, request)
        return rounded(values(self._worth, left) - self._values(self._worth)[rows])

    def _apart_of_several(self, request: Request, rows: Ints, taken: Flags) -> Floats:
        """Returns, for each node in `rows`, the distance between the devices within each container; less is nearer.

        The distance grows first with the worst link within any container, then with the sum of all links within
        containers, then with the number of NUMA nodes of each container.

        Args:
            taken: for each container, node and device, whether the container takes the device.
        """
        apart = np.zeros((len(rows), 3))
        for (need, _), devices in zip(request.steps, taken, strict=True):
            if need.gpus > 1:
                own = spreads_of(self.fleet, rows, devices)
                apart = np.maximum(apart, own * (1, 0, 0)) + own * (0, 1, 1)
        return np.asarray((apart[:, 0] * 10_000 + apart[:, 1]) * 100 + apart[:, 2])

    def _free(self, request: Request, rows: Ints) -> Free:
        """Returns the free parts of all devices of the nodes in `rows`.

        They come with a flag for each device: whether the request may use it.
        """
        fleet = self.fleet
        # Most often all rows are asked for, and a view of them is no copy.
        at = slice(fleet.size) if np.array_equal(rows, np.arange(fleet.size)) else rows
        columns = (fleet.core[at], fleet.memory[at], fleet.slots[at], fleet.total[at])
        return Free(*columns, self.usable(request, rows), fleet.idle[at], rows).with_small_integers()

    def _together(self, request: Request, row: int) -> Assignment | None:
        """Returns the devices that the request's containers get on a node; None if they do not all fit.

        `row` is the index of the node in the fleet.
        """
        free, picks = self._free(request, np.array([row])), self._picks(request, linked=True)
        given = give_all(request, free, picks, self.tries or Tries(MAX_TRIES))
        if not given.fits[0]:
            return None
        assignment = _assignment(given.taken[:, 0])
        return assignment if given.first[0] else relinked(request, self.fleet, free, assignment)

    def usable(self, request: Request, rows: Ints) -> Flags:
        """Returns, for each node and device, whether the device is offered and the request allows it.

        A request allows devices by their model and uuid.

        Args:
            rows: the nodes' indexes in the fleet.
        """
        usable, wanted = self.fleet.offered[rows], request.wanted
        if wanted.use_models or wanted.avoid_models:
            usable = usable & self._models(request)[self.fleet.cls[rows]]
        if wanted.use_uuids or wanted.avoid_uuids:
            usable = usable & self._uuids(request, rows)
        return usable

    def _models(self, request: Request) -> Flags:
        use, avoid = request.wanted.use_models, request.wanted.avoid_models
        return np.array([allowed(device.model, use, avoid) for device in self.fleet.classes])

    def _uuids(self, request: Request, rows: Ints) -> Flags:
        use, avoid = request.wanted.use_uuids, request.wanted.avoid_uuids
        if not use and not avoid:
            return np.ones((1, 1), np.bool_)
        may = np.full(self.fleet.offered.shape, not use)
        for uuids, value in ((use, True), (avoid, False)):
            for place in self._places(uuids):
                may[place] = value
        return np.asarray(may[rows])

    def _places(self, uuids: Iterable[str]) -> list[tuple[int, int]]:
        return [self.fleet.places[uuid] for uuid in uuids if uuid in self.fleet.places]

    def _mib(self, need: Need, rows: Ints) -> Ints:
        """Returns the MiB that a container with this need takes of each device of the nodes in `rows`."""
        if need.memory_mib:
            return np.full((len(rows), 1), need.memory_mib)
        return self.fleet.total[rows] * need.memory_percent // 100

    def _fitting(self, request: Request, need: Need, rows: Ints) -> Flags:
        """Returns, for each node in `rows` and each device, whether one container with this need fits."""
        fleet = self.fleet
        room = (fleet.core[rows] >= need.core_percent) & (fleet.memory[rows] >= self._mib(need, rows))
        return np.asarray(room & (fleet.slots[rows] >= 1) & self.usable(request, rows))

    def _after(self, need: Need, rows: Ints) -> Ints:
        """Returns, for each node in `rows` and each device, the percent that stays free if a container takes its share.

        The percent is the smaller of GPU time and memory; 0 if one of them does not fit. `need` is the container's.
        """
        fleet = self.fleet
        core = fleet.core[rows] - need.core_percent
        memory = (fleet.memory[rows] - self._mib(need, rows)) * 100 // np.maximum(fleet.total[rows], 1)
        # A negative figure means that the need does not fit; no caller uses it, so 0 stands for it.
        return np.asarray(np.maximum(np.minimum(core, memory), 0).astype(np.int32))

    def _single(self, request: Request, need: Need, rows: Ints, fitting: Flags) -> Floats:
        """Returns, for each node in `rows` and each device, the gain of the node if the request takes that device.

        `fitting` says on which devices the request fits. The gain is NONE on all others.
        """
        fleet = self.fleet
        if request.wanted.placement is Placement.SPREAD:
            return np.where(fitting, fleet.idle[rows].astype(np.float64), NONE)
        if self._worth is None:
            return np.where(fitting, 0.0, NONE)
        left = self._left(rows)
        gains = single_gains(
            self._worth, left, self._values(self._worth)[rows], _taken(left, self._after(need, rows), request)
        )
        return np.where(fitting, rounded(gains), NONE)

    def _left(self, rows: Ints) -> Left:
        fleet = self.fleet
        return Left(fleet.cls[rows], fleet.idle[rows], fleet.cpu[rows], fleet.host[rows])

    def _values(self, worth: Worth) -> Floats:
        """Returns the worth of the free parts of each node in the fleet, in percent of a GPU."""
        self._now.refresh(self.fleet, lambda rows: _decided(values(worth, self._left(rows))))
        return self._now.of_row

    def _several(self, request: Request, need: Need, rows: Ints, fitting: Flags) -> Floats:
        """Returns the gain of each node in `rows` if it takes a request for several GPUs.

        The request takes the fullest of the GPUs that are `fitting`, as many as its only container needs (`need`).
        """
        fleet = self.fleet
        if self._worth is None:
            return np.zeros(len(rows))
        idle = fleet.idle[rows]
        order = np.argsort(np.where(fitting, idle, 101), axis=1, kind="stable")
        taken = np.zeros(idle.shape, np.bool_)
        np.put_along_axis(taken, order[:, : need.gpus], values=True, axis=1)
        after = np.where(taken, self._after(need, rows), idle)
        return self._gained(request, rows, after)

    def _emptiness(self, rows: Ints) -> Floats:
        """Returns the mean free percent of the GPUs of each node in `rows`."""
        fleet = self.fleet
        return np.asarray(fleet.idle[rows].sum(axis=1) / np.maximum(fleet.offered[rows].sum(axis=1), 1))

    def _apart(self, need: Need, rows: Ints, fitting: Flags) -> Floats:
        """Returns, for each node in `rows`, the distance between its best linked `fitting` devices; less is nearer."""
        known: dict[tuple[int, bytes], float] = {}
        apart = np.zeros(len(rows))
        for at, (link, free) in enumerate(zip(self.fleet.links[rows].tolist(), fitting, strict=True)):
            key = (link, free.tobytes())
            if key not in known:
                links, numa = self.fleet.link_sets[link]
                chosen = best_set(links, numa, tuple(np.flatnonzero(free).tolist()), need.gpus)
                spread = spread_of(links, numa, chosen)
                known[key] = (spread.worst * 1000 + spread.total) * 10 + spread.numa_nodes
            apart[at] = known[key]
        return apart

    def _devices(self, request: Request, need: Need, row: int) -> tuple[int, ...] | None:
        """Returns the devices of one node that a request for several GPUs in one container gets; None if too few fit.

        The devices are given as indexes on the node, sorted. `need` is the container's need, and `row` the index of the
        node in the fleet.
        """
        free = np.flatnonzero(self._fitting(request, need, np.array([row]))[0]).tolist()
        if len(free) < need.gpus:
            return None
        links, numa = self.fleet.link_sets[int(self.fleet.links[row])]
        if request.wanted.placement is Placement.TOPOLOGY:
            return best_set(links, numa, tuple(free), need.gpus)
        sign = -1 if request.wanted.placement is Placement.SPREAD else 1
        left = {at: sign * int(self.fleet.idle[row, at]) for at in free}
        limit = sorted(left.values())[need.gpus - 1]
        fixed = tuple(at for at in free if left[at] < limit)
        # Several devices may be as full as the last one that is taken: the best linked of them are chosen.
        alike = tuple(at for at in free if left[at] == limit)
        return best_set(links, numa, alike, need.gpus - len(fixed), fixed)

    def _rooms(self, request: Request, row: int, *, by_uuid: bool) -> list[Room]:
        """Returns the free part of each device on one node that a request may use, the fullest device first.

        With the placement `spread` the emptiest device is first. A device's kind is its class or, with `by_uuid`, the
        device itself.
        """
        fleet = self.fleet
        core, memory, slots, total = fleet.core[row], fleet.memory[row], fleet.slots[row], fleet.total[row]
        wanted = np.flatnonzero(self.usable(request, np.array([row]))[0]).tolist()
        sign = -1 if request.wanted.placement is Placement.SPREAD else 1
        wanted.sort(key=lambda at: (sign * int(fleet.idle[row, at]), at))
        kinds = range(len(core)) if by_uuid else fleet.cls[row].tolist()
        return [
            Room(at, int(core[at]), int(memory[at]), int(slots[at]), int(total[at]), kind=kinds[at]) for at in wanted
        ]

    def _stages(self, request: Request, need: Need, rows: Ints) -> list[_Stage]:
        """Returns, for each cause but TOGETHER in order, the nodes in `rows` that it keeps from one container.

        Several causes may apply to one node.
        """
        fleet, gpus = self.fleet, need.gpus
        offered = fleet.offered[rows]
        modelled = offered & self._models(request)[fleet.cls[rows]]
        named = modelled & self._uuids(request, rows)
        stages = []
        for cause, flags in ((Cause.DEVICES, offered), (Cause.MODEL, modelled), (Cause.UUID, named)):
            count = flags.sum(axis=1)
            stages.append(_Stage(cause, gpus, gpus, "", count, count < gpus))
        total, memory, core, mib = fleet.total[rows], fleet.memory[rows], fleet.core[rows], self._mib(need, rows)
        percents = memory * 100 // np.maximum(total, 1)
        sized = named & (total >= mib)
        free, asked, unit = (
            (memory, need.memory_mib, "MiB") if need.memory_mib else (percents, need.memory_percent, "percent")
        )
        for cause, flags, amounts, least, has in (
            (Cause.SIZE, named, total, need.memory_mib, total >= mib),
            (Cause.MEMORY, sized, free, asked, memory >= mib),
            (Cause.CORE, sized, core, need.core_percent, core >= need.core_percent),
        ):
            short = (flags & has).sum(axis=1) < gpus
            stages.append(_Stage(cause, gpus, least, unit, _nth(np.where(flags, amounts, -1), gpus), short))
        able = (sized & (fleet.slots[rows] >= 1)).sum(axis=1)
        stages.append(_Stage(Cause.SLOTS, gpus, gpus, "", able, able < gpus))
        return stages


def _placed(node: Node, request: Request, assignment: Assignment) -> Placed:
    shares = (
        tuple(_share(node, at, need) for at in sorted(devices))
        for (need, _), devices in zip(request.steps, assignment, strict=True)
    )
    return Placed(node.name, tuple(shares))


def _assignment(taken: Flags) -> Assignment:
    """Returns, for each container, the indexes of the devices that it takes on a node.

    `taken` has the same as flags: for each container and device, whether the container takes the device.
    """
    return tuple(tuple(np.flatnonzero(devices).tolist()) for devices in taken)


def _share(node: Node, at: int, need: Need) -> Share:
    device = node.inventory.devices[at]
    return Share(device.uuid, need.core_percent, need.mib_of(device.memory_mib))


def _taken(left: Left, after: Ints, request: Request) -> Left:
    """Returns the free parts of nodes once each has taken the request.

    `after` has the percent that is then free of each device of each node.
    """
    return left._replace(idle=after, cpu=left.cpu - request.cpu_milli, host=left.host - request.host_mib)


def _nth(amounts: Ints, number: int) -> Ints:
    """Returns the `number`-th largest amount of each row, counted from 1; -1 if the row has fewer."""
    if amounts.shape[1] < number:
        return np.full(len(amounts), -1)
    return np.asarray(np.sort(amounts, axis=1)[:, -number])
