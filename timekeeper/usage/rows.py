"""Use in a stretch of hours, and how it adds up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from timekeeper.usage.dimensions import Dimensions, of_values

Stretch = tuple[int, int, int, int, int, int, int | None]
"""A row as it is read, a million at a time: hour, hours, which of the dimensions, and the figures."""


class Figures(NamedTuple):
    """What was billed, reserved and used, in microGPU-seconds; `used` is None where nothing was reported."""

    billed: int = 0
    core: int = 0
    memory: int = 0
    used: int | None = None

    def plus(self, other: Figures) -> Figures:
        """Both together."""
        used = self.used if other.used is None else other.used + (self.used or 0)
        return Figures(self.billed + other.billed, self.core + other.core, self.memory + other.memory, used)


class Row(NamedTuple):
    """What some hours from one on (counted from 1970) held, put down to the same dimensions."""

    hour: int
    hours: int
    dimensions: Dimensions
    figures: Figures


@dataclass(slots=True)
class Use:
    """Rows as they are read: dimensions as lists of values, and stretches that name them by their places."""

    dimensions: list[list[Any]] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """The same in words."""
        known = [of_values(values) for values in self.dimensions]
        return [
            Row(hour, hours, known[place], Figures(billed, core, memory, used))
            for hour, hours, place, billed, core, memory, used in self.stretches
        ]

    def between(self, first: int, end: int) -> Use:
        """What begins in the hours from `first` up to `end`."""
        return Use(self.dimensions, [stretch for stretch in self.stretches if first <= stretch[0] < end])
