"""Folds hours that are long past into days, and packs many rows into one value.

A day in which a period begins or ends is folded separately before and after that instant, so that each period keeps its
own use.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson

from timekeeper.domain.timestamps import DAY, HOUR, Instant, to_datetime
from timekeeper.domain.usage import Dimensions, Row, UsageFigures, Use, values_of

HOURS_OF_A_DAY = DAY // HOUR
FOREVER = 1 << 62
VERSION = 2
FEWER = 2
"""A packed value holds sums over all hours only if it has at least this many rows for each of these sums."""
_HEAD = struct.Struct(">B?II")
_HEAD_1 = struct.Struct(">B?I")
"""The head of version 1, which has no sums."""


class _Sections(NamedTuple):
    """The three parts of a packed value, each compressed: rows without details, sums over all hours, detailed rows.

    The sums are empty if the value has none. `wide` says whether an amount takes more than 64 bits.
    """

    wide: bool
    plain: bytes
    sums: bytes
    detailed: bytes


class FoldedError(ValueError):
    """A stored value cannot be read as packed rows of use: it is damaged, or a later timekeeper wrote it."""


def month_of(hour: int) -> str:
    """Returns the month of an hour in UTC, such as 2026-11; the hour counts from 1970."""
    return to_datetime(hour * HOUR).strftime("%Y-%m")


def edges_of(periods: Iterable[tuple[Instant, Instant]]) -> list[Instant]:
    """Returns the starts and the ends of periods, in order, each instant once; folding keeps use apart at these.

    An end is an edge even if no period follows: a deleted budget has a last period.

    Args:
        periods: pairs of a period's start and end.
    """
    return sorted({edge for period in periods for edge in period})


def fold(rows: Iterable[Row], edges: Sequence[int]) -> list[Row]:
    """Folds rows of use into days: rows of the same day and dimensions are added up. Returns them sorted by time.

    Args:
        rows: rows of single hours, or of days that were folded before.
        edges: the starts and ends of periods (nanoseconds since 1970), in order; use before and after an edge stays
            separate.
    """
    hours = [edge // HOUR for edge in edges]
    sums: dict[tuple[int, int, Dimensions], UsageFigures] = {}
    for row in rows:
        start, end = _day_between_edges(row.hour, hours)
        place = (min(start, row.hour), max(end, row.hour + row.hours), row.dimensions)
        total = sums.get(place)
        sums[place] = row.figures if total is None else total.plus(row.figures)
    return [Row(start, end - start, to, figures) for (start, end, to), figures in sorted(sums.items())]


def added_up(rows: Iterable[Row]) -> list[Row]:
    """Returns rows of use with the rows of the same hours and dimensions added up to one, sorted."""
    sums: dict[tuple[int, int, Dimensions], UsageFigures] = {}
    for row in rows:
        place = (row.hour, row.hours, row.dimensions)
        total = sums.get(place)
        sums[place] = row.figures if total is None else total.plus(row.figures)
    return [Row(*place, figures) for place, figures in sorted(sums.items(), key=lambda item: item[0])]


def pack(rows: Iterable[Row]) -> bytes:
    """Packs rows of use, in any order, into the compressed value that the store holds.

    The value has three parts, for three kinds of queries: the rows without nodes, owners, users and labels; the sums
    over all hours by namespace, model and user, if these are few (see FEWER); and the rows with all dimensions. The
    value begins with the version, whether an amount takes more than 64 bits, and the lengths of the first two parts.
    """
    ordered = list(rows)
    plain, sums = _without_details(ordered), _over_all_hours(ordered)
    kept = sums if FEWER * len(sums) <= len(ordered) else []
    largest = max((abs(figure or 0) for row in (*ordered, *plain, *kept) for figure in row.figures), default=0)
    sections = [zlib.compress(_document(rows_of)) if rows_of else b"" for rows_of in (plain, kept)]
    head = _HEAD.pack(VERSION, largest >= 1 << 63, *map(len, sections))
    return head + b"".join(sections) + zlib.compress(_document(ordered))


def read_folded(
    blob: bytes, to: Use, first: int = 0, end: int = FOREVER, *, details: bool = True, sums: bool = False
) -> None:
    """Adds to `to` the rows of a packed value whose hours overlap those from `first` up to `end`.

    Args:
        blob: a value that `pack` made.
        to: rows of use read so far; changed in place.
        first: the first hour, counted from 1970.
        end: the hour after the last one.
        details: whether the query needs nodes, owners, users or labels; if not, the added rows lack them.
        sums: whether the query needs only sums over all these hours by namespace, model and user. The sums are then
            added in place of the rows, if the value holds sums and all its hours lie in the range.

    Raises:
        FoldedError: the value is not a packed one, or a later timekeeper wrote it.
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
    """Adds rows of one part of a packed value to `to`: the rows that overlap the hours from `first` up to `end`.

    `packed` is the part, one of `sections`. If `whole` is set, all rows are added, or none if the first row is not
    wholly within these hours.

    Returns:
        False if `whole` kept rows from being added; else True.

    Raises:
        FoldedError: the part is damaged.
    """
    if not packed:
        return True
    try:
        # orjson parses integers of more than 64 bits as floats.
        document = (json.loads if sections.wide else orjson.loads)(zlib.decompress(packed))
        return _add_rows(document, to, first, end, whole=whole)
    except (zlib.error, ValueError, LookupError, TypeError) as error:
        raise FoldedError(f"packed use is damaged: {error}") from error


