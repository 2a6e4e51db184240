"""Use in a stretch of hours, and how it adds up."""

from __future__ import annotations

from typing import NamedTuple

from timekeeper.usage.dimensions import Dimensions


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
