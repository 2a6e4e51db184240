"""Remembers what days long closed came to, so that a question over all accounts need not add a million rows up again.

Accounts are divided into parts. Of a part, the sums by day are remembered under what was asked to aggregate by, with
the `past` of each of its accounts: as soon as one of these is another, the part is added up anew. Days that close, and
accounts that come, are added to it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from timekeeper.rules.timestamps import DAY, HOUR
from timekeeper.usage.folding import HOURS_OF_A_DAY
from timekeeper.usage.grouping import Cells, Sums
from timekeeper.usage.windows import Window

PARTS = 8
MOST_CELLS = 150_000
"""Sums of a day and a key, and pasts of accounts, that are remembered in all: some 50 MB."""
OPEN_HOURS = 48
"""Hours before now that are not closed. What changes hours more than a day old changes the account's `past`; the other
day is for clocks that differ."""
LAGGING_DAYS = 3
"""Days that may have closed since a part was remembered; with more, it is added up anew."""

PartKey = tuple[int, tuple[str, ...]]
"""Which part, and what was asked to aggregate by."""


@dataclass(frozen=True, slots=True)
class Part:
    """What the accounts of a part came to on some days.

    Attributes:
        first: the first hour, counted from 1970: that of a day.
        end: the first hour after.
        past: of each account.
        days: the sums of each of these days.
    """

    first: int
    end: int
    past: Mapping[str, bytes]
    days: Sequence[Cells]

    @property
    def cells(self) -> int:
        """How much it holds."""
        return len(self.past) + sum(map(len, self.days))

    def answers(self, first: int, closed: int) -> bool:
        """Whether it holds the days from one on, but for a few that closed lately."""
        return self.first <= first < self.end and closed - self.end <= LAGGING_DAYS * HOURS_OF_A_DAY

    def add_to(self, sums: Sums, first: int, end: int) -> None:
        """Adds those of its days that lie in these hours."""
        for number, cells in enumerate(self.days):
            hour = self.first + number * HOURS_OF_A_DAY
            if first <= hour < end:
                sums.add_sums(hour, HOURS_OF_A_DAY, cells)


class ClosedDays:
    """The parts that were asked for last, as far as there is room; safe to use from several threads."""

    def __init__(self, most_cells: int = MOST_CELLS) -> None:
        self._most_cells = most_cells
        self._parts: OrderedDict[PartKey, Part] = OrderedDict()
        self._cells = 0
        self._lock = threading.Lock()

    def find(self, key: PartKey) -> Part | None:
        """A part, if it is remembered."""
        with self._lock:
            if key in self._parts:
                self._parts.move_to_end(key)
            return self._parts.get(key)

    def remember(self, key: PartKey, part: Part) -> None:
        """Remembers a part and forgets those that nobody asked for the longest; one that would fill it all is not."""
        if part.cells > self._most_cells // PARTS:
            return
        with self._lock:
            old = self._parts.pop(key, None)
            self._cells -= old.cells if old is not None else 0
            self._parts[key] = part
            self._cells += part.cells
            while self._cells > self._most_cells:
                _, forgotten = self._parts.popitem(last=False)
                self._cells -= forgotten.cells


def divided(accounts: Iterable[str]) -> dict[int, list[str]]:
    """The accounts of each part; an account is always of the same."""
    parts: dict[int, list[str]] = {}
    for name in accounts:
        parts.setdefault(crc32(name.encode()) % PARTS, []).append(name)
    return parts


def closed_before(now: int) -> int:
    """The hour, that of a day, before which all days are closed."""
    return (now - OPEN_HOURS * HOUR) // DAY * HOURS_OF_A_DAY


def whole_days(first: int, end: int) -> list[Window]:
    """The days between two hours at which days begin."""
    return [Window(hour * HOUR, (hour + HOURS_OF_A_DAY) * HOUR) for hour in range(first, end, HOURS_OF_A_DAY)]
