"""Usage by its dimensions: their encoding in the store, the keys of queries, and the capacity of nodes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from typing import Any, NamedTuple

import orjson

from fairgpu import names
from fairgpu.inventory import InventoryError, decode
from fairgpu.json_values import mapping
from fairgpu.quantity import QuantityError, parse_count
from timekeeper.domain.attribution import Attribution
from timekeeper.domain.charges import cost
from timekeeper.domain.timestamps import DAY
from timekeeper.domain.windows import Window

UNKNOWN = "__unallocated__"
"""Stands for an unknown value, as in OpenCost."""
IDLE = "__idle__"
"""Stands for capacity that no pod reserved, as in OpenCost."""
PLAIN = ("namespace", "budget", "model", "node", "owner", "user")
LABEL = "label:"
UNATTRIBUTED = '[""]'
"""The dimensions of a restored checkpoint: its attribution is lost."""
Key = tuple[str, ...]
"""The values of some dimensions, in the order of the query."""
_ABSENT: tuple[Any, ...] = ("", "", "", "", {})


class Dimensions(NamedTuple):
    """The dimensions that an hour's use is attributed to; labels are (key, value) pairs; an empty value is unknown."""

    namespace: str
    node: str = ""
    model: str = ""
    owner: str = ""
    user: str = ""
    labels: tuple[tuple[str, str], ...] = ()


def dimensions(namespace: str, node: str, attribution: Attribution | None) -> str:
    """Returns the dimensions of an hour's use as the JSON text that the store holds.

    Args:
        node: the pod's node; empty where it is not known.
        attribution: the owner, user, labels and models of the pod; None where they are not known.
    """
    return _encoded(dimension_values(namespace, node, attribution))


def dimension_values(namespace: str, node: str, attribution: Attribution | None) -> list[Any]:
    """Returns the dimensions of an hour's use as the list whose JSON the store holds.

    Args:
        node: the pod's node; empty where it is not known.
        attribution: the owner, user, labels and models of the pod; None where they are not known.
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
    """Converts a list that `values_of` made back to dimensions; values that later versions add are ignored."""
    namespace, node, model, owner, user, labels = [*values, *_ABSENT[len(values) - 1 :]][:6]
    return Dimensions(namespace, node, model, owner, user, tuple(sorted(labels.items())))


def asks_for_details(names: Iterable[str]) -> bool:
    """Returns whether a query groups by a dimension of detailed rows alone: any but namespace, budget and model."""
    return not {*names} <= {"namespace", "budget", "model"}


def asks_for_sums(names: Iterable[str]) -> bool:
    """Returns whether stored sums over many hours answer a query: it groups by namespace, budget, model or user alone.

    Args:
        names: the dimensions by which the query groups.
    """
    return {*names} <= {"namespace", "budget", "model", "user"}


def keys_of(
    names: Sequence[str], account: str, lists: Sequence[Sequence[Any]], namespaces: frozenset[str] | None = None
) -> list[Key | None]:
    """Returns, for each list of dimensions, its values of those by which a query groups; None for one to leave out.

    Args:
        names: the dimensions by which the query groups: names from PLAIN, or a label's key after `label:`.
        account: the account that pays, which is the value of the dimension `budget`.
        lists: the lists, as `values_of` makes them.
        namespaces: the only namespaces that are not left out; None for all.
    """
    columns = [_column(name, account, lists) for name in names]
    keys: list[Key | None] = [*zip(*columns, strict=True)] if columns else [()] * len(lists)
    if namespaces is None:
        return keys
    return [key if (values[0] or UNKNOWN) in namespaces else None for key, values in zip(keys, lists, strict=True)]


def _column(name: str, account: str, lists: Sequence[Sequence[Any]]) -> list[str]:
    """Returns the values of one dimension."""
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
"""A row as a plain tuple, of which a million are read at a time: hour, hours, index of its dimensions, figures."""


class UsageFigures(NamedTuple):
    """The billed, reserved and used amounts of some use, in microGPU-seconds.

    Attributes:
        billed: the money.
        core: the GPU time that was reserved.
        memory: the device memory that was reserved: the whole memory of one device counts as one GPU.
        used: the GPU time that reports state; None where nothing was reported.
    """

    billed: int = 0
    core: int = 0
    memory: int = 0
    used: int | None = None

    def plus(self, other: UsageFigures) -> UsageFigures:
        """Returns the sum of these amounts and others; `used` is None only where it is None in both."""
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
    """Rows of use as they are read from the store: a list of dimensions, and tuples that refer to them by index.

    Attributes:
        dimensions: each entry is a list of values, as `values_of` makes it.
        raw_rows: for each row its first hour (counted from 1970), the number of hours, the index of its dimensions, and
            its billed, reserved and used amounts in microGPU-seconds.
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
        """Returns the rows of pods alone: those that have further dimensions than the namespace.

        Corrections, and money restored from a checkpoint, name a namespace at most.
        """
        return Use(self.dimensions, [row for row in self.raw_rows if len(self.dimensions[row[2]]) > 1])

    def between(self, first: int, end: int) -> Use:
        """Returns the rows whose first hour is `first` or later and before `end`; hours count from 1970."""
        return Use(self.dimensions, [row for row in self.raw_rows if first <= row[0] < end])


Points = Mapping[int, int]
"""The nodes' capacity from each instant (nanoseconds since 1970) on, in microGPU-seconds a second."""


MOST_CHANGES_A_DAY = 2
"""The most changes of the capacity that are kept of a day of which answers have days at the finest."""


def own_capacity(node: Mapping[str, Any]) -> dict[str, Fraction]:
    """Returns the number of GPUs of a Node object that FairGPU's scheduler may give to pods, by model.

    The sum is the node's `fairgpu.io/gpu-core` in GPUs, divided by the models of its inventory. Without an inventory
    the model is an empty name.
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


def capacity_of(points: Points, windows: Sequence[Window], now: int) -> list[int]:
    """Returns the capacity of the nodes in each window, in microGPU-seconds, for the time that has passed and is known.

    Args:
        points: the nodes' capacity in microGPU-seconds a second, by the instant (nanoseconds since 1970) from which it
            holds.
        windows: windows that follow each other.
        now: nanoseconds since 1970.
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
        since: the start of what the mean covers: the day's start, or the first instant at which the capacity is known.
        mean: the mean capacity by model from `since` to `end`, in microGPU-seconds a second, rounded to the nearest.
        replaced: the later instants of the day at which the capacity changed.
        end: the end of the day.
        last: the capacity by model at the end of the day, in microGPU-seconds a second.
    """

    since: int
    mean: Mapping[str, int]
    replaced: Sequence[int]
    end: int
    last: Mapping[str, int]


def means_of_days(points: Mapping[int, Mapping[str, int]], before: int) -> list[MeanOfDay]:
    """Returns the days that ended by `before` and in which the capacity changed more than MOST_CHANGES_A_DAY times.

    Args:
        points: the capacity by model in microGPU-seconds a second, by the instant (nanoseconds since 1970) from which
            it holds.
        before: nanoseconds since 1970.
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
