"""Folds hours that are long past into days, and packs a month of them into one value.

A day that a billing period ends in is folded on either side of that end, so that what lies in a period can still be
told from what lies beside it.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from timekeeper.rules.timestamps import DAY, HOUR, to_datetime
from timekeeper.usage.dimensions import Dimensions, encode_dimensions, read_dimensions
from timekeeper.usage.rows import Figures, Row
from timekeeper.usage.windows import Window

HOURS_OF_A_DAY = DAY // HOUR
MAX_MONTHS = 120
"""A longer window is read whole."""


def month_of(hour: int) -> str:
    """The month of an hour that counts from 1970, in UTC, such as 2026-11."""
    return to_datetime(hour * HOUR).strftime("%Y-%m")


def months_of(window: Window) -> list[str]:
    """The months that a window touches; none where these are too many to name."""
    if window.end - window.start > MAX_MONTHS * 31 * DAY:
        return []
    found = {month_of(hour) for hour in range(window.start // HOUR, window.end // HOUR, HOURS_OF_A_DAY)}
    return sorted({*found, month_of(window.end // HOUR - 1)})


def fold(rows: Iterable[Row], edges: Sequence[int]) -> list[Row]:
    """The rows as days, those of the same day and dimensions added up.

    Args:
        rows: hours, or days that were folded before.
        edges: where periods begin (nanoseconds since 1970), in order; what lies on either side stays apart.
    """
    hours = [edge // HOUR for edge in edges]
    sums: dict[tuple[int, int, Dimensions], Figures] = {}
    for row in rows:
        start, end = _stretch(row.hour, hours)
        place = (min(start, row.hour), max(end, row.hour + row.hours), row.dimensions)
        known = sums.get(place)
        sums[place] = row.figures if known is None else known.plus(row.figures)
    return [Row(start, end - start, to, figures) for (start, end, to), figures in sorted(sums.items())]


def pack(rows: Iterable[Row]) -> bytes:
    """Rows as they are stored."""
    texts: dict[str, int] = {}
    packed = [
        [row.hour, row.hours, texts.setdefault(encode_dimensions(row.dimensions), len(texts)), *row.figures]
        for row in rows
    ]
    return zlib.compress(json.dumps({"d": list(texts), "r": packed}, separators=(",", ":")).encode())


def unfold(blob: bytes, first: int = 0, end: int = 1 << 62) -> list[Row]:
    """The rows that were packed and touch the hours from `first` up to `end`."""
    document = json.loads(zlib.decompress(blob).decode())
    texts = document["d"]
    return [
        Row(hour, hours, read_dimensions(texts[index]), Figures(billed, core, memory, used))
        for hour, hours, index, billed, core, memory, used in document["r"]
        if hour < end and hour + hours > first
    ]


def _stretch(hour: int, edges: Sequence[int]) -> tuple[int, int]:
    """The part of an hour's day that no edge cuts."""
    start = hour // HOURS_OF_A_DAY * HOURS_OF_A_DAY
    end = start + HOURS_OF_A_DAY
    index = bisect_right(edges, hour)
    if index and edges[index - 1] > start:
        start = edges[index - 1]
    if index < len(edges) and edges[index] < end:
        end = edges[index]
    return start, end
