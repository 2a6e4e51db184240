"""Plans which pods to evict, so that waiting pods within their budget can be placed.

A pod of a spent budget is evicted before any other. A pod within its budget is evicted only for a pod of high task
priority, and only if its own task priority is normal. Of several sets that free the devices, the one with the fewest
pods within their budget is chosen, then the one with the fewest of high priority, then the one whose eviction loses the
least work. No set contains a pod that could stay: the plan puts back each pod of the set, the costliest first, and
keeps it in the set only if the waiting pods do not fit beside it.

The cost of each node is estimated for all nodes at once. The cheapest nodes are then searched exactly, as
`kube-scheduler's own preemption
<https://github.com/kubernetes/kubernetes/blob/v1.34.2/pkg/scheduler/framework/preemption/preemption.go>`_ searches
every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import numpy as np

from scheduler.placement.choosing import Chooser, Placed
from scheduler.placement.fleet import Flags, Fleet, Ints
from scheduler.placement.holding import Holding
from scheduler.placement.learning import Floats
from scheduler.placement.request import Need, Request
from scheduler.placement.search import Room, Tries, assign
from scheduler.placement.together import holding_of
from scheduler.reclaim.roster import Holders, Pieces, pieces_on

NOTHING = Holding("")
Others = Mapping[str, int]
"""Amounts of resources other than GPUs, processor time and memory, such as `rdma/hca`, keyed by resource."""
NO_OTHERS: Others = {}
NO_FREED: Mapping[int, Others] = {}
SEARCHED = 32
"""The number of nodes that are searched exactly at a time, those with the lowest estimated costs first."""
MAX_TRIES = 2000
"""The most tries of searches for devices of several containers in one plan; about 60 ms."""
HIGH_COST, IN_BUDGET_COST = 1e11, 1e13
"""The costs of evicting a pod of high task priority and a pod within its budget, in the estimates that order the nodes.

Each is more than any lost work, in percent of a GPU times seconds."""


@dataclass(frozen=True, slots=True)
class PodToPlace:
    """A waiting pod for which a plan makes room.

    Attributes:
        uid: the pod's uid.
        request: the pod's request.
        rows: the indexes in the fleet of the nodes on which the pod may run once there is room.
        high_priority: whether its author chose a high task priority.
        others: pairs of another resource, such as `rdma/hca`, and the amount of it that the pod asks for.
    """

    uid: str
    request: Request
    rows: Ints
    high_priority: bool = False
    others: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Victims:
    """The running pods, with the figures that decide on their eviction, as arrays with an item for each pod.

    Attributes:
        holders: the running pods, with the devices that they hold.
        may_go: whether each pod may be evicted at all.
        in_budget: whether the budget of each pod has money.
        spent: the work that is lost if the pod is evicted, in percent of a GPU times seconds.
        others: the amounts that each pod holds of other resources, keyed by its uid; pods that hold none may be absent.
    """

    holders: Holders
    may_go: Flags
    in_budget: Flags
    spent: Floats
    others: Mapping[str, Others] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Spare:
    """The amounts that are free on each node, besides its GPUs, processor time and memory.

    Attributes:
        pods: the number of further pods that each node takes, in the fleet's order.
        others: the free amounts of other resources, keyed by the node's index in the fleet, then by resource. On a node
            that is absent, none is free.
    """

    pods: Ints
    others: Mapping[int, Others] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan of where to place waiting pods, with the evictions that it needs.

    Attributes:
        places: the place of each waiting pod, keyed by its uid.
        victims: the uids of the pods to evict first.
    """

    places: dict[str, Placed]
    victims: tuple[str, ...]


class Cost(NamedTuple):
    """The cost of evicting a set of pods, compared field by field; smaller is better.

    Attributes:
        in_budget: the number of the pods whose budget has money.
        high_priority: the number of the pods whose task priority is high.
        spent: the work that is lost, in percent of a GPU times seconds.
        pods: the number of the pods.
    """

    in_budget: int
    high_priority: int
    spent: float
    pods: int


