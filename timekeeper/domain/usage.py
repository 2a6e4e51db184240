"""Usage by dimensions: how the store encodes them, the sums that answer a query, and the nodes' capacity."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby, islice
from typing import Any, NamedTuple

import orjson

from fairgpu import names
from fairgpu.inventory import InventoryError, decode
from fairgpu.json_values import mapping
from fairgpu.quantity import QuantityError, parse_count
from timekeeper.domain.attribution import Attribution
from timekeeper.domain.charges import cost
from timekeeper.domain.timestamps import DAY, HOUR, Instant
from timekeeper.domain.windows import Window

UNKNOWN = "__unallocated__"
"""Stands for an unknown value, as in OpenCost."""
IDLE = "__idle__"
"""Stands for capacity that no pod reserved, as in OpenCost."""
PLAIN = ("namespace", "budget", "model", "node", "owner", "user")
LABEL = "label:"
UNATTRIBUTED = '[""]'
"""The stored dimensions of use restored from a checkpoint, which has no attribution."""
Key = tuple[str, ...]
"""The values of some dimensions, in the order of the query."""
_ABSENT: tuple[Any, ...] = ("", "", "", "", {})


class Dimensions(NamedTuple):
    """The dimensions that an hour's use is attributed to. Labels are (key, value) pairs; an empty value is unknown."""

    namespace: str
    node: str = ""
    model: str = ""
    owner: str = ""
    user: str = ""
    labels: tuple[tuple[str, str], ...] = ()


def dimensions(namespace: str, node: str, attribution: Attribution | None) -> str:
    """Returns the dimensions of an hour's use as the JSON text that the store holds.

    Args:
        node: the pod's node; empty if it is not known.
        attribution: the owner, user, labels and models of the pod; None if they are not known.
    """
    return _encoded(dimension_values(namespace, node, attribution))


def dimension_values(namespace: str, node: str, attribution: Attribution | None) -> list[Any]:
    """Returns the dimensions of an hour's use as the list whose JSON the store holds.

    Args:
        node: the pod's node; empty if it is not known.
        attribution: the owner, user, labels and models of the pod; None if they are not known.
    """
    attributed = attribution or Attribution()
    return values_of(
        Dimensions(namespace, node, attributed.model, attributed.owner, attributed.user, attributed.labels)
    )


def values_of(place: Dimensions) -> list[Any]:
    """Converts dimensions to the list whose JSON the store holds; unknown values at its end are left out."""
    values: list[Any] = [*place[:5], dict(place.labels)]
    while len(values) > 1 and not values[-1]:
        values.pop()
    return values


def of_values(values: Sequence[Any]) -> Dimensions:
    """Converts the list whose JSON the store holds to dimensions; values that later versions add are ignored."""
    namespace, node, model, owner, user, labels = [*values, *_ABSENT[len(values) - 1 :]][:6]
    return Dimensions(namespace, node, model, owner, user, tuple(sorted(labels.items())))


def asks_for_details(names: Iterable[str]) -> bool:
    """Returns whether a query asks for a dimension that only detailed rows have: any but namespace, budget and model.

    Args:
        names: the dimensions by which the query groups.
    """
    return not {*names} <= {"namespace", "budget", "model"}


def asks_for_sums(names: Iterable[str]) -> bool:
    """Returns whether a query asks for no more than stored sums have: namespace, budget, model and user.

    Args:
        names: the dimensions by which the query groups.
    """
    return {*names} <= {"namespace", "budget", "model", "user"}


def keys_of(
    names: Sequence[str], account: str, lists: Sequence[Sequence[Any]], namespaces: frozenset[str] | None = None
) -> list[Key | None]:
    """Returns the key of each row of use in a query's answer: the row's values of the dimensions that `names` lists.

    Args:
        names: the dimensions by which the query groups: names from PLAIN, or a label's key after `label:`.
        account: the account that pays, which is the value of the dimension `budget`.
        lists: for each row, the values of Dimensions' fields in their order; unknown values at the end may be missing.
        namespaces: the namespaces whose rows get a key, while any other row has None; None if all rows get one.
    """
    columns = [_column(name, account, lists) for name in names]
    keys: list[Key | None] = [*zip(*columns, strict=True)] if columns else [()] * len(lists)
    if namespaces is None:
        return keys
    return [key if (values[0] or UNKNOWN) in namespaces else None for key, values in zip(keys, lists, strict=True)]


