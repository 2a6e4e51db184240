"""Holds the hours that use is put down to to the ledger: what they bill in a period is what the period spent."""

from __future__ import annotations

from collections.abc import Iterator

from timekeeper.audit.difference import Difference, Figure
from timekeeper.audit.snapshot import Snapshot, whole
from timekeeper.audit.sums import CHECKPOINT, MONEY, difference
from timekeeper.usage.folding import totals_of, unfold

HOUR = 3_600 * 10**9
LONGEST_DAYS = 62
"""Of longer periods not every hour is read."""


def hours_around(start: int) -> tuple[int, int]:
    """The first hour, counted from 1970, that a period which starts then may touch, and the hour after the last one."""
    return start // HOUR, start // HOUR + LONGEST_DAYS * 24 + 1


def check_hours(snapshot: Snapshot) -> Iterator[Difference]:
    """The hours of one period; one that does not begin and end with an hour has none of its own to compare."""
    start, end = snapshot.start, snapshot.end
    if end is None or start % HOUR or end % HOUR or end - start > LONGEST_DAYS * 24 * HOUR or _put_elsewhere(snapshot):
        return
    billed = 0
    for first, hours, subject, amount in _rows(snapshot):
        if start <= first * HOUR and (first + hours) * HOUR <= end:
            if amount is None:
                yield difference(snapshot, Figure.HOURS, subject, "unreadable", "billed core memory used", "its form")
            billed += amount or 0
    for blob in snapshot.folded:
        detailed, *others = totals_of(blob)
        for other in others:
            if other != detailed:
                reason = "the rows that the same packed value holds in detail"
                yield difference(snapshot, Figure.HOURS, "", str([*other]), str([*detailed]), reason)
    expected = sum(entry.amount for entry in snapshot.entries if entry.kind not in MONEY)
    if billed != expected:
        reason = "the ledger's entries of what was spent"
        yield difference(snapshot, Figure.HOURS, "", str(billed), str(expected), reason)


def _put_elsewhere(snapshot: Snapshot) -> bool:
    """Whether the period was restored after its end: that is put down to the hour in which it was."""
    end = snapshot.end or 0
    return any(entry.kind == CHECKPOINT and entry.at >= end for entry in snapshot.entries)


def _rows(snapshot: Snapshot) -> Iterator[tuple[int, int, str, int | None]]:
    """The first hour since 1970, how many hours, the name of the row, and the microGPU-seconds that are billed."""
    for field, text in snapshot.hours.items():
        hour = whole(field.partition(" ")[0])
        if hour is not None:
            yield hour, 1, field, whole(text.partition(" ")[0])
    for blob in snapshot.folded:
        for row in unfold(blob):
            yield row.hour, row.hours, "", row.figures.billed
