"""Computes which months are closed, and the names and contents of their exported files.

The functions are pure.

A month is a text, such as 2026-10, and means the month in UTC.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import heapq
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from timekeeper.domain.money import amount_cells
from timekeeper.domain.timestamps import DAY, HOUR, Instant, TimeError, format_instant, parse_instant
from timekeeper.domain.usage import UNKNOWN, Dimensions, Row, UsageFigures
from timekeeper.domain.usage_folding import month_of
from timekeeper.domain.windows import Window, month_start, parse_month

_NAME = re.compile(r"usage-([0-9]{4}-(?:0[1-9]|1[0-2]))\.csv\.gz", re.ASCII)


def window_of(month: str) -> Window:
    """Returns the start and the end, in UTC, of a month such as 2026-10."""
    start = parse_month(month)
    return Window(start, month_start(start, 1))


def month_at(instant: Instant) -> str:
    """Returns the month in UTC, such as 2026-10, that contains an instant."""
    return month_of(instant // HOUR)


def file_name(month: str) -> str:
    """Returns the name of the file with the usage of a month such as 2026-10."""
    return f"usage-{month}.csv.gz"


def month_named(name: str) -> str | None:
    """Returns the month, such as 2026-10, whose file has this name; None for any other file."""
    match = _NAME.fullmatch(name)
    return match[1] if match else None


def closed_until(now: Instant, hourly_days: int) -> Instant:
    """Returns the instant by which a month must have ended to be closed.

    All hours before that instant were folded into days at least a day ago. If late usage of a closed month is folded
    after that, the month's file changes.

    Args:
        hourly_days: the number of whole days before today whose usage is kept by the hour.
    """
    return now // DAY * DAY - (hourly_days + 1) * DAY


def closed_months(now: Instant, hourly_days: int, known: Iterable[str]) -> list[str]:
    """Returns every closed month, in order, from the first known month on.

    Args:
        hourly_days: the number of whole days before today whose usage is kept by the hour.
        known: months with usage or a file; if there are none, the result is empty.
    """
    last = month_at(month_start(closed_until(now, hourly_days), -1))
    return months_between(min(known, default="9999-12"), last)


def months_between(first: str, last: str) -> list[str]:
    """Returns all months, such as 2026-10, from the first to the last; empty if the last precedes the first."""
    months = []
    while first <= last:
        months.append(first)
        first = month_at(window_of(first).end)
    return months


PLACE = ("start", "end", "budget", "namespace", "node", "model", "owner", "user", "labels")
FIGURES = ("billed", "core", "memory", "used")
UNITS = ("gpu_hours", "micro_gpu_seconds")
HEADER = (*PLACE, *(f"{name}_{unit}" for name in FIGURES for unit in UNITS))
ESCAPED = ("=", "+", "-", "@", "\t", "\r", "'")
"""A cell that begins with one of these gets an escape: a formula (OWASP, CSV injection), or the escape itself."""

Account = tuple[str, Sequence[Row]]
"""An account's name, which is its budget's or `namespace:NAME`, and its rows of use in order."""


class DocumentError(ValueError):
    """A file is not the usage of a month, or must not be replaced; the message states the fault."""


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a month's file.

    Attributes:
        body: the file's bytes, compressed with gzip.
        sha256: the SHA-256 of the CSV before compression, in hexadecimal digits.
        rows: the number of rows of usage in the CSV.
    """

    body: bytes
    sha256: str
    rows: int


def write(accounts: Iterable[Account]) -> Document:
    """Writes the usage of accounts as compressed CSV into memory; returns the content of the file.

    Args:
        accounts: pairs of an account's name and its rows, sorted by name.
    """
    target = io.BytesIO()
    digest, rows = hashlib.sha256(), 0
    with gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=0, compresslevel=6) as file:
        for text, count in _texts(accounts):
            data = text.encode()
            digest.update(data)
            file.write(data)
            rows += count
    return Document(target.getvalue(), digest.hexdigest(), rows)


