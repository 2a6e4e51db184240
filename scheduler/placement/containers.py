"""Gives devices to the containers of a pod that has several, on many nodes at once.

The containers that run together take theirs in turn, the largest first. Where devices run out so, the emptiest are
tried first, which leaves room for those that need several devices each. What neither way places and no sum or count
rules out is searched node by node (scheduler/placement/search.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scheduler.placement.fleet import Flags, Ints
from scheduler.placement.learning import Floats
from scheduler.placement.request import Need, Request
from scheduler.placement.search import Assignment, Room, Tries, assign, emptiest_first, turns

MAX_STEPS = 100_000
"""The most containers times nodes that one call gives devices; about 50 ms."""

NO_TOTAL = 1 << 40
"""More MiB than a device offers."""
LINKED, MORE, HELD = 1e7, 1e4, 1e9
"""The scores, for an init container, of a best linked device, of a percent more of one, and of one that is held."""


class Free(NamedTuple):
    """The free parts of devices, one row a node and one column a device.

    Attributes:
        core, memory, slots, total: as in the fleet.
        usable: whether the request may use a device.
        idle: the free percent of each device, whether it may be used or not.
    """

    core: Ints
    memory: Ints
    slots: Ints
    total: Ints
    usable: Flags
    idle: Ints

    def of(self, places: Ints) -> Free:
        """Returns some of the rows, in order."""
        if len(places) == len(self.core):
            return self
        core, memory, slots, total, usable, idle = self
        return Free(core[places], memory[places], slots[places], total[places], usable[places], idle[places])

    def mib(self, need: Need) -> Ints:
        """Returns the MiB that a need takes of each device."""
        if need.memory_mib:
            return np.full_like(self.total, need.memory_mib)
        return np.asarray(self.total * need.memory_percent // 100)

    def fitting(self, need: Need) -> Flags:
        """Returns the devices on which one container of this need fits."""
        return np.asarray(
            self.usable & (self.core >= need.core_percent) & (self.memory >= self.mib(need)) & (self.slots >= 1)
        )

    def less(self, need: Need, taken: Flags) -> Free:
        """Returns what is left after a container took a share of these devices."""
        return self._replace(
            core=self.core - taken * need.core_percent,
            memory=self.memory - taken * self.mib(need),
            slots=self.slots - taken,
        )

    def percent(self) -> Ints:
        """Returns the percent that is left of each usable device; `idle` of the others."""
        left = np.minimum(self.core, self.memory * 100 // np.maximum(self.total, 1))
        return np.where(self.usable, np.where(self.slots >= 1, np.maximum(left, 0), 0), self.idle)

    def room(self, at: int) -> list[Room]:
        """Returns the free parts of the usable devices of one row, the emptiest first."""
        columns = (self.core[at], self.memory[at], self.slots[at], self.total[at])
        core, memory, slots, total = (column.tolist() for column in columns)
        usable = np.flatnonzero(self.usable[at]).tolist()
        return emptiest_first([Room(n, core[n], memory[n], slots[n], total[n]) for n in usable])


Pick = Callable[[int, Flags, Free], Floats]
"""Returns a score for each device, by the container's place among the steps, the devices on which it fits, and what is
left of all. The devices with the highest scores are taken, of equal scores the first."""


class Given(NamedTuple):
    """The devices that a try gave to all containers of a pod, on many nodes at once: one row a node.

    Attributes:
        fits: by row, whether every container got its devices.
        taken: by step and row, the devices of each container.
        reached: whether a row was decided; where not, more tries may find a way.
        cut: whether a row's search ended without an answer.
    """

    fits: Flags
    taken: Flags
    reached: Flags
    cut: Flags


def give_all(request: Request, free: Free, pick: Pick, tries: Tries) -> Given:
    """Gives devices on every row on which the containers fit; exact except where a search is cut.

    Args:
        request: the pod's need.
        free: what is left of the nodes.
        pick: chooses among devices on which a container fits.
        tries: of the search; rows that it does not reach count as not fitting.
    """
    shape = free.usable.shape
    fits, cut = np.zeros(shape[0], np.bool_), np.zeros(shape[0], np.bool_)
    reached = np.arange(shape[0]) < MAX_STEPS // max(len(request.steps), 1)
    taken = np.zeros((len(request.steps), *shape), np.bool_)
    rest = np.flatnonzero(reached)
    for way, check in ((pick, _alone), (emptiest, may_fit)):
        if len(rest):
            rest = rest[check(request, free.of(rest))]
        if not len(rest):
            break
        found, devices = give(request, free.of(rest), way)
        fits[rest[found]] = True
        taken[:, rest[found]] = devices[:, found]
        rest = rest[~found]
    known: dict[tuple[tuple[object, ...], ...], tuple[Assignment | None, bool]] = {}
    for at in rest.tolist():
        rooms = free.room(at)
        # Nodes with the same amounts left take a request alike.
        alike = tuple(room[1:] for room in rooms)
        if alike not in known:
            if not tries.left:
                reached[at] = False
                continue
            before = tries.cut
            numbered = [room._replace(device=place) for place, room in enumerate(rooms)]
            assignment = assign(numbered, request, tries)
            if tries.cut > before and not tries.left:
                reached[at] = False
                continue
            known[alike] = assignment, tries.cut > before
        assignment, cut[at] = known[alike]
        if assignment is not None:
            fits[at] = True
            for step, places in enumerate(assignment):
                taken[step, at, [rooms[place].device for place in places]] = True
    return Given(fits, taken, reached, cut | ~reached)


def give(request: Request, free: Free, pick: Pick) -> tuple[Flags, Flags]:
    """Gives devices to the containers in turn; returns on which rows all got theirs, and the devices of each."""
    fits = np.ones(len(free.usable), np.bool_)
    taken = np.zeros((len(request.steps), *free.usable.shape), np.bool_)
    left = free
    for at in turns(request):
        need = request.steps[at][0]
        able = left.fitting(need)
        taken[at] = _top(pick(at, able, left), able, need.gpus)
        fits &= able.sum(axis=1) >= need.gpus
        left = left.less(need, taken[at])
    held = np.asarray(taken.any(axis=0))
    for at, (need, keeps) in enumerate(request.init):
        if keeps is not False:
            continue
        # It takes devices that are held anyway, and of those the ones of which it takes least beyond that.
        able, running = _beside(request, free, taken, at).fitting(need), held.sum(axis=1)
        inside = able & held
        now = left_of(request, free, taken)
        taken[at] = True
        then = left_of(request, free, taken)
        enough = inside.sum(axis=1) >= need.gpus
        by_pick = pick(at, np.where(enough[:, None], inside, able), now)
        scores = HELD * inside + by_pick.clip(-LINKED, LINKED) - MORE * (now.percent() - then.percent())
        taken[at] = _top(scores, able, need.gpus)
        missing = np.maximum(need.gpus - running, 0)
        fits &= (inside.sum(axis=1) >= need.gpus - missing) & ((able & ~held).sum(axis=1) >= missing)
        held = held | taken[at]
    return fits, taken


def fullest(_at: int, _able: Flags, left: Free) -> Floats:
    """Picks the devices of which least is left."""
    return -left.percent().astype(np.float64)


def emptiest(_at: int, _able: Flags, left: Free) -> Floats:
    """Picks the devices of which most is left."""
    return left.percent().astype(np.float64)


def left_of(request: Request, free: Free, taken: Flags) -> Free:
    """Returns what is left of the devices that are taken, each container charged as `fairgpu.demand.peak` has it."""
    left = free
    for at in turns(request):
        left = left.less(request.steps[at][0], taken[at])
    for at, (need, keeps) in enumerate(request.init):
        if keeps is False:
            while_it_runs = _beside(request, free, taken, at).less(need, taken[at])
            left = left._replace(
                core=np.minimum(left.core, while_it_runs.core),
                memory=np.minimum(left.memory, while_it_runs.memory),
                slots=np.minimum(left.slots, while_it_runs.slots),
            )
    return left._replace(usable=np.asarray(taken.any(axis=0)))


def may_fit(request: Request, free: Free) -> Flags:
    """Returns the rows on which neither a sum nor a count rules out that all containers fit."""
    needs = [request.steps[at][0] for at in turns(request)]
    core, memory, slots = (np.where(free.usable, amounts, 0).clip(0) for amounts in free[:3])
    fits = core.sum(axis=1) >= sum(need.gpus * need.core_percent for need in needs)
    smallest = np.where(free.usable, free.total, NO_TOTAL).min(axis=1, initial=NO_TOTAL)
    asked = np.zeros_like(smallest)
    for need in needs:
        asked += need.gpus * (need.memory_mib or smallest * need.memory_percent // 100)
    fits &= memory.sum(axis=1) >= asked
    shares = np.sort(np.stack([free.mib(need) for need in needs]), axis=0).cumsum(axis=0) if needs else memory[None][:0]
    by_memory = np.minimum((shares <= memory).sum(axis=0), slots)
    # Of the containers that take most GPU time, as many as there are, each device takes a few: the smallest of them.
    largest = sorted(needs, key=lambda need: need.core_percent, reverse=True)
    for count in range(1, len(needs) + 1):
        cores = np.cumsum(sorted(need.core_percent for need in largest[:count]))
        room = np.minimum(np.searchsorted(cores, core, "right"), by_memory)
        fits &= np.minimum(room, count).sum(axis=1) >= sum(need.gpus for need in largest[:count])
    return np.asarray(fits)


def _alone(request: Request, free: Free) -> Flags:
    """Returns the rows on which each container would fit without the others."""
    fits = np.ones(len(free.usable), np.bool_)
    for need in set(request.needs):
        fits &= free.fitting(need).sum(axis=1) >= need.gpus
    return fits


def _beside(request: Request, free: Free, taken: Flags, init: int) -> Free:
    """Returns what is left while an init container runs: beside the native sidecars before it."""
    for at, (need, keeps) in enumerate(request.init[:init]):
        if keeps:
            free = free.less(need, taken[at])
    return free


def _top(scores: Floats, able: Flags, count: int) -> Flags:
    """Returns so many devices of each row with the highest scores, as far as there are as many that are able."""
    order = np.argsort(np.where(able, -scores, np.inf), axis=1, kind="stable")
    taken = np.zeros(able.shape, np.bool_)
    np.put_along_axis(taken, order[:, :count], values=True, axis=1)
    return taken & able
