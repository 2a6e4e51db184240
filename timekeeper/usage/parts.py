"""Names of packed use: each value in the store holds the rows of a stretch of hours."""

from __future__ import annotations

import re
from typing import NamedTuple

from timekeeper.usage.folding import month_of

_NAME = re.compile(rb"([hd]) (\d+) (\d+)")


class PackedPart(NamedTuple):
    """A packed value and the hours that its rows lie in.

    Attributes:
        hourly: whether its rows are hours; days otherwise.
        first: the first hour, counted from 1970.
        end: the hour after the last one.
    """

    hourly: bool
    first: int
    end: int

    @property
    def name(self) -> str:
        """Its name in the store."""
        return f"{'h' if self.hourly else 'd'} {self.first} {self.end}"

    @property
    def month(self) -> str:
        """The month that it begins in; days of two months never share a part."""
        return month_of(self.first)


def parse_part(name: bytes) -> PackedPart | None:
    """The part of that name; None where an earlier format named it."""
    match = _NAME.fullmatch(name)
    return PackedPart(match[1] == b"h", int(match[2]), int(match[3])) if match else None
