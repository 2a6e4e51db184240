"""Scores a node's devices for one of a pod's containers: by the worth of the free parts that remain, and by links.

`scheduler.placement.containers` gives containers their devices one after the other, and calls such a function (Pick)
for each container.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fairgpu.request import Placement
from scheduler.placement.containers import LINKED, Free, Pick, Scores, emptiest, fullest
from scheduler.placement.fleet import Flags, Fleet, Ints
from scheduler.placement.request import Need, Request
from scheduler.placement.search import Assignment, turns
from scheduler.placement.topology import Spread, best_set, best_sets, spread_of
from scheduler.placement.worth import Left, Worth, device_gains, rounded


def plain_pick(request: Request, fleet: Fleet, worth: Worth | None) -> Pick:
    """Returns a function (Pick) that scores a node's devices for a container by the request's placement, not by links.

    With the placement `spread`, the emptiest device has the highest score. Otherwise it is the fullest, but for a
    container of one GPU it is, after the first learning, the device with the largest gain.

    Args:
        worth: the learned figures that say which free parts are most useful; None before the first learning.
    """
    if request.wanted.placement is Placement.SPREAD:
        return emptiest
    if worth is None:
        return fullest

    last: tuple[Ints, Left] | None = None

    def by_gain(at: int, able: Flags, left: Free, then: Ints) -> Scores:
        nonlocal last
        if request.steps[at][0].gpus > 1:
            return fullest(at, able, left, then)
        rows = left.rows
        # The containers of a pod are given devices on the same rows one after the other.
        if last is None or last[0] is not rows:
            cpu, host = fleet.cpu[rows] - request.cpu_milli, fleet.host[rows] - request.host_mib
            last = rows, Left(fleet.cls[rows], left.idle, cpu, host)
        return rounded(device_gains(worth, last[1]._replace(idle=left.idle), then))

    return by_gain


def linked_pick(request: Request, fleet: Fleet, plain: Pick, *, first: bool = False) -> Pick:
    """Returns a function (Pick) that scores a node's devices so that containers of several GPUs get well linked ones.

    For containers of one GPU the scores are those of `plain`. Two containers that take whole GPUs cannot share one. So
    the scores for the first of them leave well linked GPUs for the later one, too.

    Args:
        plain: a Pick without regard to links, as `plain_pick` returns.
        first: whether links decide among all devices that fit; if not, they decide among those with the same score.
    """

    def pick(at: int, able: Flags, left: Free, then: Ints) -> Scores:
        scores, gpus = plain(at, able, left, then), request.steps[at][0].gpus
        if gpus == 1 or gpus > able.shape[1]:
            return scores
        if first:
            return scores + LINKED * _nearest(fleet, left.rows, able, np.zeros_like(able), _counts(request, at))
        limit = np.sort(np.where(able, scores, -np.inf), axis=1)[:, -gpus, None]
        sure, alike = able & (scores > limit), able & (scores == limit)
        return 2 * scores + _nearest(fleet, left.rows, alike, sure, _counts(request, at))

    return pick


def relinked(request: Request, fleet: Fleet, free: Free, assignment: Assignment) -> Assignment:
    """Returns devices of one node for each container, after exchanges that give containers better linked devices.

    The containers of several GPUs exchange devices in turn, the largest first, until no exchange gives one of them
    better links. With `topology` a container may take any device on which it fits beside the others. Without it, a
    container exchanges a device only for one of the same model of which as much is free, so that nothing but links
    changes. If an init container of the pod ends, no devices are exchanged: it uses devices of the other containers.

    Args:
        free: the free parts of the node's devices.
        assignment: the devices of each container before the exchanges.
    """
    if any(keeps is False for _, keeps in request.init):
        return assignment
    row, sets = int(free.rows[0]), list(assignment)
    links, numa = fleet.link_sets[int(fleet.links[row])]
    several = [at for at in turns(request) if request.steps[at][0].gpus > 1]
    changes = True
    while changes:
        changes = False
        for at in several:
            best = sets[at]
            for group in _exchangeable(request, fleet, free, sets, at):
                fixed = tuple(sorted(set(best) - set(group)))
                best = best_set(links, numa, group, len(best) - len(fixed), fixed)
            if spread_of(links, numa, best) < spread_of(links, numa, sets[at]):
                sets[at], changes = best, True
    return tuple(sets)


def spreads_of(fleet: Fleet, rows: Ints, taken: Flags) -> Ints:
    """Returns, for each node, the distance between the devices that a container takes there.

    Args:
        rows: the nodes' indexes in the fleet.
        taken: for each of these nodes and each device, whether the container takes it.

    Returns:
        An array with the three numbers of a `Spread` for each node: the worst link, the sum of all links, and the
        number of NUMA nodes.
    """
    first, inverse = _alike_rows(fleet, rows, taken)
    found: list[Spread] = []
    for at in first.tolist():
        links, numa = fleet.link_sets[int(fleet.links[rows[at]])]
        found.append(spread_of(links, numa, np.flatnonzero(taken[at]).tolist()))
    return np.array(found, np.int64).reshape(-1, 3)[inverse]


def _nearest(fleet: Fleet, rows: Ints, candidates: Flags, fixed: Flags, counts: tuple[int, ...]) -> Flags:
    """Returns, for each node and device, whether the device belongs to the best linked set of that node.

    On a node with too few candidates, no device does.

    Args:
        rows: the nodes' indexes in the fleet.
        candidates: for each node and device, whether the device may be chosen.
        fixed: for each node and device, whether the device is taken in any case.
        counts: the size of the set, with the fixed devices; then the number of devices that each later container needs,
            so that the set leaves well linked devices to these containers.
    """
    first, inverse = _alike_rows(fleet, rows, candidates, fixed)
    chosen = np.zeros((len(first), candidates.shape[1]), np.bool_)
    for number, at in enumerate(first.tolist()):
        able = tuple(np.flatnonzero(candidates[at]).tolist())
        sure = tuple(np.flatnonzero(fixed[at]).tolist())
        links, numa = fleet.link_sets[int(fleet.links[rows[at]])]
        if counts[0] > len(able) + len(sure):
            continue
        if sure or sum(counts) > len(able):
            nearest = best_set(links, numa, able, counts[0] - len(sure), sure)
        else:
            nearest = best_sets(links, numa, able, counts)[0]
        chosen[number, list(nearest)] = True
    return chosen[inverse]


def _exchangeable(
    request: Request, fleet: Fleet, free: Free, sets: Sequence[Sequence[int]], at: int
) -> list[tuple[int, ...]]:
    """Returns groups of devices of one node; a container may exchange a device for one of the same group.

    The container fits on each of them beside the other containers. With `topology` there is one group. Otherwise the
    devices of a group are of the same model, and as much is free of each. Devices are given as indexes on the node.

    Args:
        free: the free parts of the node's devices, before the pod takes any.
        sets: the devices that each container has so far, in the order of `Request.steps`.
        at: the index of the container that exchanges devices.
    """
    left = {room.device: room for room in free.room(0)}
    for other, devices in enumerate(sets):
        if other != at:
            left |= {device: left[device].less(request.steps[other][0]) for device in devices}
    need, row = request.steps[at][0], int(free.rows[0])
    groups: dict[tuple[object, ...], list[int]] = {}
    for device, room in sorted(left.items()):
        if room.takes(need):
            by_topology = request.wanted.placement is Placement.TOPOLOGY
            alike = () if by_topology else (int(fleet.cls[row, device]), *room[1:])
            groups.setdefault(alike, []).append(device)
    return [tuple(group) for group in groups.values()]


def _alike_rows(fleet: Fleet, rows: Ints, *flags: Flags) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Groups nodes that have the same links and flags, so that the caller computes an answer once for each group.

    Args:
        rows: the nodes' indexes in the fleet.
        *flags: arrays with a flag for each of these nodes and each device.

    Returns:
        Two arrays. The first has, for each group, the position of its first node in `rows`. The second has, for each
        node in `rows`, the index of its group.
    """
    if len(rows) == 1:
        return np.zeros(1, np.intp), np.zeros(1, np.intp)
    links = np.ascontiguousarray(fleet.links[rows], np.int64).view(np.uint8).reshape(len(rows), 8)
    keys = np.concatenate((links, *(np.packbits(one, axis=1) for one in flags)), axis=1)
    whole = np.ascontiguousarray(keys).view(np.dtype((np.void, keys.shape[1]))).ravel()
    _, first, inverse = np.unique(whole, return_index=True, return_inverse=True)
    return first, inverse


def _counts(request: Request, at: int) -> tuple[int, ...]:
    """Returns the number of GPUs of a container, then of each later container that must get other GPUs.

    Two containers that take whole GPUs cannot share one. So if the container takes whole GPUs, the later ones are those
    that take several whole GPUs each; otherwise there are none. `at` is the container's index in `Request.steps`.
    """
    steps, order = request.steps, turns(request)
    need = steps[at][0]
    if not _whole(need) or at not in order:
        return (need.gpus,)
    later = (steps[other][0] for other in order[order.index(at) + 1 :])
    return (need.gpus, *(other.gpus for other in later if other.gpus > 1 and _whole(other)))


def _whole(need: Need) -> bool:
    """Whether a container takes all time or all memory of its GPUs, so that no two such containers share a GPU."""
    return need.core_percent == 100 or need.memory_percent == 100
