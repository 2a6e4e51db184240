"""Gives devices to the containers of a pod that has several, on many nodes at once.

The containers that run together take their devices in turn, the largest container first, by a function that scores
devices (Pick). If devices run out this way, each container takes the emptiest devices instead: that leaves devices for
the containers that need several each. If both ways fail on a node, and sums and counts do not prove that the pod cannot
fit there, scheduler/placement/search.py searches the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from scheduler.placement.fleet import Flags, Ints
from scheduler.placement.learning import Floats
from scheduler.placement.request import Need, Request
from scheduler.placement.search import Assignment, Room, Tries, assign, emptiest_first, turns

MAX_STEPS = 100_000
"""The most containers times nodes to which one call gives devices; about 50 ms."""

NO_TOTAL = np.int64(1 << 60)
"""A number of MiB that is more than any device offers."""
MOST_IN_32_BITS = np.iinfo(np.int32).max // 100
"""The most MiB whose hundredfold is a whole number of 32 bits: 20 TiB."""
LINKED, MORE, LENT, HELD = 10_000_000, 1e4, 1e8, 1e9
"""The parts of a device's score for an init container that ends. HELD is added if a container that keeps running holds
the device, and LENT if an earlier init container takes it. MORE is subtracted for each percent of the device that the
pod would hold in addition. LINKED is the most that a Pick adds: it adds LINKED for a device of the best linked set."""


class Free(NamedTuple):
    """The free parts of devices as arrays: a row is a node, and a column is a device.

    Attributes:
        core, memory, slots: the free part of each device in percent of GPU time, in MiB and in containers.
        total: the MiB that each device offers.
        usable: whether the request that is being placed may use each device.
        idle: the free percent of each device, the smaller of GPU time and memory; 0 if no slot is left.
        rows: the index of each row's node in the fleet.
    """

    core: Ints
    memory: Ints
    slots: Ints
    total: Ints
    usable: Flags
    idle: Ints
    rows: Ints

    def of(self, places: Ints) -> Free:
        """Returns the free parts of some of the nodes.

        Args:
            places: the rows of these nodes, in increasing order.
        """
        if len(places) == len(self.core):
            return self
        core, memory, slots, total, usable, idle, rows = self
        return Free(
            core[places], memory[places], slots[places], total[places], usable[places], idle[places], rows[places]
        )

    def with_small_integers(self) -> Free:
        """Returns a copy with integers of 16 and 32 bits instead of 64, so that scoring the nodes takes half the time.

        Every figure below 0 (pods hold more of a device than it has) becomes -1, which no request fits either. The
        figures of memory keep 64 bits if a device has more MiB than 32 bits can count.
        """
        core, slots, idle = (np.maximum(part, -1).astype(np.int16) for part in (self.core, self.slots, self.idle))
        memory, total = self.memory, self.total
        if total.max(initial=0) <= MOST_IN_32_BITS:
            memory, total = np.maximum(memory, -1).astype(np.int32), total.astype(np.int32)
        return self._replace(core=core, memory=memory, slots=slots, total=total, idle=idle)

    def mib(self, need: Need) -> Ints:
        """Returns the MiB that a container with this need takes of each device."""
        if need.memory_mib:
            # One less, since a signed type holds one more below 0 than above.
            mib = np.min_scalar_type(-need.memory_mib - 1).type(need.memory_mib)
            return np.broadcast_to(mib, self.total.shape)
        return np.asarray(self.total * need.memory_percent // 100)

    def memory_after(self, need: Need) -> Ints:
        """Returns the MiB that would be free on each device after a container with this need took its share.

        The figure is below 0 if too little memory is free for the container.
        """
        return np.asarray(self.memory - self.mib(need))

    def fitting(self, need: Need, memory_after: Ints) -> Flags:
        """Returns, for each device, whether one container with this need fits on it.

        Args:
            memory_after: the answer of the method `memory_after` for the need.
        """
        return np.asarray(self.usable & (self.core >= need.core_percent) & (memory_after >= 0) & (self.slots >= 1))

    def less(self, need: Need, taken: Flags, memory_after: Ints, then: Ints) -> Free:
        """Returns the free parts after a container with this need took its share of some devices.

        It does the same as `without`, but takes figures that the caller has computed already.

        Args:
            taken: for each node and device, whether the container takes the device.
            memory_after: the answer of the method `memory_after` for the need.
            then: the answer of the method `percent_after` for the need.
        """
        return self._replace(
            core=np.where(taken, self.core - np.int16(need.core_percent), self.core),
            memory=np.where(taken, memory_after, self.memory),
            slots=self.slots - taken,
            idle=np.where(taken, then, self.idle),
        )

    def percent_after(self, need: Need, memory_after: Ints) -> Ints:
        """Returns the percent that would be free of each device after a container with this need took its share.

        The percent is the smaller of GPU time and memory, and 0 if no slot would be left.

        Args:
            memory_after: the answer of the method `memory_after` for the need.
        """
        # No quotient of such amounts is rounded up to a whole percent, and `//` takes several times as long.
        # Where the container does not fit or there is no device, the figure may overflow 32 bits; no caller uses it.
        with np.errstate(invalid="ignore", divide="ignore"):
            memory = (memory_after * 100.0 / self.total).astype(np.int32)
        left = np.minimum(self.core - np.int16(need.core_percent), memory)
        return np.asarray(np.maximum(left, 0).astype(self.idle.dtype) * (self.slots > 1))

    def without(self, need: Need, taken: Flags) -> Free:
        """Returns the free parts after a container with this need took its share of some devices.

        Args:
            taken: for each node and device, whether the container takes the device.
        """
        memory_after = self.memory_after(need)
        return self.less(need, taken, memory_after, self.percent_after(need, memory_after))

    def room(self, at: int) -> list[Room]:
        """Returns the free parts of the usable devices of the node in row `at`, the emptiest device first."""
        columns = (self.core[at], self.memory[at], self.slots[at], self.total[at])
        core, memory, slots, total = (column.tolist() for column in columns)
        usable = np.flatnonzero(self.usable[at]).tolist()
        return emptiest_first([Room(n, core[n], memory[n], slots[n], total[n]) for n in usable])


Scores: TypeAlias = Floats | Ints
Pick = Callable[[int, Flags, Free, Ints], Scores]
"""A function that scores devices for a container: the devices with the highest scores are taken, of equal scores the
first.

