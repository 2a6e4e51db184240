"""Searches one node for the devices of a pod with several containers, by trying sets of devices.

Main containers and native sidecars run together, so their shares of a device add up. An init container that ends runs
before the main containers. It takes devices that the pod will hold anyway, as far as these suffice, since the kubelet
gives the init container's slots to later containers. The init container needs room only beside the native sidecars that
start before it.

To find the sets that fit together is a packing problem, for which no fast way finds every solution. Three things
shorten the search: equal devices count as one, a choice that failed is not tried again, and sums and counts end a
hopeless branch early. Beyond that the number of tries is limited.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from scheduler.placement.request import Need, Request

MAX_TRIES = 200
"""The most tries on one node; a try takes about 30 microseconds."""


class Room(NamedTuple):
    """The free part of a device that may be chosen.

    Attributes:
        device: the device's index on the node.
        core_percent, memory_mib: the free percent of its GPU time, and the free MiB of its memory.
        slots: the number of containers that the device still takes.
        total_mib: the MiB of memory that the device offers in all.
        holders: the indexes in `Request.steps` of the containers to which the search gave a share of the device. They
            are noted only if the request has an init container that ends, whose devices depend on them.
        kind: devices of two kinds do not count as one, even if their free parts are equal.
    """

    device: int
    core_percent: int
    memory_mib: int
    slots: int
    total_mib: int
    holders: tuple[int, ...] = ()
    kind: int = 0

    @property
    def idle(self) -> int:
        """The free percent of the device, the smaller of GPU time and memory."""
        return min(self.core_percent, self.memory_mib * 100 // max(self.total_mib, 1))

    def takes(self, need: Need) -> bool:
        """Returns whether one container with this need fits on the device."""
        return (
            self.core_percent >= need.core_percent
            and self.memory_mib >= need.mib_of(self.total_mib)
            and self.slots >= 1
        )

    def less(self, need: Need, *holders: int) -> Room:
        """Returns the free part after one container with this need got its share.

        Args:
            need: the container's need.
            *holders: the container's index in `Request.steps`, which is added to the attribute `holders`; without this
                argument nothing is added.
        """
        return self._replace(
            core_percent=self.core_percent - need.core_percent,
            memory_mib=self.memory_mib - need.mib_of(self.total_mib),
            slots=self.slots - 1,
            holders=(*self.holders, *holders),
        )


Assignment = tuple[tuple[int, ...], ...]
"""The indexes on the node of each container's devices, in the order of `Request.steps`."""


@dataclass(slots=True)
class Tries:
    """The number of tries that one or more searches for devices may still use.

    Attributes:
        left: the number of tries that may still be used.
        cut: above 0 once a search has ended early because no try was left. `assign` adds 1 for each such search.
    """

    left: int
    cut: int = 0

    def one(self) -> bool:
        """Uses one try; returns False if none was left, so that the search must end, else True."""
        if self.left:
            self.left -= 1
            return True
        self.cut = 1
        return False


def assign(rooms: Sequence[Room], request: Request, tries: Tries) -> Assignment | None:
    """Returns the devices that a request's containers get on one node; None if the search finds none in time.

    The search ends without an answer once its tries are used up. It tries the emptiest devices first, since the
    containers most often fit on these.

    Args:
        rooms: the free parts of the node's devices that may be chosen.
        tries: the tries that the caller has left. The search on this node uses at most MAX_TRIES of them.
    """
    given = min(tries.left, MAX_TRIES)
    own = Tries(given)
    found = next(assignments(emptiest_first(rooms), request, own), None)
    tries.left -= given - own.left
    tries.cut += own.cut
    return found


def assignments(rooms: Sequence[Room], request: Request, tries: Tries) -> Iterator[Assignment]:
    """Yields the ways to give a node's devices to a request's containers.

    Devices of one kind with equal free parts count as one.

    Args:
        rooms: the free parts of the node's devices that may be chosen, the preferred devices first.
        tries: the tries that the search may use; the search ends when none is left.
    """
    return _Search(rooms, request, tries).ways(tuple(rooms), 0, {})


def emptiest_first(rooms: Sequence[Room]) -> list[Room]:
    """Returns the devices sorted by their free percent, the largest first."""
    return sorted(rooms, key=lambda room: (-room.idle, room[1:], room.device))


def turns(request: Request) -> list[int]:
    """Returns the order in which a request's containers get devices, the largest first.

    Containers are given by their index in `Request.steps`. Init containers that end are left out: they get devices
    last.
    """
    steps = request.steps
    beside = [at for at, (_, keeps) in enumerate(steps) if keeps is not False]
    return sorted(beside, key=lambda at: _size(steps[at][0]), reverse=True)


def _size(need: Need) -> tuple[int, int, int, int]:
    return need.gpus, need.core_percent, need.memory_percent, need.memory_mib


