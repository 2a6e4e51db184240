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
from typing import NamedTuple

import orjson

from timekeeper.rules.timestamps import DAY, HOUR, to_datetime
from timekeeper.usage.dimensions import Dimensions, values_of
from timekeeper.usage.rows import Figures, Row, Use

HOURS_OF_A_DAY = DAY // HOUR
FOREVER = 1 << 62
VERSION = 2
FEWER = 2
"""Sums are kept where they are so many times fewer than the rows that they are of."""
_HEAD = struct.Struct(">B?II")
_HEAD_1 = struct.Struct(">B?I")
"""Of version 1, which has no sums."""


class _Sections(NamedTuple):
    """A packed value taken apart; each section is compressed, and sums may be empty."""

    wide: bool
    plain: bytes
    sums: bytes
    detailed: bytes


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
    """Rows as they are stored, for three kinds of questions.

    With nodes, owners, users and labels; without; and, where these are few, the sums over all hours by namespace, model
    and user. A version, whether a figure takes more than 64 bits, and the lengths of the latter two come first.
    """
    ordered = list(rows)
    plain, sums = _without_details(ordered), _over_all_hours(ordered)
    kept = sums if FEWER * len(sums) <= len(ordered) else []
    largest = max((abs(figure or 0) for row in (*ordered, *plain, *kept) for figure in row.figures), default=0)
    sections = [zlib.compress(_document(found)) if found else b"" for found in (plain, kept)]
    head = _HEAD.pack(VERSION, largest >= 1 << 63, *map(len, sections))
    return head + b"".join(sections) + zlib.compress(_document(ordered))


def read_folded(
    blob: bytes, to: Use, first: int = 0, end: int = FOREVER, *, details: bool = True, sums: bool = False
) -> None:
    """Adds what was packed and touches the hours from `first` up to `end`.

    Args:
        blob: as `pack` made it.
        to: what it is added to.
        first: counts from 1970, as does `end`.
        end: the first hour after.
        details: whether nodes, owners, users or labels are asked for.
        sums: whether one sum of all these hours will do, by namespace, model and user at most.

    Raises:
        FoldedError: it is none, or a later timekeeper wrote it.
    """
    sections = _sections(blob)
    if sums and sections.sums and _read(sections.sums, sections, to, first, end, whole=True):
        return
    _read(sections.detailed if details else sections.plain, sections, to, first, end)


def _sections(blob: bytes) -> _Sections:
    version = blob[0] if blob else 0
    head = {1: _HEAD_1, VERSION: _HEAD}.get(version)
    if head is None or len(blob) < head.size:
        raise FoldedError(f"use folded in version {version}: this timekeeper reads versions up to {VERSION}")
    _, wide, *lengths = head.unpack_from(blob)
    plain_end = head.size + lengths[0]
    sums_end = plain_end + sum(lengths[1:])
    return _Sections(wide, blob[head.size : plain_end], blob[plain_end:sums_end], blob[sums_end:])


def _read(packed: bytes, sections: _Sections, to: Use, first: int, end: int, *, whole: bool = False) -> bool:
    """Adds a section's rows that touch some hours; `whole` adds all of them or, if any lies outside, none.

    Returns:
        Whether it was done.
    """
    if not packed:
        return True
    # orjson makes floats of what takes more than 64 bits.
    document = (json.loads if sections.wide else orjson.loads)(zlib.decompress(packed))
    if whole and document["r"]:
        hours, lengths, *_ = document["r"]
        if hours[0] < first or hours[0] + lengths[0] > end:
            return False
    offset = len(to.dimensions)
    to.dimensions += document["d"]
    hour_column, *columns = document["r"] or ([],)
    # Rows stand in the order of their hours, and none is longer than a day.
    if not whole:
        low, high = bisect_right(hour_column, first - HOURS_OF_A_DAY), bisect_left(hour_column, end)
        hour_column, *columns = (column[low:high] for column in (hour_column, *columns))
    to.stretches += [
        (hour, hours, place + offset, billed, core, memory, used)
        for hour, hours, place, billed, core, memory, used in zip(hour_column, *columns, strict=True)
        if hour + hours > first
    ]
    return True


def totals_of(blob: bytes) -> list[Figures]:
    """What each section adds up to; all must be the same, for they are of the same rows.

    Raises:
        FoldedError: as above.
    """
    sections = _sections(blob)
    totals = []
    for packed in (sections.detailed, sections.plain, sections.sums):
        found = Use()
        _read(packed, sections, found, 0, FOREVER, whole=True)
        total = Figures()
        for row in found.rows():
            total = total.plus(row.figures)
        if packed:
            totals.append(total)
    return totals


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


def _over_all_hours(rows: Sequence[Row]) -> list[Row]:
    """Sums of rows by namespace, model and user, each over the hours of all of them."""
    first = min((row.hour for row in rows), default=0)
    hours = max((row.hour + row.hours for row in rows), default=0) - first
    sums: dict[Dimensions, Figures] = {}
    for row in rows:
        found = row.dimensions
        place = Dimensions(found.namespace, model=found.model, user=found.user)
        known = sums.get(place)
        sums[place] = row.figures if known is None else known.plus(row.figures)
    return [Row(first, hours, place, figures) for place, figures in sums.items()]


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
