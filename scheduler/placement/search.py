"""Searches one node for the devices of a pod with several containers, by trying sets of devices.

Main containers and native sidecars run together, so their shares of a device add up. An init container runs before
most of them: it takes devices that those hold anyway, as far as there are enough, since the kubelet hands its slots on
to them, and it needs room beside the native sidecars before it alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from scheduler.placement.request import Need, Request, most_gpus

MAX_TRIES = 20_000
"""The most sets of devices tried on one node; nodes of 8 GPUs and pods of 4 containers need far fewer."""


class Room(NamedTuple):
    """The free part of a device that may be chosen.

    Attributes:
        device: its number on the node.
        core_percent, memory_mib: what is free.
        slots: containers that it still takes.
        total_mib: what it offers in all.
        holders: the containers of this pod that have a share of it.
    """

    device: int
    core_percent: int
    memory_mib: int
    slots: int
    total_mib: int
    holders: tuple[int, ...] = ()

    def takes(self, need: Need) -> bool:
        """Whether a container of this need has room on the device."""
        return (
            self.core_percent >= need.core_percent
            and self.memory_mib >= need.mib_of(self.total_mib)
            and self.slots >= 1
        )

    def less(self, need: Need, holder: int) -> Room:
        """Returns the room after a container of this need got its share."""
        return self._replace(
            core_percent=self.core_percent - need.core_percent,
            memory_mib=self.memory_mib - need.mib_of(self.total_mib),
            slots=self.slots - 1,
            holders=(*self.holders, holder),
        )


Assignment = tuple[tuple[int, ...], ...]
"""The devices of each container in the order of `Request.steps`."""


@dataclass
class _Tries:
    left: int


def assign(rooms: Sequence[Room], request: Request) -> Assignment | None:
    """Returns the devices of each container; None where they do not fit together.

    Args:
        rooms: of the devices that may be chosen, those to be preferred first.
        request: what the pod needs.
    """
    return next(assignments(rooms, request), None)


def assignments(rooms: Sequence[Room], request: Request) -> Iterator[Assignment]:
    """Yields every way to give devices to the containers; of ways that leave the same, one."""
    beside = [at for at, (_, keeps) in enumerate(request.steps) if keeps is not False]
    # The largest first: what fits nowhere is known soonest.
    beside.sort(key=lambda at: _size(request.steps[at][0]), reverse=True)
    for chosen in _together(tuple(rooms), [(at, request.steps[at][0]) for at in beside], _Tries(MAX_TRIES)):
        whole = _with_init(rooms, request, chosen)
        if whole is not None:
            yield whole


def _size(need: Need) -> tuple[int, int, int, int]:
    return need.gpus, need.core_percent, need.memory_percent, need.memory_mib


def _together(
    rooms: tuple[Room, ...], needs: Sequence[tuple[int, Need]], tries: _Tries
) -> Iterator[dict[int, tuple[int, ...]]]:
    """Yields every way to give devices to containers that run together; equal devices count as one."""
    if not needs:
        yield {}
        return
    (at, need), *later = needs
    able = [place for place, room in enumerate(rooms) if room.takes(need)]
    seen: set[tuple[tuple[object, ...], ...]] = set()
    for places in combinations(able, need.gpus):
        tries.left -= 1
        if tries.left < 0:
            return
        # Devices alike in what is left and in what stands on them are one: the first of them is as good as any.
        alike = tuple(sorted(rooms[place][1:] for place in places))
        if alike in seen:
            continue
        seen.add(alike)
        left = tuple(room.less(need, at) if place in places else room for place, room in enumerate(rooms))
        for rest in _together(left, later, tries):
            yield {at: tuple(rooms[place].device for place in places), **rest}


def _with_init(rooms: Sequence[Room], request: Request, chosen: dict[int, tuple[int, ...]]) -> Assignment | None:
    """Adds devices for the init containers that end before the main containers start."""
    held = dict.fromkeys(device for devices in chosen.values() for device in devices)
    left = {room.device: room for room in rooms}
    result: list[tuple[int, ...]] = []
    for at, (need, keeps) in enumerate(request.steps):
        if keeps is None:
            result.append(chosen[at])
        elif keeps:
            result.append(chosen[at])
            left |= {device: left[device].less(need, at) for device in chosen[at]}
        else:
            inside = [device for device in held if left[device].takes(need)]
            outside = [device for device, room in left.items() if device not in held and room.takes(need)]
            missing = max(need.gpus - len(held), 0)
            if len(inside) < need.gpus - missing or len(outside) < missing:
                return None
            taken = (*inside[: need.gpus - missing], *outside[:missing])
            held |= dict.fromkeys(taken)
            result.append(taken)
    return tuple(result)


def fits_alone(rooms: Sequence[Room], request: Request) -> bool:
    """Whether each container would fit on its own, without which no search is needed."""
    return len(rooms) >= most_gpus(request.needs) and all(
        sum(room.takes(need) for room in rooms) >= need.gpus for need in request.needs
    )
