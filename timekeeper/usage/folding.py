"""Folds hours that are long past into days, and packs many rows into one value.

A day that a billing period ends in is folded on either side of that end, so that what lies in a period can still be
told from what lies beside it.
"""

from __future__ import annotations

import json
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import orjson

from timekeeper.rules.timestamps import DAY, HOUR, to_datetime
from timekeeper.usage.dimensions import Dimensions, values_of
from timekeeper.usage.rows import Figures, Row, Use

HOURS_OF_A_DAY = DAY // HOUR
FOREVER = 1 << 62
VERSION = 1
_HEAD = struct.Struct(">B?I")


class FoldedError(ValueError):
    """What stands in the store is no folded use, or that of a later timekeeper."""


def month_of(hour: int) -> str:
    """The month of an hour that counts from 1970, in UTC, such as 2026-11."""
    return to_datetime(hour * HOUR).strftime("%Y-%m")


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


def added_up(rows: Iterable[Row]) -> list[Row]:
    """The rows, those of the same hours and dimensions added up."""
    sums: dict[tuple[int, int, Dimensions], Figures] = {}
    for row in rows:
        place = (row.hour, row.hours, row.dimensions)
        known = sums.get(place)
        sums[place] = row.figures if known is None else known.plus(row.figures)
    return [Row(*place, figures) for place, figures in sorted(sums.items(), key=lambda item: item[0])]


def pack(rows: Iterable[Row]) -> bytes:
    """Rows as they are stored: with nodes, owners, users and labels, and without, for whoever asks for none.

    A version, whether a figure takes more than 64 bits, and the length of the part without come first.
    """
    ordered = list(rows)
    largest = max((abs(figure or 0) for row in ordered for figure in row.figures), default=0)
    plain = zlib.compress(_document(_without_details(ordered)))
    head = _HEAD.pack(VERSION, largest >= 1 << 63, len(plain))
    return head + plain + zlib.compress(_document(ordered))


def read_folded(blob: bytes, to: Use, first: int = 0, end: int = FOREVER, *, details: bool = True) -> None:
    """Adds what was packed and touches the hours from `first` up to `end`.

    Args:
        blob: as `pack` made it.
        to: what it is added to.
        first: counts from 1970, as does `end`.
        end: the first hour after.
        details: whether nodes, owners, users or labels are asked for.

    Raises:
        FoldedError: it is none, or a later timekeeper wrote it.
    """
    version, wide, length = _HEAD.unpack_from(blob) if len(blob) >= _HEAD.size else (0, False, 0)
    if version != VERSION:
        raise FoldedError(f"use folded in version {version}: this timekeeper reads version {VERSION}")
    packed = blob[_HEAD.size + length :] if details else blob[_HEAD.size : _HEAD.size + length]
    # orjson makes floats of what takes more than 64 bits.
    document = (json.loads if wide else orjson.loads)(zlib.decompress(packed))
    offset = len(to.dimensions)
    to.dimensions += document["d"]
    hour_column, *columns = document["r"] or ([],)
    # Rows stand in the order of their hours, and none is longer than a day.
    low, high = bisect_right(hour_column, first - HOURS_OF_A_DAY), bisect_left(hour_column, end)
    hour_column, *columns = (column[low:high] for column in (hour_column, *columns))
    to.stretches += [
        (hour, hours, place + offset, billed, core, memory, used)
        for hour, hours, place, billed, core, memory, used in zip(hour_column, *columns, strict=True)
        if hour + hours > first
    ]


def unfold(blob: bytes) -> list[Row]:
    """All rows that were packed.

    Raises:
        FoldedError: as above.
    """
    found = Use()
    read_folded(blob, found)
    return found.rows()


def _document(rows: Iterable[Row]) -> bytes:
    places: dict[Dimensions, int] = {}
    stretches = [
        (row.hour, row.hours, places.setdefault(row.dimensions, len(places)), *row.figures)
        for row in sorted(rows, key=lambda row: row.hour)
    ]
    document = {"d": [values_of(found) for found in places], "r": list(zip(*stretches, strict=True))}
    return json.dumps(document, separators=(",", ":")).encode()


def _without_details(rows: Iterable[Row]) -> list[Row]:
    sums: dict[tuple[int, int, Dimensions], Figures] = {}
    for row in rows:
        place = (row.hour, row.hours, Dimensions(row.dimensions.namespace, model=row.dimensions.model))
        known = sums.get(place)
        sums[place] = row.figures if known is None else known.plus(row.figures)
    return [Row(*place, figures) for place, figures in sums.items()]


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