Its arguments are the container's index in `Request.steps`, flags of the devices on which the container fits, the free
parts of all devices, and the percent that would be left of each if the container took it. A score is a whole number.
"""


class Given(NamedTuple):
    """The devices that all containers of a pod get, on many nodes at once; a row of each array is a node.

    Attributes:
        fits: for each node, whether every container gets its devices.
        taken: for each container, node and device, whether the container takes the device.
        idle: for each node and device, the percent that is free beside the containers; on a node on which they do not
            fit, the percent that is free now.
        first: for each node, whether the first of the Picks that `give_all` got has placed the containers.
        reached: for each node, whether the answer is final. If it is not, more tries may place the containers.
        cut: for each node, whether the search for devices reached its limit.
    """

    fits: Flags
    taken: Flags
    idle: Ints
    first: Flags
    reached: Flags
    cut: Flags


class Way(NamedTuple):
    """The devices that a pod's containers get if they take them one after the other, on each of many nodes.

    Each container takes the devices to which a function (Pick) gives the highest scores.

    Attributes:
        fits: for each node, whether every container gets its devices.
        taken: for each container, node and device, whether the container takes the device.
        idle: for each node and device, the percent that is free beside the containers.
    """

    fits: Flags
    taken: Flags
    idle: Ints


def give_all(request: Request, free: Free, picks: Sequence[Pick], tries: Tries) -> Given:
    """Returns, for each node by itself, whether all containers of a pod fit there, and the devices that each would get.

    `free` is not changed. A node on which the containers fit is missed only if its search reaches the limit of tries,
    or if there are more nodes than MAX_STEPS allows.

    Args:
        free: the free parts of the nodes' devices.
        picks: each scores the devices on which a container fits. Each Pick is used on the nodes on which the Picks
            before it have not placed all containers.
        tries: the tries that the search may use. Nodes that it does not reach count as not fitting.
    """
    shape = free.usable.shape
    fits, first, cut = (np.zeros(shape[0], np.bool_) for _ in range(3))
    reached = np.arange(shape[0]) < MAX_STEPS // max(len(request.steps), 1)
    taken = np.zeros((len(request.steps), *shape), np.bool_)
    idle = free.idle.copy()
    largest = [request.steps[at][0] for at in turns(request)[:1]]
    rest = np.flatnonzero(reached)
    rest = rest[_alone(largest, free.of(rest))]
    for number, pick in enumerate((*picks, emptiest)):
        if number == 1 and len(rest):
            left = free.of(rest)
            rest = rest[_alone(request.needs, left) & may_fit(request, left)]
        if not len(rest):
            break
        way = give(request, free.of(rest), pick)
        if len(rest) == shape[0] and way.fits.all():
            none = np.zeros_like(cut)
            return Given(way.fits, way.taken, way.idle, ~none if number == 0 else none, ~none, none)
        found = rest[way.fits]
        fits[found] = True
        first[found] = number == 0
        taken[:, found] = way.taken[:, way.fits]
        idle[found] = way.idle[way.fits]
        rest = rest[~way.fits]
    given = Given(fits, taken, idle, first, reached, cut)
    _search(request, free, rest, tries, given)
    return given._replace(cut=cut | ~reached)


def _search(request: Request, free: Free, rest: Ints, tries: Tries, given: Given) -> None:
    """Searches devices for the request's containers on some nodes, one by one, and writes the results into `given`.

    Args:
        rest: the nodes, as their indexes in `free`.
        tries: the tries that are left; each search uses some. If none is left for a node, `given.reached` is set to
            False for the node.
    """
    known: dict[tuple[tuple[object, ...], ...], tuple[Assignment | None, bool]] = {}
    for at in rest.tolist():
        rooms = free.room(at)
        # Nodes with the same amounts left take a request alike.
        alike = tuple(room[1:] for room in rooms)
        if alike not in known:
            if not tries.left:
                given.reached[at] = False
                continue
            before = tries.cut
            numbered = [room._replace(device=place) for place, room in enumerate(rooms)]
            assignment = assign(numbered, request, tries)
            if tries.cut > before and not tries.left:
                given.reached[at] = False
                continue
            known[alike] = assignment, tries.cut > before
        assignment, given.cut[at] = known[alike]
        if assignment is not None:
            given.fits[at] = True
            for step, places in enumerate(assignment):
                given.taken[step, at, [rooms[place].device for place in places]] = True
            one = np.array([at])
            given.idle[at] = left_of(request, free.of(one), given.taken[:, one]).idle[0]


def give(request: Request, free: Free, pick: Pick) -> Way:
    """Returns the devices that a pod's containers get if they take them one after the other, on each of many nodes.

    The largest container comes first; init containers that end come last. `free` is not changed.

    Args:
        free: the free parts of the nodes' devices.
        pick: scores the devices on which a container fits; the container takes those with the highest scores.
    """
    fits, steps = np.ones(len(free.usable), np.bool_), request.steps
    taken = np.zeros((len(steps), *free.usable.shape), np.bool_)
    left, order = free, turns(request)
    for number, at in enumerate(order, 1):
        need = steps[at][0]
        memory_after = left.memory_after(need)
        able, then = left.fitting(need, memory_after), left.percent_after(need, memory_after)
        taken[at], enough = _top(pick(at, able, left, then), able, need.gpus)
        fits &= enough
        if number == len(order):
            # No other container asks what room the last one leaves.
            left = left._replace(idle=np.where(taken[at], then, left.idle))
        else:
            left = left.less(need, taken[at], memory_after, then)
    if all(keeps for _, keeps in request.init):
        return Way(fits, taken, left.idle)
    fits &= _give_init(request, free, pick, taken)
    return Way(fits, taken, left_of(request, free, taken).idle)


def _give_init(request: Request, free: Free, pick: Pick, taken: Flags) -> Flags:
    """Gives devices to the init containers that end; returns, for each node, whether all of them fit there.

    Args:
        free: the free parts of the nodes' devices before the pod.
        pick: scores the devices on which a container fits.
        taken: for each container, node and device, whether the container takes the device. The call writes the flags
            of the init containers that end.
    """
    fits = np.ones(len(free.usable), np.bool_)
    held, lent = np.asarray(taken.any(axis=0)), np.zeros_like(free.usable)
    for at, (need, keeps) in enumerate(request.init):
        if keeps is not False:
            continue
        # An init container takes devices that the pod holds anyway, first those of which it needs the least more.
        beside = _beside(request, free, taken, at)
        running = held.sum(axis=1)
        able = beside.fitting(need, beside.memory_after(need))
        inside = able & held
        now = left_of(request, free, taken)
        taken[at] = True
        after = left_of(request, free, taken)
        enough = inside.sum(axis=1) >= need.gpus
        by_pick = pick(at, np.where(enough[:, None], inside, able), now, after.idle)
        scores = HELD * inside + LENT * lent + by_pick.clip(-LINKED, LINKED) - MORE * (now.idle - after.idle)
        taken[at], _ = _top(scores, able, need.gpus)
        missing = np.maximum(need.gpus - running, 0)
        fits &= (inside.sum(axis=1) >= need.gpus - missing) & ((able & ~held).sum(axis=1) >= missing)
        lent |= taken[at]
    return fits


def fullest(_at: int, _able: Flags, left: Free, _then: Ints) -> Ints:
    """Returns a score for each device: the less of the device is free, the higher.

    Only `left`, the free parts of the devices, decides; the other arguments are those of any Pick.
    """
    return -left.idle


def emptiest(_at: int, _able: Flags, left: Free, _then: Ints) -> Ints:
    """Returns a score for each device: the more of the device is free, the higher.

    Only `left`, the free parts of the devices, decides; the other arguments are those of any Pick.
    """
    return left.idle


def left_of(request: Request, free: Free, taken: Flags) -> Free:
    """Returns the parts of devices that stay free once a pod has taken its devices.

    Of each device, the most that the pod holds at any one time is subtracted (`fairgpu.demand.peak`).

    Args:
        request: the pod's request.
        free: the free parts before.
        taken: for each container, node and device, whether the container takes the device.
    """
    left, steps = free, request.steps
    for at in turns(request):
        left = left.without(steps[at][0], taken[at])
    for at, (need, keeps) in enumerate(request.init):
        if keeps is False:
            while_it_runs = _beside(request, free, taken, at).without(need, taken[at])
            left = left._replace(
                core=np.minimum(left.core, while_it_runs.core),
                memory=np.minimum(left.memory, while_it_runs.memory),
                slots=np.minimum(left.slots, while_it_runs.slots),
                idle=np.minimum(left.idle, while_it_runs.idle),
            )
    return left


def may_fit(request: Request, free: Free) -> Flags:
    """Returns a flag for each node: False if sums and counts of devices prove that a pod's containers do not fit.

    Such a node needs no search. On a node with True they may still not fit, since the free parts may lie on the wrong
    devices.
    """
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
    # For each count of the containers with the most GPU time: a device fits some of them, the smallest first.
    largest = sorted(needs, key=lambda need: need.core_percent, reverse=True)
    for count in range(1, len(needs) + 1):
        cores = np.cumsum(sorted(need.core_percent for need in largest[:count]))
        room = np.minimum(np.searchsorted(cores, core, "right"), by_memory)
        fits &= np.minimum(room, count).sum(axis=1) >= sum(need.gpus for need in largest[:count])
    return np.asarray(fits)


def _alone(needs: Iterable[Need], free: Free) -> Flags:
    """Returns a flag for each node: whether each container, given by its need, would fit there without the others."""
    fits = np.ones(len(free.usable), np.bool_)
    for need in set(needs):
        fits &= free.fitting(need, free.memory_after(need)).sum(axis=1) >= need.gpus
    return fits


def _beside(request: Request, free: Free, taken: Flags, init: int) -> Free:
    """Returns the free parts that an init container finds when it starts.

    They are those in `free` without what the native sidecars before it take. Its own part is not subtracted.

    Args:
        taken: for each container (in the order of `request.steps`), node and device, whether it takes the device.
        init: the init container's index among the pod's init containers.
    """
    for at, (need, keeps) in enumerate(request.init[:init]):
        if keeps:
            free = free.without(need, taken[at])
    return free


def _top(scores: Scores, able: Flags, count: int) -> tuple[Flags, Flags]:
    """Returns the devices that one container takes on each node: the `count` devices with the highest scores.

    Args:
        scores: the score of each device; a row is a node, and a column is a device.
        able: for each node and device, whether the container fits on the device.

    Returns:
        For each node and device, whether the container takes the device; and for each node, whether it fits on
        `count` devices there.
    """
    width, kind = able.shape[1], scores.dtype
    if count > width:
        return able, np.zeros(len(able), np.bool_)
    never = kind.type(np.iinfo(kind.name).min if kind.kind == "i" else -np.inf)
    # Of equal scores the first: no two keys of a row are equal.
    keys = np.where(able, scores * width - np.arange(width, dtype=kind), never)
    least = keys.max(axis=1) if count == 1 else np.sort(keys, axis=1)[:, width - count]
    return np.asarray(able & (keys >= least[:, None])), np.asarray(least > never)