def _column(name: str, account: str, lists: Sequence[Sequence[Any]]) -> list[str]:
    """Returns the value of one dimension, such as `node` or `label:team`, for each row; UNKNOWN for a missing one.

    Args:
        account: the account that pays, which is the value of the dimension `budget`.
        lists: for each row, the values of Dimensions' fields in their order; unknown values at the end may be missing.
    """
    if name == "budget":
        return [account] * len(lists)
    if name.startswith(LABEL):
        label, place = name.removeprefix(LABEL), Dimensions._fields.index("labels")
        return [(values[place].get(label) if len(values) > place else None) or UNKNOWN for values in lists]
    position = Dimensions._fields.index(name)
    try:
        return [values[position] or UNKNOWN for values in lists]
    except IndexError:  # unknown values at the end are left out
        return [(values[position] if len(values) > position else None) or UNKNOWN for values in lists]


def _encoded(values: Sequence[Any]) -> str:
    return orjson.dumps(values).decode()


UsageRow = tuple[int, int, int, int, int, int, int | None]
"""A row of use: first hour, number of hours, index of its dimensions, then billed, core, memory and used.

It is a plain tuple, since a million of them are read at a time.
"""


class UsageFigures(NamedTuple):
    """The billed, reserved and used amounts of some use, in microGPU-seconds.

    Attributes:
        billed: the money that was charged.
        core: the GPU time that was reserved.
        memory: the device memory that was reserved: the whole memory of one device counts as one GPU.
        used: the GPU time that reports state; None if nothing was reported.
    """

    billed: int = 0
    core: int = 0
    memory: int = 0
    used: int | None = None

    def plus(self, other: UsageFigures) -> UsageFigures:
        """Returns the sums of these amounts and those of `other`; `used` is None only if it is None in both."""
        used = self.used if other.used is None else other.used + (self.used or 0)
        return UsageFigures(self.billed + other.billed, self.core + other.core, self.memory + other.memory, used)


class Row(NamedTuple):
    """The use of consecutive hours with the same dimensions.

    Attributes:
        hour: the first hour, counted from 1970.
        hours: the number of hours.
        dimensions: the dimensions that the use is attributed to.
        figures: the amounts.
    """

    hour: int
    hours: int
    dimensions: Dimensions
    figures: UsageFigures


@dataclass(slots=True)
class Use:
    """Rows of use as they are read from the store: each row refers by an index to the dimensions that it has.

    Attributes:
        dimensions: the different dimensions: each entry is a list of the values of Dimensions' fields in their order,
            labels as a JSON object; unknown values at the end are left out.
        raw_rows: for each row its first hour (counted from 1970), the number of hours, the index of its dimensions, and
            its amounts in microGPU-seconds: billed, reserved GPU time, reserved memory, and used (None if unknown).
    """

    dimensions: list[Sequence[Any]] = field(default_factory=list)
    raw_rows: list[UsageRow] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """Returns the rows, each with its dimensions in place of their index."""
        places = [of_values(values) for values in self.dimensions]
        return [
            Row(hour, hours, places[place], UsageFigures(billed, core, memory, used))
            for hour, hours, place, billed, core, memory, used in self.raw_rows
        ]

    def of_pods(self) -> Use:
        """Returns the rows of pods alone: the rows that have more dimensions than the namespace.

        Corrections, and money restored from a checkpoint, name a namespace at most.
        """
        return Use(self.dimensions, [row for row in self.raw_rows if len(self.dimensions[row[2]]) > 1])

    def between(self, first: int, end: int) -> Use:
        """Returns the rows whose first hour is `first` or later and before `end`; hours count from 1970."""
        return Use(self.dimensions, [row for row in self.raw_rows if first <= row[0] < end])


Points = Mapping[int, int]
"""The nodes' capacity from each instant (nanoseconds since 1970) on, in microGPU-seconds a second."""


MOST_CHANGES_A_DAY = 2
"""The most changes of capacity that are kept for a day whose use is no longer stored by the hour."""


def own_capacity(node: Mapping[str, Any]) -> dict[str, Fraction]:
    """Returns the number of GPUs of a Node object that FairGPU's scheduler may give to pods, keyed by model.

    The sum is the node's `fairgpu.io/gpu-core` in GPUs, divided among the models of its inventory by their numbers of
    devices. Without a valid inventory that has devices, the model is an empty name. The result is empty for a node
    without that resource.
    """
    gpus = Fraction(_percent(node), 100)
    if not gpus:
        return {}
    try:
        devices = decode(str(mapping(mapping(node.get("metadata")).get("annotations")).get(names.INVENTORY))).devices
    except InventoryError:
        devices = ()
    if not devices:
        return {"": gpus}
    counts = Counter(device.model for device in devices)
    return {model: gpus * count / len(devices) for model, count in counts.items()}


