"""Adds rows up by time and by what they are put down to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from timekeeper.rules.timestamps import HOUR
from timekeeper.usage.dimensions import IDLE, UNKNOWN
from timekeeper.usage.rows import Figures, Row
from timekeeper.usage.windows import Window

Key = tuple[str, ...]
"""The values of what was asked to aggregate by, in that order."""
Place = tuple[int, Key]
"""Which step, counted from 0, and which key: the order of items."""
NOTHING = Figures()


class FoldedHoursError(ValueError):
    """Hours were folded into days that the steps would cut.

    Attributes:
        start: of such a stretch, in nanoseconds since 1970.
        end: its end.
    """

    def __init__(self, start: int, end: int) -> None:
        super().__init__("hours that are kept together cannot be told apart")
        self.start = start
        self.end = end


class Item(NamedTuple):
    """What one key came to in one step."""

    step: Window
    key: Key
    figures: Figures


class Steps:
    """The steps of a window, and which of them an hour is in."""

    def __init__(self, windows: Iterable[Window]) -> None:
        """The steps in order, each beginning where the one before ends; there is at least one."""
        self.windows = list(windows)
        self._starts = [window.start // HOUR for window in self.windows]
        self._first, self._end = self._starts[0], self.windows[-1].end // HOUR

    def index(self, row: Row) -> int | None:
        """The step that holds a row; None where it lies outside the window.

        Raises:
            FoldedHoursError: it lies across a step's edge.
        """
        hour, following = row.hour, row.hour + row.hours
        if following <= self._first or hour >= self._end:
            return None
        index = bisect_right(self._starts, hour) - 1
        if index < 0 or following * HOUR > self.windows[index].end:
            raise FoldedHoursError(hour * HOUR, following * HOUR)
        return index


def add_rows(
    sums: dict[Place, Figures],
    rows: Iterable[Row],
    account: str,
    steps: Steps,
    aggregate: Sequence[str],
    namespaces: frozenset[str] | None = None,
) -> None:
    """Adds an account's rows to the sums; of these namespaces alone where some are named.

    Raises:
        FoldedHoursError: a row lies across a step's edge.
    """
    for row in rows:
        if namespaces is not None and (row.dimensions.namespace or UNKNOWN) not in namespaces:
            continue
        index = steps.index(row)
        if index is not None:
            key = tuple([row.dimensions.value(name, account) for name in aggregate])
            place = (index, key)
            sums[place] = sums.get(place, NOTHING).plus(row.figures)


def add_idle(sums: dict[Place, Figures], capacity: Sequence[int], width: int) -> None:
    """Adds what of the capacity of each step nobody held, so that with it core and memory add up to the capacity.

    Where more was held than nodes were known to have, nothing was idle.

    Args:
        sums: of everything that was held.
        capacity: of each step, in microGPU-seconds.
        width: how many values a key has.
    """
    core, memory = [0] * len(capacity), [0] * len(capacity)
    for (index, _), figures in sums.items():
        core[index] += figures.core
        memory[index] += figures.memory
    for index, whole in enumerate(capacity):
        if whole > 0:
            idle = Figures(0, max(whole - core[index], 0), max(whole - memory[index], 0))
            sums[index, (IDLE,) * width] = idle


def order(value: str) -> tuple[bool, str]:
    """How values of a key come: those that are none, which begin with two underscores, after all others."""
    return value.startswith("__"), value


def page(
    sums: Mapping[Place, Figures], steps: Steps, after: Place | None, limit: int
) -> tuple[list[Item], Place | None]:
    """The items after a place, in order, and the place to go on from; None where these are the last."""
    places = sorted((place for place in sums if is_after(place, after)), key=_place_order)
    items = [Item(steps.windows[index], key, sums[index, key]) for index, key in places[:limit]]
    return items, places[limit - 1] if len(places) > limit else None


def is_after(place: Place, after: Place | None) -> bool:
    """Whether a place comes after another; every one does after None."""
    return after is None or _place_order(place) > _place_order(after)


def _place_order(place: Place) -> tuple[int, tuple[tuple[bool, str], ...]]:
    index, key = place
    return index, tuple([order(value) for value in key])