class _Later:
    """The containers that have no devices yet, summed up so that a hopeless branch of the search ends early.

    A container takes a device at most once. So if the two smallest shares fit on a device together, and the three
    smallest do not, the device takes at most two of the containers.
    """

    def __init__(self, needs: Sequence[Need], totals: Sequence[int]) -> None:
        self._needs = sorted(set(needs))
        self._core = sum(need.gpus * need.core_percent for need in needs)
        self._memory = sum(need.gpus * min((need.mib_of(total) for total in totals), default=0) for need in needs)
        self._cores = list(accumulate(sorted(need.core_percent for need in needs)))
        self._mibs = {total: list(accumulate(sorted(need.mib_of(total) for need in needs))) for total in set(totals)}
        self._gpus = list(accumulate(sorted((need.gpus for need in needs), reverse=True)))

    def may_fit(self, rooms: Sequence[Room]) -> bool:
        """Returns False if sums and counts of devices' free parts prove that the containers do not fit; else True."""
        if sum(room.core_percent for room in rooms if room.core_percent > 0) < self._core:
            return False
        if sum(room.memory_mib for room in rooms if room.memory_mib > 0) < self._memory:
            return False
        counts = [
            max(
                min(
                    bisect_right(self._cores, room.core_percent),
                    bisect_right(self._mibs[room.total_mib], room.memory_mib),
                    room.slots,
                ),
                0,
            )
            for room in rooms
        ]
        # N containers have at most N shares on one device: for each N, the N containers of the most GPUs have to fit.
        for containers, gpus in enumerate(self._gpus, 1):
            if sum(min(count, containers) for count in counts) < gpus:
                return False
        return all(sum(room.takes(need) for room in rooms) >= need.gpus for need in self._needs)


class _Search:
    """Tries, on one node, sets of devices for each container of a request in turn, the largest container first.

    If a container does not fit, the search returns to the choice before it and tries another, until all containers have
    devices.
    """

    def __init__(self, rooms: Sequence[Room], request: Request, tries: Tries) -> None:
        self._rooms = rooms
        self._request = request
        self._tries = tries
        self._turns = turns(request)
        needs = [request.steps[at][0] for at in self._turns]
        totals = [room.total_mib for room in rooms]
        self._later = [_Later(needs[turn:], totals) for turn in range(len(needs))]
        self._by_holder = any(keeps is False for _, keeps in request.init)
        self._failed: set[tuple[object, ...]] = set()

    def ways(self, rooms: tuple[Room, ...], turn: int, chosen: dict[int, tuple[int, ...]]) -> Iterator[Assignment]:
        """Yields the devices of all containers, for each way to give devices to the containers that have none yet.

        Args:
            rooms: the free parts of the devices, less the shares of the containers that have devices.
            turn: the index in `turns` of the first container without devices.
            chosen: the devices of the other containers, keyed by the container's index in `Request.steps`.
        """
        if turn == len(self._turns):
            whole = _with_init(self._rooms, self._request, chosen)
            if whole is not None:
                yield whole
            return
        alike = (turn, *sorted(room[1:] for room in rooms))
        if alike in self._failed:
            return
        if not self._tries.one():
            return
        found = False
        if self._later[turn].may_fit(rooms):
            at = self._turns[turn]
            need, holders = self._request.steps[at][0], (at,) if self._by_holder else ()
            for places in _sets(rooms, need):
                taken = set(places)
                left = tuple(room.less(need, *holders) if place in taken else room for place, room in enumerate(rooms))
                devices = tuple(rooms[place].device for place in places)
                for whole in self.ways(left, turn + 1, {**chosen, at: devices}):
                    found = True
                    yield whole
                if self._tries.cut:
                    return
        if not found:
            self._failed.add(alike)


def _sets(rooms: Sequence[Room], need: Need) -> Iterator[tuple[int, ...]]:
    """Yields the sets of devices that a container may take, as indexes in `rooms`.

    Devices of one kind with equal free parts count as one: of sets that differ only in such devices, one is yielded.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, room in enumerate(rooms):
        if room.takes(need):
            alike.setdefault(room[1:], []).append(place)
    return _of_groups(list(alike.values()), need.gpus)


def _of_groups(groups: Sequence[Sequence[int]], count: int) -> Iterator[tuple[int, ...]]:
    if not count:
        yield ()
    elif sum(map(len, groups)) >= count:
        first, later = groups[0], groups[1:]
        for taken in range(min(len(first), count), -1, -1):
            for others in _of_groups(later, count - taken):
                yield (*first[:taken], *others)


def _with_init(rooms: Sequence[Room], request: Request, chosen: dict[int, tuple[int, ...]]) -> Assignment | None:
    """Adds devices for the init containers that end; returns the devices of all containers, None if one does not fit.

    Args:
        rooms: the free parts of the node's devices before the pod takes any.
        chosen: the devices of the other containers, keyed by the container's index in `Request.steps`.
    """
    held = dict.fromkeys(device for devices in chosen.values() for device in devices)
    lent: set[int] = set()
    left = {room.device: room for room in rooms}
    result: list[tuple[int, ...]] = []
    for at, (need, keeps) in enumerate(request.steps):
        if keeps is None:
            result.append(chosen[at])
        elif keeps:
            result.append(chosen[at])
            left |= {device: left[device].less(need) for device in chosen[at]}
        else:
            inside = [device for device in held if left[device].takes(need)]
            outside = [device for device, room in left.items() if device not in held and room.takes(need)]
            outside.sort(key=lambda device: device not in lent)
            missing = max(need.gpus - len(held), 0)
            if len(inside) < need.gpus - missing or len(outside) < missing:
                return None
            taken = (*inside[: need.gpus - missing], *outside[:missing])
            lent.update(taken)
            result.append(taken)
    return tuple(result)