def _add_rows(document: Any, to: Use, first: int, end: int, *, whole: bool) -> bool:
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
    to.raw_rows += [
        (hour, hours, place + offset, billed, core, memory, used)
        for hour, hours, place, billed, core, memory, used in zip(hour_column, *columns, strict=True)
        if hour + hours > first
    ]
    return True


def totals_of(blob: bytes) -> list[UsageFigures]:
    """Returns the total of the rows in each part of a packed value, for a check: the totals must be equal.

    The parts are those that `pack` describes. They hold the same use in different detail. An empty part has no total.

    Args:
        blob: a value that `pack` made.

    Raises:
        FoldedError: the value is not a packed one, or a later timekeeper wrote it.
    """
    sections = _sections(blob)
    totals = []
    for packed in (sections.detailed, sections.plain, sections.sums):
        use = Use()
        _read(packed, sections, use, 0, FOREVER, whole=True)
        total = UsageFigures()
        for row in _rows_of(use):
            total = total.plus(row.figures)
        if packed:
            totals.append(total)
    return totals


def unfold(blob: bytes) -> list[Row]:
    """Returns all rows of a packed value, with all dimensions.

    Args:
        blob: a value that `pack` made.

    Raises:
        FoldedError: the value is not a packed one, or a later timekeeper wrote it.
    """
    use = Use()
    read_folded(blob, use)
    return _rows_of(use)


def _rows_of(use: Use) -> list[Row]:
    try:
        return use.rows()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FoldedError(f"packed use is damaged: {error}") from error


def _document(rows: Iterable[Row]) -> bytes:
    places: dict[Dimensions, int] = {}
    rows_by_hour = [
        (row.hour, row.hours, places.setdefault(row.dimensions, len(places)), *row.figures)
        for row in sorted(rows, key=lambda row: row.hour)
    ]
    document = {"d": [values_of(place) for place in places], "r": list(zip(*rows_by_hour, strict=True))}
    return json.dumps(document, separators=(",", ":")).encode()


def _without_details(rows: Iterable[Row]) -> list[Row]:
    sums: dict[tuple[int, int, Dimensions], UsageFigures] = {}
    for row in rows:
        place = (row.hour, row.hours, Dimensions(row.dimensions.namespace, model=row.dimensions.model))
        total = sums.get(place)
        sums[place] = row.figures if total is None else total.plus(row.figures)
    return [Row(*place, figures) for place, figures in sums.items()]


def _over_all_hours(rows: Sequence[Row]) -> list[Row]:
    """Returns the sum of the rows for each namespace, model and user; each result spans all hours of the rows."""
    first = min((row.hour for row in rows), default=0)
    hours = max((row.hour + row.hours for row in rows), default=0) - first
    sums: dict[Dimensions, UsageFigures] = {}
    for row in rows:
        details = row.dimensions
        place = Dimensions(details.namespace, model=details.model, user=details.user)
        total = sums.get(place)
        sums[place] = row.figures if total is None else total.plus(row.figures)
    return [Row(first, hours, place, figures) for place, figures in sums.items()]


def _day_between_edges(hour: int, edges: Sequence[int]) -> tuple[int, int]:
    """Returns the first hour and the end of the stretch that holds an hour: its day, cut at the edges within that day.

    Hours count from 1970; `edges` are hours, in order.
    """
    start = hour // HOURS_OF_A_DAY * HOURS_OF_A_DAY
    end = start + HOURS_OF_A_DAY
    index = bisect_right(edges, hour)
    if index and edges[index - 1] > start:
        start = edges[index - 1]
    if index < len(edges) and edges[index] < end:
        end = edges[index]
    return start, end


_NAME = re.compile(rb"([hd]) (\d+) (\d+)")


class PackedPart(NamedTuple):
    """The range of hours that a packed value covers, which names the value in the store.

    Attributes:
        hourly: True if the value holds a row for each hour; False for a row for each day.
        first: the first hour, counted from 1970.
        end: the hour after the last one.
    """

    hourly: bool
    first: int
    end: int

    @property
    def name(self) -> str:
        """The packed value's name in the store."""
        return f"{'h' if self.hourly else 'd'} {self.first} {self.end}"

    @property
    def month(self) -> str:
        """The month of the first hour, such as 2026-11; days of two months are never in one packed value."""
        return month_of(self.first)


def parse_part(name: bytes) -> PackedPart | None:
    """Parses a packed value's name in the store; None for a name in an earlier format."""
    match = _NAME.fullmatch(name)
    return PackedPart(match[1] == b"h", int(match[2]), int(match[3])) if match else None