class _Node(NamedTuple):
    """The free parts of a node, as they would be without some of its pods.

    They are the devices, the processor time (thousandths of a core), the memory (MiB), the number of further pods, and
    an amount of each other resource that the waiting pod asks for, in the pod's order.
    """

    rooms: tuple[Room, ...]
    cpu_milli: int
    host_mib: int
    pods: int
    others: tuple[int, ...]


def plan_reclaim(fleet: Fleet, victims: Victims, pods: Sequence[PodToPlace], spare: Spare) -> Plan | None:
    """Returns a plan to place all of some waiting pods, with the evictions that it needs; None if it finds no plan.

    The plan has the cheapest evictions that the search finds, and only evictions that are needed.

    Args:
        fleet: a copy of the fleet, which is changed. Devices of pods that are already ending are free in it.
        victims: the pods that may be evicted.
        pods: the waiting pods, in the order in which they are placed.
        spare: the other amounts that are free on the nodes once the pods that are already ending are gone.
    """
    planner = _Planner(fleet, victims, spare)
    places: dict[str, Placed] = {}
    for pod in pods:
        placed = planner.place(pod)
        if placed is None:
            return None
        places[pod.uid] = placed
    return Plan(places, tuple(victims.holders.uids[at] for at in planner.needed_victims()))


def victims_on(fleet: Fleet, victims: Victims, pod: PodToPlace, spare: Spare) -> dict[int, tuple[str, ...]]:
    """Returns the uids of the pods to evict on each node so that a waiting pod fits there.

    Args:
        fleet: a copy of the fleet, which is not changed.
        victims: the pods that may be evicted.
        pod: the waiting pod, with the nodes to look at.
        spare: the other amounts that are free on the nodes.

    Returns:
        The uids, keyed by the node's index in the fleet. A node is left out if no eviction makes the pod fit there, or
            none is needed.
    """
    planner = _Planner(fleet, victims, spare)
    chosen_by_row = {row: planner.on_node(pod, row) for row in pod.rows.tolist()}
    uids = victims.holders.uids
    return {row: tuple(uids[at] for at in chosen) for row, chosen in chosen_by_row.items() if chosen}


def cost_of(victims: Victims, chosen: Iterable[int]) -> Cost:
    """Returns the cost of evicting a set of pods.

    Args:
        chosen: the indexes, in the arrays of `victims`, of the pods to evict.
    """
    at = np.fromiter(chosen, np.int64)
    return Cost(
        int(victims.in_budget[at].sum()),
        int(victims.holders.high_priority[at].sum()),
        float(victims.spent[at].sum()),
        len(at),
    )