def capacity_of(points: Points, windows: Sequence[Window], now: Instant) -> list[int]:
    """Returns the capacity of the nodes in each window, in microGPU-seconds; time after `now` counts as no capacity.

    Args:
        points: the nodes' capacity in microGPU-seconds a second, keyed by the instant (nanoseconds since 1970) from
            which it holds.
        windows: the windows, in order of time.
    """
    ordered = sorted(points.items())
    ends = [since for since, _ in ordered[1:]] + [now]
    sums, first = list[int](), 0
    for window in windows:
        limit = min(window.end, now)
        while first < len(ordered) and ends[first] <= window.start:
            first += 1
        total, place = 0, first
        while place < len(ordered) and ordered[place][0] < limit:
            since, rate = ordered[place]
            total += cost(rate, max(min(ends[place], limit) - max(since, window.start), 0))
            place += 1
        sums.append(total)
    return sums


@dataclass(frozen=True, slots=True)
class MeanOfDay:
    """A day of UTC whose changes of the capacity are replaced by their mean. Instants are nanoseconds since 1970.

    Attributes:
        since: the start of the time that the mean covers: the day's start, or the first instant with a known capacity.
        mean: the mean capacity of each model from `since` to `end`, in whole microGPU-seconds a second.
        replaced: the instants of the day after `since` at which the capacity changed; the mean replaces their records.
        end: the end of the day.
        last: the capacity of each model at the end of the day, in microGPU-seconds a second.
    """

    since: int
    mean: Mapping[str, int]
    replaced: Sequence[int]
    end: int
    last: Mapping[str, int]


