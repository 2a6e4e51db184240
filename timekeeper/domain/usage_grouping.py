"""Adds use up by time step and dimensions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from timekeeper.domain.timestamps import HOUR
from timekeeper.domain.usage import IDLE, UNKNOWN, Key, UsageFigures, Use, keys_of
from timekeeper.domain.windows import Window

Place = tuple[int, Key]
"""The index of a step and a key; items come in this order."""
MOST_SUMS = 400_000
"""The most sums, by step and key, of one query: some 150 MB."""
Cells = dict[Key, list[Any]]
"""The sums of a step by key; each list of figures is updated in place."""


class FoldedHoursError(ValueError):
    """A query's time steps would divide hours that were folded into days.

    Attributes:
        start: the start of such folded hours, in nanoseconds since 1970.
        end: their end.
    """

    def __init__(self, start: int, end: int) -> None:
        super().__init__("folded hours cannot be divided")
        self.start = start
        self.end = end


class TooManySumsError(ValueError):
    """A usage query has more sums, by time step and by the values of its dimensions, than a worker has memory for."""


class Group(NamedTuple):
    """The use in one time step of a query that has the same values of the dimensions by which the query groups.

    Attributes:
        step: the time step.
        key: the values of these dimensions, in the query's order.
        figures: the sums of the use.
    """

    step: Window
    key: Key
    figures: UsageFigures


class Steps:
    """The time steps into which a usage query divides its window, with a lookup by hour.

    Attributes:
        windows: the steps in order, one or more; each begins where the one before ends.
    """

    def __init__(self, windows: Iterable[Window]) -> None:
        """Takes one or more steps in order, each beginning where the one before ends."""
        self.windows = list(windows)
        self._starts = [window.start // HOUR for window in self.windows]
        self._first, self._end = self._starts[0], self.windows[-1].end // HOUR

    def index(self, hour: int, hours: int) -> int | None:
        """Returns the index of the time step that holds consecutive hours; None where they lie outside the window.

        Args:
            hour: the first hour, counted from 1970.

        Raises:
            FoldedHoursError: the hours lie across the boundary of two steps.
        """
        following = hour + hours
        if following <= self._first or hour >= self._end:
            return None
        index = bisect_right(self._starts, hour) - 1
        if index < 0 or following * HOUR > self.windows[index].end:
            raise FoldedHoursError(hour * HOUR, following * HOUR)
        return index


class _CellsOfHours(dict[tuple[int, int], Cells | None]):
    """The sums by (first hour, number of hours); None where the hours lie outside the window."""

    def __init__(self, steps: Steps, cells: Sequence[Cells]) -> None:
        super().__init__()
        self._steps = steps
        self._cells = cells

    def __missing__(self, hours: tuple[int, int]) -> Cells | None:
        index = self._steps.index(*hours)
        cells = self[hours] = None if index is None else self._cells[index]
        return cells


class UsageSums:
    """The sums of use that answer a query, one for each time step and each set of values of the query's dimensions.

    Attributes:
        steps: the time steps.
        aggregate: the dimensions by which the query groups.
        cells: for each step, the sums by the values of these dimensions: lists of billed, core, memory and used, in
            microGPU-seconds.
    """

    def __init__(self, steps: Steps, aggregate: Sequence[str]) -> None:
        self.steps = steps
        self.aggregate = tuple(aggregate)
        self.cells: list[Cells] = [{} for _ in steps.windows]
        self._of_hours = _CellsOfHours(steps, self.cells)
        self._size = 0

    def add(self, account: str, use: Use, namespaces: frozenset[str] | None = None) -> None:
        """Adds rows of an account's use to the sums.

        Args:
            namespaces: only rows of these namespaces are added; None for all.

        Raises:
            FoldedHoursError: a row lies across the boundary of two time steps.
            TooManySumsError: there would be more than MOST_SUMS sums.
        """
        if not use.raw_rows:
            return
        keys = keys_of(self.aggregate, account, use.dimensions, namespaces)
        of_hours, new = self._of_hours, 0
        cells, same_hour, same_hours = None, None, None
        for hour, hours, place, billed, core, memory, used in use.raw_rows:
            key = keys[place]
            if key is None:
                continue
            if hour != same_hour or hours != same_hours:  # rows of the same hours stand together
                cells, same_hour, same_hours = of_hours[hour, hours], hour, hours
            if cells is None:
                continue
            cell = cells.get(key)
            if cell is None:
                cells[key] = [billed, core, memory, used]
                new += 1
                continue
            cell[0] += billed
            cell[1] += core
            cell[2] += memory
            if used is not None:
                cell[3] = used + (cell[3] or 0)

        self._grow(new)

    def add_sums(self, hour: int, hours: int, sums: Cells) -> None:
        """Adds sums that were computed before over consecutive hours.

        Args:
            hour: the first hour, counted from 1970.
            sums: lists of billed, core, memory and used, in microGPU-seconds, by the values of the query's dimensions.

        Raises:
            FoldedHoursError: the hours lie across the boundary of two time steps.
            TooManySumsError: there would be more than MOST_SUMS sums.
        """
        cells = self._of_hours[hour, hours]
        if cells is None:
            return
        before = len(cells)
        for key, (billed, core, memory, used) in sums.items():
            cell = cells.setdefault(key, [0, 0, 0, None])
            cell[0] += billed
            cell[1] += core
            cell[2] += memory
            if used is not None:
                cell[3] = used + (cell[3] or 0)

        self._grow(len(cells) - before)

    def name(self, keys: Iterable[Key]) -> None:
        """Makes sets of values appear in the answer: those without use in the first time step get sums of 0 there.

        Args:
            keys: each holds values of the dimensions by which the query groups, in its order.

        Raises:
            TooManySumsError: there would be more than MOST_SUMS sums.
        """
        cells = self.cells[0]
        before = len(cells)
        for key in keys:
            cells.setdefault(key, [0, 0, 0, None])
        self._grow(len(cells) - before)

    def _grow(self, new: int) -> None:
        self._size += new
        if self._size > MOST_SUMS:
            raise TooManySumsError(f"more than {MOST_SUMS} sums")

    def add_idle(self, capacity: Sequence[int], held: UsageSums) -> None:
        """Adds the idle capacity of each time step, with which core and memory add up to the capacity.

        Nothing is idle where pods held more than the known capacity.

        Args:
            capacity: the capacity of each step, in microGPU-seconds.
            held: all use in the same steps.
        """
        for cells, whole, all_held in zip(self.cells, capacity, held.cells, strict=True):
            if whole > 0:
                core = sum(cell[1] for cell in all_held.values())
                memory = sum(cell[2] for cell in all_held.values())
                cells[(IDLE,) * len(self.aggregate)] = [0, max(whole - core, 0), max(whole - memory, 0), None]

    def add_idle_of_models(self, capacity: Mapping[str, Sequence[int]], held: UsageSums) -> None:
        """Adds the idle capacity of each model in each time step; the group's `model` is IDLE, a space and the model.

        Nothing is idle of a model of which pods held more than its known capacity. Use of several models at once counts
        in equal parts for each.

        Args:
            capacity: the capacity of each step by model, in microGPU-seconds; an empty name is an unknown model.
            held: all use in the same steps, grouped by model alone.
        """
        place = self.aggregate.index("model")
        for index, (cells, all_held) in enumerate(zip(self.cells, held.cells, strict=True)):
            used = _divided_by_model(all_held)
            for model, whole in capacity.items():
                if whole[index] > 0:
                    core, memory = used.get(model, (0, 0))
                    key = [IDLE] * len(self.aggregate)
                    key[place] = f"{IDLE} {model or '*'}"
                    cells[tuple(key)] = [0, max(whole[index] - core, 0), max(whole[index] - memory, 0), None]

    def count(self, after: Place | None) -> int:
        """Returns the number of groups in the answer after a given one; of all groups for None.

        Args:
            after: the index of a time step, and values of the query's dimensions.
        """
        first = 0 if after is None else after[0]
        return len(self._keys_after(after)) + sum(map(len, self.cells[first + 1 :]))

    def page(self, after: Place | None, limit: int) -> tuple[list[Group], Place | None]:
        """Returns one page of the answer, and the place from which the next page continues; None where no more follow.

        Args:
            after: the place that the page before returned: the index of a time step, and values of the query's
                dimensions; None for the first page.
            limit: the most groups on the page.
        """
        places = list(islice(self._places(after), limit + 1))
        windows, cells = self.steps.windows, self.cells
        items = [Group(windows[index], key, UsageFigures(*cells[index][key])) for index, key in places[:limit]]
        return items, places[limit - 1] if len(places) > limit else None

    def _places(self, after: Place | None) -> Iterator[Place]:
        first = 0 if after is None else after[0]
        yield from ((first, key) for key in sorted(self._keys_after(after), key=key_order))
        for index in range(first + 1, len(self.cells)):
            yield from ((index, key) for key in sorted(self.cells[index], key=key_order))

    def _keys_after(self, after: Place | None) -> list[Key]:
        """Returns the keys of a place's step that come after the place; those of the first step for None."""
        if after is None:
            return list(self.cells[0])
        index, edge = after[0], key_order(after[1])
        return [key for key in self.cells[index] if key_order(key) > edge] if index < len(self.cells) else []


def _divided_by_model(cells: Cells) -> dict[str, tuple[int, int]]:
    """Returns the core and the memory of sums by model; use of several models counts in equal parts for each."""
    used: dict[str, tuple[int, int]] = {}
    for (text,), (_, core, memory, _) in cells.items():
        models = [""] if text == UNKNOWN else text.split(",")
        for model in models:
            before = used.get(model, (0, 0))
            used[model] = before[0] + core // len(models), before[1] + memory // len(models)
    return used


def order(value: str) -> tuple[bool, str]:
    """Returns the sort key of a dimension's value: values that begin with two underscores mean "none" and come last."""
    return value.startswith("__"), value


def key_order(key: Key) -> tuple[tuple[bool, str], ...]:
    """Returns the sort key of a group within its time step, from the values of the query's dimensions."""
    return tuple([order(value) for value in key])