class _Planner:
    """Plans evictions for waiting pods one after the other; earlier pods count as placed, and their victims as gone.

    Victims are given as indexes into the arrays of `Holders`, and nodes as indexes in the fleet.
    """

    def __init__(self, fleet: Fleet, victims: Victims, spare: Spare) -> None:
        self._fleet = fleet
        self._victims = victims
        self._spare_pods = spare.pods.copy()
        self._spare_others = {row: dict(others) for row, others in spare.others.items()}
        self._tries = Tries(MAX_TRIES)
        self._chooser = Chooser(fleet, tries=self._tries)
        self._holders = holders = victims.holders
        self._here = victims.may_go.copy()
        self._weight = 1.0 + victims.spent + HIGH_COST * holders.high_priority + IN_BUDGET_COST * victims.in_budget
        self._evicted: dict[int, Holding] = {}

    def place(self, pod: PodToPlace) -> Placed | None:
        """Places one more waiting pod, and adds the victims that it needs; returns its place, None if there is none."""
        fleet, request = self._fleet, pod.request
        rows = pod.rows
        roomy = (fleet.cpu[rows] >= request.cpu_milli) & (fleet.host[rows] >= request.host_mib)
        row = self._chooser.best(request, self._with_others(pod, rows[roomy & (self._spare_pods[rows] >= 1)]))
        if row is None:
            cheapest = self._cheapest(pod)
            if cheapest is None:
                return None
            row, chosen = cheapest
            for at in chosen:
                self._evicted[at] = self._holding(at)
                self._here[at] = False
                self._spare_pods[row] += 1
                self._take_others(row, self._others(at), -1)
                fleet.release(self._holders.uids[at])
        placed = self._chooser.place(request, row)
        if placed is not None:
            fleet.hold(pod.uid, holding_of(placed, request))
            self._spare_pods[row] -= 1
            self._take_others(row, dict(pod.others))
        return placed

    def needed_victims(self) -> list[int]:
        """Returns the victims that must be evicted, as indexes into the arrays of `Holders`.

        It first puts back each victim that fits beside the placed pods, the costliest first. These victims may stay.
        """
        fleet, needed = self._fleet, []
        for at in sorted(self._evicted, key=self._dearness, reverse=True):
            uid, row = self._holders.uids[at], int(self._holders.row[at])
            fleet.hold(uid, self._evicted[at])
            self._spare_pods[row] -= 1
            self._take_others(row, self._others(at))
            left = [int(fleet.cpu[row]), int(fleet.host[row]), int(self._spare_pods[row])]
            left += [self._spare_others.get(row, {}).get(name, 0) for name in self._others(at)]
            for place, *_ in self._places(at, row):
                left += [int(one[row, place]) for one in (fleet.core, fleet.memory, fleet.slots)]
            if min(left) < 0:
                fleet.release(uid)
                self._spare_pods[row] += 1
                self._take_others(row, self._others(at), -1)
                needed.append(at)
        return needed

    def _others(self, at: int) -> Others:
        return self._victims.others.get(self._holders.uids[at], NO_OTHERS)

    def _take_others(self, row: int, amounts: Others, times: int = 1) -> None:
        """Subtracts amounts of other resources from those that are free on a node; with `times` -1, adds them."""
        if amounts:
            left = self._spare_others.setdefault(row, {})
            left.update({name: left.get(name, 0) - times * amount for name, amount in amounts.items()})

    def _with_others(self, pod: PodToPlace, rows: Ints, freed: Mapping[int, Others] = NO_FREED) -> Ints:
        """Returns the nodes among `rows` that have the other resources that a pod asks for.

        Args:
            freed: further amounts that count as free, keyed by the node's index, then by resource.
        """
        if not pod.others:
            return rows
        return np.array(
            [row for row in rows.tolist() if self._has_others(pod, row, freed.get(row, NO_OTHERS))], np.int64
        )

    def _has_others(self, pod: PodToPlace, row: int, freed: Others) -> bool:
        left = self._spare_others.get(row, NO_OTHERS)
        return all(left.get(name, 0) + freed.get(name, 0) >= amount for name, amount in pod.others)

    def _freed_by(self, gone: Iterable[int]) -> Mapping[int, Others]:
        """Returns how much of other resources each node gains if some running pods leave it.

        The amounts are keyed by the node's index, then by resource. `gone` has the pods as indexes into the arrays of
        `Holders`.
        """
        freed: dict[int, dict[str, int]] = {}
        for at in gone:
            of_row = freed.setdefault(int(self._holders.row[at]), {})
            for name, amount in self._others(at).items():
                of_row[name] = of_row.get(name, 0) + amount
        return freed

    def _dearness(self, at: int) -> tuple[bool, bool, float, str]:
        victims, holders = self._victims, self._holders
        spent = float(victims.spent[at])
        return bool(victims.in_budget[at]), bool(holders.high_priority[at]), spent, holders.uids[at]

    def _cheapest(self, pod: PodToPlace) -> tuple[int, list[int]] | None:
        """Returns the index of the cheapest node found for a pod, and the indexes of the pod's victims there.

        It searches SEARCHED nodes at a time, by their estimated costs, until some of them have victims that make room.
        Of these nodes it returns the one whose victims cost least. The result is None if no victims make room.
        """
        best: tuple[Cost, int, list[int]] | None = None
        order = self._in_order(pod)
        for start in range(0, len(order), SEARCHED):
            for row in order[start : start + SEARCHED]:
                chosen = self.on_node(pod, row)
                if chosen is not None:
                    candidate = (cost_of(self._victims, chosen), row, chosen)
                    best = candidate if best is None or candidate[:2] < best[:2] else best
            if best is not None:
                return best[1], best[2]
        return None

    def _may_go(self, pod: PodToPlace) -> Flags:
        lower = np.asarray(~self._victims.in_budget)
        return np.asarray(self._here & (lower | ~self._holders.high_priority if pod.high_priority else lower))

    def _in_order(self, pod: PodToPlace) -> list[int]:
        """Returns the indexes of the nodes on which a pod may fit after all possible evictions, the cheapest first.

        Their costs are the estimates of `_costs`.
        """
        fleet, request, may_go = self._fleet, pod.request, self._may_go(pod)
        shape = fleet.core.shape
        lines = may_go[self._holders.pieces.pod]
        pieces = Pieces(*(column[lines] for column in self._holders.pieces))
        gone = np.flatnonzero(may_go)
        cpu, host = fleet.cpu.copy(), fleet.host.copy()
        np.add.at(cpu, self._holders.row[gone], self._holders.cpu_milli[gone])
        np.add.at(host, self._holders.row[gone], self._holders.host_mib[gone])
        rows = self._with_others(pod, pod.rows, self._freed_by(gone.tolist()) if pod.others else NO_FREED)
        asked = np.zeros(shape[0], np.bool_)
        asked[rows] = True
        usable = np.zeros(shape, np.bool_)
        usable[rows] = self._chooser.usable(request, rows)
        costs = np.zeros(shape[0])
        for need in request.needs:
            costs = np.maximum(costs, self._costs(need, pieces, usable))
        costs[~asked | (cpu < request.cpu_milli) | (host < request.host_mib)] = np.inf
        able = np.flatnonzero(np.isfinite(costs))
        return able[np.argsort(costs[able], kind="stable")].tolist()  # type: ignore[no-any-return]

    def _costs(self, need: Need, pieces: Pieces, usable: Flags) -> Floats:
        """Returns, for each node, an estimate of the cost to free the GPUs of a need; infinite if that is impossible.

        The estimate evicts pods from each device, the cheapest first, until the need fits there.

        Args:
            pieces: the parts of devices of the pods that may be evicted.
            usable: for each node and device, whether the waiting pod may use the device.
        """
        fleet = self._fleet
        memory = need.memory_mib or fleet.total * need.memory_percent // 100
        short_core = (need.core_percent - fleet.core).ravel()
        short_memory = (memory - fleet.memory).ravel()
        short_slots = (1 - fleet.slots).ravel()
        costs = np.full(fleet.core.size, np.inf)
        costs[(short_core <= 0) & (short_memory <= 0) & (short_slots <= 0)] = 0.0
        order = np.lexsort((self._weight[pieces.pod], pieces.device))
        device = pieces.device[order]
        begins = np.flatnonzero(np.append(True, device[1:] != device[:-1])) if len(device) else np.zeros(0, np.int64)
        lengths = np.diff(np.append(begins, len(device)))

        def summed(amounts: Floats | Ints) -> Floats | Ints:
            """Returns running sums: for each part, the sum of the amounts up to that part on the same device."""
            total = np.cumsum(amounts[order])
            return np.asarray(total - np.repeat(total[begins] - amounts[order][begins], lengths))

        enough = (
            (summed(pieces.core) >= short_core[device])
            & (summed(pieces.memory) >= short_memory[device])
            & (summed(pieces.slots) >= short_slots[device])
        )
        weight = summed(self._weight[pieces.pod])
        lines = np.flatnonzero(enough)[::-1]
        # Of several lines of a device the first one counts: it is written last.
        of_lines = np.full(fleet.core.size, np.inf)
        of_lines[device[lines]] = weight[lines]
        of_node: Floats = np.where(usable.ravel(), np.minimum(costs, of_lines), np.inf).reshape(fleet.core.shape)
        if of_node.shape[1] < need.gpus:
            return np.full(len(of_node), np.inf)
        return np.asarray(np.sort(of_node, axis=1)[:, : need.gpus].sum(axis=1))

    def on_node(self, pod: PodToPlace, row: int) -> list[int] | None:
        """Returns the cheapest victims found on a node, as indexes into the arrays of `Holders`.

        Args:
            pod: the waiting pod.
            row: the index of the node in the fleet.

        Returns:
            None if no victims make room for the pod; empty if it fits without an eviction.
        """
        may_go = self._may_go(pod) & (self._holders.row == row)
        dearest_first = sorted(np.flatnonzero(may_go).tolist(), key=self._dearness, reverse=True)
        whole = self._needed_on(pod, row, dearest_first)
        need = pod.request.single
        if whole is None or need is None:
            return whole
        # Device by device: one dear pod on one device may cost less than many cheap ones on another.
        uuids = [room.device for room in self._node(pod, row, ()).rooms]
        sets: list[tuple[Cost, list[int]]] = []
        for device in uuids:
            chosen = self._on_device(need, row, device, dearest_first, pod)
            if chosen is not None:
                sets.append((cost_of(self._victims, chosen), chosen))
        sets.sort()
        union = {at for _, chosen in sets[: need.gpus] for at in chosen}
        of_union = self._needed_on(pod, row, [at for at in dearest_first if at in union])
        if of_union is None:
            return whole
        return min(of_union, whole, key=lambda chosen: cost_of(self._victims, chosen))

    def _on_device(
        self, need: Need, row: int, device: int, dearest_first: Sequence[int], pod: PodToPlace
    ) -> list[int] | None:
        """Returns the victims on a device whose eviction makes room there for one GPU of a need; None if none does.

        It returns no victims if the GPU fits without an eviction.

        Args:
            need: the waiting pod's need.
            row: the index of the node in the fleet.
            device: the index of the device on the node.
            dearest_first: the node's pods that may be evicted, as indexes into the arrays of `Holders`, the costliest
                (see `Cost`) first. The result is a part of them.
            pod: the waiting pod.
        """
        holds = {at for at in dearest_first if any(place == device for place, *_ in self._places(at, row))}
        room = next(one for one in self._node(pod, row, holds).rooms if one.device == device)
        if not room.takes(need):
            return None
        pieces = {at: next(piece for piece in self._places(at, row) if piece[0] == device) for at in holds}
        whole, chosen = room, []
        for at in (one for one in dearest_first if one in holds):
            tried = _without(room, pieces[at])
            if tried.takes(need):
                room = tried
            else:
                chosen.append(at)
        # Several small pods may cost more than one that is large enough.
        for at in reversed(dearest_first) if len(chosen) > 1 else ():
            others = [pieces[one] for one in holds if one != at]
            if at in holds and reduce(_without, others, whole).takes(need):
                return min(chosen, [at], key=lambda places: cost_of(self._victims, places))
        return chosen

    def _needed_on(self, pod: PodToPlace, row: int, dearest_first: Sequence[int]) -> list[int] | None:
        """Returns the running pods that must leave a node so that `pod` fits; None if it does not fit even then.

        Args:
            pod: the waiting pod.
            row: the index of the node in the fleet.
            dearest_first: the running pods that may leave, as indexes into the arrays of `Holders`, the costliest
                first. The result is a part of them, in their order.
        """
        node = self._node(pod, row, dearest_first)
        if not _fits(node, pod, self._tries):
            return None
        chosen = []
        for at in dearest_first:
            tried = self._with(node, at, row, pod)
            if _fits(tried, pod, self._tries):
                node = tried
            else:
                chosen.append(at)
        return chosen

    def _node(self, pod: PodToPlace, row: int, gone: Iterable[int]) -> _Node:
        """Returns the amounts that would be free on a node if some running pods left it.

        Args:
            pod: the waiting pod; devices that it must not use are left out.
            row: the index of the node in the fleet.
            gone: the pods that leave, as indexes into the arrays of `Holders`.
        """
        fleet = self._fleet
        usable = np.flatnonzero(self._chooser.usable(pod.request, np.array([row]))[0]).tolist()
        core, memory, slots = fleet.core[row].tolist(), fleet.memory[row].tolist(), fleet.slots[row].tolist()
        cpu, host, pods = int(fleet.cpu[row]), int(fleet.host[row]), int(self._spare_pods[row])
        gone, left = list(gone), self._spare_others.get(row, NO_OTHERS)
        others = tuple(left.get(name, 0) + sum(self._others(at).get(name, 0) for at in gone) for name, _ in pod.others)
        for at in gone:
            for place, core_percent, memory_mib, taken in self._places(at, row):
                core[place] += core_percent
                memory[place] += memory_mib
                slots[place] += taken
            cpu, host, pods = cpu + int(self._holders.cpu_milli[at]), host + int(self._holders.host_mib[at]), pods + 1
        total = fleet.total[row].tolist()
        rooms = tuple(Room(place, core[place], memory[place], slots[place], total[place]) for place in usable)
        return _Node(rooms, cpu, host, pods, others)

    def _with(self, node: _Node, at: int, row: int, pod: PodToPlace) -> _Node:
        """Returns the amounts that would be free on a node if one more running pod stayed on it.

        Args:
            node: the free amounts without that pod.
            at: the index of that pod in the arrays of `Holders`.
            row: the index of the node in the fleet.
            pod: the waiting pod.
        """
        pieces = {piece[0]: piece for piece in self._places(at, row)}
        rooms = tuple(_without(room, pieces[room.device]) if room.device in pieces else room for room in node.rooms)
        cpu, host = node.cpu_milli - int(self._holders.cpu_milli[at]), node.host_mib - int(self._holders.host_mib[at])
        held = self._others(at)
        others = tuple(left - held.get(name, 0) for left, (name, _) in zip(node.others, pod.others, strict=True))
        return _Node(rooms, cpu, host, node.pods - 1, others)

    def _places(self, at: int, row: int) -> list[tuple[int, int, int, int]]:
        """Returns a running pod's parts of a node's devices.

        Each part is the device's index on the node, percent of GPU time, MiB, and number of containers.

        Args:
            at: the index of the pod in the arrays of `Holders`.
            row: the index of the node in the fleet.
        """
        return [piece[1:] for piece in pieces_on(self._fleet, row, self._holding(at))]

    def _holding(self, at: int) -> Holding:
        return self._evicted.get(at) or self._fleet.held_by(self._holders.uids[at]) or NOTHING


def _without(room: Room, piece: tuple[int, int, int, int]) -> Room:
    _, core, memory, slots = piece
    return room._replace(
        core_percent=room.core_percent - core, memory_mib=room.memory_mib - memory, slots=room.slots - slots
    )


def _fits(node: _Node, pod: PodToPlace, tries: Tries) -> bool:
    request = pod.request
    if any(left < amount for left, (_, amount) in zip(node.others, pod.others, strict=True)):
        return False
    if node.cpu_milli < request.cpu_milli or node.host_mib < request.host_mib or node.pods < 1:
        return False
    need = request.single
    if need is not None:
        return sum(room.takes(need) for room in node.rooms) >= need.gpus
    return assign(node.rooms, request, tries) is not None