def read(body: bytes) -> Iterator[tuple[str, Row]]:
    """Yields the rows of a month's file, each after the name of its account.

    Args:
        body: the file's bytes, compressed.

    Raises:
        DocumentError: the file is not a month of usage, or is truncated; rows before the fault have been yielded.
    """
    places: dict[tuple[str, ...], Dimensions] = {}
    hours: dict[str, int] = {}
    try:
        with gzip.open(io.BytesIO(body), "rt", encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            if tuple(next(lines, ())) != HEADER:
                raise DocumentError(f"its first line is not {','.join(HEADER)}")
            for line in lines:
                yield _plain(line[2]), _row(line, places, hours)
    except (
        OSError,
        EOFError,
        zlib.error,
        csv.Error,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        TimeError,
    ) as error:
        raise error if isinstance(error, DocumentError) else DocumentError(f"it cannot be read: {error}") from error


def content_sha256(body: bytes) -> str:
    """Returns the SHA-256 of the CSV in a month's file, in hexadecimal digits.

    Args:
        body: the file's bytes, compressed.

    Raises:
        DocumentError: the file is not compressed with gzip, or is truncated.
    """
    digest = hashlib.sha256()
    try:
        with gzip.open(io.BytesIO(body)) as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except (OSError, EOFError, zlib.error) as error:
        raise DocumentError(f"it cannot be read: {error}") from error
    return digest.hexdigest()


def merge(kept: Iterable[tuple[str, Row]], new: Iterable[Account], *, allow_loss: bool = False) -> Iterator[Account]:
    """Yields each account with its new rows, or with its rows in the month's file if it has no new rows.

    The store has deleted the rows of an account that is in the file and has no new rows.

    Args:
        kept: the rows of the file, each after its account, sorted by account.
        new: pairs of an account and its new rows, sorted by account.
        allow_loss: whether the new rows of an account may have less GPU time than the file.

    Raises:
        DocumentError: for some dimensions, the file has more core or memory time of an account than the new rows, and
            `allow_loss` is False. A charge may be taken back, but a closed month's times decrease only by a loss.
    """
    fresh = ((name, 0, rows) for name, rows in new if rows)
    old = ((name, 1, [row for _, row in rows]) for name, rows in groupby(kept, key=lambda pair: pair[0]))
    for name, rows_of_account in groupby(heapq.merge(fresh, old, key=lambda item: item[:2]), key=lambda item: item[0]):
        newest, *before = (rows for _, _, rows in rows_of_account)
        for rows in () if allow_loss else before:
            _hold_to(name, rows, newest)
        yield name, newest


def _hold_to(account: str, before: Sequence[Row], now: Sequence[Row]) -> None:
    there = _time_by_dimensions(now)
    for dimensions, (core, memory) in _time_by_dimensions(before).items():
        left = there.get(dimensions, (0, 0))
        if left[0] < core or left[1] < memory:
            raise DocumentError(
                f"it holds {core} and {memory} microGPU-seconds of core and memory time of {account!r} in namespace "
                f"{dimensions.namespace!r}, and the store only {left[0]} and {left[1]}: part of it was lost"
            )


def _time_by_dimensions(rows: Iterable[Row]) -> dict[Dimensions, tuple[int, int]]:
    """Returns the rows' core and memory time in microGPU-seconds, added up over all hours and keyed by dimensions."""
    sums: dict[Dimensions, tuple[int, int]] = {}
    for row in rows:
        core, memory = sums.get(row.dimensions, (0, 0))
        sums[row.dimensions] = core + row.figures.core, memory + row.figures.memory
    return sums


def _texts(accounts: Iterable[Account]) -> Iterator[tuple[str, int]]:
    """Yields the CSV in pieces, each with its number of rows; the heading counts as none.

    Rows cannot be counted by lines, as names may hold line ends.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")  # RFC 4180
    writer.writerow(HEADER)
    for name, rows in accounts:
        writer.writerows(_line(name, row) for row in rows)
        yield buffer.getvalue(), len(rows)
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue(), 0


def _line(account: str, row: Row) -> list[Any]:
    to = row.dimensions
    labels = json.dumps(dict(to.labels), separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    names = (account, *(text or UNKNOWN for text in to[:5]), labels)
    hours = (format_instant(row.hour * HOUR), format_instant((row.hour + row.hours) * HOUR))
    return [*hours, *map(_harmless, names), *(cell for amount in row.figures for cell in amount_cells(amount))]


def _row(line: Sequence[str], places: dict[tuple[str, ...], Dimensions], hours: dict[str, int]) -> Row:
    if len(line) != len(HEADER):
        raise DocumentError(f"a line has {len(line)} cells, and {len(HEADER)} are allowed")
    place = tuple(line[3:9])
    dimensions = places.get(place)
    if dimensions is None:
        names = ["" if cell == UNKNOWN else _plain(cell) for cell in place[:5]]
        namespace, node, model, owner, user = names
        labels = tuple(sorted(json.loads(_plain(place[5])).items()))
        dimensions = places[place] = Dimensions(namespace, node, model, owner, user, labels)
    start, end = (_hour(cell, hours) for cell in line[:2])
    billed, core, memory = (int(line[index]) for index in (10, 12, 14))
    return Row(start, end - start, dimensions, UsageFigures(billed, core, memory, int(line[16]) if line[16] else None))


def _hour(text: str, hours: dict[str, int]) -> int:
    hour = hours.get(text)
    if hour is None:
        hour = hours[text] = parse_instant(text) // HOUR
    return hour


def _harmless(text: str) -> str:
    """Returns a text as a cell of CSV that no spreadsheet takes for a formula.

    A text that begins like a formula gets an apostrophe in front.
    """
    return f"'{text}" if text.startswith(ESCAPED) else text


def _plain(cell: str) -> str:
    return cell.removeprefix("'")
