"""Adds use up by time and by what it is put down to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from timekeeper.rules.timestamps import HOUR
from timekeeper.usage.dimensions import IDLE, Key, keys_of
from timekeeper.usage.rows import Figures, Use
from timekeeper.usage.windows import Window

Place = tuple[int, Key]
"""Which step, counted from 0, and which key: the order of items."""
Cells = dict[Key, list[Any]]
"""What each key came to in a step: the figures, in a list that grows in its place."""


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

    def index(self, hour: int, hours: int) -> int | None:
        """The step that holds some hours; None where they lie outside the window.

        Raises:
            FoldedHoursError: they lie across a step's edge.
        """
        following = hour + hours
        if following <= self._first or hour >= self._end:
            return None
        index = bisect_right(self._starts, hour) - 1
        if index < 0 or following * HOUR > self.windows[index].end:
            raise FoldedHoursError(hour * HOUR, following * HOUR)
        return index


class _CellsOfHours(dict[tuple[int, int], Cells | None]):
    """The sums that a stretch of hours, from one on and so many, is added to; None where it lies outside the window."""

    def __init__(self, steps: Steps, cells: Sequence[Cells]) -> None:
        super().__init__()
        self._steps = steps
        self._cells = cells

    def __missing__(self, stretch: tuple[int, int]) -> Cells | None:
        index = self._steps.index(*stretch)
        found = self[stretch] = None if index is None else self._cells[index]
        return found


class Sums:
    """What was asked for, by step and key, as it is added up."""

    def __init__(self, steps: Steps, aggregate: Sequence[str]) -> None:
        self.steps = steps
        self.aggregate = tuple(aggregate)
        self.cells: list[Cells] = [{} for _ in steps.windows]
        self._of_hours = _CellsOfHours(steps, self.cells)

    def add(self, account: str, use: Use, namespaces: frozenset[str] | None = None) -> None:
        """Adds what an account holds; of these namespaces alone where some are named.

        Raises:
            FoldedHoursError: something lies across a step's edge.
        """
        if not use.stretches:
            return
        keys = keys_of(self.aggregate, account, use.dimensions, namespaces)
        of_hours = self._of_hours
        for hour, hours, place, billed, core, memory, used in use.stretches:
            key = keys[place]
            if key is None:
                continue
            cells = of_hours[hour, hours]
            if cells is None:
                continue
            cell = cells.get(key)
            if cell is None:
                cells[key] = [billed, core, memory, used]
                continue
            cell[0] += billed
            cell[1] += core
            cell[2] += memory
            if used is not None:
                cell[3] = used + (cell[3] or 0)

    def add_sums(self, hour: int, hours: int, found: Cells) -> None:
        """Adds what was added up before of some hours.

        Raises:
            FoldedHoursError: they lie across a step's edge.
        """
        cells = self._of_hours[hour, hours]
        if cells is None:
            return
        for key, (billed, core, memory, used) in found.items():
            cell = cells.setdefault(key, [0, 0, 0, None])
            cell[0] += billed
            cell[1] += core
            cell[2] += memory
            if used is not None:
                cell[3] = used + (cell[3] or 0)

    def add_idle(self, capacity: Sequence[int], held: Sums) -> None:
        """Adds what of the capacity of each step nobody held, so that with it core and memory add up to the capacity.

        Where more was held than nodes were known to have, nothing was idle.

        Args:
            capacity: of each step, in microGPU-seconds.
            held: everything that was held, in the same steps.
        """
        for cells, whole, all_held in zip(self.cells, capacity, held.cells, strict=True):
            if whole > 0:
                core = sum(cell[1] for cell in all_held.values())
                memory = sum(cell[2] for cell in all_held.values())
                cells[(IDLE,) * len(self.aggregate)] = [0, max(whole - core, 0), max(whole - memory, 0), None]

    def count(self, after: Place | None) -> int:
        """How many places come after one."""
        first = 0 if after is None else after[0]
        here = sum(is_after((first, key), after) for key in self.cells[first]) if first < len(self.cells) else 0
        return here + sum(map(len, self.cells[first + 1 :]))

    def page(self, after: Place | None, limit: int) -> tuple[list[Item], Place | None]:
        """The items after a place, in order, and the place to go on from; None where these are the last."""
        places = list(islice(self._places(after), limit + 1))
        windows, cells = self.steps.windows, self.cells
        items = [Item(windows[index], key, Figures(*cells[index][key])) for index, key in places[:limit]]
        return items, places[limit - 1] if len(places) > limit else None

    def _places(self, after: Place | None) -> Iterator[Place]:
        first = 0 if after is None else after[0]
        for index in range(first, len(self.cells)):
            found = (key for key in self.cells[index] if index > first or is_after((index, key), after))
            yield from ((index, key) for key in sorted(found, key=key_order))


def order(value: str) -> tuple[bool, str]:
    """How values of a key come: those that are none, which begin with two underscores, after all others."""
    return value.startswith("__"), value


def key_order(key: Key) -> tuple[tuple[bool, str], ...]:
    """How keys come in a step."""
    return tuple([order(value) for value in key])


def is_after(place: Place, after: Place | None) -> bool:
    """Whether a place comes after another; every one does after None."""
    return after is None or (place[0], key_order(place[1])) > (after[0], key_order(after[1]))