def means_of_days(points: Mapping[int, Mapping[str, int]], before: Instant) -> list[MeanOfDay]:
    """Returns the mean capacity of each day that ended by `before` with more than MOST_CHANGES_A_DAY changes.

    Args:
        points: the capacity of each model in microGPU-seconds a second, keyed by the instant (nanoseconds since 1970)
            from which it holds.
    """
    ordered = sorted(points)
    found = []
    for day, instants in groupby(ordered, key=lambda instant: instant // DAY):
        start, end = day * DAY, (day + 1) * DAY
        inside = [instant for instant in instants if instant != start]
        if end > before or len(inside) <= MOST_CHANGES_A_DAY:
            continue
        place = bisect_left(ordered, inside[0])
        edges = [start, *inside] if place else inside
        rates = [points[instant] for instant in (*ordered[max(place - 1, 0) : place], *inside)]
        sums = Counter[str]()
        for rate, since, until in zip(rates, edges, [*edges[1:], end], strict=True):
            for model, value in rate.items():
                sums[model] += value * (until - since)
        whole = end - edges[0]
        mean = {model: (2 * total + whole) // (2 * whole) for model, total in sums.items()}
        found.append(MeanOfDay(edges[0], mean, edges[1:], end, rates[-1]))
    return found


def _percent(node: Mapping[str, Any]) -> int:
    status = node.get("status")
    capacity = status.get("capacity") if isinstance(status, dict) else None
    value = capacity.get(names.GPU_CORE) if isinstance(capacity, dict) else None
    try:
        return 0 if value is None else parse_count(value)
    except QuantityError:
        return 0


Place = tuple[int, Key]
"""The place of a group in an answer: the index of its time step, and its key. Groups are sorted by both."""
MOST_SUMS = 400_000
"""The most sums of one query, one for each time step and key; they take some 150 MB."""
Cells = dict[Key, list[Any]]
"""The sums of one time step: lists of billed, core, memory and used amounts, which are updated in place.

The keys are the values of the query's dimensions.
"""


class FoldedHoursError(ValueError):
    """The start or the end of a query's time step would divide hours that were folded into days.

    Attributes:
        start: the start of such folded hours, in nanoseconds since 1970.
        end: their end.
    """

    def __init__(self, start: int, end: int) -> None:
        super().__init__("folded hours cannot be divided")
        self.start = start
        self.end = end


class TooManySumsError(ValueError):
    """A usage query has more than MOST_SUMS sums: one for each time step and set of values."""


class Group(NamedTuple):
    """The use in one time step of a query, added up for one set of values of the query's dimensions.

    Attributes:
        step: the time step.
        key: the values of the dimensions by which the query groups, in the query's order.
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
        """Returns the index of the time step that holds consecutive hours; None if they lie outside the window.

        Args:
            hour: the first hour, counted from 1970.
            hours: the number of hours.

        Raises:
            FoldedHoursError: the start or the end of a step lies within the hours.
        """
        following = hour + hours
        if following <= self._first or hour >= self._end:
            return None
        index = bisect_right(self._starts, hour) - 1
        if index < 0 or following * HOUR > self.windows[index].end:
            raise FoldedHoursError(hour * HOUR, following * HOUR)
        return index


class _CellsOfHours(dict[tuple[int, int], Cells | None]):
    """A cache keyed by (first hour, number of hours): the sums of the time step that holds these hours.

    The value is None for hours outside the query's window.
    """

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

    After an error of a method, the sums are incomplete.

    Attributes:
        steps: the time steps, each a window.
        aggregate: the dimensions by which the query groups.
        cells: one dictionary for each step. Its keys are values of these dimensions; its values are lists of the money
            billed, the GPU time reserved, the GPU memory reserved (a whole GPU's counts as one GPU) and the GPU time
            used (None if nothing was reported), all in microGPU-seconds.
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
            FoldedHoursError: the start or the end of a time step lies within the hours of a row.
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
            hours: the number of hours.
            sums: lists of the billed, core, memory and used amounts in microGPU-seconds, keyed by the values of the
                query's dimensions.

        Raises:
            FoldedHoursError: the start or the end of a time step lies within the hours.
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
        """Makes these keys appear in the answer even without use: the first time step gets sums of 0 for a missing key.

        Args:
            keys: each key holds values of the dimensions by which the query groups, in the query's order.

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
        """Adds the idle capacity of each time step: the part of the capacity that pods did not hold.

        GPU time and memory have an idle amount each. The idle amount is 0 if pods held more than the known capacity.

        Args:
            capacity: the capacity of each step, in microGPU-seconds; a step with 0 gets no idle capacity.
            held: the sums of all use in the same steps.
        """
        for cells, whole, all_held in zip(self.cells, capacity, held.cells, strict=True):
            if whole > 0:
                core = sum(cell[1] for cell in all_held.values())
                memory = sum(cell[2] for cell in all_held.values())
                cells[(IDLE,) * len(self.aggregate)] = [0, max(whole - core, 0), max(whole - memory, 0), None]

    def add_idle_of_models(self, capacity: Mapping[str, Sequence[int]], held: UsageSums) -> None:
        """Adds the idle capacity of each model in each time step; the group's `model` is IDLE, a space and the model.

        The group's other dimensions are IDLE. For an unknown model, `*` stands in place of the model. A model without
        capacity in a step gets none. The idle capacity is 0 for a model of which pods held more than the known
        capacity. Use of several models at once counts in equal parts for each.

        Args:
            capacity: the capacity of each step in microGPU-seconds, keyed by model; an empty name is an unknown model.
            held: the sums of all use in the same steps, grouped by model alone.
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
        """Returns the number of groups of the answer that come after a place.

        Args:
            after: the place of a group: the index of its time step, and its values of the query's dimensions; None to
                count all groups.
        """
        first = 0 if after is None else after[0]
        return len(self._keys_after(after)) + sum(map(len, self.cells[first + 1 :]))

    def page(self, after: Place | None, limit: int) -> tuple[list[Group], Place | None]:
        """Returns one page of the answer, and the place after which the next page begins; None after the last page.

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
        """Returns the keys in one time step that come after a key in the answer's order; the result is not sorted.

        Args:
            after: the index of the time step, and the key; None for all keys of the first step.
        """
        if after is None:
            return list(self.cells[0])
        index, edge = after[0], key_order(after[1])
        return [key for key in self.cells[index] if key_order(key) > edge] if index < len(self.cells) else []


def _divided_by_model(cells: Cells) -> dict[str, tuple[int, int]]:
    """Returns the GPU time and the GPU memory that pods reserved in a time step, in microGPU-seconds, keyed by model.

    Use of several models counts in equal parts for each; an empty name is an unknown model.

    Args:
        cells: the sums of one time step (see `UsageSums`), grouped by model alone.
    """
    used: dict[str, tuple[int, int]] = {}
    for (text,), (_, core, memory, _) in cells.items():
        models = [""] if text == UNKNOWN else text.split(",")
        for model in models:
            before = used.get(model, (0, 0))
            used[model] = before[0] + core // len(models), before[1] + memory // len(models)
    return used


def order(value: str) -> tuple[bool, str]:
    """Returns the sort key of a dimension's value; values with two leading underscores, such as UNKNOWN, come last."""
    return value.startswith("__"), value


def key_order(key: Key) -> tuple[tuple[bool, str], ...]:
    """Returns the sort key of a group within its time step, from the values of the query's dimensions."""
    return tuple([order(value) for value in key])
